"""WDJTTrainer: TRL's SFTTrainer with a weak model beside the strong one. All that we override upstream is here."""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.sft_trainer import SFTTrainer

from weakdriven.errors import UserError
from weakdriven.models.pair import PairOutput, WeakStrongPair, load_pair_weights, save_pair
from weakdriven.recipe import JointSettings, Recipe
from weakdriven.training.supervised import Phase, fit


class WDJTTrainer(SFTTrainer):
    """Trains `model` and `weak_model` on their mixed logits; checkpoints hold both, `save_model` the strong one."""

    def __init__(
        self,
        model: PreTrainedModel,
        weak_model: PreTrainedModel,
        *,
        strong_weight: float = 0.5,
        weak_trainable: bool = True,
        **kwargs: Any,
    ):
        if kwargs.get("peft_config") is not None:
            raise UserError("WDJTTrainer trains whole models; peft_config is not supported by this version.")
        super().__init__(model=model, **kwargs)
        # Trainer looked at the strong model alone; the pair divides by num_items_in_batch itself
        self.model_accepts_loss_kwargs = True
        pair = WeakStrongPair(strong=model, weak=weak_model, strong_weight=strong_weight, weak_trainable=weak_trainable)
        if self.place_model_on_device:
            self._move_model_to_device(weak_model, self.args.device)
        self.model = self.model_wrapped = pair  # pyright: ignore[reportAttributeAccessIssue]
        self._sums: Tensor | None = None

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        output: PairOutput = model(**inputs, num_items_in_batch=num_items_in_batch)
        loss = output.loss
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # the count is over all ranks, and DDP averages gradients
        sums = torch.stack([output.num_tokens, *output.statistics]).float()
        self._sums = sums if self._sums is None else self._sums + sums
        return (loss, output) if return_outputs else loss

    def _clip_grad_norm(self, model: Any) -> Any:
        pair = self.accelerator.unwrap_model(model)
        for name, branch in (("strong_grad_norm", pair.strong), ("weak_grad_norm", pair.weak)):
            gradients = [p.grad for p in branch.parameters() if p.grad is not None]
            if gradients:
                self._metrics["train"][name].append(nn.utils.get_total_norm(gradients).item())
        return super()._clip_grad_norm(model)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self._sums is not None:
            tokens, *sums = self.accelerator.reduce(self._sums).tolist()  # pyright: ignore
            names = ("strong_loss", "weak_loss", "mixed_probability", "strong_probability", "margin_share")
            logs |= {name: total / max(tokens, 1) for name, total in zip(names, sums, strict=True)}
            logs["tokens"] = tokens
            self._sums = None
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        pair = self.accelerator.unwrap_model(self.model)
        if folder.name.startswith("checkpoint-"):
            save_pair(pair, folder)
        else:
            pair.strong.save_pretrained(folder)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_pair_weights(self.accelerator.unwrap_model(model or self.model), Path(resume_from_checkpoint))


def train_joint(
    strong: PreTrainedModel,
    weak: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    settings: JointSettings,
    recipe: Recipe,
    phase: Phase,
) -> dict[str, Any]:
    """Train both in place; returns counters."""
    trainer = WDJTTrainer(
        strong,
        weak,
        strong_weight=settings.strong_weight,
        weak_trainable=settings.weak == "joint",
        processing_class=tokenizer,
        **phase.prepare(dataset, settings, recipe),
    )
    return fit(trainer)
