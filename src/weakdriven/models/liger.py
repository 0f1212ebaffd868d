"""Gives one model Liger's faster layers: fused norm, rotary embedding and MLP activation."""

import logging
import sys
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.liger import apply_liger_kernel
from transformers.utils.import_utils import is_liger_kernel_available

from weakdriven.errors import UserError
from weakdriven.models.gemma3.multimodal import is_multimodal
from weakdriven.runs.files import read_json

ROTARY = "apply_rotary_pos_emb"
FRESH_QUERIES = {"qwen3", "gemma3_text"}
"""Model types whose queries and keys come from a norm, so that overwriting them changes no kept product."""


def fast_layers(choice: str, model_type: str) -> bool:
    """Return whether models of this type train with Liger's layers here; raise an error if required but unavailable."""
    if choice == "off":
        return False
    missing = None
    if not torch.cuda.is_available():
        missing = "there is no CUDA device here"
    elif not is_liger_kernel_available():
        missing = "liger-kernel is not installed (pip install 'weakdriven[cuda]')"
    else:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

        if model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
            missing = f"Liger has no layers for model type {model_type}"
    if missing and choice == "liger":
        raise UserError(f"fast_layers: liger cannot be used, because {missing}; set fast_layers: auto.")
    return not missing


def model_type(folder: Path) -> str:
    """Read the model type of the model that is trained from its configuration."""
    return "gemma3_text" if is_multimodal(folder) else read_json(folder / "config.json").get("model_type", "")


def use_liger(model: PreTrainedModel) -> None:
    """Replace layers of this model in place; its parameters stay the same objects under the same names.

    Liger also patches the module of the model's classes, so all later models of the type would get its layers, even on
    the CPU, where they cannot run. That patch is undone; only the rotary function is kept from it.
    """
    logging.getLogger("liger_kernel.backends").setLevel(logging.ERROR)  # logs each backend that is missing
    namespace = vars(sys.modules[type(model).__module__])
    before = dict(namespace)
    try:
        apply_liger_kernel(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})  # we have our own loss
        rotary: Any = namespace.get(ROTARY)
    finally:
        namespace.update(before)
    if rotary is not before.get(ROTARY):
        rotate = rotary if model.config.model_type in FRESH_QUERIES else partial(_on_copies, rotary)
        for module in model.modules():
            _give_rotary(module, rotate)


def _on_copies(rotary: Any, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Rotate copies: Liger rotates in place, so the backward pass would rotate a kept product (recompute.py) again."""
    return rotary(query.clone(), key.clone(), *args, **kwargs)


def _give_rotary(module: nn.Module, rotary: Any) -> None:
    """Rebind the module's forward with another rotary function in its globals."""
    forward: Any = type(module).forward
    if ROTARY not in getattr(getattr(forward, "__code__", None), "co_names", ()):
        return
    names = {**forward.__globals__, ROTARY: rotary}
    own = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    own.__kwdefaults__ = forward.__kwdefaults__
    module.forward = MethodType(own, module)
