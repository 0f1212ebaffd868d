"""Weak-driven post-training of language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weakdriven.losses.entropy import token_entropy
    from weakdriven.losses.mixed_ce import mixed_cross_entropy
    from weakdriven.wmss.entropy import score_dataset
    from weakdriven.wmss.mixture import MixtureConfig, MixtureForCausalLM
    from weakdriven.wmss.pair import WeakStrongPair
    from weakdriven.wmss.selection import draw_active, selection_probabilities
    from weakdriven.wmss.trainer import WDJTConfig, WDJTTrainer

__version__ = "0.2.0"
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
    "losses.entropy": ("token_entropy",),
    "losses.mixed_ce": ("mixed_cross_entropy",),
    "wmss.entropy": ("score_dataset",),
    "wmss.mixture": ("MixtureConfig", "MixtureForCausalLM"),
    "wmss.pair": ("WeakStrongPair",),
    "wmss.selection": ("draw_active", "selection_probabilities"),
    "wmss.trainer": ("WDJTConfig", "WDJTTrainer"),
}


def __getattr__(name: str) -> Any:
    """Imported on first use, so that the command line answers without loading torch."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"weakdriven.{module}"), name)
    raise AttributeError(f"module 'weakdriven' has no attribute {name!r}")
