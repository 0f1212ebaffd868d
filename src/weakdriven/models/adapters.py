"""Adapters: two of them can share one frozen base, as two trees of modules that hold the same base tensors.

Switching adapters on a single tree gives wrong gradients with gradient checkpointing, because the recomputation uses
the adapter that was active last.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, PeftType, get_peft_model
from peft.utils.save_and_load import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict
from torch import nn
from transformers import GenerationConfig, PreTrainedModel

from weakdriven.errors import UserError
from weakdriven.models.load import DTYPES, load_model, refuse_pickles
from weakdriven.runs.manifest import refuse_damaged_model

ADAPTER = "default"
"""Name of the trained adapter; PEFT writes only this one into the folder itself, others into subfolders."""
ADAPTER_FILE = "adapter_config.json"
"""A folder is an adapter's if it has this file."""
IN_FORWARD = {PeftType.XLORA, PeftType.ADALORA}
"""Adapters that act in PeftModel.forward, which a pair does not call."""
KEEPS_BASE = (True, False, "gaussian", "orthogonal", "eva")
"""Initialisations of LoRA that leave the base weights unchanged; the others subtract from the base."""


def refuse_adapter(config: Any, name: str) -> None:
    """Raise an error for adapters that the mixed loss would ignore."""
    kind = getattr(config.peft_type, "value", config.peft_type)
    targets = getattr(config, "target_modules", None)
    on_head = isinstance(targets, list | set | tuple) and "lm_head" in targets
    outside = config.is_prompt_learning or config.peft_type in IN_FORWARD
    if on_head or outside or getattr(config, "alora_invocation_tokens", None):
        raise UserError(
            f"The {name} model's adapter is {kind}{' on lm_head' if on_head else ''}, which the mixed loss would "
            "ignore; use one that acts inside layers, such as LoraConfig without lm_head in target_modules."
        )


def adapter_config(model: Any, name: str) -> Any:
    """Return the configuration of a model's only adapter, or None if it has none."""
    if not isinstance(model, PeftModel):
        return None
    if list(model.peft_config) != [ADAPTER]:
        raise UserError(
            f"The {name} model holds the adapters {', '.join(model.peft_config)}; expected one, named {ADAPTER}. Load "
            "it with PeftModel.from_pretrained(base, folder, is_trainable=True)."
        )
    return model.peft_config[ADAPTER]


def twin(base: PreTrainedModel) -> PreTrainedModel:
    """Make a second tree of modules over the same parameters; not for models that are already patched."""
    memo: dict[int, Any] = {id(weight): weight for weight in base.parameters()}
    for weight in base.parameters():
        if (state := getattr(weight, "quant_state", None)) is not None:
            memo[id(state)] = state
    return copy.deepcopy(base, memo)


def keeps_base(config: Any) -> bool:
    return getattr(config, "init_lora_weights", True) in KEEPS_BASE


def has_adapter(model: torch.nn.Module) -> bool:
    """Return whether the model, or one model of a pair, has an adapter."""
    return any(isinstance(part, PeftModel) for part in model.modules())


def add_adapter(model: PreTrainedModel, config: PeftConfig, *, seed: int) -> PeftModel:
    """Add a new adapter with this configuration; each needs its own seed, or two new ones would stay equal."""
    config = copy.deepcopy(config)
    config.inference_mode = False
    config.base_model_name_or_path = None  # else PEFT warns if another base is named
    devices = list(range(torch.cuda.device_count()))  # manual_seed seeds all of them
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        adapted: Any = get_peft_model(model, config)
    if getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False):
        for name, weight in adapted.named_parameters():  # as SFTTrainer does, following the QLoRA paper
            if weight.requires_grad and "lora_magnitude_vector" not in name:
                weight.data = weight.data.to(torch.bfloat16)
    return adapted


def load_adapter(model: PreTrainedModel, folder: Path) -> PeftModel:
    """Add the adapter of a folder to the model, ready to train; an incomplete folder raises an error."""
    refuse_damaged_model(folder)
    config = PeftConfig.from_pretrained(str(folder))
    adapted = add_adapter(model, config, seed=0)
    load_adapter_weights(adapted, folder)
    return adapted


def share_frozen(strong: nn.Module, weak: nn.Module) -> int:
    """Let the weak model use the strong one's tensors where both are frozen and equal; return the bytes shared.

    If both hold the same trainable tensor, the weak model gets a copy. Buffers are small and are not shared.
    """
    theirs = {_plain(name): weight for name, weight in strong.named_parameters(remove_duplicate=False)}
    shared: dict[int, int] = {}
    copies: dict[int, nn.Parameter] = {}
    for place, module in weak.named_modules():
        for name, own in list(module.named_parameters(recurse=False)):
            other = theirs.get(_plain(f"{place}.{name}"))
            if other is None:
                continue
            if own is other and own.requires_grad:
                copies.setdefault(id(own), nn.Parameter(own.detach().clone()))
                setattr(module, name, copies[id(own)])
            elif own is other or _same(own, other):
                setattr(module, name, other)
                shared[id(other)] = other.numel() * other.element_size()
    return sum(shared.values())


def _plain(name: str) -> str:
    """Return a parameter's name in the model without adapters."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".").replace(".original_module.", ".")


def _same(own: Any, other: Any) -> bool:
    kind = type(own).__name__
    if own.requires_grad or other.requires_grad or own.is_meta or other.is_meta or kind != type(other).__name__:
        return False
    if kind not in ("Parameter", "Params4bit"):  # 8-bit layers of bitsandbytes drop their weight at first use
        return False
    if own.shape != other.shape or own.dtype != other.dtype or not torch.equal(own.to(other.device), other):
        return False
    if kind == "Parameter":
        return True
    mine, theirs = (weight.quant_state.as_dict(packed=True) for weight in (own, other))
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[key].to(theirs[key].device), theirs[key]) for key in mine
    )


def merged(model: PeftModel, *args: Any, **kwargs: Any) -> PreTrainedModel:
    """Merge the adapter into a copy of its base in main memory, because the base may be shared."""
    memo = {id(w): nn.Parameter(w.detach().to("cpu", copy=True), w.requires_grad) for w in model.parameters()}
    alone: Any = copy.deepcopy(model, memo).to("cpu")
    return _merge(alone, *args, **kwargs)


def load_merged(folder: Path, base: Path, *, precision: str, trust_remote_code: bool = False) -> PreTrainedModel:
    """Merge an adapter's folder into its base as an ordinary model; in float32, so that it is rounded only once."""
    refuse_pickles(folder)
    refuse_damaged_model(folder)
    model = load_model(base, precision="fp32", trust_remote_code=trust_remote_code)
    try:
        merged_model: Any = _merge(PeftModel.from_pretrained(model, str(folder)))
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"The adapter in {folder} does not fit {base} ({error}).") from error
    if (folder / "generation_config.json").is_file():
        merged_model.generation_config = GenerationConfig.from_pretrained(folder)
    return merged_model.to(DTYPES[precision])


def _merge(model: Any, *args: Any, **kwargs: Any) -> PreTrainedModel:
    model = model.merge_and_unload(*args, **kwargs)
    # for a head that it trained, PEFT unties the configuration but not this attribute
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)
    return model


def load_adapter_weights(model: PeftModel, folder: Path) -> None:
    """Load what `PeftModel.save_pretrained` wrote into the same adapter; missing or extra weights raise an error."""
    refuse_pickles(folder)
    weights = load_peft_weights(str(folder), device="cpu")
    needed = get_peft_model_state_dict(model, save_embedding_layers=False).keys()
    left, extra = needed - weights.keys(), set_peft_model_state_dict(model, weights).unexpected_keys
    if left or extra:
        raise UserError(
            f"The adapter {folder} does not fit: {len(left)} weights are missing and {len(extra)} are unknown "
            f"(first: {sorted({*left, *extra})[0]}). Remove it and run again."
        )
