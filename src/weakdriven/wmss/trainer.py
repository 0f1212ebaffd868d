"""WDJTTrainer: TRL's SFTTrainer with a weak model next to the strong one, and everything that it overrides."""

import copy
import inspect
import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments
from transformers.integrations.neftune import activate_neftune, deactivate_neftune
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, IntervalStrategy
from trl.models.activation_offloading import OffloadActivations
from trl.trainer.sft_trainer import SFTTrainer

from weakdriven.config.recipe import JointSettings, Recipe
from weakdriven.losses.mixed_ce import IGNORE
from weakdriven.models.adapters import adapter_config, add_adapter, merged, share_frozen
from weakdriven.models.head import causal_lm, refuse_different_heads, refuse_other_logits
from weakdriven.models.liger import use_liger
from weakdriven.models.recompute import keep
from weakdriven.models.sharded import gathered_model, gradient_norm
from weakdriven.training.attention import trained_attention
from weakdriven.training.fsdp import MODEL_SHARDS, ShardedCheckpoints
from weakdriven.training.phase import Phase, fit
from weakdriven.wmss import checks
from weakdriven.wmss.config import WDJTConfig
from weakdriven.wmss.gap import SUMS, GapWatch, mean_logits, means, refuse_divergence
from weakdriven.wmss.pair import (
    WEAK_FOLDER,
    WeakStrongPair,
    load_pair_weights,
    read_pair,
    save_pair,
    targets,
    write_pair,
)

__all__ = ["WDJTConfig", "WDJTTrainer", "train_joint"]
logger = logging.getLogger(__name__)
LENGTHS = "row_lengths"


class WDJTTrainer(ShardedCheckpoints):
    """TRL's `SFTTrainer` on the mixed logits of two models; checkpoints hold both, `save_model` the strong one.

    Args:
        model: The strong model: a path or Hub id (of a model or of an adapter), a model, or a PeftModel.
        weak_model: Likewise. A path is loaded in the strong model's precision unless `model_init_kwargs` names one.
        args: `WDJTConfig`, or any training arguments, which get its defaults; the trainer works on a copy.
        peft_config: Gives both models an adapter of this kind. If the strong model already has one, a weak model
            without gets the same kind. Frozen tensors that are equal in both are held once.
        more, kwargs: As for SFTTrainer, in its order.
    """

    _tag_names = ["trl", "sft", "weak-driven"]  # noqa: RUF012
    _name = "WD-JT"
    _paper = {  # noqa: RUF012
        "title": "Weak-Driven Learning: How Weak Agents Make Strong Agents Stronger",
        "id": "2602.08222",
    }
    args: WDJTConfig

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        args: TrainingArguments | None = None,
        *more: Any,
        weak_model: str | PreTrainedModel | PeftModel,
        **kwargs: Any,
    ):
        options = inspect.signature(SFTTrainer).bind(model, args, *more, **kwargs).arguments
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path
            args = WDJTConfig(f"{Path(name).name}-WDJT")
        config = copy.copy(WDJTConfig.of(args))
        checks.refuse_options(config, options)
        load = {"quantization_config": options.pop("quantization_config", None)}
        strong, weak = checks.load_branches(model, weak_model, config, peft_config=options.get("peft_config"), **load)
        checks.refuse_pair(strong, weak, config, options.get("peft_config"))
        tokenizer = options.get("processing_class") or checks.load_tokenizer_of(model, strong, config)
        vocabulary = checks.common_vocabulary(tokenizer, weak_model, weak)
        refuse_different_heads(strong, weak, vocabulary)
        if config.strong_weight in (0, 1) and config.strong_weight_end is not None:
            config.ddp_find_unused_parameters = True  # one model does not run in the first step
        config.logging_nan_inf_filter = False  # it waits for the device at each micro-batch; NaN stops training anyway
        own, config.model_init_kwargs = config.model_init_kwargs, None  # used above; TRL would warn about them
        super().__init__(**options | {"model": strong, "args": config, "processing_class": tokenizer})
        config.model_init_kwargs = own
        checks.refuse_sharding(self)
        checks.refuse_no_targets(self.train_dataset)
        if config.chat_template_path is not None:  # TRL may have added tokens
            vocabulary = checks.common_vocabulary(self._tokenizer, weak_model, weak)
        pair = self._pair_up(self.model, weak, vocabulary)
        self.model = self.model_wrapped = self.callback_handler.model = pair  # pyright: ignore
        if isinstance(self.maybe_activation_offload_context, OffloadActivations):
            self.maybe_activation_offload_context.update_model_params(pair)  # weights are not offloaded
        checks.refuse_partial_optimizer(self.optimizer, pair, config.weak_learning_rate)
        # Trainer looked at the strong model alone; the pair divides by num_items_in_batch itself
        self.model_accepts_loss_kwargs = True
        self.neftune_noise_alpha = None  # see train
        self._norms: dict[str, Tensor] = {}
        self._liger = config.use_liger_kernel
        self._forget()
        self._in_checkpoint = False

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
        if recompute.get("selective"):  # an option that TRL has from 1.15 on
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
        if self.place_model_on_device and getattr(weak, "quantization_method", None) is None:
            self._move_model_to_device(weak, args.device)
        for model, name in ((strong, "strong"), (weak, "weak")):  # on the device, where layers of Liger can run
            refuse_other_logits(model, f"{name} model")
        return pair

    @property
    def pair(self) -> WeakStrongPair:
        return self.accelerator.unwrap_model(self.model)  # pyright: ignore

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As upstream, in our attention; NEFTune, if set, adds noise to both models' embeddings."""
        self.args.use_liger_kernel = False  # both models have its layers; Trainer would look for them in the pair
        models = (self.pair.strong, self.pair.weak) if self.args.neftune_noise_alpha is not None else ()
        hooks = [(model, activate_neftune(model, self.args.neftune_noise_alpha)) for model in models]
        try:
            with trained_attention(self.pair):
                return super().train(*args, **kwargs)
        finally:
            for model, hook in hooks:
                deactivate_neftune(model, hook)

    def _forget(self) -> None:
        self._pending: Tensor | None = None
        self._logged: list[tuple[list[float], dict[str, float]]] = []
        self._gap, self._total_train_tokens = GapWatch(), 0
        self._measured = 0

    def _inner_training_loop(self, *args: Any, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """Training starts, restarts with a smaller batch, or resumes from a checkpoint here."""
        self._forget()
        kept = read_pair(Path(resume_from_checkpoint)) if resume_from_checkpoint else {}
        if "gap" in kept:
            self._total_train_tokens = kept["num_tokens"]
            self._gap.restore(kept["gap"])
        self.args.use_liger_kernel = self._liger  # what trackers and checkpoints record
        return super()._inner_training_loop(*args, resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Any:
        """Counts the tokens of the pair's loss."""
        counted = [
            {**batch, "shift_labels": targets(batch["labels"], batch.get("position_ids"), batch.get("attention_mask"))}
            for batch in batch_samples
            if "labels" in batch
        ]
        return super()._get_num_items_in_batch(counted, device)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        self.pair.strong_weight = self.args.strong_weight_at(self.state.global_step / self.state.max_steps)
        step, strategy = self.state.global_step + 1, self.args.logging_strategy
        if step != self._measured:  # mean logits are measured in steps that will be logged
            at_interval = strategy == IntervalStrategy.STEPS and step % self.state.logging_steps == 0
            first = step == 1 and self.args.logging_first_step
            self.pair.measure_mean_logits(at_interval or first or strategy == IntervalStrategy.EPOCH)
            self._measured = step
        return super().training_step(*args, **kwargs)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        items = None if num_items_in_batch is None else torch.as_tensor(num_items_in_batch).clamp(min=1)
        output = model(**inputs, num_items_in_batch=items)
        loss = output.loss
        if self.args.average_tokens_across_devices and items is not None:
            # the count is over all ranks, and DDP averages gradients
            loss = loss * (self.accelerator.num_processes // self.get_tp_size())
        mask = inputs.get("attention_mask")
        num_tokens = torch.tensor(inputs["input_ids"].numel(), device=loss.device) if mask is None else mask.sum()
        # summed on the device, so that nothing waits for it before the optimizer step
        sums = torch.stack([num_tokens, output.num_tokens, *output.statistics, *output.mean_logits]).float()
        self._pending = sums if self._pending is None else self._pending + sums
        return (loss, output) if return_outputs else loss

    def _read_sums(self, norms: dict[str, Tensor]) -> tuple[list[float], dict[str, float]]:
        """Sums over all ranks, and gradient norms, with one wait for the device."""
        assert self._pending is not None
        sums: Any = self.accelerator.reduce(self._pending)
        values = torch.cat([sums, *(norm.float().reshape(1).to(sums.device) for norm in norms.values())]).tolist()
        self._pending = None
        return values[: len(sums)], dict(zip(norms, values[len(sums) :], strict=True))

    def _branch_norms(self) -> dict[str, Tensor]:
        scale = self.accelerator.scaler.get_scale() if self.accelerator.scaler else 1
        norms = {name: gradient_norm(getattr(self.pair, name).parameters()) for name in ("strong", "weak")}
        return {name: norm / scale for name, norm in norms.items() if norm is not None}

    def _clip_grad_norm(self, model: Any) -> Any:
        self._norms = self._branch_norms()
        return super()._clip_grad_norm(model)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The last hook that upstream calls before the optimizer step, with or without clipping."""
        if grad_norm is None:
            self._norms = self._branch_norms()
        sums, norms = self._read_sums(self._norms)
        self._total_train_tokens += int(sums[0])
        self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
        _, tokens, *losses = sums[:5]
        weight, anchor = self.pair.strong_weight, self.pair.strong_anchor
        ran = {"mixed": True, "strong": weight > 0 or anchor > 0, "weak": weight < 1}
        losses = {name: loss / max(tokens, 1) for (name, on), loss in zip(ran.items(), losses, strict=True) if on}
        # a gradient scaler (fp16) finds infinite gradients while it searches its scale, and skips those steps
        refuse_divergence(self.state.global_step + 1, losses, {} if self.accelerator.scaler else norms)
        if self.args.logging_strategy != "no":  # else it would never be emptied
            self._logged.append((sums, norms))
        gap = losses["strong"] - losses["mixed"] if len(losses) == 3 else None
        if gap is not None and self._gap.grows(gap) and self.is_world_process_zero():
            warnings.warn(GapWatch.WARNING.format(gap=gap), stacklevel=2)
        return super()._get_grad_norm(model, grad_norm)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._logged:
            columns = zip(*(sums[: len(SUMS)] for sums, _ in self._logged), strict=True)
            logs |= means([sum(column) for column in columns]) | mean_logits(self._logged[-1][0])
            for name in ("strong", "weak"):
                if norms := [found[name] for _, found in self._logged if name in found]:
                    logs[f"{name}_grad_norm"] = sum(norms) / len(norms)
            logs["strong_weight"] = self.pair.strong_weight
            self._logged = []
        super().log(logs, start_time)

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        inputs = self._prepare_inputs(inputs)
        lengths: Any = inputs.pop(LENGTHS, None)
        state = self.accelerator.gradient_state
        if lengths is not None and state.end_of_dataloader and state.remainder > 0:
            ignore_filler(inputs["labels"], lengths, left=state.remainder, process=self.accelerator.process_index)
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(model, inputs), None, None

    def evaluation_loop(
        self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> EvalLoopOutput:
        """Means over the tokens of the whole set; upstream averages the batches' means."""
        self._pending = None
        if self.accelerator.num_processes > 1:
            inner = getattr(dataloader, "base_dataloader", dataloader)
            if getattr(inner.collate_fn, "func", None) is not with_lengths:
                inner.collate_fn = partial(with_lengths, inner.collate_fn)
        output: Any = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self._pending is not None:
            found = means(self._read_sums({})[0][: len(SUMS)])
            found["strong_weight"] = self.pair.strong_weight
            found["loss"] = found["mixed_loss"]
            if self.pair.strong_anchor:
                found["loss"] += self.pair.strong_anchor * found["strong_loss"]
            output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in found.items()})
        return output

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        fresh, rate = self.optimizer is None, self.args.weak_learning_rate
        optimizer = super().create_optimizer(model)
        if fresh and rate is not None:
            weak = {id(weight) for weight in self.pair.weak.parameters()}
            for group in list(optimizer.param_groups):
                moved = [weight for weight in group["params"] if id(weight) in weak]
                group["params"] = [weight for weight in group["params"] if id(weight) not in weak]
                optimizer.add_param_group({**group, "params": moved, "lr": rate})
        return optimizer

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


def with_lengths(collate: Callable[[list[Any]], dict[str, Any]], rows: list[Any]) -> dict[str, Any]:
    """A collator's batch with the length of each row, to separate rows that are joined into one."""
    return {**collate(rows), LENGTHS: torch.tensor([len(row.get("input_ids", ())) for row in rows])}


def ignore_filler(labels: Tensor, lengths: Tensor, *, left: int, process: int) -> None:
    """Mask, in place, the rows of an evaluation's last batches that accelerate repeats to give each process as many.

    Args:
        lengths: Of the rows of this process; in `labels` they are separate, or one after another in a single row.
        left: Rows in the last batches of all processes together, without repeats.
    """
    rows = len(lengths)
    own = min(max(left - rows * process, 0), rows)
    if len(labels) == rows:
        labels[own:] = IGNORE
    else:
        labels[:, int(lengths[:own].sum()) :] = IGNORE


def train_joint(
    strong: PreTrainedModel | PeftModel,
    weak: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    settings: JointSettings,
    recipe: Recipe,
    phase: Phase,
) -> dict[str, Any]:
    """Train both in place; returns counters."""
    for model in (strong, weak):
        keep(model, settings.gradient_checkpointing)
    made = phase.prepare(dataset, settings, recipe)
    made["args"] = WDJTConfig.of(made["args"], weak_trainable=settings.weak == "joint", **settings.mixing())
    counters = fit(WDJTTrainer(strong, weak_model=weak, processing_class=tokenizer, **made))
    models = 2 if settings.weak == "joint" else 1
    return counters | {"trained_tokens": models * counters["trained_tokens"]}  # each model learns from each token
