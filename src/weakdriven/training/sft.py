"""Supervised fine-tuning of one model through TRL."""

import shutil
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from weakdriven.config.recipe import SAVED, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.models.head import causal_lm
from weakdriven.models.load import DTYPES
from weakdriven.models.recompute import keep
from weakdriven.models.sharded import gathered_model
from weakdriven.runs.directory import METRICS
from weakdriven.training.packing import packs
from weakdriven.training.phase import Phase, fit
from weakdriven.training.variant import PLAIN, Variant


def train_supervised(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    settings: TrainSettings,
    recipe: Recipe,
    phase: Phase,
    variant: Variant = PLAIN,
    teacher: PreTrainedModel | None = None,
) -> dict[str, Any]:
    """Train the model in place; return counters.

    Args:
        teacher: A frozen model, for a variant that needs one.
    """
    keep(model, settings.gradient_checkpointing)
    packing = type(variant) is Variant and packs([model], settings, recipe)
    made = phase.prepare(dataset, settings, recipe, packing=packing)
    with variant.training(model, seed=[recipe.seed, phase.number]) as callbacks:
        made["callbacks"] = [*callbacks, *made["callbacks"]]  # ours come last and write what these log
        return fit(variant.trainer(teacher=teacher, model=model, processing_class=tokenizer, **made))


def save_model(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    out: Path,
    *,
    work: Path | None = None,
    precision: str,
    stop_ids: list[int],
) -> None:
    """Save an ordinary Hugging Face folder: weights, tokenizer, generation config, and the metrics in `work`.

    Of a model with an adapter, only the adapter is saved. The model can be trained further.
    """
    network: Any = causal_lm(model)
    generation, cached = network.generation_config, getattr(network.config, "use_cache", False)
    generation.eos_token_id, generation.pad_token_id = stop_ids, tokenizer.pad_token_id
    network.config.use_cache = True  # Trainer turns it off in the config it trains with
    if isinstance(model, PeftModel):
        # else PEFT would ask the Hub whether the embedding differs from that of the base
        model.save_pretrained(str(out), save_embedding_layers=False)
        generation.save_pretrained(out)
    else:
        dtype = DTYPES[SAVED[precision]]
        (network if network.dtype == dtype else gathered_model(network, dtype)).save_pretrained(out)
    network.config.use_cache = cached
    tokenizer.save_pretrained(out)
    if work:
        shutil.copy(work / METRICS, out / METRICS)
