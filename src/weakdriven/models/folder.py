"""A model on disk: a model folder, or an adapter's folder and its base."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from weakdriven.errors import UserError
from weakdriven.models.adapters import ADAPTER_FILE, load_merged
from weakdriven.models.load import load_model, locate_model
from weakdriven.runs.files import read_json


@dataclass(frozen=True)
class ModelFolder:
    """A model folder, or an adapter folder and its base."""

    folder: Path
    base: Path | None = None

    @property
    def model(self) -> Path:
        return self.base or self.folder

    @property
    def tokenizer(self) -> Path | None:
        """Folder of its tokenizer; the weak model of a training checkpoint has none."""
        names, folders = ("tokenizer.json", "tokenizer_config.json"), (self.folder, self.model)
        return next((folder for folder in folders if any((folder / name).is_file() for name in names)), None)

    def load(self, precision: str, *, attention: str | None = None, trust_remote_code: bool = False) -> PreTrainedModel:
        """Load the model for evaluation; an adapter is merged into its base."""
        options: Any = {"precision": precision, "trust_remote_code": trust_remote_code}
        if self.base is None:
            model = load_model(self.folder, attention=attention, **options)
        else:
            model = load_merged(self.folder, self.base, **options)
            if attention:
                model.set_attn_implementation(attention)
        model.config.use_cache = True  # training checkpoints turn it off
        return model.eval()


def open_model(source: str) -> ModelFolder:
    """Open a model folder, a Hub id, or a folder with a PEFT adapter."""
    folder = Path(source).expanduser()
    config = folder / ADAPTER_FILE
    if not config.is_file():
        return ModelFolder(locate_model(source))
    base = read_json(config).get("base_model_name_or_path")
    if not base:
        raise UserError(f"{config} does not name the adapter's model; set base_model_name_or_path in it.")
    try:
        return ModelFolder(folder, locate_model(base))
    except UserError as error:
        raise UserError(f"{folder} is an adapter whose base was not found. {error}") from error
