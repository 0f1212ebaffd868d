"""Checks how many processes may train a recipe, and what their launch configuration may set."""

import os
from typing import Any

from weakdriven.config.recipe import Recipe
from weakdriven.errors import UserError
from weakdriven.runs.launcher import refuse_deepspeed
from weakdriven.runs.processes import launched, refuse_uneven

ALONE = {"scaled_ce", "undial", "ssb"}
"""Methods whose trainers bypass the model's forward pass, so that processes would not average their gradients."""
UNSHARDED = ("dpo", "spin")
"""Methods whose trainers need whole models in every process."""
SUPPORTED = {
    "fsdp_version": (2, "FSDP version 1 flattens the heads that the losses read"),
    "fsdp_state_dict_type": ("SHARDED_STATE_DICT", "a checkpoint must not gather all weights"),
    "fsdp_cpu_ram_efficient_loading": (False, "all processes read the models, not only the first"),
    "fsdp_activation_checkpointing": (False, "gradient_checkpointing decides that"),
}
"""FSDP settings that a launch configuration must have, and why."""


def fsdp_is_asked_for() -> bool:
    return _is_set("ACCELERATE_USE_FSDP")


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() == "true"


def refuse_sharding_of_launch(*, precision: bool = True) -> None:
    """Raise an error for unsupported settings of the launcher; with `precision`, also for its mixed precision."""
    if _is_set("ACCELERATE_USE_DEEPSPEED"):
        refuse_deepspeed()
    if fsdp_is_asked_for():
        from accelerate import FullyShardedDataParallelPlugin

        refuse_plugin(FullyShardedDataParallelPlugin())
    mixed = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision and mixed not in ("no", ""):
        raise UserError(
            f"The launch configuration sets mixed_precision: {mixed}, but the recipe's precision decides that; set "
            "mixed_precision: 'no' in the launch configuration."
        )


def refuse_plugin(plugin: Any) -> None:
    """Raise an error for FSDP settings that would change the training or could not be saved."""
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


def refuse_processes(recipe: Recipe, processes: int, *, sharded: bool = False) -> None:
    """Raise an error for a number of processes that the machine, the recipe or one of its methods does not support.

    Args:
        sharded: Whether a plan shards weights, whatever the launcher says.
    """
    if processes == 1:
        if launched() > 1:
            raise UserError(
                f"This command runs in one process, but a launcher started {launched()}; start it without a launcher. "
                "weakdriven run and weakdriven select support several."
            )
        import torch

        if (devices := torch.cuda.device_count()) > 1:
            raise UserError(
                f"{devices} GPUs are visible, but one process uses one of them; give --launch a configuration that "
                "starts a process on each (such as weakdriven run RECIPE --launch fsdp2-8gpu), or set "
                "CUDA_VISIBLE_DEVICES=0."
            )
        return
    refuse_sharding_of_launch()
    sharded = sharded or fsdp_is_asked_for()
    refuse_sharded_adapters(sharded, recipe.lora is not None)
    if sharded and recipe.precision == "fp16-mixed":
        raise UserError(
            "precision is fp16-mixed, which is not supported with FSDP2: it was never tried with loss scaling. Set "
            "precision: bf16-mixed, or train with --launch ddp-8gpu (in a plan: --sharding ddp)."
        )
    methods = {recipe.method, *recipe.baselines}
    if alone := sorted(methods & ALONE):
        raise UserError(
            f"{', '.join(alone)} trains in one process, found {processes}; run it without a launcher, or leave it out "
            "of method and baselines here and run it afterwards (finished stages are kept)."
        )
    used = [name for name in UNSHARDED if name in methods]
    if used and sharded:
        raise UserError(
            f"{', '.join(used)} trains in one process or with DDP, not with FSDP; use --launch ddp-8gpu for it (in a "
            "plan: --sharding ddp), or leave it out of method and baselines here."
        )
    used += ["joint"] if methods - {"sft", "neftune", *UNSHARDED} else []
    used += [] if recipe.sft.model and methods <= {"wmss", *UNSHARDED} else ["sft"]
    refuse_uneven({f"{name}.batch_size": getattr(recipe, name).batch_size for name in sorted(used)}, processes)
