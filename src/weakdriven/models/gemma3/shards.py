"""Weights on disk by name: what a folder of safetensors holds, and a new folder written shard by shard."""

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from weakdriven.errors import UserError
from weakdriven.runs.files import read_json, write_json

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 2 << 30
"""About what is held in memory at once; a single tensor may be larger."""
BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class Stored:
    """A tensor on disk, known by its header."""

    file: Path
    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * BYTES.get(self.kind, 1)


def stored_weights(folder: Path) -> dict[str, Stored]:
    """Every tensor of a model folder by name, from the headers alone; a damaged folder raises an error."""
    found: dict[str, Stored] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 - not a dict
                    if name in found:
                        raise UserError(f"{folder} holds {name} in {found[name].file.name} and in {file.name}.")
                    part = weights.get_slice(name)
                    found[name] = Stored(file, name, tuple(part.get_shape()), part.get_dtype())
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{file} cannot be read as safetensors ({error}); copy or download it again.") from error
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers would read: one, or those that the index names."""
    if (folder / ONE_FILE).is_file():
        return [folder / ONE_FILE]
    if not (folder / INDEX).is_file():
        raise UserError(f"{folder} holds neither {ONE_FILE} nor {INDEX}; expected a whole Hugging Face model folder.")
    files = [folder / name for name in sorted(set(read_json(folder / INDEX).get("weight_map", {}).values()))]
    if absent := [file.name for file in files if not file.is_file()]:
        raise UserError(f"{folder / INDEX} names {absent[0]}, which is not there; copy or download the folder again.")
    return files


def read_weights(wanted: dict[str, Stored]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors under their new names, one at a time; each file is opened once."""
    with ExitStack() as stack:
        files: dict[Path, Any] = {}
        for name, stored in wanted.items():
            if stored.file not in files:
                files[stored.file] = stack.enter_context(safe_open(stored.file, framework="pt"))
            yield name, files[stored.file].get_tensor(stored.name)


def write_shards(wanted: dict[str, Stored], folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Copy tensors into numbered files with an index; no more than one file's worth is in memory at a time."""
    shards = list(split(wanted, shard_bytes))
    places: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = dict(read_weights({name: wanted[name] for name in names}))
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(names, file)
    total = sum(stored.bytes for stored in wanted.values())
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))})


def split(wanted: dict[str, Stored], shard_bytes: int) -> Iterator[list[str]]:
    """Names in order, cut wherever the next tensor would make a file too large."""
    names: list[str] = []
    size = 0
    for name, stored in wanted.items():
        if names and size + stored.bytes > shard_bytes:
            yield names
            names, size = [], 0
        names.append(name)
        size += stored.bytes
    if names:
        yield names


def refuse_changed(written: dict[str, Stored], wanted: dict[str, Stored]) -> None:
    """Read both, and compare bits and names."""
    if written.keys() != wanted.keys():
        raise UserError(f"What was written lacks {listed(wanted.keys() ^ written.keys())}; check the disk, try again.")
    for (name, ours), (_, theirs) in zip(
        read_weights({name: written[name] for name in wanted}), read_weights(wanted), strict=True
    ):
        same = ours.dtype == theirs.dtype and ours.shape == theirs.shape
        if not same or not torch.equal(_bits(ours), _bits(theirs)):
            raise UserError(f"{name} was not written as it was read; check the disk and try again.")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Bytes, so that a NaN equals itself."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def listed(names: Iterable[str]) -> str:
    """How many names there are, and the first."""
    names = sorted(names)
    return f"{len(names)} weights (first: {names[0]})"
