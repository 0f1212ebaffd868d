"""Rows packed into one sequence: hidden states and gradients of each row alone, with no mask over all of them."""

from typing import Any

import pytest
import torch

from helpers import tiny_model
from weakdriven.models.head import hidden_states
from weakdriven.models.row_attention import rows_apart

ROWS = [torch.arange(1, 8), torch.arange(20, 23), torch.arange(40, 41), torch.arange(5, 17)]
PACKED = {
    "input_ids": torch.cat(ROWS)[None],
    "position_ids": torch.cat([torch.arange(len(row)) for row in ROWS])[None],
    "use_cache": False,
}


def network(family, **sizes):
    window: dict[str, Any] = {"sliding_window": 4} if family == "gemma3" else {}
    return tiny_model(family, **sizes, **window).train()


def states_and_gradients(model, batches):
    model.zero_grad()  # drops the gradients of the call before
    states = torch.cat([hidden_states(model, batch).flatten(0, 1) for batch in batches])
    states.square().sum().backward()
    return states.detach(), {
        name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None
    }


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_packed_rows_have_the_states_and_gradients_of_each_row_alone(family, checkpointing, monkeypatch):
    model = network(family)
    alone = states_and_gradients(model, [{"input_ids": row[None], "use_cache": False} for row in ROWS])
    if checkpointing:
        model.gradient_checkpointing_enable()
    masks, attend = [], torch.nn.functional.scaled_dot_product_attention

    def watched(*args, attn_mask=None, **kwargs):
        masks.append(0 if attn_mask is None else attn_mask.shape[-1])
        return attend(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    with rows_apart(model):
        packed = states_and_gradients(model, [PACKED])
    assert masks and max(masks) <= max(map(len, ROWS)), "a mask of one row at most"
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)
    assert model.config._attn_implementation == "sdpa", "as before, after the context"


def test_one_row_that_is_longer_than_the_sliding_window_is_masked_as_before():
    model, one = network("gemma3"), {"input_ids": ROWS[3][None], "use_cache": False}
    before = hidden_states(model, one)
    with rows_apart(model):
        torch.testing.assert_close(hidden_states(model, one), before)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_the_kernel_of_torch_agrees_with_one_call_a_row(family):
    """Heads of 64, bf16: rounding is that of bf16, and gradients are compared by their direction and size."""
    model = network(family, hidden_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    model = model.to("cuda", torch.bfloat16)
    packed = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in PACKED.items()}
    alone = states_and_gradients(model, [{"input_ids": row[None].cuda(), "use_cache": False} for row in ROWS])
    with rows_apart(model):
        found = states_and_gradients(model, [packed])
    assert (found[0] - alone[0]).norm() < 0.02 * alone[0].norm()
    for name, gradient in alone[1].items():
        assert (found[1][name] - gradient).norm() < 0.03 * gradient.norm() + 1e-6, name
