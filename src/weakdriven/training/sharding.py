"""Weights that FSDP2 has dealt out over processes: one process's part of them, and all of them again to be saved."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def local_part(weight: Tensor) -> Tensor:
    """What this process holds of a weight: all of it, or its shard."""
    return weight.to_local() if isinstance(weight, DTensor) else weight
