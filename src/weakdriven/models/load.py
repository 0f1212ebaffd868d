"""Finds and loads a causal LM and its tokenizer, and checks early whether two models can be mixed.

A downloaded folder is only read; its code runs only with `trust_remote_code`.
"""

import json
import logging
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from weakdriven.data.rows.hub import network_fault
from weakdriven.errors import UserError
from weakdriven.models.gemma3.multimodal import checked_text_weights, is_multimodal, load_text_model, text_config
from weakdriven.models.head import refuse_other_logits
from weakdriven.runs.directory import RUN_FILE
from weakdriven.runs.files import digest, file_digest, read_json
from weakdriven.runs.manifest import refuse_damaged_model

logger = logging.getLogger(__name__)
EMBEDDED = "embedded:base"
MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.py")
MIXTURE = "weakdriven-mixture"
"""Model type of `wmss.mixture`, which registers its classes with transformers when it is imported."""
DTYPES = {
    "bf16-mixed": torch.float32,
    "bf16": torch.bfloat16,
    "fp16-mixed": torch.float32,
    "fp16": torch.float16,
    "fp32": torch.float32,
}
RESULTS = ("round-*/strong", "baselines/*", "sft")
"""Models in a run directory, in order of preference."""
SAFE: dict[str, Any] = {"use_safetensors": True}
"""Options of every `from_pretrained` that reads weights, because a pickle can run code when it is loaded."""


def locate_model(source: str) -> Path:
    """Return the local folder of a model: the embedded one, a folder, or a Hub snapshot (downloaded once)."""
    if source == EMBEDDED:
        return Path(str(resources.files("weakdriven.models"))) / "embedded"
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(f"{source} is {_what_it_is(folder)}.")
        return folder
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise UserError(f"There is no model folder {source}; give a folder, a Hub id (owner/name) or {EMBEDDED}.")
    from huggingface_hub import snapshot_download

    fault = network_fault()
    try:
        return Path(snapshot_download(source, allow_patterns=[*MODEL_FILES, "README.md"]))
    except Exception as error:
        reason = fault or error
        raise UserError(f"{source} is neither a local folder nor an accessible model on the Hub ({reason}).") from error


def _what_it_is(folder: Path) -> str:
    """Describe a folder that has no config.json; for a run directory, name its most trained model."""
    if not (folder / RUN_FILE).is_file():
        return "a folder without config.json; expected a Hugging Face model folder"
    found = [[path.parent for path in folder.glob(f"{one}/*config.json")] for one in RESULTS]  # or adapter_config
    models = [max(each, key=lambda path: (len(str(path)), path)) for each in found if each]
    if not models:
        return "a run directory without a trained model yet"
    return f"a run directory, not a model; give a model in it, such as {models[0]}"


def fingerprint(folder: Path) -> str:
    """Hash everything that determines a model's outputs: configuration, weights, tokenizer, chat template."""
    if folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--"):
        return folder.name  # in the Hub's cache, the name is the commit
    files = sorted({path for pattern in MODEL_FILES for path in folder.glob(pattern)})
    ours = ("manifest.json", "trainer_state.json", "built.json")
    return digest({path.name: file_digest(path) for path in files if path.name not in ours})


def refuse_pickles(folder: Path) -> None:
    """Raise an error unless the weights of a model or adapter are safetensors."""
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{folder} holds no .safetensors weights. A pickle (.bin, .pt) can run code when it is loaded, so none is "
            "read. Ask for .safetensors; if you trust the file, load it and save it again with save_pretrained."
        )


@cache
def warn_of_code(source: str | Path) -> None:
    """Log once which code may run, with trust_remote_code."""
    brought = ", ".join(sorted(path.name for path in Path(source).glob("*.py"))) or "no .py file at present"
    logger.warning("trust_remote_code is on: the code of %s (%s) runs with your rights.", source, brought)


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    if trust_remote_code:
        warn_of_code(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise UserError(f"The tokenizer of {folder} cannot be loaded ({error}).") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash everything that determines the tokens of a text and of a conversation."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    rules: Any = json.loads(backend.to_str()) if backend else sorted(tokenizer.get_vocab().items())
    if isinstance(rules, dict):  # padding set by the last caller does not change tokens
        rules = {name: value for name, value in rules.items() if name not in ("padding", "truncation")}
    return digest([rules, tokenizer.chat_template])


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the number of rows that a head needs; more than there are tokens if some ids are unused."""
    return max(tokenizer.get_vocab().values()) + 1


def load_model(
    folder: Path,
    *,
    precision: str,
    attention: str | None = None,
    trust_remote_code: bool = False,
    quantize: str | None = None,
) -> PreTrainedModel:
    """Load a causal LM with all its weights; of a multimodal Gemma-3, only the language model.

    Args:
        quantize: `4bit` stores linear layers except the head in NF4, on the GPU.
    """
    refuse_damaged_model(folder)
    refuse_pickles(folder)
    if trust_remote_code:
        warn_of_code(folder)
    options: dict[str, Any] = {"dtype": DTYPES[precision], "trust_remote_code": trust_remote_code, **SAFE}
    if quantize == "4bit":
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
        options["device_map"] = {"": torch.cuda.current_device() if torch.cuda.is_available() else 0}
    if attention:
        options["attn_implementation"] = attention
    loading = logging.getLogger("transformers.modeling_utils")
    loading.disabled = True  # hide its table of missing weights; an error below names them
    try:
        if is_multimodal(folder):
            loaded: Any = load_text_model(folder, **options)
        else:
            loaded = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"The model in {folder} cannot be loaded ({error}).") from error
    finally:
        loading.disabled = False
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"{folder} lacks {len(missing)} weights of {type(model).__name__} (first: {missing[0]}), which would be "
            "initialised at random; use a complete checkpoint of that architecture."
        )
    for one in (model.strong, model.weak) if is_mixture(folder) else (model,):
        refuse_other_logits(one, str(folder))
    return model


def is_mixture(folder: Path) -> bool:
    return read_json(folder / "config.json").get("model_type") == MIXTURE


def router_loss(config: Any) -> float:
    """Return the weight of the load-balancing loss in a mixture of experts' configuration; 0 for other models."""
    text = config.get_text_config()
    return getattr(text, "router_aux_loss_coef", None) or 0.0 if hasattr(text, "output_router_logits") else 0.0


def drop_router_loss(config: Any) -> None:
    """Turn off the load-balancing loss of a mixture of experts, which the mixed loss does not include."""
    if router_loss(config):
        text = config.get_text_config()
        text.router_aux_loss_coef, text.output_router_logits = 0.0, False


def positions(folder: Path, *, trust_remote_code: bool = False) -> int | None:
    """Return the maximum number of tokens in the configuration, if it sets one."""
    config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def check_model(folder: Path, *, trust_remote_code: bool = False) -> None:
    """Raise an error for models that this version cannot train or would mix wrongly, before anything is computed."""
    if trust_remote_code:
        warn_of_code(folder)
    if is_mixture(folder):
        raise UserError(
            f"{folder} is a mixture of two models (weakdriven export mix), which can be evaluated but not trained or "
            "mixed again; give its strong or its weak model."
        )
    try:
        config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise UserError(f"The configuration of {folder} cannot be read ({error}).") from error
    refuse_pickles(folder)
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{folder} is an encoder-decoder model; weak-driven training needs a causal LM.")
    if is_multimodal(folder):
        checked_text_weights(folder, text_config(folder))
    elif hasattr(config, "vision_config"):
        raise UserError(
            f"{folder} is a multimodal checkpoint ({config.model_type}); this version trains text-only causal LMs and "
            "the one inside Gemma-3. Save its language model as a separate checkpoint first."
        )


def refuse_different_tokenizers(weak: Path, strong: Path, *, trust_remote_code: bool = False) -> None:
    """Raise an error unless token k is the same text for both models and their heads have the same length."""
    refuse_different_vocabularies(weak, strong, trust_remote_code=trust_remote_code)
    configs = (text_config(folder, trust_remote_code=trust_remote_code) for folder in (weak, strong))
    rows = [config.get_text_config().vocab_size for config in configs]
    if rows[0] != rows[1]:
        raise UserError(
            f"Cannot mix logits: weak has {rows[0]} vocabulary rows, strong has {rows[1]}. "
            "Use two checkpoints of one run."
        )


def refuse_different_vocabularies(weak: Path, strong: Path, *, trust_remote_code: bool = False) -> None:
    """Raise an error if the tokenizers differ; the heads may still be padded to different lengths."""
    folders = (weak, strong)
    ours, theirs = (load_tokenizer(one, trust_remote_code=trust_remote_code).get_vocab().items() for one in folders)
    if ours != theirs:
        raise UserError(
            f"Cannot mix logits: the tokenizers of {weak} (weak, {len(ours)} tokens) and {strong} (strong, "
            f"{len(theirs)} tokens) differ in {len(ours ^ theirs)} entries. Use two checkpoints of one run."
        )
