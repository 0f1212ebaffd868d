"""The weights of a model folder by name: their shapes from the headers alone, and the tensors themselves."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from weakdriven.errors import UserError
from weakdriven.runs.files import read_json

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Stored:
    """A tensor on disk, known by its header."""

    file: Path
    name: str
    shape: tuple[int, ...]


def stored_weights(folder: Path) -> dict[str, Stored]:
    """Every tensor of a model folder by name, from the headers alone; a damaged folder raises an error."""
    sharded = (folder / INDEX).is_file() and not (folder / ONE_FILE).is_file()
    files = sorted(set(read_json(folder / INDEX).get("weight_map", {}).values())) if sharded else [ONE_FILE]
    found: dict[str, Stored] = {}
    for file in (folder / name for name in files):
        try:
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 - not a dict
                    found[name] = Stored(file, name, tuple(weights.get_slice(name).get_shape()))
        except Exception as error:
            raise UserError(f"{file} cannot be read as safetensors ({error}); copy or download it again.") from error
    return found


def read_weights(wanted: dict[str, Stored]) -> dict[str, torch.Tensor]:
    """Tensors under their new names; each is a view of its file, so it takes no memory before it is used."""
    files = {file: safe_open(file, framework="pt") for file in {stored.file for stored in wanted.values()}}
    return {name: files[stored.file].get_tensor(stored.name) for name, stored in wanted.items()}
