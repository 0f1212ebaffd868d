"""ZeRO-3's checkpoints for another number of processes, or for one without DeepSpeed.

DeepSpeed's universal checkpoints would do, but give all weights the decay and the learning rate of the first group.

Each process has written what it held: an equal piece of every weight and optimizer state, the last one filled up with
zeros, laid end to end in groups whose names and shapes stand beside them.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weakdriven.errors import UserError
from weakdriven.runs.launcher import refuse_missing_deepspeed

LATEST = "latest"
"""File of a checkpoint that names the folder of its step."""
MODEL, OPTIMIZER = (f"zero_pp_rank_{{}}_mp_rank_00_{name}_states.pt" for name in ("model", "optim"))
INNER = "optimizer_state_dict"
"""DeepSpeed's optimizer holds torch's under the same name."""


def is_of_zero3(checkpoint: Path) -> bool:
    return (checkpoint / LATEST).is_file()


def step_folder(checkpoint: Path) -> Path:
    return checkpoint / (checkpoint / LATEST).read_text(encoding="utf-8").strip()


def writers(checkpoint: Path) -> int:
    """How many processes wrote it."""
    return len(list(step_folder(checkpoint).glob(OPTIMIZER.format("*"))))


def piece(whole: Tensor, count: int, number: int) -> Tensor:
    """One of `count` equal pieces of a flat tensor.

    >>> [piece(torch.arange(1, 6), 3, number).tolist() for number in range(3)]
    [[1, 2], [3, 4], [5, 0]]
    """
    size = math.ceil(len(whole) / count)
    found = whole[number * size : (number + 1) * size]
    return torch.nn.functional.pad(found, (0, size - len(found)))


class Pieces:
    """What all processes wrote into a checkpoint; files are mapped, so that only what is asked for is read."""

    def __init__(self, checkpoint: Path):
        folder, self.count = step_folder(checkpoint), writers(checkpoint)
        self.models = [_read(folder / MODEL.format(rank)) for rank in range(self.count)]
        self.optimizers = [_read(folder / OPTIMIZER.format(rank)) for rank in range(self.count)]
        self.places: dict[str, tuple[int, int, torch.Size]] = {}
        """Of each trained weight: its group, where it begins in each process's piece of that, its shape."""
        for group, shapes in enumerate(self.models[0]["param_shapes"]):
            start = 0
            for name, shape in shapes.items():
                self.places[name] = group, start, shape
                start += math.ceil(shape.numel() / self.count)

    def group_states(self, group: int) -> list[dict[str, Any]]:
        """Of each process: the optimizer's state of a group, with its weights as `weight`."""
        found = [one[INNER] for one in self.optimizers]
        return [{"weight": one["fp32_flat_groups"][group], **one[INNER]["state"][group]} for one in found]

    def states(self, name: str) -> dict[str, Tensor]:
        """A trained weight (`weight`) and what the optimizer keeps of it, flat; its step as it is."""
        group, start, shape = self.places[name]
        size = math.ceil(shape.numel() / self.count)
        parts, found = self.group_states(group), dict[str, Tensor]()
        for key, value in parts[0].items():
            if value.numel() == parts[0]["weight"].numel():
                value = torch.cat([part[key][start : start + size] for part in parts])[: shape.numel()]
            found[key] = value
        return found

    def frozen(self) -> dict[str, Tensor]:
        """Weights that do not learn, flat."""
        parts = [one.get("frozen_param_fragments") or {} for one in self.models]
        shapes = self.models[0].get("frozen_param_shapes") or {}
        return {
            name: torch.cat([part[name].flatten() for part in parts])[: shape.numel()] for name, shape in shapes.items()
        }

    def deal_out(self, folder: Path, groups: Sequence[Sequence[str]], param_groups: Any, count: int, rank: int) -> None:
        """Write what process `rank` of `count` would have written.

        Args:
            groups: Names of the weights in each of its groups.
            param_groups: Those of its optimizer, which say which groups they hold.
        """
        states, weights = {}, []
        for number, names in enumerate(groups):
            found = [self.states(name) for name in names]
            merged = {
                key: torch.cat([piece(one[key], count, rank) for one in found]) if value.dim() else value
                for key, value in found[0].items()
            }
            weights.append(merged.pop("weight"))
            states[number] = merged
        first: Any = self.optimizers[0]
        kept = [
            {**theirs, "params": ours["params"]}
            for theirs, ours in zip(first[INNER][INNER]["param_groups"], param_groups, strict=True)
        ]
        inner = {"state": states, "param_groups": kept}
        outer = {**first[INNER], "partition_count": count, "fp32_flat_groups": weights, INNER: inner}
        shapes = [{name: self.places[name][2] for name in names} for names in groups]
        frozen = {name: piece(whole, count, rank) for name, whole in self.frozen().items()}
        model = {"param_shapes": shapes, "dp_world_size": count, "frozen_param_fragments": frozen}
        torch.save({**first, INNER: outer}, folder / OPTIMIZER.format(rank))
        torch.save({**self.models[0], **model}, folder / MODEL.format(rank))


def _read(path: Path) -> dict[str, Any]:
    refuse_missing_deepspeed()
    from deepspeed.runtime.fp16.loss_scaler import LossScaler  # pyright: ignore[reportMissingImports]
    from deepspeed.runtime.zero.config import ZeroStageEnum  # pyright: ignore[reportMissingImports]

    with torch.serialization.safe_globals([LossScaler, ZeroStageEnum]):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def dealt_out_anew(engine: Any, checkpoint: Path, place: Path, *, count: int, rank: int) -> None:
    """Write this process's files of a checkpoint for `count` processes; all of them call it.

    Args:
        place: The folder to be read instead of `checkpoint`.
    """
    folder = place / step_folder(checkpoint).name
    folder.mkdir(parents=True, exist_ok=True)
    groups = [[engine.param_names[weight] for weight in group] for group in engine.optimizer.fp16_groups]
    param_groups = engine.optimizer.state_dict()[INNER]["param_groups"]
    Pieces(checkpoint).deal_out(folder, groups, param_groups, count, rank)
    (place / LATEST).write_text(folder.name, encoding="utf-8")


@torch.no_grad()
def load_weights(model: Any, checkpoint: Path) -> None:
    """Into an ordinary model."""
    pieces = Pieces(checkpoint)
    frozen = pieces.frozen()
    for name, weight in model.named_parameters():
        if name not in pieces.places and name not in frozen:
            raise UserError(
                f"The checkpoint {checkpoint} does not fit the model: it lacks {name}. Remove it, and run again."
            )
        found = frozen[name] if name in frozen else pieces.states(name)["weight"]
        weight.copy_(found.view(weight.shape))


def load_optimizer(model: Any, optimizer: Any, checkpoint: Path) -> None:
    """Into an ordinary optimizer; its groups are those that the checkpoint's had."""
    pieces, optimizer = Pieces(checkpoint), getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper holds it
    names = {id(weight): name for name, weight in model.named_parameters()}
    for ours, theirs in zip(optimizer.param_groups, pieces.optimizers[0][INNER][INNER]["param_groups"], strict=True):
        ours |= {key: value for key, value in theirs.items() if key != "params"}
        for weight in ours["params"]:
            states = pieces.states(names[id(weight)])
            del states["weight"]
            optimizer.state[weight] = {
                key: value.view(weight.shape).to(weight.device, copy=True) if value.dim() else value.clone()
                for key, value in states.items()
            }
