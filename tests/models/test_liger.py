"""Liger's layers in one model: the same loss and gradients, with and without recomputation; no other model changes.

Without a GPU its kernels run in Triton's interpreter (conftest.py), which lacks three things that they use.
"""

import sys

import numpy as np
import pytest
import torch

from helpers import FAMILIES, padded_batch, tiny_model, token_rows
from weakdriven.errors import UserError
from weakdriven.models import liger as layers
from weakdriven.models.liger import fast_layers, use_liger
from weakdriven.models.recompute import keep

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
QUICK = ("qwen3", "gemma3")
BATCH = {name: column.to(DEVICE) for name, column in padded_batch(token_rows(1)).items()}


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    """Teach Triton's interpreter floats as arguments and two functions of the CUDA library."""
    if DEVICE == "cuda":
        return
    import triton.language as tl
    from liger_kernel.ops import geglu, rms_norm
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt

    def with_floats(arg):
        if not isinstance(arg, float):
            return convert(arg)
        return tl.tensor(interpreter.TensorHandle(np.array([arg], dtype=np.float32), tl.float32), tl.float32)

    monkeypatch.setattr(interpreter, "_implicit_cvt", with_floats)
    monkeypatch.setattr(rms_norm, "rsqrt", lambda x: 1 / tl.sqrt(x))
    monkeypatch.setattr(geglu, "tanh", lambda x: 2 * tl.sigmoid(2 * x) - 1)


def backward(family, *, liger=False, checkpointing=False):
    model = tiny_model(family).to(DEVICE).train()
    if liger:
        use_liger(model)
    if checkpointing == "keep_products":
        keep(model, "keep_products")
    if checkpointing:
        model.gradient_checkpointing_enable()
    loss = model(**BATCH, use_cache=False).loss
    loss.backward()
    return {"loss": loss.detach(), **{name: p.grad for name, p in model.named_parameters()}}


@pytest.mark.parametrize(
    "family", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name not in QUICK)]
)
def test_loss_and_gradients_are_those_of_the_stock_layers(family):
    want = backward(family)
    for checkpointing in (False, "keep_products"):
        torch.testing.assert_close(backward(family, liger=True, checkpointing=checkpointing), want)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_rotating_a_kept_product_in_place_would_give_wrong_gradients(family, monkeypatch):
    monkeypatch.setattr(layers, "FRESH_QUERIES", {family})
    got, want = backward(family, liger=True, checkpointing="keep_products"), backward(family)
    torch.testing.assert_close(got["loss"], want["loss"])
    with pytest.raises(AssertionError):
        torch.testing.assert_close(got, want, rtol=0.1, atol=0.01)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_norm_mlp_and_attention_of_the_model_is_replaced_and_no_parameter_is_renamed(family):
    model = tiny_model(family)
    names = list(model.state_dict())
    use_liger(model)
    assert list(model.state_dict()) == names
    stock = [
        name
        for name, module in model.named_modules()
        if name.endswith(("norm", "mlp", "self_attn")) and "forward" not in vars(module)
    ]
    assert stock == []


@pytest.mark.parametrize("family", FAMILIES)
def test_other_models_of_the_type_keep_their_layers(family):
    other = tiny_model(family)
    want = other(**padded_batch(token_rows(2))).logits
    module = sys.modules[type(other).__module__]
    before = dict(vars(module))
    use_liger(tiny_model(family))
    assert [name for name, value in vars(module).items() if value is not before.get(name)] == []
    for untouched in (other, tiny_model(family)):
        assert torch.equal(untouched(**padded_batch(token_rows(2))).logits, want)


def test_only_the_stock_layers_without_cuda(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert not fast_layers("auto", "qwen3") and not fast_layers("off", "qwen3")
    with pytest.raises(UserError, match="liger cannot be used, because there is no CUDA device here; set"):
        fast_layers("liger", "qwen3")


def test_with_cuda_the_model_type_decides(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert fast_layers("auto", "qwen3") and fast_layers("liger", "gemma3_text")
    assert not fast_layers("off", "qwen3") and not fast_layers("auto", "phi")
    with pytest.raises(UserError, match="because Liger has no layers for model type phi; set fast_layers: auto"):
        fast_layers("liger", "phi")


def test_with_cuda_but_without_the_package_the_layers_stay(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(layers, "is_liger_kernel_available", lambda: False)
    assert not fast_layers("auto", "qwen3")
    with pytest.raises(UserError, match=r"liger-kernel is not installed \(pip install 'weakdriven\[cuda\]'\)"):
        fast_layers("liger", "qwen3")
