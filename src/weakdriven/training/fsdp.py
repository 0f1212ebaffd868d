"""FSDP2 through accelerate: saves whole models, and checkpoints that resume on any number of processes.

A sharded checkpoint has the format of torch.distributed.checkpoint: one process reads all of it, several read what they
need. An ordinary one, written by one process or under DDP, is sharded when it is read.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType
from torch.distributed.checkpoint import state_dict, state_dict_loader
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.trainer import FSDP_MODEL_NAME, OPTIMIZER_NAME, SCHEDULER_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import EvalLoopOutput

from weakdriven.models.sharded import checkpoint_weights, gathered_model
from weakdriven.runs.processes import is_main
from weakdriven.training.evaluation import EvaluatingTrainer
from weakdriven.training.launch import fsdp_is_asked_for

MODEL_SHARDS, OPTIMIZER_SHARDS = f"{FSDP_MODEL_NAME}_0", "optimizer_0"
"""Folders that accelerate writes inside a checkpoint."""


class ShardedCheckpoints(EvaluatingTrainer):
    """TRL's SFTTrainer, but it saves whole models and resumes from any checkpoint, with or without FSDP2."""

    def create_accelerator_and_postprocess(self) -> None:
        """Set up accelerate as upstream, with float32 losses and FSDP2 on CPUs, where it would silently use DDP."""
        only_model = self.args.save_only_model
        self.args.save_only_model = False  # upstream cannot save whole models and raises an error
        super().create_accelerator_and_postprocess()
        self.args.save_only_model = only_model
        state: Any = self.accelerator.state
        if fsdp_is_asked_for() and state.distributed_type == DistributedType.MULTI_CPU:
            plugin = FullyShardedDataParallelPlugin(**(getattr(self.args, "fsdp_plugin_args", None) or {}))
            state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, plugin
            if state.mixed_precision != "no":
                plugin.set_mixed_precision(state.mixed_precision)
            self.is_fsdp_enabled = True
        policy = state.fsdp_plugin.mixed_precision_policy if self.is_fsdp_enabled else None
        if isinstance(policy, MixedPrecisionPolicy):  # accelerate's would round gradients and losses to bfloat16
            policy = replace(policy, reduce_dtype=torch.float32, output_dtype=None)
            state.fsdp_plugin.mixed_precision_policy = policy

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate as upstream, then let FSDP2 finish the forward pass.

        TRL reads the head's weights without running the head. If no backward pass follows, torch before 2.13 waits for
        the head and leaves the embedding sharded in the next forward pass.
        """
        output = super().evaluation_loop(*args, **kwargs)
        model: Any = self.accelerator.unwrap_model(self.model)
        if self.is_fsdp_enabled and isinstance(model, PreTrainedModel):
            head: Any = model.get_output_embeddings()
            weight = head.weight
            with torch.no_grad():
                head(torch.empty(0, head.in_features, dtype=weight.dtype, device=weight.device))
        return output

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save whole models, gathered weight by weight if they are sharded; a checkpoint to resume from gets shards."""
        if not self.is_fsdp_enabled:
            super().save_model(output_dir, _internal_call)
            return
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)  # in each process, as each looks here for the best checkpoint
        if self.args.save_only_model or not is_checkpoint(output_dir, _internal_call):
            for place, model in self._whole_models(folder).items():
                if (gathered := gathered_model(model)) is not None:
                    gathered.save_pretrained(place)
            if is_main():
                self._save_rest(folder)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _whole_models(self, folder: Path) -> dict[Path, Any]:
        """Return each model by the folder into which it is saved."""
        return {folder: self.accelerator.unwrap_model(self.model)}

    def _save_rest(self, folder: Path) -> None:
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)
        torch.save(self.args, folder / TRAINING_ARGS_NAME)

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled:
            self._load_from_checkpoint(str(self.state.best_model_checkpoint))
        else:
            super()._load_best_model()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder, model = Path(resume_from_checkpoint), model or self.model
        if (folder / MODEL_SHARDS).is_dir():
            state = {"model": state_dict.get_model_state_dict(model)}
            state_dict_loader.load(state, checkpoint_id=folder / MODEL_SHARDS, no_dist=not dist.is_initialized())
            state_dict.set_model_state_dict(model, state["model"])
        elif self.is_fsdp_enabled:
            self._load_whole(model, folder)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    @torch.no_grad()
    def _load_whole(self, model: Any, folder: Path) -> None:
        """Load an ordinary checkpoint into a sharded model; each process reads all of it and keeps its shard."""
        state = checkpoint_weights(model, folder)
        for name, weight in model.state_dict().items():
            weight.copy_(_like(state[name], weight))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        folder = Path(checkpoint or "")
        sharded = (folder / OPTIMIZER_SHARDS).is_dir()
        saved = sharded or (folder / OPTIMIZER_NAME).is_file()
        if checkpoint is None or not saved or sharded == self.is_fsdp_enabled:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        if self.is_fsdp_enabled:
            state = torch.load(folder / OPTIMIZER_NAME, map_location="cpu", weights_only=True)
            self.optimizer.load_state_dict(sharded_state(state, self.optimizer))  # pyright: ignore
        else:
            model: Any = self.model
            optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)  # inside accelerate's wrapper
            state = {"optimizer": state_dict.get_optimizer_state_dict(model, optimizer)}
            state_dict_loader.load(state, checkpoint_id=folder / OPTIMIZER_SHARDS, no_dist=not dist.is_initialized())
            state_dict.set_optimizer_state_dict(model, optimizer, optim_state_dict=state["optimizer"])
        self.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER_NAME, weights_only=True))  # pyright: ignore


def is_checkpoint(output_dir: str | None, internal_call: bool) -> bool:
    """Return whether `Trainer.save_model` is called for a checkpoint; a push to the Hub calls it without a folder."""
    return internal_call and output_dir is not None


def sharded_state(state: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """Shard the optimizer state of whole weights as the optimizer's weights are sharded now."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    parts = {
        place: {name: _like(value, weights[place]) for name, value in kept.items()}
        for place, kept in state["state"].items()
    }
    return {**state, "state": parts}


def _like(value: Any, weight: torch.Tensor) -> Any:
    """Shard a value as the weight is sharded, if it has the weight's shape."""
    if not isinstance(weight, DTensor) or not isinstance(value, torch.Tensor) or value.shape != weight.shape:
        return value
    return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)
