"""A downloaded folder is only read; its code runs only with `trust_remote_code`.

Weights in pickles (.bin, .pt, .pth) can run code when they are loaded, so only safetensors are read; a folder that has
nothing else raises an error.
"""

import logging
from functools import cache
from pathlib import Path
from typing import Any

from weakdriven.errors import UserError

logger = logging.getLogger(__name__)
PICKLES = ("pytorch_model*.bin", "adapter_model*.bin", "model*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
SAFE: dict[str, Any] = {"use_safetensors": True}
"""For every `from_pretrained` that reads weights."""


def refuse_pickles(folder: Path) -> None:
    """The weights of a model or adapter have to be safetensors."""
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return
    found = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if found:
        raise UserError(
            f"{folder} holds its weights as a pickle ({found[0]}), which can run code when it is loaded; expected "
            ".safetensors. Ask for those, or where you trust the file load it and save it again with save_pretrained."
        )


@cache
def warn_of_code(source: str | Path) -> None:
    """Log once which code may run; for callers with trust_remote_code."""
    brought = ", ".join(sorted(path.name for path in Path(source).glob("*.py"))) or "no .py file now"
    logger.warning(
        "trust_remote_code is on: code that comes with %s (%s) runs here and may do all that you may do.",
        source,
        brought,
    )
