"""Optimizers: builds those that transformers does not name, checks whether one can run here, counts their memory."""

import os
import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from weakdriven.config.settings import TrainSettings
from weakdriven.errors import UserError

if TYPE_CHECKING:
    import torch

BLOCK = 256
"""How many numbers of an 8-bit or fp8 optimizer state share one fp32 scale."""


def optimizer_class(settings: TrainSettings) -> "tuple[type[torch.optim.Optimizer], dict[str, Any]] | None":
    """Return Trainer's `optimizer_cls_and_kwargs` for adamw_bf16 and adamw_fp8, and None for the others."""
    if settings.optimizer not in ("adamw_bf16", "adamw_fp8"):
        return None
    # torchao.optim exports _AdamW, which is AdamW8bit without the 8 bits, under a private name
    from torchao.optim import AdamWFp8, _AdamW

    # only bf16 weights are rounded stochastically
    options = {"lr": settings.learning_rate, "betas": settings.adam_betas, "eps": 1e-8, "bf16_stochastic_round": True}
    return (_AdamW if settings.optimizer == "adamw_bf16" else AdamWFp8), options


def check_optimizer(key: str, optimizer: str) -> None:
    """Raise an error if an optimizer's package, GPU or compiler is missing (torchao compiles its step)."""
    if optimizer in ("adamw", "rmsprop"):
        return
    import torch

    if find_spec("torchao") is None:
        raise UserError(f"{key}: {optimizer} needs torchao, which is not installed; pip install 'weakdriven[cuda]'.")
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    if optimizer == "adamw_fp8" and capability and capability < (8, 9):
        raise UserError(
            f"{key}: adamw_fp8 needs a GPU of compute capability 8.9 or more, found {capability[0]}.{capability[1]}; "
            "set optimizer: adamw_8bit."
        )
    compilers = [os.environ.get("CXX", "g++")]
    if torch.cuda.is_available():
        compilers.append(os.environ.get("CC") or ("gcc" if shutil.which("gcc") else "clang"))
    if missing := [name for name in compilers if not shutil.which(name)]:
        raise UserError(
            f"{key}: {optimizer} compiles its step, but there is no compiler {missing[0]} here; install it, name "
            "another in CXX (C++) or CC (C), or set optimizer: adamw."
        )


def state_bytes(optimizer: str, weight: int) -> float:
    """Count the bytes of an optimizer's state for one trained weight, which itself has `weight` bytes.

    >>> state_bytes("adamw", 4), state_bytes("adamw_8bit", 4), state_bytes("rmsprop", 2)
    (8, 2.03125, 2)
    """
    if optimizer in ("adamw_8bit", "adamw_fp8"):
        return 2 * (1 + 4 / BLOCK)
    if optimizer == "adamw_bf16":
        return 4
    return weight if optimizer == "rmsprop" else 2 * weight
