"""FSDP2 as accelerate sets it up: what is not supported, and checkpoints that resume on any number of processes.

A sharded checkpoint is torch.distributed.checkpoint's: one process reads all of it, several read what they need. An
ordinary one, written by one process or under DDP, is sharded when it is read.
"""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType
from torch.distributed.checkpoint import state_dict, state_dict_loader
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.trainer import FSDP_MODEL_NAME, OPTIMIZER_NAME, SCHEDULER_NAME
from trl.trainer.sft_trainer import SFTTrainer

from weakdriven.errors import UserError
from weakdriven.models.sharded import checkpoint_weights
from weakdriven.runs.launcher import refuse_deepspeed

MODEL_SHARDS, OPTIMIZER_SHARDS = f"{FSDP_MODEL_NAME}_0", "optimizer_0"
"""Folders inside a checkpoint that accelerate writes."""
SUPPORTED = {
    "fsdp_version": (2, "FSDP version 1 flattens the heads that the losses read"),
    "fsdp_state_dict_type": ("SHARDED_STATE_DICT", "a checkpoint must not gather all weights"),
    "fsdp_cpu_ram_efficient_loading": (False, "all processes read the models, not only the first"),
    "fsdp_activation_checkpointing": (False, "gradient_checkpointing decides that"),
}
"""What a launch configuration may ask of FSDP, and why."""


def fsdp_is_asked_for() -> bool:
    return _is_set("ACCELERATE_USE_FSDP")


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() == "true"


def refuse_sharding_of_launch(*, precision: bool = True) -> None:
    """Raise an error for settings of the launcher that training does not support; `precision`: a recipe decides it."""
    if _is_set("ACCELERATE_USE_DEEPSPEED"):
        refuse_deepspeed()
    if fsdp_is_asked_for():
        refuse_plugin(FullyShardedDataParallelPlugin())
    mixed = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision and mixed not in ("no", ""):
        raise UserError(
            f"The launch configuration sets mixed_precision: {mixed}, and the recipe's precision decides that; set "
            "mixed_precision: 'no' there."
        )


def refuse_plugin(plugin: Any) -> None:
    """Ways to shard that would train something else, or could not be saved."""
    found = {
        "fsdp_version": plugin.fsdp_version,
        "fsdp_state_dict_type": plugin.state_dict_type.name,
        "fsdp_cpu_ram_efficient_loading": bool(plugin.cpu_ram_efficient_loading),
        "fsdp_activation_checkpointing": bool(plugin.activation_checkpointing),
    }
    for name, (value, why) in SUPPORTED.items():
        if found[name] != value:
            raise UserError(f"The launch configuration sets {name}: {found[name]}; set it to {value}, because {why}.")


def refuse_sharded_adapters(sharded: bool, adapted: bool) -> None:
    if sharded and adapted:
        raise UserError(
            "FSDP2 with LoRA is not supported: both adapters use one copy of a frozen base, which cannot be sharded "
            "twice. Adapters need little memory: launch without sharding (--launch ddp-8gpu, or "
            "`accelerate launch` without FSDP)."
        )


class ShardedCheckpoints(SFTTrainer):
    """TRL's SFTTrainer that resumes from sharded and ordinary checkpoints alike, under FSDP2 or not."""

    def create_accelerator_and_postprocess(self) -> None:
        """As upstream; on CPUs accelerate would silently use DDP where FSDP is asked for."""
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if fsdp_is_asked_for() and state.distributed_type == DistributedType.MULTI_CPU:
            state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, FullyShardedDataParallelPlugin()
            self.is_fsdp_enabled = True

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
        """An ordinary checkpoint into a sharded model: every process reads all of it and keeps its part."""
        state = checkpoint_weights(model, folder)
        for name, weight in model.state_dict().items():
            weight.copy_(_like(state[name], weight))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        folder = Path(checkpoint or "")
        if checkpoint is None or (folder / OPTIMIZER_SHARDS).is_dir() == self.is_fsdp_enabled:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        if self.is_fsdp_enabled:
            state = torch.load(folder / OPTIMIZER_NAME, map_location="cpu", weights_only=True)
            self.optimizer.load_state_dict(sharded_state(state, self.optimizer))  # pyright: ignore
        else:
            model: Any = self.model
            optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)  # accelerate's wrapper holds it
            state = {"optimizer": state_dict.get_optimizer_state_dict(model, optimizer)}
            state_dict_loader.load(state, checkpoint_id=folder / OPTIMIZER_SHARDS, no_dist=not dist.is_initialized())
            state_dict.set_optimizer_state_dict(model, optimizer, optim_state_dict=state["optimizer"])
        self.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER_NAME, weights_only=True))  # pyright: ignore


def sharded_state(state: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """The optimizer state of whole weights, sharded as the optimizer's weights are now."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    parts = {
        place: {name: _like(value, weights[place]) for name, value in kept.items()}
        for place, kept in state["state"].items()
    }
    return {**state, "state": parts}


def _like(value: Any, weight: torch.Tensor) -> Any:
    """Sharded as the weight is, if it is and this has its shape."""
    if not isinstance(weight, DTensor) or not isinstance(value, torch.Tensor) or value.shape != weight.shape:
        return value
    return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)
