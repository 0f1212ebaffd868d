"""PairCheckpoints: the part of WDJTTrainer that saves, loads and pushes a pair to the Hub."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from weakdriven.models.adapters import merged
from weakdriven.models.sharded import gathered_model
from weakdriven.training.fsdp import MODEL_SHARDS, ShardedCheckpoints
from weakdriven.wmss.config import WDJTConfig
from weakdriven.wmss.gap import GapWatch
from weakdriven.wmss.pair import WEAK_FOLDER, WeakStrongPair, load_pair_weights, save_pair, write_pair


class PairCheckpoints(ShardedCheckpoints):
    """TRL's `SFTTrainer` as far as it saves and loads a pair."""

    args: WDJTConfig
    _gap: GapWatch
    _in_checkpoint = False

    @property
    def pair(self) -> WeakStrongPair:
        return self.accelerator.unwrap_model(self.model)  # pyright: ignore

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._in_checkpoint = True
        try:
            super()._save_checkpoint(model, trial)
            if self.is_fsdp_enabled and self.args.should_save:  # upstream has written shards of both models
                folder = Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
                write_pair(self.pair, folder, **self._kept())
        finally:
            self._in_checkpoint = False

    def _kept(self) -> dict[str, Any]:
        """What a checkpoint holds next to weights and optimizer."""
        names = ("strong_weight_end", "strong_weight_schedule")
        kept = {"num_tokens": self._total_train_tokens, "gap": self._gap.state()}
        return {name: getattr(self.args, name) for name in names} | kept

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The strong model; gathered weight by weight if it is sharded."""
        if not self.is_fsdp_enabled or _internal_call:
            super().save_model(output_dir, _internal_call)
            return
        strong, folder = gathered_model(self.pair.strong), Path(output_dir or str(self.args.output_dir))
        if strong is not None:
            strong.save_pretrained(folder)
            self._save_rest(folder)
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        strong: Any = self.pair.strong
        if self._in_checkpoint:
            save_pair(self.pair, folder, **self._kept())
        elif self.args.merge_adapter and isinstance(strong, PeftModel):
            merged(strong).save_pretrained(folder)
        else:
            strong.save_pretrained(folder)
        self._save_rest(folder)

    def _save_rest(self, folder: Path) -> None:
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)
        torch.save(self.args, folder / TRAINING_ARGS_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        if self.is_fsdp_enabled or (folder / MODEL_SHARDS).is_dir():
            super()._load_from_checkpoint(resume_from_checkpoint, self.pair)
        else:
            load_pair_weights(self.pair, folder)

    def _load_whole(self, model: Any, folder: Path) -> None:
        for branch, place in ((self.pair.strong, folder), (self.pair.weak, folder / WEAK_FOLDER)):
            super()._load_whole(branch, place)

    def _load_best_model(self) -> None:
        load_pair_weights(self.pair, Path(str(self.state.best_model_checkpoint)))
