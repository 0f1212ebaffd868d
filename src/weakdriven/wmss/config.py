"""WDJTConfig: TRL's SFTConfig plus the settings of the mixture."""

import json
import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from transformers import TrainingArguments
from trl.trainer.sft_config import SFTConfig

from weakdriven.errors import UserError
from weakdriven.losses.mixed_ce import MixStatistics
from weakdriven.losses.tiles import Implementation

Schedule = Literal["linear", "cosine"]
ENTROPIES = tuple(name for name in MixStatistics._fields if name.endswith("entropy"))


def _option(default: Any, words: str) -> Any:
    return field(default=default, metadata={"help": words})


@dataclass
class WDJTConfig(SFTConfig):
    """Settings of `WDJTTrainer`: all fields of SFTConfig and those below."""

    strong_weight: float = _option(0.5, "Share of the strong model's logits in the mixture, in [0, 1]. Paper: lambda.")
    strong_weight_end: float | None = _option(
        None, "strong_weight at the end of training, such as 1.0 (default: constant)."
    )
    strong_weight_schedule: Schedule = _option("linear", "How strong_weight changes: linear or cosine.")  # noqa: RUF009
    strong_anchor: float = _option(0.0, "Weight of the strong model's own cross-entropy, added to the mixed one.")
    weak_trainable: bool = _option(True, "Train the weak model too; if False, it is frozen and only runs forward.")
    weak_learning_rate: float | None = _option(None, "Peak learning rate of the weak model (default: learning_rate).")
    weak_model_init_kwargs: dict[str, Any] | str | None = _option(  # noqa: RUF009
        None, "Options of from_pretrained for the weak model, added to model_init_kwargs without its revision."
    )
    merge_adapter: bool = _option(False, "save_model writes the strong model with its adapter merged into it.")
    loss_implementation: Implementation = _option(  # noqa: RUF009
        "auto", "Implementation of the loss: auto, triton, chunked or reference."
    )

    def __post_init__(self) -> None:
        if self.loss_type in (None, "chunked_nll"):  # the same loss; TRL's default before 1.15
            self.loss_type = "nll"
        metric_given = self.metric_for_best_model is not None
        super().__post_init__()
        given = self.weak_model_init_kwargs
        if isinstance(given, str) and given.startswith("{"):  # JSON from a command line
            given = self.weak_model_init_kwargs = json.loads(given)
        rate, end, known = self.weak_learning_rate, self.strong_weight_end, get_args(Implementation)
        for name, good, wanted in (
            ("strong_weight", _within(self.strong_weight, 0, 1), "a number from 0 to 1"),
            ("strong_weight_end", end is None or _within(end, 0, 1), "a number from 0 to 1, or None"),
            ("strong_weight_schedule", self.strong_weight_schedule in get_args(Schedule), "linear or cosine"),
            ("strong_anchor", _within(self.strong_anchor, 0, math.inf), "0 (off) or a positive number"),
            ("weak_learning_rate", rate is None or (_within(rate, 0, math.inf) and rate > 0), "positive, or None"),
            ("weak_model_init_kwargs", given is None or isinstance(given, dict), "a dictionary, its JSON, or None"),
            ("loss_implementation", self.loss_implementation in known, f"one of {', '.join(known)}"),
            ("loss_type", self.loss_type == "nll", "'nll': the loss of WDJTTrainer is the mixed cross-entropy"),
            ("label_smoothing_factor", not self.label_smoothing_factor, "0: the mixed loss has no label smoothing"),
        ):
            if not good:
                raise UserError(f"{name} is {getattr(self, name)!r}; it must be {wanted}.")
        if rate is not None and not self.weak_trainable:
            raise UserError("weak_learning_rate is set, but weak_trainable is False; drop one of the two.")
        if not self.strong_runs and not self.weak_trainable:
            raise UserError("strong_weight is 0 and weak_trainable is False, so nothing is trained; change one.")
        best = self.metric_for_best_model or ""
        if best.endswith("mean_token_accuracy") or (best.endswith("entropy") and not best.endswith(ENTROPIES)):
            raise UserError(
                f"metric_for_best_model is {best!r}, which this trainer does not measure; use strong_loss, for example."
            )
        # eval_loss is the loss of the mixture, which a schedule changes at each step; we keep the strong model
        if self.load_best_model_at_end and not metric_given and (self.strong_weight or self.strong_anchor):
            self.metric_for_best_model = "strong_loss"

    @classmethod
    def of(cls, args: TrainingArguments, **changes: Any) -> "WDJTConfig":
        """Convert any training arguments to a WDJTConfig, with defaults for missing fields."""
        if isinstance(args, cls) and not changes:
            return args
        given = {item.name: getattr(args, item.name) for item in fields(args) if item.init}
        if not isinstance(args, cls) and args.load_best_model_at_end and args.metric_for_best_model == "loss":
            given["metric_for_best_model"] = None  # theirs by default; ours is the loss of the strong model
        return cls(**given | changes)

    def strong_weight_at(self, done: float) -> float:
        """Return lambda after a fraction `done` of the optimizer steps."""
        if self.strong_weight_end is None:
            return self.strong_weight
        moved = done if self.strong_weight_schedule == "linear" else (1 - math.cos(math.pi * done)) / 2
        return self.strong_weight + (self.strong_weight_end - self.strong_weight) * moved

    @property
    def strong_runs(self) -> bool:
        """Whether the strong model gets a gradient at any step."""
        return self.strong_weight > 0 or bool(self.strong_weight_end) or self.strong_anchor > 0

    @property
    def weak_runs(self) -> bool:
        return self.strong_weight < 1 or self.strong_weight_end not in (None, 1)

    @property
    def weak_learns(self) -> bool:
        return self.weak_trainable and self.weak_runs


def _within(value: Any, low: float, high: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and low <= value <= high
