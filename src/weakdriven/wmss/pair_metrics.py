"""Measures each step of `WDJTTrainer`: sums over micro-batches and processes, checks them and logs means."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from weakdriven.models.sharded import gradient_norm
from weakdriven.training.upstream import require_call
from weakdriven.wmss.gap import SUMS, GapWatch, mean_logits, means, refuse_divergence
from weakdriven.wmss.pair import PairOutput, read_pair


class PairMetrics(TrainerCallback):
    """The trainer's first callback: sets the mixture of a step, and checks the step before the optimizer step.

    Each event checks that the earlier ones were called. If a release of transformers stops calling one, training raises
    an error instead of running without a NaN check, a token count or the right mixture.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.resumed: Any = None
        """The checkpoint from which training resumes."""
        self.forget()

    def forget(self) -> None:
        self.pending: Tensor | None = None
        """Sums over this process's micro-batches so far, on its device."""
        self.norms: dict[str, Tensor] | None = None
        """Each model's gradient norm before clipping; None until the last micro-batch of the step is done."""
        self.steps: list[tuple[list[float], dict[str, float]]] = []
        """Sums and gradient norms of the steps since the last log."""
        self.begun = self.checked = 0
        self.counted = False
        self.trainer._gap, self.trainer._total_train_tokens = GapWatch(), 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reset when training starts or restarts with a smaller batch; restore when it resumes."""
        trainer = self.trainer
        trainer.callback_handler.model = trainer.pair.strong  # what other callbacks generate with, average or save
        self.forget()
        kept = read_pair(Path(self.resumed)) if self.resumed else {}
        if "gap" in kept:
            trainer._total_train_tokens = kept["num_tokens"]
            trainer._gap.restore(kept["gap"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        pair, strategy = self.trainer.pair, args.logging_strategy
        self.pending = self.norms = None
        pair.strong_weight = args.strong_weight_at(state.global_step / state.max_steps)
        self.begun = state.global_step + 1
        at_interval = strategy == IntervalStrategy.STEPS and self.begun % state.logging_steps == 0
        first = self.begun == 1 and args.logging_first_step
        # measure mean logits only in steps that will be logged
        pair.measure_mean_logits(at_interval or first or strategy == IntervalStrategy.EPOCH)

    def add(self, inputs: dict[str, Any], output: PairOutput) -> None:
        """Add a micro-batch to the sums on the device, so that nothing waits for it before the optimizer step."""
        mask, tokens = inputs.get("attention_mask"), output.num_tokens
        num_tokens = tokens.new_full((), inputs["input_ids"].numel()) if mask is None else mask.sum()
        sums = torch.stack([num_tokens, output.num_tokens, *output.statistics, *output.mean_logits]).float()
        self.pending = sums if self.pending is None else self.pending + sums

    def measure_norms(self) -> None:
        """Measure gradient norms after the last micro-batch of a step, before gradients are clipped."""
        pair, scaler = self.trainer.pair, self.trainer.accelerator.scaler
        scale = scaler.get_scale() if scaler else 1
        norms = {name: gradient_norm(getattr(pair, name).parameters()) for name in ("strong", "weak")}
        self.norms = {name: norm / scale for name, norm in norms.items() if norm is not None}

    def read(self) -> tuple[list[float], dict[str, float]]:
        """Return the sums over all processes and the gradient norms, waiting for the device once."""
        sums: Any = self.trainer.accelerator.reduce(self.pending)
        norms = self.norms or {}
        values = torch.cat([sums, *(norm.float().reshape(1).to(sums.device) for norm in norms.values())]).tolist()
        self.pending = self.norms = None
        return values[: len(sums)], dict(zip(norms, values[len(sums) :], strict=True))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, trainer, pair = state.global_step + 1, self.trainer, self.trainer.pair
        require_call("TrainerCallback.on_step_begin", self.begun == step)
        require_call("Trainer.compute_loss", self.pending is not None)
        require_call("Trainer.training_step", self.norms is not None)
        sums, norms = self.read()
        trainer._total_train_tokens += int(sums[0])
        self.counted = True
        _, tokens, *losses = sums[:5]
        ran = {"mixed": True, "strong": pair.strong_runs, "weak": pair.weak_runs}
        losses = {name: loss / max(tokens, 1) for (name, on), loss in zip(ran.items(), losses, strict=True) if on}
        # while a gradient scaler (fp16) searches for its scale, it skips steps with infinite gradients
        refuse_divergence(step, losses, {} if trainer.accelerator.scaler else norms)
        if args.logging_strategy != "no":  # else the list would never be emptied
            self.steps.append((sums, norms))
        gap = losses["strong"] - losses["mixed"] if len(losses) == 3 else None
        if gap is not None and trainer._gap.grows(gap) and trainer.is_world_process_zero():
            warnings.warn(GapWatch.WARNING.format(gap=gap), stacklevel=2)
        self.checked = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        require_call("TrainerCallback.on_pre_optimizer_step", self.checked == state.global_step)

    def logged(self, logs: dict[str, float]) -> dict[str, float]:
        """Return what is added to a log: means over the steps since the last one, and the tokens so far."""
        found: dict[str, float] = {}
        if "loss" in logs and self.steps:
            columns = zip(*(sums[: len(SUMS)] for sums, _ in self.steps), strict=True)
            found = means([sum(column) for column in columns]) | mean_logits(self.steps[-1][0])
            for name in ("strong", "weak"):
                if norms := [norms[name] for _, norms in self.steps if name in norms]:
                    found[f"{name}_grad_norm"] = sum(norms) / len(norms)
            found["strong_weight"] = self.trainer.pair.strong_weight
            self.steps = []
        if self.counted and self.trainer.pair.training:
            found["num_tokens"] = float(self.trainer._total_train_tokens)
            self.counted = False
        return found
