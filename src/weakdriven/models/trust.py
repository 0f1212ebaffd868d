"""What a downloaded folder may do when it is opened: be read. It runs code only where `trust_remote_code` asks for it.

Weights in pickles (.bin, .pt, .pth) can run anything when they are loaded, so only safetensors are; a folder that has
nothing else is refused in a sentence.
"""

import logging
from pathlib import Path
from typing import Any

from weakdriven.errors import UserError

logger = logging.getLogger(__name__)
PICKLES = ("pytorch_model*.bin", "adapter_model*.bin", "model*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
SAFE: dict[str, Any] = {"use_safetensors": True}
"""For every `from_pretrained` that reads weights."""
_told: set[str] = set()


def refuse_pickles(folder: Path) -> None:
    """A folder of weights, of a model or an adapter, has to have them as safetensors."""
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return
    found = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if found:
        raise UserError(
            f"{folder} holds its weights as a pickle ({found[0]}), which can run code when it is loaded; expected "
            ".safetensors. Ask for those, or where you trust the file load it and save it again with save_pretrained."
        )


def warn_of_code(source: str | Path) -> None:
    """Name what may run code, once; for callers that were asked to trust it."""
    if str(source) in _told:
        return
    _told.add(str(source))
    brought = ", ".join(sorted(path.name for path in Path(source).glob("*.py"))) or "no .py file now"
    logger.warning(
        "trust_remote_code is on: code that comes with %s (%s) runs here and may do all that you may do.",
        source,
        brought,
    )
