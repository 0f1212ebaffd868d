"""Reads a causal LM's head and the hidden states before it through transformers' public interfaces."""

from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from weakdriven.errors import UserError
from weakdriven.losses.head import Head


def causal_lm(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """Return the model with a decoder body and a head, inside any adapters."""
    return model.get_base_model() if isinstance(model, PeftModel) else model  # pyright: ignore


def head(model: PreTrainedModel | PeftModel) -> Head:
    """Return the layer that turns hidden states into logits, with the model's scale and cap of them."""
    inner = causal_lm(model)
    if getattr(inner.config, "is_encoder_decoder", False):
        raise UserError(f"{type(inner).__name__} is an encoder-decoder model; weak-driven training needs a causal LM.")
    layer: Any = inner.get_output_embeddings()
    if hasattr(layer, "modules_to_save"):  # PEFT trains a copy of the whole layer
        layer = layer.modules_to_save[layer.active_adapters[0]]
    weight = getattr(layer, "weight", None)
    if hasattr(layer, "token_adapter"):  # PEFT trains some rows (trainable_token_indices); `weight` has them
        layer = layer.original_module
    plain = isinstance(layer, nn.Linear) and not isinstance(layer, BaseTunerLayer)
    if not plain or not layer.weight.is_floating_point():
        raise UserError(
            f"The output head of {type(inner).__name__} is {type(layer).__module__}.{type(layer).__name__}, but the "
            "mixed loss reads the weights of a plain linear layer. Use a causal LM, and leave lm_head out of adapters "
            "(target_modules) and of quantization (llm_int8_skip_modules)."
        )
    config: Any = inner.config.get_text_config()
    scale = getattr(config, "logit_scale", None) or 1.0
    if divisor := getattr(config, "logits_scaling", None):
        scale = divisor if config.model_type.startswith("hyperclovax") else 1 / divisor
    caps = (getattr(config, name, None) for name in ("final_logit_softcapping", "logits_soft_cap"))
    return Head(weight, layer.bias, scale, next((cap for cap in caps if cap), None))  # pyright: ignore


def hidden_states(model: PreTrainedModel | PeftModel, inputs: dict[str, Any]) -> Tensor:
    """Compute the input of the model's head, in the precision of its matrix product."""
    output = causal_lm(model).base_model(**inputs)
    if not hasattr(output, "last_hidden_state"):
        raise UserError(
            f"{type(causal_lm(model)).__name__} has no decoder known to transformers, so its hidden states cannot be "
            "read; this version does not support that architecture."
        )
    hidden = output.last_hidden_state
    kind = hidden.device.type
    mixed = torch.is_autocast_enabled(kind)
    return hidden.to(torch.get_autocast_dtype(kind) if mixed else head(model).weight_VD.dtype)


@torch.no_grad()
def refuse_other_logits(model: PreTrainedModel | PeftModel, name: str) -> Tensor:
    """Raise an error unless a model's logits are its head applied to causal hidden states, as the losses assume.

    Returns:
        Its logits for eight tokens.
    """
    inner = causal_lm(model)
    was_training = model.training
    model.eval()
    own: Any = inner.config._attn_implementation
    if own not in ("eager", "sdpa"):  # flash attention does not run on the CPU or in float32
        inner.set_attn_implementation("eager")  # every model has it
    try:
        ids = torch.arange(8, device=inner.device).repeat(2, 1)
        ids[1, -1] = 0
        hidden, other = hidden_states(model, {"input_ids": ids, "use_cache": False})
        ours = head(model).logits(hidden)
        theirs = inner(input_ids=ids[:1], use_cache=False).logits[0].float()
    finally:
        if own != inner.config._attn_implementation:
            inner.set_attn_implementation(own)
        model.train(was_training)
    if not theirs.isfinite().all():
        raise UserError(f"{name}: the model's logits are not finite; the checkpoint is damaged.")
    if not torch.allclose(ours.float(), theirs, rtol=0.05, atol=0.05 * theirs.std().item()):
        raise UserError(
            f"{name}: {type(inner).__name__} computes its logits in a way that this version does not support, so it "
            "would be mixed wrongly; use a model with a linear head whose logits are at most scaled or capped."
        )
    if not torch.allclose(hidden[:-1].float(), other[:-1].float(), rtol=0.05, atol=0.05 * hidden.float().std().item()):
        raise UserError(
            f"{name}: {type(inner).__name__} sees later tokens (bidirectional attention), so it cannot be trained or "
            "scored token by token; use a causal LM."
        )
    return theirs


def refuse_different_heads(strong: Any, weak: Any, vocabulary: int | None) -> None:
    """Raise an error if heads differ in length, unless both hold the whole vocabulary and differ in padding."""
    rows = [len(head(model).weight_VD) for model in (weak, strong)]
    if rows[0] != rows[1] and (vocabulary is None or vocabulary > min(rows)):
        known = "" if vocabulary is None else f" for a tokenizer of {vocabulary} tokens"
        raise UserError(
            f"Cannot mix logits: weak has {rows[0]} vocabulary rows, strong has {rows[1]}{known}. "
            "Use two checkpoints of one run, or two models that share a tokenizer."
        )
