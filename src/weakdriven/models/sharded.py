"""Weights that FSDP2 or ZeRO-3 has dealt out over processes: one process's part, and all again to be read or saved."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from weakdriven.runs.processes import is_main


def in_zero3(weight: Any) -> bool:
    """Whether DeepSpeed has dealt it out: an ordinary tensor then, empty between two uses, with its part beside it."""
    return hasattr(weight, "ds_tensor")


def local_part(weight: Any) -> Tensor:
    """What this process holds: all of an ordinary tensor, or its shard."""
    if in_zero3(weight):
        return weight.ds_tensor
    return weight.to_local() if isinstance(weight, DTensor) else weight


def elements(weight: Any) -> int:
    """Numbers in all of a weight, however much of it is here."""
    return weight.ds_numel if in_zero3(weight) else weight.numel()


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; where FSDP2 has sharded it, all processes call this and each gets it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradient_norm(weights: Iterable[Any]) -> Tensor | None:
    """Of all of their gradients together, or None where none has one; all processes call it."""
    weights = list(weights)
    if not any(map(in_zero3, weights)):
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        return whole(nn.utils.get_total_norm(gradients)) if gradients else None
    from deepspeed.utils import safe_get_local_grad  # pyright: ignore[reportMissingImports]

    gradients = [safe_get_local_grad(weight) for weight in weights if weight.requires_grad]
    if not gradients:
        return None
    squares = nn.utils.get_total_norm(gradients).square()
    dist.all_reduce(squares)
    return squares.sqrt()


@contextmanager
def held_whole(*weights: Any) -> Iterator[None]:
    """Within it weights of ZeRO-3 are whole in every process, to be read; all of them call it."""
    parts = [weight for weight in weights if in_zero3(weight)]
    if not parts:
        yield
        return
    from deepspeed.runtime.zero import GatheredParameters  # pyright: ignore[reportMissingImports]

    with GatheredParameters(parts):
        yield


def is_sharded(model: nn.Module) -> bool:
    return any(isinstance(weight, DTensor) or in_zero3(weight) for weight in model.parameters())


@torch.no_grad()
def gathered_weights(model: nn.Module, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """In the first process all weights, in main memory; in the others nothing. All of them call it.

    One weight at a time is whole on a device, so that the room of a model that fills all devices together is enough.

    Args:
        dtype: Of the floating-point weights that are returned; unset: their own.
    """
    found: dict[str, Tensor] = {}
    by_identity: dict[int, Tensor] = {}  # tied weights stay one
    persistent = model.state_dict().keys()
    for name, weight in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
        if name not in persistent:
            continue
        if id(weight) not in by_identity:
            with held_whole(weight):
                full = whole(weight.detach())
                wanted = dtype if dtype is not None and full.is_floating_point() else full.dtype
                by_identity[id(weight)] = full.to("cpu", wanted, copy=True) if is_main() else full.new_empty(0)
                del full
        found[name] = by_identity[id(weight)]
    return found if is_main() else {}


def architecture_of(model: Any) -> Any:
    """Its class; that of a sharded root is one that FSDP2 has made up."""
    return next(kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule))


def gathered_model(model: Any, dtype: torch.dtype | None = None) -> Any:
    """In the first process the model again in one piece, in main memory, to be saved; in the others None."""
    weights = gathered_weights(model, dtype)
    if not is_main():
        return None
    with torch.device("meta"):
        plain = architecture_of(model)(copy.deepcopy(model.config))
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain
