"""Weights that FSDP2 may have sharded: gathers them, and reads a checkpoint's weights by name."""

import copy
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from weakdriven.errors import UserError
from weakdriven.models.load import SAFE
from weakdriven.runs.processes import is_main


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor; if FSDP2 has sharded it, all processes must call this, and each gets it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradient_norm(weights: Iterable[Any]) -> Tensor | None:
    """Return the norm of all gradients together, or None if there are none; all processes must call this."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    return whole(nn.utils.get_total_norm(gradients)) if gradients else None


def is_sharded(model: nn.Module) -> bool:
    return any(isinstance(weight, DTensor) for weight in model.parameters())


@torch.no_grad()
def gathered_weights(model: nn.Module, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Gather all weights in main memory on the main process, floats as `dtype`; all processes must call this.

    Only one weight at a time is whole on a device, so even a model that fills all devices can be gathered.
    """
    found: dict[str, Tensor] = {}
    by_identity: dict[int, Tensor] = {}  # tied weights stay tied
    for name, weight in model.state_dict(keep_vars=True).items():
        if id(weight) not in by_identity:
            full = whole(weight.detach())
            wanted = dtype if dtype is not None and full.is_floating_point() else full.dtype
            by_identity[id(weight)] = full.to("cpu", wanted, copy=True) if is_main() else full.new_empty(0)
            del full
        found[name] = by_identity[id(weight)]
    return found if is_main() else {}


def architecture_of(model: Any) -> Any:
    """Return the model's class; FSDP2 gives a sharded root an artificial one."""
    return next(kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule))


def gathered_model(model: Any, dtype: torch.dtype | None = None) -> Any:
    """Return the whole model in main memory, to be saved, on the main process and None on the others."""
    weights = gathered_weights(model, dtype)
    if not is_main():
        return None
    with torch.device("meta"):
        plain = architecture_of(model)(copy.deepcopy(model.config))
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain


def checkpoint_weights(model: Any, folder: Path) -> dict[str, Tensor]:
    """Read the weights of an ordinary checkpoint by the model's own names; one that does not fit raises an error.

    They are read with `from_pretrained`, because `save_pretrained` writes some of them under other names.
    """
    dtype = reduce(torch.promote_types, {weight.dtype for weight in model.parameters()})
    options: Any = {"dtype": dtype, "attn_implementation": "eager", "output_loading_info": True, **SAFE}
    try:
        loaded, found = architecture_of(model).from_pretrained(folder, **options)
    except Exception as error:
        raise UserError(f"The checkpoint {folder} cannot be read ({error}). If it is damaged, remove it.") from error
    missing, extra = found["missing_keys"], found["unexpected_keys"]
    if missing or extra:
        raise UserError(
            f"The checkpoint {folder} does not fit: {len(missing)} weights are missing and {len(extra)} are unknown "
            f"(first: {sorted({*missing, *extra})[0]}). Remove it and run again."
        )
    return loaded.state_dict()
