"""Selective recomputation: keeps the results of matrix products and attention, and recomputes the cheap rest."""

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, Literal

import torch
from peft import PeftModel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

from weakdriven.models.head import causal_lm

aten = torch.ops.aten
PRODUCTS = {aten.mm.default, aten.addmm.default, aten._grouped_mm.default}
"""Without bmm, whose results in eager attention have a row and a column for each token."""
ATTENTION = {
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_fused_attention_overrideable.default,
}
OTHER_ATTENTION = ("flash_attn", "varlen_attn")
"""Parts of the names of other attention operators: flash-attn, the Hub's kernels, torch's kernel for packed rows."""
Kept = Literal["keep_attention", "keep_products"]
NORM_AFTER_MLP = ("post_feedforward_layernorm", "post_mlp_layernorm")


def keep(model: PreTrainedModel | PeftModel, kept: Kept | bool) -> None:
    """Let gradient checkpointing keep the results of attention, or also of matrix products; a bool changes nothing.

    Trainer enables checkpointing with arguments that it also writes to trackers as JSON, which cannot hold a function.
    So the model's own `gradient_checkpointing_enable` adds the function; as a bound method, it survives a deep copy.
    """
    inner: Any = causal_lm(model)
    if isinstance(kept, str):
        inner.kept_in_checkpoints = kept
        inner.gradient_checkpointing_enable = MethodType(_enable, inner)


def _enable(model: Any, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
    contexts = partial(create_selective_checkpoint_contexts, policy(model, model.kept_in_checkpoints))
    options = {**(gradient_checkpointing_kwargs or {}), "use_reentrant": False, "context_fn": contexts}
    type(model).gradient_checkpointing_enable(model, gradient_checkpointing_kwargs=options, **kwargs)


def policy(model: PreTrainedModel, kept: Kept) -> Callable[..., CheckpointPolicy]:
    """Decide which results of a layer are kept; a wrong choice costs time or memory, but gradients stay right.

    The MLP's last product need not be kept: the layer's backward needs only its input, and recomputation stops there.
    This does not hold if a norm follows, nor for a frozen weight (LoRA), whose product is not the last.
    """
    config = model.config.get_text_config()
    ends_in_mlp = not any(name.endswith(NORM_AFTER_MLP) for name, _ in model.named_modules())
    last = (getattr(config, "intermediate_size", None), config.hidden_size)

    def decide(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op in ATTENTION or any(name in str(op) for name in OTHER_ATTENTION):
            return CheckpointPolicy.MUST_SAVE
        if kept == "keep_attention" or op not in PRODUCTS:
            return CheckpointPolicy.PREFER_RECOMPUTE
        weight = args[2 if op is aten.addmm.default else 1]
        unneeded = ends_in_mlp and weight.shape == last and weight.requires_grad
        return CheckpointPolicy.PREFER_RECOMPUTE if unneeded else CheckpointPolicy.MUST_SAVE

    return decide
