"""FSDP2 as accelerate sets it up: what of it is refused, and checkpoints that go on under any number of processes.

A sharded checkpoint is torch.distributed.checkpoint's: one process reads it whole, several read what they need. An
ordinary one, of one process or of DDP, is dealt out when it is read. ZeRO-3's side of both is in `zero3.py` and
`zero3_checkpoints.py`.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import StateDictType
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.integrations.deepspeed import deepspeed_load_checkpoint
from transformers.trainer import FSDP_MODEL_NAME, OPTIMIZER_NAME, SCHEDULER_NAME
from trl.trainer.sft_trainer import SFTTrainer

from weakdriven.errors import UserError
from weakdriven.models.sharded import architecture_of
from weakdriven.training import zero3
from weakdriven.training.zero3_checkpoints import (
    dealt_out_anew,
    is_of_zero3,
    load_optimizer,
    load_weights,
    writers,
)

MODEL_SHARDS, OPTIMIZER_SHARDS = f"{FSDP_MODEL_NAME}_0", "optimizer_0"
"""Folders inside a checkpoint that accelerate writes."""


def fsdp_is_asked_for() -> bool:
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def sharding_asked_for() -> str | None:
    """Name of what the launcher deals weights out with, if it does."""
    return "ZeRO-3" if zero3.is_asked_for() else "FSDP" if fsdp_is_asked_for() else None


def refuse_sharding_of_launch(*, precision: bool = True) -> None:
    """Before anything is loaded: what the launcher asks for, told by its environment, that training cannot do.

    Args:
        precision: Whether a recipe decides the precision, and not the launcher.
    """
    if zero3.is_asked_for():
        zero3.refuse_launch()
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
    if plugin.fsdp_version != 2:
        raise UserError(
            f"The launch configuration asks for FSDP version {plugin.fsdp_version}, which flattens the heads that the "
            "losses read; set fsdp_version: 2 in it."
        )
    if plugin.state_dict_type != StateDictType.SHARDED_STATE_DICT:
        raise UserError(
            f"The launch configuration sets fsdp_state_dict_type: {plugin.state_dict_type.name}, which gathers all "
            "weights for each checkpoint; set SHARDED_STATE_DICT. What is trained is saved in one piece all the same."
        )
    if plugin.cpu_ram_efficient_loading:
        raise UserError(
            "The launch configuration sets fsdp_cpu_ram_efficient_loading, with which only the first process would "
            "read the models that all of them ask; set it to false."
        )
    if plugin.activation_checkpointing:
        raise UserError(
            "The launch configuration sets fsdp_activation_checkpointing, and gradient_checkpointing of the recipe "
            "decides that; set it to false."
        )


def refuse_sharded_adapters(sharded: bool, adapted: bool) -> None:
    if sharded and adapted:
        raise UserError(
            "FSDP2 with LoRA is not supported, nor is ZeRO-3: both adapters sit on one copy of a frozen base, which "
            "cannot be dealt out twice. Adapters need little memory: launch without sharding (--launch ddp-8gpu)."
        )


def refuse_zero3_checkpoint(fsdp: bool, folder: Path) -> None:
    if fsdp:
        raise UserError(
            f"{folder} is a checkpoint of DeepSpeed's ZeRO-3, which FSDP2 cannot go on from; launch with ZeRO-3, with "
            "DDP or in one process to finish it, or remove it to begin anew."
        )


class ShardedCheckpoints(SFTTrainer):
    """TRL's SFTTrainer that resumes from sharded and ordinary checkpoints alike, whatever it runs under itself."""

    def create_accelerator_and_postprocess(self) -> None:
        """As upstream; on CPUs accelerate would take DDP for what it was asked for, without a word."""
        if zero3.is_asked_for():
            zero3.begin_anew()
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if fsdp_is_asked_for() and state.distributed_type == DistributedType.MULTI_CPU:
            state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, FullyShardedDataParallelPlugin()
            self.is_fsdp_enabled = True
        if zero3.is_asked_for():
            zero3.set_up(self)

    @property
    def is_dealt_out(self) -> bool:
        """Whether each process holds a part of the weights."""
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        """As upstream, but for ZeRO-3: heads that the losses read, and checkpoints of any number of processes."""
        if not self.is_deepspeed_enabled:
            return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        if resume_from_checkpoint and not is_of_zero3(Path(resume_from_checkpoint)):
            raise UserError(
                f"{resume_from_checkpoint} is a checkpoint of a training without DeepSpeed, which ZeRO-3 cannot go on "
                "from; launch without DeepSpeed (one process, DDP or FSDP2) to finish it, or remove it to begin anew."
            )
        zero3.hold_heads(self.model)
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        if resume_from_checkpoint:
            self._load_zero3(Path(resume_from_checkpoint))
            self._load_optimizer_and_scheduler(resume_from_checkpoint)
        return prepared

    def _load_zero3(self, checkpoint: Path) -> None:
        count, rank = self.args.world_size, self.args.process_index
        if writers(checkpoint) == count:
            deepspeed_load_checkpoint(self.model_wrapped, str(checkpoint))
            return
        place = checkpoint.with_name(f"{checkpoint.name}-for-{count}")
        dealt_out_anew(self.model_wrapped, checkpoint, place, count=count, rank=rank)
        self.accelerator.wait_for_everyone()  # DeepSpeed looks for the files of all
        deepspeed_load_checkpoint(self.model_wrapped, str(place))
        self.accelerator.wait_for_everyone()
        if rank == 0:
            shutil.rmtree(place)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As upstream; DeepSpeed's own files are all that a checkpoint of ZeRO-3 has of the weights."""
        if not (self.is_deepspeed_enabled and _internal_call):
            super().save_model(output_dir, _internal_call)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder, model = Path(resume_from_checkpoint), model or self.model
        if is_of_zero3(folder):
            refuse_zero3_checkpoint(self.is_fsdp_enabled, folder)
            load_weights(model, folder)
        elif (folder / MODEL_SHARDS).is_dir():
            load_model_shards(model, folder)
        elif self.is_fsdp_enabled:
            self._load_whole(model, folder)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_whole(self, model: Any, folder: Path) -> None:
        """An ordinary checkpoint into a sharded model."""
        load_into_shards(model, whole_state(architecture_of(model), folder, model))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        folder = Path(checkpoint or "")
        as_upstream = (folder / OPTIMIZER_SHARDS).is_dir() == self.is_fsdp_enabled and not is_of_zero3(folder)
        if checkpoint is None or as_upstream or self.is_deepspeed_enabled:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        if is_of_zero3(folder):
            load_optimizer(self.model, self.optimizer, folder)
        elif self.is_fsdp_enabled:
            state = torch.load(folder / OPTIMIZER_NAME, map_location="cpu", weights_only=True)
            self.optimizer.load_state_dict(dealt_out(state, self.optimizer))  # pyright: ignore
        else:
            load_optimizer_shards(self.model, self.optimizer, folder)
        self.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER_NAME, weights_only=True))  # pyright: ignore


def load_model_shards(model: Any, folder: Path) -> None:
    state = {"model": get_model_state_dict(model)}
    state_dict_loader.load(state, checkpoint_id=folder / MODEL_SHARDS, no_dist=not dist.is_initialized())
    set_model_state_dict(model, state["model"])


def load_optimizer_shards(model: Any, optimizer: Any, folder: Path) -> None:
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper holds it
    state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    state_dict_loader.load(state, checkpoint_id=folder / OPTIMIZER_SHARDS, no_dist=not dist.is_initialized())
    set_optimizer_state_dict(model, optimizer, optim_state_dict=state["optimizer"])


def whole_state(kind: type[PreTrainedModel], folder: Path, model: Any) -> dict[str, Any]:
    """Weights of an ordinary checkpoint under the names that the model has for them."""
    dtype = next(model.parameters()).dtype
    options: Any = {"dtype": dtype, "attn_implementation": "eager", "output_loading_info": True}
    loaded, found = kind.from_pretrained(folder, **options)  # pyright: ignore
    if found["missing_keys"] or found["unexpected_keys"]:
        raise UserError(f"The checkpoint {folder} does not fit the model. Remove it and run again.")
    return loaded.state_dict()


@torch.no_grad()
def load_into_shards(model: Any, state: dict[str, Any]) -> None:
    """Every process has the whole state, and takes its part of it."""
    for name, weight in model.state_dict().items():
        weight.copy_(_like(state[name], weight))


def dealt_out(state: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """An optimizer's state of whole weights as one of the shards that it has now."""
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
