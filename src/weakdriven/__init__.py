"""Weak-driven post-training of language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weakdriven.losses import mixed_cross_entropy, token_entropy
    from weakdriven.models.mixture import MixtureConfig, MixtureForCausalLM
    from weakdriven.models.pair import WeakStrongPair
    from weakdriven.models.scan import score_dataset
    from weakdriven.selection import draw_active, selection_probabilities
    from weakdriven.training.joint import WDJTConfig, WDJTTrainer

__version__ = "0.1.0"
__all__ = [
    "MixtureConfig",
    "MixtureForCausalLM",
    "WDJTConfig",
    "WDJTTrainer",
    "WeakStrongPair",
    "draw_active",
    "mixed_cross_entropy",
    "score_dataset",
    "selection_probabilities",
    "token_entropy",
]
_HOMES = {
    "MixtureConfig": "weakdriven.models.mixture",
    "MixtureForCausalLM": "weakdriven.models.mixture",
    "WDJTConfig": "weakdriven.training.joint",
    "WDJTTrainer": "weakdriven.training.joint",
    "WeakStrongPair": "weakdriven.models.pair",
    "draw_active": "weakdriven.selection",
    "mixed_cross_entropy": "weakdriven.losses",
    "score_dataset": "weakdriven.models.scan",
    "selection_probabilities": "weakdriven.selection",
    "token_entropy": "weakdriven.losses",
}


def __getattr__(name: str) -> Any:
    """Imported on first use, so that the command line answers without loading torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'weakdriven' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
