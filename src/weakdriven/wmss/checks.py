"""Loads the two models of `WDJTTrainer`, and raises an error for anything that it does not support."""

import logging
import math
import os
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftConfig, PeftModel
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.training_args import ParallelMode
from transformers.utils.hub import cached_file
from transformers.utils.peft_utils import find_adapter_config_file
from trl.trainer.utils import create_model_from_path

from weakdriven.data.tokenize import row_lengths
from weakdriven.errors import UserError
from weakdriven.losses.mixed_ce import IGNORE
from weakdriven.models.adapters import adapter_config, keeps_base, refuse_adapter, twin
from weakdriven.models.head import causal_lm, head, refuse_other_logits
from weakdriven.models.load import SAFE, refuse_pickles, router_loss, vocabulary_size, warn_of_code
from weakdriven.runs.launcher import refuse_deepspeed
from weakdriven.training.launch import refuse_plugin, refuse_sharded_adapters, refuse_sharding_of_launch
from weakdriven.wmss.config import WDJTConfig
from weakdriven.wmss.pair import WeakStrongPair, refuse_shared_layers

logger = logging.getLogger(__name__)
NEEDS_LOGITS = ("compute_loss_func", "compute_metrics", "preprocess_logits_for_metrics")


def refuse_options(args: WDJTConfig, options: dict[str, Any]) -> None:
    """Raise an error for options of SFTTrainer that the mixed loss or this machine does not support."""
    if args.deepspeed:
        refuse_deepspeed()
    refuse_sharding_of_launch(precision=False)
    if args.fsdp and args.parallel_mode != ParallelMode.DISTRIBUTED:  # a launcher with one process is enough
        raise UserError("fsdp is set, but no launcher started this process; use `accelerate launch` or leave fsdp out.")
    if args.n_gpu > 1:
        _refuse_several_gpus(f"{args.n_gpu} GPUs are visible to this one process")
    if args.activation_offloading and not torch.accelerator.is_available():
        raise UserError("activation_offloading moves activations off the GPU, but there is no GPU here; turn it off.")
    for name in NEEDS_LOGITS:
        if options.get(name) is not None:
            raise UserError(f"{name} is set, but WDJTTrainer never builds the logits that it reads; leave it out.")
    for name in ("processing_class", "weak_processing_class"):
        processor = options.get(name)
        if processor is not None and not isinstance(processor, PreTrainedTokenizerBase):
            raise UserError(f"{name} is {type(processor).__name__}; text-only models need a tokenizer.")


def refuse_sharding(trainer: Any) -> None:
    """Raise an error for settings of accelerate that the mixed loss or its checkpoints do not support."""
    if trainer.is_fsdp_enabled:
        refuse_plugin(trainer.accelerator.state.fsdp_plugin)
    parallel = trainer.accelerator.parallelism_config
    for kind in ("cp", "sp", "tp") if parallel else ():
        if getattr(parallel, f"{kind}_enabled"):
            raise UserError(
                f"parallelism_config has {kind}_size={getattr(parallel, f'{kind}_size')}, which splits sequences "
                "or weights, but the mixed loss needs them whole; leave it at 1 and use FSDP2 to save memory."
            )
    refuse_sharded_adapters(trainer.is_fsdp_enabled, isinstance(trainer.model, PeftModel))


def _refuse_several_gpus(found: str) -> None:
    raise UserError(
        f"{found}, but WDJTTrainer trains on one GPU per process; start the script with `accelerate launch` to use "
        "all of them, or set CUDA_VISIBLE_DEVICES=0 to use one."
    )


def init_options(
    model: Any, args: WDJTConfig, quantization_config: Any = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options with which the strong and the weak model are loaded from paths.

    `model_init_kwargs` applies to both; its revision, to the weak model only if the strong one is already loaded.
    """
    strong: dict[str, Any] = {"trust_remote_code": args.trust_remote_code, **SAFE, **(args.model_init_kwargs or {})}  # pyright: ignore
    if quantization_config is not None:
        strong["quantization_config"] = quantization_config
    weak = {name: value for name, value in strong.items() if name != "revision" or not isinstance(model, str)}
    weak |= args.weak_model_init_kwargs or {}  # pyright: ignore
    if args.distributed_state and args.distributed_state.distributed_type == "MULTI_GPU":
        strong["device_map"] = weak["device_map"] = None
    return strong, weak


def load_branches(
    model: Any,
    weak_model: Any,
    args: WDJTConfig,
    options: dict[str, Any],
    weak_options: dict[str, Any],
    *,
    peft_config: Any = None,
) -> tuple[Any, Any]:
    """Return the strong and the weak model, and load those that are given as paths.

    If both paths lead to one frozen base, its weights are loaded once and shared by two trees of modules.
    """
    if peft_config is not None:
        refuse_adapter(peft_config, "strong")
    strong, weak, shared_base = model, weak_model, None
    if not isinstance(weak_model, str):
        if not isinstance(model, str) and (args.model_init_kwargs or "quantization_config" in options):
            logger.warning("model_init_kwargs and quantization_config are ignored: both models are already loaded.")
        if args.weak_model_init_kwargs:
            logger.warning("weak_model_init_kwargs is ignored: the weak model is already loaded.")
    strong_base, strong_adapter, base_options = _base_of(model, options)
    weak_base, weak_adapter, weak_base_options = _base_of(weak_model, weak_options)
    if isinstance(model, str):
        base, lora = _load(strong_base, base_options, "strong"), peft_config or strong_adapter
        if isinstance(weak_model, str) and _same(strong_base, weak_base) and lora:
            if "revision" in base_options:  # the base that the strong adapter was trained on, not the latest
                weak_base_options.setdefault("revision", base_options["revision"])
            if keeps_base(lora) and weak_base_options == base_options:
                shared_base = twin(base)
        strong = _adapted(base, model, options, is_trainable=True) if strong_adapter else base
    _refuse_model(strong, "strong")
    if isinstance(weak_model, str):
        inner: Any = causal_lm(strong)
        weak_base_options.setdefault("dtype", inner.dtype)
        weak_base_options.setdefault("attn_implementation", inner.config._attn_implementation)
        if (quantized := getattr(inner.config, "quantization_config", None)) is not None:
            weak_base_options.setdefault("quantization_config", quantized)
        if "quantization_config" not in weak_base_options:
            weak_base_options.setdefault("device_map", None)  # to main memory first, as two bases may not fit the GPU
        weak = shared_base or _load(weak_base, weak_base_options, "weak")
        if weak_adapter:
            weak = _adapted(weak, weak_model, weak_options, is_trainable=args.weak_trainable)
    _refuse_model(weak, "weak")
    refuse_shared_layers(strong, weak)
    return strong, weak


def load_tokenizer_of(model: Any, strong: Any, options: dict[str, Any]) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model; an adapter may have its own or use its base's."""
    if (found := _tokenizer_of(model, strong, options)) is not None:
        return found
    source = model if isinstance(model, str) else causal_lm(strong).config._name_or_path
    raise UserError(f"There is no tokenizer next to {source or 'the strong model'}; give one as processing_class.")


def _load(source: str, options: dict[str, Any], name: str) -> PreTrainedModel:
    refuse_pickles(Path(source))
    if options.get("trust_remote_code"):
        warn_of_code(source)
    try:
        return create_model_from_path(source, **options)
    except Exception as error:
        raise UserError(f"The {name} model {source} cannot be loaded ({error}).") from error


def _base_of(source: Any, options: dict[str, Any]) -> tuple[Any, PeftConfig | None, dict[str, Any]]:
    """Return an adapter's base, the adapter's configuration and the options with which the base is loaded.

    If the source is not an adapter, return it with None and its own options.
    """
    revision = options.get("revision")
    try:
        is_adapter = isinstance(source, str) and find_adapter_config_file(source, revision=revision)
    except OSError:  # neither local nor on the Hub; loading it reports that
        return source, None, options
    if not is_adapter:
        return source, None, options
    refuse_pickles(Path(source))
    adapter = PeftConfig.from_pretrained(source, revision=revision)
    base_options = {name: value for name, value in options.items() if name != "revision"}
    if adapter.revision:
        base_options["revision"] = adapter.revision
    return adapter.base_model_name_or_path, adapter, base_options


def _adapted(base: Any, source: str, options: dict[str, Any], *, is_trainable: bool) -> PeftModel:
    return PeftModel.from_pretrained(base, source, is_trainable=is_trainable, revision=options.get("revision"))


def _same(one: str, other: str) -> bool:
    return one == other or (Path(one).is_dir() and Path(other).is_dir() and os.path.samefile(one, other))


def _refuse_model(model: Any, name: str) -> None:
    if not isinstance(model, PreTrainedModel | PeftModel):
        raise UserError(f"The {name} model is {type(model).__name__}; expected a path, a PreTrainedModel or PeftModel.")
    if (adapter := adapter_config(model, name)) is not None:
        refuse_adapter(adapter, name)
    inner = causal_lm(model)
    if hasattr(inner.config, "vision_config"):
        raise UserError(
            f"The {name} model is {type(inner).__name__}, of a vision-language family; this version trains text-only "
            "causal LMs. Save its language model as a separate checkpoint first."
        )
    head(model)  # raises an error if the mixed loss does not support the head


def refuse_pair(strong: Any, weak: Any, args: WDJTConfig, peft_config: Any) -> None:
    """Raise an error for unsupported combinations of models and arguments, before any data is read."""
    adapter = peft_config or adapter_config(strong, "strong")
    if args.merge_adapter and adapter is not None and getattr(strong, "quantization_method", None) is not None:
        raise UserError(
            "merge_adapter is set, but the base is quantized, so merging would round the adapter away. Save the "
            "adapter, and merge it into the base in full precision."
        )
    if args.merge_adapter and adapter is not None and args.push_to_hub and "checkpoint" in args.hub_strategy:
        raise UserError(
            "merge_adapter is set, but this hub_strategy pushes checkpoints too. Their adapter would be next to the "
            "merged model and would be loaded instead of it; set hub_strategy to 'every_save' or 'end'."
        )
    template = args.chat_template_path
    adds_tokens = template is not None and not template.endswith((".jinja", ".j2"))
    if peft_config is not None and adds_tokens and causal_lm(strong).config.get_text_config().tie_word_embeddings:
        raise UserError(
            f"chat_template_path is {template}. TRL would add its tokens to the model and train them next to the "
            "adapter, which PEFT cannot do for tied embeddings. Give a .jinja file, or first add the tokens to both "
            "models (trl.clone_chat_template)."
        )
    fresh = {"strong": peft_config is not None, "weak": adapter is not None and not isinstance(weak, PeftModel)}
    learns = {"strong": args.strong_runs, "weak": args.weak_learns}
    for model, name in ((strong, "strong"), (weak, "weak")):
        _refuse_router_loss(model, name, args.router_aux_loss_coef)
        devices = set((getattr(model, "hf_device_map", None) or {}).values()) - {"cpu", "disk"}
        if len(devices) > 1:
            _refuse_several_gpus(f"The {name} model is on {len(devices)} GPUs")
        if learns[name] and not fresh[name] and not any(weight.requires_grad for weight in model.parameters()):
            raise UserError(
                f"No weight of the {name} model is trainable. Load an adapter for training with "
                "PeftModel.from_pretrained(base, folder, is_trainable=True)."
            )


def _refuse_router_loss(model: Any, name: str, weight: float | None) -> None:
    """Raise an error if a mixture of experts has a load-balancing loss, which the mixed loss does not include."""
    config = causal_lm(model).config.get_text_config()
    if not hasattr(config, "output_router_logits"):
        return
    weight = router_loss(config) if weight is None else weight
    if weight:
        raise UserError(
            f"The {name} model is a mixture of experts with a load-balancing loss of weight {weight}, which the mixed "
            "loss does not include; set router_aux_loss_coef=0.0 in the arguments to train without it."
        )
    config.output_router_logits = False


def refuse_partial_optimizer(optimizer: Any, pair: WeakStrongPair, weak_learning_rate: float | None) -> None:
    """Raise an error if the caller's optimizer lacks a trainable weight or `weak_learning_rate` is set too."""
    if optimizer is None:
        return
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    left = [name for name, weight in pair.named_parameters() if weight.requires_grad and id(weight) not in held]
    if left or weak_learning_rate is not None:
        found = f"lacks {len(left)} trainable weights (first: {left[0]})" if left else "sets its own learning rates"
        raise UserError(
            f"optimizers is set, and that optimizer {found}; give it the parameters of both models and leave "
            "weak_learning_rate out, or give optimizer_cls_and_kwargs, and the trainer makes one for both."
        )


def refuse_no_targets(dataset: Any) -> None:
    """Raise an error if a dataset has no supervised token; the search stops at the first one."""
    if not isinstance(dataset, Dataset) or dataset.format["type"] == "custom":
        return
    rows: Any = dataset.select_columns(["labels"]) if "labels" in dataset.column_names else None
    if len(dataset) == 0 or (rows and not any(label != IGNORE for row in rows for label in row["labels"][1:])):
        raise UserError(
            f"No token of the {len(dataset)} training examples is supervised: every label is {IGNORE} (examples "
            "without supervised tokens are dropped first). Check completion_only_loss, assistant_only_loss and "
            "max_length."
        )


def refuse_long_rows(trainer: Any, weak: Any) -> None:
    """Raise an error for examples longer than a model's positions; it would fail or train on unseen positions."""
    configs = [causal_lm(model).config.get_text_config() for model in (trainer.model, weak)]
    limit = min(getattr(config, "max_position_embeddings", None) or math.inf for config in configs)
    args, evaluated = trainer.args, trainer.eval_dataset
    prepared = not (args.dataset_kwargs or {}).get("skip_prepare_dataset")
    if limit == math.inf or (prepared and (args.max_length or math.inf) <= limit):  # TRL truncates to max_length
        return
    for rows in (trainer.train_dataset, *(evaluated.values() if isinstance(evaluated, dict) else [evaluated])):
        if not isinstance(rows, Dataset) or not len(rows) or "input_ids" not in rows.column_names:
            continue
        if "seq_lengths" in rows.column_names:  # packed
            longest = max(max(lengths) for lengths in rows.with_format(None)["seq_lengths"])
        else:
            longest = int(row_lengths(rows).max())
        if longest > limit:
            raise UserError(
                f"An example has {longest:,} tokens, but the models have {limit:,} positions "
                f"(max_position_embeddings); set max_length={limit} in the arguments to truncate longer examples, or "
                "leave them out."
            )


def common_vocabulary(
    tokenizer: PreTrainedTokenizerBase,
    weak_model: Any,
    weak: Any,
    options: dict[str, Any],
    weak_tokenizer: PreTrainedTokenizerBase | None = None,
) -> int | None:
    """Return the size of the common vocabulary, or None if the weak model's tokenizer cannot be found.

    Mixing logits makes sense only if token k is the same text for both models. A padding token that only the strong
    model's tokenizer has is ignored: it is never predicted.

    Args:
        options: The options with which the weak model is loaded.
        weak_tokenizer: By default, the tokenizer next to the weak model.
    """
    by_path = isinstance(weak_model, str)  # only then may its tokenizer be downloaded
    other = weak_tokenizer or _tokenizer_of(weak_model, weak, options, local_files_only=not by_path)
    if other is None:
        return None
    strong, theirs = tokenizer.get_vocab(), other.get_vocab()
    if tokenizer.pad_token not in theirs:
        strong.pop(str(tokenizer.pad_token), None)
    # a model in memory may have been resized for new tokens, which the tokenizer on disk lacks
    extended = weak_tokenizer is None and not by_path and strong.items() >= theirs.items()
    if strong != theirs and not extended:
        different = len(set(strong.items()) ^ set(theirs.items()))
        raise UserError(
            f"Cannot mix logits: the tokenizers of the weak model ({len(theirs)} tokens) and of the strong one "
            f"({len(strong)} tokens) differ in {different} entries. Use two checkpoints of one run; if the weak "
            "model's tokenizer is not the one next to it, give the right one as weak_processing_class."
        )
    return vocabulary_size(tokenizer)


def resize_as_strong(strong: Any, weak: Any, tokenizer: PreTrainedTokenizerBase) -> int:
    """Resize the weak model for the tokens that TRL added to the strong one; return the size of the vocabulary."""
    size = vocabulary_size(tokenizer)
    if len(head(weak).weight_VD) < size:
        causal_lm(weak).resize_token_embeddings(len(head(strong).weight_VD))
    return size


def refuse_logits(strong: Any, weak: Any, args: WDJTConfig) -> None:
    """Raise an error if the loss cannot compute a model's logits; warn if both models have the same."""
    strong_TV, weak_TV = refuse_other_logits(strong, "strong model"), refuse_other_logits(weak, "weak model")
    if args.weak_runs and args.process_index == 0 and torch.equal(strong_TV, weak_TV.to(strong_TV.device)):
        logger.warning(
            "The weak and the strong model give the same logits, so mixing them changes nothing at first. Expected "
            "two different checkpoints of one run; check their paths and revisions."
        )


def _tokenizer_of(
    source: Any, model: Any, options: dict[str, Any], *, local_files_only: bool = False
) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer next to a model, or else the one next to its adapter's base."""
    base, adapter = causal_lm(model).config._name_or_path, adapter_config(model, "")
    places = [(source, options.get("revision"))] if isinstance(source, str) else []
    if base != source:
        places.append((base, adapter and adapter.revision))
    for place, revision in places:
        more = {"revision": revision, "local_files_only": local_files_only}
        if (found := _tokenizer(place, trust_remote_code=options["trust_remote_code"], **more)) is not None:
            return found
    return None


def _tokenizer(place: str, *, trust_remote_code: bool, **options: Any) -> PreTrainedTokenizerBase | None:
    """Load a tokenizer or return None; AutoTokenizer alone would make an empty one from the model's configuration."""
    try:
        if not place or cached_file(place, "tokenizer_config.json", **options) is None:
            return None
        return AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code, **options)
    except (OSError, ValueError):
        return None
