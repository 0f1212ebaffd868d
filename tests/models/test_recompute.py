"""Selective recomputation: the same gradients, and no product computed twice."""

import copy
from collections import Counter
from functools import partial

import peft
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from helpers import FAMILIES, padded_batch, tiny_model, token_rows
from weakdriven.models.recompute import ATTENTION, PRODUCTS, keep, policy

BATCH = padded_batch(token_rows(4))


class Calls(TorchDispatchMode):
    """Counts the products and attentions that are really computed."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func] += func in PRODUCTS | ATTENTION
        return func(*args, **(kwargs or {}))

    @property
    def total(self):
        return self.count.total()


def backward(model, checkpointing, *, autocast=False):
    """Gradients of one batch and how many products and attentions they took."""
    model.train()
    if isinstance(checkpointing, str):
        keep(model, checkpointing)
    if checkpointing:
        model.gradient_checkpointing_enable()
    with Calls() as calls:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(**BATCH, use_cache=False).loss
        loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}, calls.total


def assert_same(got, want):
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_keeping_attention_alone_gives_the_same_gradients_and_computes_only_it_once(family):
    want, unchecked = backward(tiny_model(family), False)
    got, computed = backward(tiny_model(family), "keep_attention")
    assert_same(got, want)
    layers = tiny_model(family).config.num_hidden_layers
    assert unchecked < computed == backward(tiny_model(family), True)[1] - layers


@pytest.mark.parametrize("family, autocast", [*((family, False) for family in FAMILIES), ("qwen3", True)])
def test_gradients_are_the_unchecked_ones_and_no_product_is_computed_twice(family, autocast):
    want, computed = backward(tiny_model(family), False, autocast=autocast)
    got, computed_again = backward(tiny_model(family), "keep_products", autocast=autocast)
    assert_same(got, want)
    assert computed_again == computed
    assert backward(tiny_model(family), True, autocast=autocast)[1] > computed  # so the count can tell


def lora(family):
    """As checkpointing needs it, with a gradient for what enters the first layer."""
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules="all-linear", init_lora_weights=False)
    model = peft.get_peft_model(tiny_model(family), config)
    model.enable_input_require_grads()
    return model


@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
def test_products_with_frozen_weights_under_lora_are_not_computed_twice_either(family):
    want, computed = backward(lora(family), False)
    model = lora(family)
    keep(model.get_base_model(), "keep_products")
    got, computed_again = backward(model, True)
    assert_same(got, want)
    assert computed_again == computed


@pytest.mark.parametrize("family, needed", [("qwen3", 6), ("llama", 6), ("qwen2", 6), ("gemma3", 7)])
def test_the_last_product_of_a_layer_is_kept_only_if_a_norm_needs_it(family, needed):
    model, kept = tiny_model(family, width=24).train(), []
    decide = policy(model, "keep_products")

    def spy(ctx, op, *args, **kwargs):
        answer = decide(ctx, op, *args, **kwargs)
        if answer is CheckpointPolicy.MUST_SAVE and op in PRODUCTS:
            kept.append(op)
        return answer

    options = {"use_reentrant": False, "context_fn": partial(create_selective_checkpoint_contexts, spy)}
    model.gradient_checkpointing_enable(options)
    model(**BATCH, use_cache=False)
    assert len(kept) == needed * model.config.num_hidden_layers


def test_the_scores_of_eager_attention_are_recomputed():
    decide = policy(tiny_model(), "keep_products")
    scores = torch.zeros(2, 3, 3)
    assert decide(None, torch.ops.aten.bmm.default, scores, scores) is CheckpointPolicy.PREFER_RECOMPUTE
    want, _ = backward(tiny_model(attn_implementation="eager"), False)
    got, _ = backward(tiny_model(attn_implementation="eager"), "keep_products")
    assert_same(got, want)


def test_the_last_choice_counts_and_is_copied_with_the_model():
    model = tiny_model()
    keep(model, "keep_products")
    keep(model, "keep_attention")
    twin = copy.deepcopy(model)
    got, computed = backward(twin, True)
    assert twin.is_gradient_checkpointing and not model.is_gradient_checkpointing
    assert_same(got, backward(tiny_model(), False)[0])
    assert computed == backward(tiny_model(), "keep_attention")[1] > backward(tiny_model(), "keep_products")[1]
