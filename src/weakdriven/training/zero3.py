"""DeepSpeed's ZeRO-3 as accelerate sets it up: what of it is refused, and the heads that the losses read.

DeepSpeed itself is imported only where it trains.
"""

import os
from collections.abc import Callable
from typing import Any

from accelerate import DeepSpeedPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from accelerate.utils.deepspeed import DeepSpeedEngineWrapper
from transformers.integrations.deepspeed import propagate_args_to_deepspeed, unset_hf_deepspeed_config

from weakdriven.errors import UserError
from weakdriven.models.head import head
from weakdriven.models.sharded import is_sharded
from weakdriven.runs.launcher import refuse_missing_deepspeed
from weakdriven.wmss.pair import WeakStrongPair

FROM_RECIPE = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
)
"""What Trainer fills in where a configuration says "auto"."""
HARMLESS = (
    "steps_per_print",
    "wall_clock_breakdown",
    "comms_logger",
    "zero_allow_untested_optimizer",
)
"""What else may stand in a configuration: it changes no number."""


def is_asked_for() -> bool:
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def refuse_launch() -> None:
    refuse_missing_deepspeed()
    refuse_config(DeepSpeedPlugin())


def refuse_config(plugin: Any) -> None:
    """Settings of DeepSpeed that would train something else than the recipe or arguments say."""
    config = plugin.deepspeed_config
    zero = config.get("zero_optimization", {})
    if (stage := zero.get("stage")) != 3:
        raise UserError(
            f"The launch configuration asks for stage {stage} of DeepSpeed's ZeRO; only stage 3 has been verified. Set "
            "zero_stage: 3, or use DDP (--launch ddp-8gpu)."
        )
    known = {"zero_optimization", *FROM_RECIPE, *HARMLESS}
    other = [name for name, value in config.items() if name not in known and value != {"enabled": False}]
    if other:
        raise UserError(
            f"The configuration of DeepSpeed sets {', '.join(sorted(other))}, and the recipe or the training arguments "
            "decide optimizer, schedule and precision; leave it out."
        )
    for name in FROM_RECIPE:
        if config.get(name, "auto") != "auto":
            raise UserError(
                f'The configuration of DeepSpeed sets {name}: {config[name]}, and the recipe decides that; set "auto".'
            )
    moved = [name for name in ("offload_optimizer", "offload_param") if _device(zero.get(name)) != "none"]
    if moved:
        raise UserError(
            f"The configuration of DeepSpeed sets {moved[0]}, with which another optimizer than the recipe's would run "
            "on the CPU; set its device to none."
        )
    if rounded := sorted(name for name in zero if name.startswith("zero_quantized") and zero[name]):
        raise UserError(
            f"The configuration of DeepSpeed sets {rounded[0]}, which rounds what is trained; leave it out."
        )


def refuse_recipe(precision: str, optimizers: dict[str, str]) -> None:
    """What a recipe may ask for that DeepSpeed would do in another way, without a word.

    Args:
        optimizers: Of each phase that trains.
    """
    if precision == "bf16":
        raise UserError(
            "precision is bf16, and DeepSpeed would train a copy of the weights in fp32 beside them; set precision: "
            "bf16-mixed, or use FSDP2 (--launch fsdp2-8gpu)."
        )
    for phase, optimizer in optimizers.items():
        if optimizer not in ("adamw", "rmsprop"):
            raise UserError(
                f"{phase}.optimizer is {optimizer}, which reads the shapes of weights that ZeRO-3 lays end to end; set "
                "adamw, or use FSDP2 (--launch fsdp2-8gpu)."
            )


def refuse_model(model: Any) -> None:
    """Models that are not whole, or not in fp32, when training begins."""
    if is_sharded(model):
        raise UserError(
            "The model is already dealt out over processes, as transformers loads one once arguments that ask for "
            "ZeRO-3 are made; load it before them, make them by WDJTConfig, or give WDJTTrainer a path."
        )
    if other := {str(weight.dtype) for weight in model.parameters()} - {"torch.float32"}:
        raise UserError(
            f"Weights are {', '.join(sorted(other))}, and DeepSpeed would train a copy of them in fp32; load models "
            "in float32 (bf16=True then computes in bf16), or use FSDP2."
        )


def _device(offload: dict[str, Any] | None) -> str:
    return str((offload or {}).get("device") or "none")


def read_models_whole() -> None:
    """Models that transformers loads from here on are whole: they are read before they are dealt out, or are asked."""
    unset_hf_deepspeed_config()


def begin_anew() -> None:
    """Before each trainer: accelerate keeps the first configuration, and each training has its own batch and rate."""
    AcceleratorState._reset_state()


def set_up(trainer: Any) -> None:
    """What accelerate leaves to do: CPUs, which it takes for DDP, and precision, which is that of one process."""
    state, args = trainer.accelerator.state, trainer.args
    if state.distributed_type == DistributedType.MULTI_CPU:
        plugin: DeepSpeedPlugin = args.deepspeed_plugin
        plugin.set_mixed_precision(args.mixed_precision)
        plugin.select(_from_accelerator_state=True)
        state.distributed_type, state.deepspeed_plugins = DistributedType.DEEPSPEED, plugin
        trainer.is_deepspeed_enabled = True
        propagate_args_to_deepspeed(trainer.accelerator, args)
    config = state.deepspeed_plugin.deepspeed_config
    if args.fp16:
        raise UserError("fp16 is set, which has not been verified under ZeRO-3; set bf16, or neither of them.")
    if args.bf16:
        # weights, gradients and their way between processes stay fp32, as in one process
        autocast = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
        config |= {"bf16": {"enabled": False}, "torch_autocast": autocast}
    read_models_whole()


def hold_heads(model: Any) -> None:
    """Have ZeRO-3 keep heads whole while a model runs forwards and backwards: its loss reads them outside of theirs."""
    from deepspeed.runtime.zero import register_external_parameter  # pyright: ignore[reportMissingImports]

    branches = (model.strong, model.weak) if isinstance(model, WeakStrongPair) else (model,)
    for own in map(head, branches):
        for weight in (own.weight_VD, own.bias_V):
            if weight is not None:
                register_external_parameter(model, weight)


class MeasuredEngine(DeepSpeedEngineWrapper):
    """accelerate's, which moves the weights right after a step's last backward pass; here its gradients are seen first.

    Args:
        look: Called when the gradients of a step are complete.
    """

    def __init__(self, engine: Any, look: Callable[[], None]):
        super().__init__(engine)
        self.look = look

    def backward(self, loss: Any, sync_gradients: bool = True, **kwargs: Any) -> None:
        self.engine.set_gradient_accumulation_boundary(is_boundary=sync_gradients)
        self.engine.backward(loss, **kwargs)
        if sync_gradients:
            self.look()
            self.engine.step()
