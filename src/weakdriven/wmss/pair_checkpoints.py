"""PairCheckpoints: the part of WDJTTrainer that saves, loads and pushes a pair to the Hub."""

from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers.trainer_utils import HubStrategy

from weakdriven.models.adapters import merged
from weakdriven.runs.processes import agree
from weakdriven.training.fsdp import MODEL_SHARDS, ShardedCheckpoints, is_checkpoint
from weakdriven.wmss.config import WDJTConfig
from weakdriven.wmss.gap import GapWatch
from weakdriven.wmss.pair import WEAK_FOLDER, WeakStrongPair, load_pair_weights, save_pair, write_pair


class PairCheckpoints(ShardedCheckpoints):
    """Saving and loading for `WDJTTrainer`: checkpoints hold both models, everything else the strong one alone."""

    args: WDJTConfig
    _gap: GapWatch
    """Set by `PairMetrics`."""
    _in_checkpoint = False

    @property
    def pair(self) -> WeakStrongPair:
        return self.accelerator.unwrap_model(self.model)  # pyright: ignore

    def _kept(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides weights and optimizer state."""
        names = ("strong_weight_end", "strong_weight_schedule")
        kept = {"num_tokens": self._total_train_tokens, "gap": self._gap.state()}
        return {name: getattr(self.args, name) for name in names} | kept

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the strong model; in a checkpoint, both."""
        self._in_checkpoint = is_checkpoint(output_dir, _internal_call)
        try:
            super().save_model(output_dir, _internal_call)
            if self._in_checkpoint and self.is_fsdp_enabled and self.args.should_save:
                write_pair(self.pair, Path(str(output_dir)), **self._kept())
        finally:
            self._in_checkpoint = False

    def _whole_models(self, folder: Path) -> dict[Path, Any]:
        both = {folder: self.pair.strong, folder / WEAK_FOLDER: self.pair.weak}
        return both if self._in_checkpoint else {folder: self.pair.strong}

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        if self._in_checkpoint:
            save_pair(self.pair, folder, **self._kept())
        elif self._merges:
            merged(self.pair.strong).save_pretrained(folder)  # pyright: ignore
        else:
            self.pair.strong.save_pretrained(str(folder))
        self._save_rest(folder)

    @property
    def _merges(self) -> bool:
        return self.args.merge_adapter and isinstance(self.pair.strong, PeftModel)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push as upstream, which copies the model from the checkpoint; if it is not there, save it first."""
        if self.args.hub_strategy != HubStrategy.END and (self._merges or self.is_fsdp_enabled):
            push: Any = getattr(self, "push_in_progress", None)
            if not agree(self.args.hub_always_push or push is None or push.is_done()):
                return
            self.save_model(_internal_call=True)
        # Upstream would copy the adapter next to the merged model, where it would be loaded instead. The folder given
        # here does not exist, so nothing is copied.
        super()._push_from_checkpoint(str(Path(checkpoint_folder, "merged")) if self._merges else checkpoint_folder)

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
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))
