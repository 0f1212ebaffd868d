"""WDJTTrainer: TRL's SFTTrainer with a weak model next to the strong one; `pair_checkpoints` saves and loads."""

import copy
import inspect
import logging
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments
from transformers.integrations.neftune import activate_neftune, deactivate_neftune
from transformers.trainer_utils import EvalLoopOutput, get_last_checkpoint
from trl.models.activation_offloading import OffloadActivations
from trl.trainer.sft_trainer import SFTTrainer

from weakdriven.config.recipe import JointSettings, Recipe
from weakdriven.losses.mixed_ce import IGNORE, targets
from weakdriven.models.adapters import adapter_config, add_adapter, share_frozen
from weakdriven.models.head import causal_lm, refuse_different_heads
from weakdriven.models.liger import use_liger
from weakdriven.models.recompute import keep
from weakdriven.training.attention import trained_attention
from weakdriven.training.packing import packs
from weakdriven.training.phase import Phase, fit
from weakdriven.training.upstream import require_call, require_hooks
from weakdriven.wmss import checks
from weakdriven.wmss.config import WDJTConfig
from weakdriven.wmss.gap import SUMS, means
from weakdriven.wmss.pair import WeakStrongPair
from weakdriven.wmss.pair_checkpoints import PairCheckpoints
from weakdriven.wmss.pair_metrics import PairMetrics

__all__ = ["WDJTConfig", "WDJTTrainer", "train_joint"]
logger = logging.getLogger(__name__)


class WDJTTrainer(PairCheckpoints):
    """TRL's `SFTTrainer` on the mixed logits of two models. Checkpoints hold both; `save_model` saves the strong one.

    Args:
        model: The strong model: a loaded model or PeftModel, or the path or Hub id of a model or adapter.
        weak_model: The weak model, in the same forms. A path is loaded in the strong model's precision, unless
            `model_init_kwargs` or `weak_model_init_kwargs` sets one.
        args: `WDJTConfig`, or any training arguments, completed by its defaults; the trainer works on a copy.
        peft_config: Adds an adapter of this kind to both models. If the strong model already has an adapter, a trained
            weak model without one gets the same kind. Frozen tensors that are equal in both are stored once.
        weak_processing_class: The weak model's tokenizer, if it is not the one next to that model.
        more, kwargs: Further arguments of SFTTrainer, in its order.
    """

    _tag_names = ["trl", "sft", "weak-driven"]  # noqa: RUF012
    _name = "WD-JT"
    _paper = {  # noqa: RUF012
        "title": "Weak-Driven Learning: How Weak Agents Make Strong Agents Stronger",
        "id": "2602.08222",
    }
    loss_is_scaled_for_ga = True  # compute_loss divides by the tokens of the whole step
    args: WDJTConfig

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        args: TrainingArguments | None = None,
        *more: Any,
        weak_model: str | PreTrainedModel | PeftModel,
        weak_processing_class: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ):
        require_hooks(type(self))
        options = inspect.signature(SFTTrainer).bind(model, args, *more, **kwargs).arguments
        if args is None:
            name = model if isinstance(model, str) else model.config.name_or_path
            args = WDJTConfig(f"{Path(str(name)).name}-WDJT")
        config = copy.copy(WDJTConfig.of(args))
        checks.refuse_options(config, options | {"weak_processing_class": weak_processing_class})
        load, weak_load = checks.init_options(model, config, options.pop("quantization_config", None))
        lora = options.get("peft_config")
        strong, weak = checks.load_branches(model, weak_model, config, load, weak_load, peft_config=lora)
        checks.refuse_pair(strong, weak, config, lora)
        tokenizer = options.get("processing_class") or checks.load_tokenizer_of(model, strong, load)
        vocabulary = checks.common_vocabulary(tokenizer, weak_model, weak, weak_load, weak_processing_class)
        refuse_different_heads(strong, weak, vocabulary)
        # one model does not run in the first step
        first_alone = config.strong_weight in (0, 1) and config.strong_weight_end is not None
        if first_alone or config.ddp_find_unused_parameters is None:
            config.ddp_find_unused_parameters = first_alone
        config.logging_nan_inf_filter = False  # it waits for the device at each micro-batch; NaN stops training anyway
        own, config.model_init_kwargs = config.model_init_kwargs, None  # already used; TRL would warn
        super().__init__(**options | {"model": strong, "args": config, "processing_class": tokenizer})
        config.model_init_kwargs = own
        checks.refuse_sharding(self)
        checks.refuse_no_targets(self.train_dataset)
        checks.refuse_long_rows(self, weak)
        if config.chat_template_path is not None:  # TRL may have added tokens to the strong model
            tokenizer: Any = self.processing_class
            vocabulary = checks.resize_as_strong(self.model, weak, tokenizer)
        pair = self._pair_up(self.model, weak, vocabulary)
        self.model = self.model_wrapped = pair  # pyright: ignore
        if isinstance(self.maybe_activation_offload_context, OffloadActivations):
            self.maybe_activation_offload_context.update_model_params(pair)  # so weights are not offloaded
        checks.refuse_partial_optimizer(self.optimizer, pair, config.weak_learning_rate)
        self.neftune_noise_alpha = None  # `train` does it, for both models
        self.model_accepts_loss_kwargs = True  # transformers before 5.19 reads this for loss_is_scaled_for_ga
        self._liger = config.use_liger_kernel
        self.pair_metrics = PairMetrics(self)
        self.callback_handler.callbacks.insert(0, self.pair_metrics)

    def _pair_up(self, strong: Any, weak: Any, vocabulary: int | None) -> WeakStrongPair:
        args = self.args
        adapter = adapter_config(strong, "strong")
        if args.weak_learns and adapter is not None and not isinstance(weak, PeftModel):
            weak = add_adapter(weak, adapter, seed=args.seed + 1)
        if shared := share_frozen(strong, weak):
            logger.info("weak and strong model share %.2f GiB of frozen weights", shared / 2**30)
        if args.use_liger_kernel:
            for model in (strong, weak):
                use_liger(causal_lm(model))
        if isinstance(weak, PeftModel) and args.gradient_checkpointing:
            weak.enable_input_require_grads()
        recompute: Any = args.gradient_checkpointing_kwargs or {}
        if recompute.get("selective"):  # since TRL 1.15
            from trl.models.selective_activation_checkpointing import enable_selective_activation_checkpointing

            enable_selective_activation_checkpointing(weak)
        pair = WeakStrongPair(
            strong=strong,
            weak=weak,
            strong_weight=args.strong_weight or args.strong_weight_end or 0.0,
            weak_trainable=args.weak_learns,
            strong_anchor=args.strong_anchor,
            vocabulary=vocabulary,
            implementation=args.loss_implementation,
        )
        pair.strong_weight = args.strong_weight
        if not args.strong_runs:
            strong.requires_grad_(False)
        placed = getattr(weak, "quantization_method", None) or getattr(weak, "hf_device_map", None)
        if self.place_model_on_device and not placed:
            weak.to(args.device)
        checks.refuse_logits(strong, weak, args)  # after the move to the GPU, which Liger's layers need
        return pair

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as upstream, with our attention; NEFTune, if set, adds noise to both models' embeddings."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(str(self.args.output_dir)) or True
        self.pair_metrics.resumed = resume_from_checkpoint
        self.args.use_liger_kernel = False  # both models have its layers; Trainer would look for them in the pair
        models = (self.pair.strong, self.pair.weak) if self.args.neftune_noise_alpha is not None else ()
        hooks = [(model, activate_neftune(model, self.args.neftune_noise_alpha)) for model in models]
        try:
            with trained_attention(self.pair):
                return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            for model, hook in hooks:
                deactivate_neftune(model, hook)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """Count the tokens of the pair's loss; upstream's count ignores where packed sequences meet."""
        batches = list(islice(epoch_iterator, num_batches))
        counts = [
            (targets(batch["labels"], batch.get("position_ids"), batch.get("attention_mask")) != IGNORE).sum()
            for batch in batches
            if "labels" in batch
        ]
        if not counts:
            return batches, None
        tokens: Any = torch.stack(counts).sum().to(device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            tokens = self.accelerator.gather(tokens).sum()  # pyright: ignore
        return batches, tokens

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        require_call("Trainer.get_batch_samples", num_items_in_batch is not None or "labels" not in inputs)
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:
            self.pair_metrics.measure_norms()
        return loss

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        inputs.pop("_prediction_loss_only", None)  # TRL before 1.15 sets it for its own compute_loss
        items = None if num_items_in_batch is None else torch.as_tensor(num_items_in_batch).clamp(min=1)
        output = model(**inputs, num_items_in_batch=items)
        loss = output.loss
        if self.args.average_tokens_across_devices and items is not None:
            # the count is over all ranks, but DDP averages gradients
            loss = loss * (self.accelerator.num_processes // self.get_tp_size())
        self.pair_metrics.add(inputs, output)
        return (loss, output) if return_outputs else loss

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Count six operations per weight and token of a trained model, as upstream; two if it only runs forward."""
        pair, args = self.pair, self.args
        branches = ((pair.strong, pair.strong_runs, args.strong_runs), (pair.weak, pair.weak_runs, args.weak_learns))
        weights = sum(
            (6 if learns else 2) * model.num_parameters(exclude_embeddings=True)
            for model, runs, learns in branches
            if runs
        )
        return weights * inputs["input_ids"].numel()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        logs |= self.pair_metrics.logged(logs)
        super().log(logs, start_time)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the losses and statistics of a test set as metrics, without predictions."""
        warnings.warn(
            "predictions and label_ids are None, because WDJTTrainer never builds mixed logits; the losses are in "
            "metrics. Generate or score with trainer.pair.strong, or with the mixture (weakdriven export mix).",
            stacklevel=2,
        )
        return super().predict(*args, **kwargs)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate, and report everything that is measured in a training step."""
        self.pair_metrics.pending = None
        output: Any = super().evaluation_loop(dataloader, description, True, ignore_keys, metric_key_prefix)
        if self.pair_metrics.pending is not None:
            found = means(self.pair_metrics.read()[0][: len(SUMS)])
            found["strong_weight"] = self.pair.strong_weight
            output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in found.items()})
        return output

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        self.args.use_liger_kernel = self._liger  # trackers and checkpoints record it from here on
        fresh, rate = self.optimizer is None, self.args.weak_learning_rate
        optimizer = super().create_optimizer(model)
        if fresh and rate is not None:
            weak = {id(weight) for weight in self.pair.weak.parameters()}
            for group in list(optimizer.param_groups):
                moved = [weight for weight in group["params"] if id(weight) in weak]
                group["params"] = [weight for weight in group["params"] if id(weight) not in weak]
                optimizer.add_param_group({**group, "params": moved, "lr": rate})
        return optimizer


def train_joint(
    strong: PreTrainedModel | PeftModel,
    weak: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    settings: JointSettings,
    recipe: Recipe,
    phase: Phase,
) -> dict[str, Any]:
    """Train both models in place; return counters."""
    for model in (strong, weak):
        keep(model, settings.gradient_checkpointing)
    made = phase.prepare(dataset, settings, recipe, packing=packs([strong, weak], settings, recipe))
    made["args"] = WDJTConfig.of(made["args"], weak_trainable=settings.weak == "joint", **settings.mixing())
    counters = fit(WDJTTrainer(strong, weak_model=weak, processing_class=tokenizer, **made))
    models = 2 if settings.weak == "joint" else 1
    return counters | {"trained_tokens": models * counters["trained_tokens"]}  # both learn from each token
