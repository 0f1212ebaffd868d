"""Weak-driven post-training of language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weakdriven.losses import mixed_cross_entropy, token_entropy
    from weakdriven.wmss.entropy import score_dataset
    from weakdriven.wmss.mixture import MixtureConfig, MixtureForCausalLM
    from weakdriven.wmss.pair import WeakStrongPair
    from weakdriven.wmss.selection import draw_active, selection_probabilities
    from weakdriven.wmss.trainer import WDJTConfig, WDJTTrainer

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
    "MixtureConfig": "weakdriven.wmss.mixture",
    "MixtureForCausalLM": "weakdriven.wmss.mixture",
    "WDJTConfig": "weakdriven.wmss.trainer",
    "WDJTTrainer": "weakdriven.wmss.trainer",
    "WeakStrongPair": "weakdriven.wmss.pair",
    "draw_active": "weakdriven.wmss.selection",
    "mixed_cross_entropy": "weakdriven.losses",
    "score_dataset": "weakdriven.wmss.entropy",
    "selection_probabilities": "weakdriven.wmss.selection",
    "token_entropy": "weakdriven.losses",
}


def __getattr__(name: str) -> Any:
    """Imported on first use, so that the command line answers without loading torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'weakdriven' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
