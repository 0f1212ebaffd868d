"""TRL's SFTTrainer with another loss on the same tokens (`other_loss.py`, SSB).

T = supervised tokens of a batch, B = rows, L = padded length, D / E = width of the model / of its teacher.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weakdriven.losses.head import Head
from weakdriven.losses.mixed_ce import IGNORE, targets
from weakdriven.models.head import head, hidden_states, refuse_other_logits
from weakdriven.training.attention import trained_attention
from weakdriven.training.evaluation import EvaluatingTrainer
from weakdriven.training.upstream import require_call


class Tokens(NamedTuple):
    """The supervised tokens of a batch, with the hidden states that predict them."""

    hidden_TD: Tensor
    head: Head
    target_T: Tensor
    length_T: Tensor
    """Length of each token's sequence, without padding."""
    key_T: Tensor
    """Unique within the step, and independent of the size of the micro-batches."""
    step: int
    scale: float
    """1 / supervised tokens of the step."""
    teacher_TE: Tensor | None
    teacher_head: Head | None
    batch: dict[str, Any]


TokenLoss = Callable[[Tokens], tuple[Tensor, dict[str, Tensor]]]
"""Returns the loss, and sums over tokens to log by name."""


class TokenLossTrainer(EvaluatingTrainer):
    """TRL's `SFTTrainer` with a `TokenLoss`, whose sums are logged as means, and an optional frozen teacher."""

    loss_is_scaled_for_ga = True  # the loss is divided by the tokens of the whole step

    def __init__(self, *args: Any, token_loss: TokenLoss, teacher: Any = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.token_loss, self.teacher = token_loss, teacher
        self.model_accepts_loss_kwargs = True  # else Trainer does not count num_items_in_batch
        refuse_other_logits(self.model, "model")  # pyright: ignore
        if teacher is not None:
            refuse_other_logits(teacher.requires_grad_(False).eval(), "teacher")
        self._sums: dict[str, Tensor] = {}
        self._step_rows = (-1, 0)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as upstream; the teacher uses the same attention as the model."""
        with trained_attention(self.teacher) if self.teacher is not None else nullcontext():
            return super().train(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._sums:
            found = {name: float(value) for name, value in self._sums.items()}
            tokens = max(found.pop("tokens"), 1.0)
            self._total_train_tokens += int(found.pop("num_tokens"))
            logs |= {name: value / tokens for name, value in found.items()}
            logs |= {"tokens": tokens, "num_tokens": self._total_train_tokens}
            self._sums = {}
        super().log(logs, start_time)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if not model.training:  # evaluation uses cross-entropy, as for every method
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        require_call("Trainer.get_batch_samples", num_items_in_batch is not None)
        with self.accelerator.autocast():  # else only a call of the whole model would use it
            tokens = self._tokens(self.accelerator.unwrap_model(model), inputs, num_items_in_batch)
            loss, sums = self.token_loss(tokens)
        # filled on the device, because copying a number would synchronise
        sums |= {"tokens": torch.full((), float(len(tokens.target_T)), device=loss.device)}
        sums |= {"num_tokens": inputs["attention_mask"].sum()}
        self._sums = {name: value.detach() + self._sums.get(name, 0) for name, value in sums.items()}
        return (loss, {"loss": loss}) if return_outputs else loss

    def _tokens(self, model: Any, inputs: dict[str, Any], items: Any) -> Tokens:
        first_row = self._step_rows[1] if self._step_rows[0] == self.state.global_step else 0  # within the step
        self._step_rows = (self.state.global_step, first_row + len(inputs["attention_mask"]))
        target_BL, mask_BL = targets(inputs["labels"]), inputs["attention_mask"]
        # both wait for the GPU, so they come before its queue is filled
        place = (target_BL != IGNORE).flatten().nonzero()[:, 0]
        scale = 1 / max(float(len(place) if items is None else items), 1.0)
        row, column = place // target_BL.shape[1], place % target_BL.shape[1]

        def supervised(model: Any) -> Tensor:
            asked = {"input_ids": inputs["input_ids"], "attention_mask": mask_BL, "use_cache": False}
            return hidden_states(model, asked)[:, :-1].flatten(0, 1).index_select(0, place)

        with torch.no_grad():
            teacher_TE = None if self.teacher is None else supervised(self.teacher)
        return Tokens(
            hidden_TD=supervised(model),
            head=head(model),
            target_T=target_BL.flatten().index_select(0, place),
            length_T=mask_BL.sum(1)[row],
            key_T=((row + first_row) << 32) + mask_BL.cumsum(1)[row, column],
            step=self.state.global_step,
            scale=scale,
            teacher_TE=teacher_TE,
            teacher_head=None if self.teacher is None else head(self.teacher),
            batch=inputs,
        )
