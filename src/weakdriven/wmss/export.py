"""Exports trained pairs: finds the two models, saves their mixture as one model, and checks what was saved."""

import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from weakdriven.errors import UserError
from weakdriven.models.folder import ModelFolder, open_model
from weakdriven.models.gemma3.wrap import refuse_used
from weakdriven.models.load import SAFE, check_model, load_tokenizer, refuse_different_vocabularies, vocabulary_size
from weakdriven.runs.directory import PLAN_FILE, RUN_FILE, finished_key
from weakdriven.runs.files import PART, read_json
from weakdriven.runs.manifest import MANIFEST
from weakdriven.wmss.mixture import MixtureForCausalLM
from weakdriven.wmss.pair import PAIR_FILE, WEAK_FOLDER, read_pair


@dataclass(frozen=True)
class Mix:
    """The mixture to save, and its folder."""

    strong: ModelFolder
    weak: ModelFolder
    strong_weight: float
    weight_from: str
    out: Path


def export_mix(
    strong_source: str,
    weak_source: str | None = None,
    *,
    output: str | None = None,
    strong_weight: float | None = None,
    dtype: str | None = None,
) -> Mix:
    """Save the mixture of two models as one transformers model, with the strong model's tokenizer.

    Args:
        strong_source: A model or adapter folder. Without `weak_source`: a run directory, one of its rounds or a
            training checkpoint, which hold both models.
        weak_source: The folder of the weak model or adapter.
        output: New folder (default: `mixture` next to the models of a run or a round).
        strong_weight: Share of the strong logits; above 1, it extrapolates away from the weak model. By default the
            share that the strong model was trained with, or 0.5 if that is unknown.
        dtype: `bf16` or `fp32` (default: bf16 if both models are saved in bf16).
    """
    mix = find_mix(strong_source, weak_source, output, strong_weight)
    transformers_logging.disable_progress_bar()
    for branch in (mix.strong, mix.weak):
        check_model(branch.model)
    if mix.strong.tokenizer is None:
        raise UserError(f"{mix.strong.folder} holds no tokenizer; save the one it was trained with there.")
    if mix.weak.tokenizer is not None:
        refuse_different_vocabularies(mix.weak.tokenizer, mix.strong.tokenizer)
    tokenizer = load_tokenizer(mix.strong.tokenizer)
    dtypes = [AutoConfig.from_pretrained(one.model, trust_remote_code=False).dtype for one in (mix.strong, mix.weak)]
    precision = dtype or ("bf16" if all(kind == torch.bfloat16 for kind in dtypes) else "fp32")  # the lossless choice
    strong, weak = mix.strong.load(precision), mix.weak.load(precision)
    ids = torch.arange(8)[None]
    expected = mixed_logits(strong, weak, ids, mix.strong_weight)
    mixture = MixtureForCausalLM.from_pair(
        strong, weak, strong_weight=mix.strong_weight, vocabulary=vocabulary_size(tokenizer)
    )
    generation = mixture.generation_config
    assert generation is not None
    generation.use_cache = True
    if generation.pad_token_id is None:
        generation.pad_token_id = tokenizer.pad_token_id
    with new_folder(mix.out) as part:
        mixture.save_pretrained(part)
        tokenizer.save_pretrained(part)
        del mixture, strong, weak  # two copies of a pair may not fit into memory
        refuse_other_answer(part, ids, expected)
    return mix


def export_merged(source: str, output: str, *, dtype: Literal["bf16", "fp32"] | None = None) -> ModelFolder:
    """Merge an adapter into its base and save an ordinary model with its tokenizer; return the adapter's folder.

    Args:
        dtype: By default, the precision in which the base is saved.
    """
    adapter, target = open_model(source), refuse_used(Path(output).expanduser().resolve())
    if adapter.base is None:
        raise UserError(f"{source} is a whole model, so there is nothing to merge; give the folder of an adapter.")
    if adapter.tokenizer is None:
        raise UserError(f"{source} and its base hold no tokenizer; save the one it was trained with there.")
    tokenizer = load_tokenizer(adapter.tokenizer)
    saved = AutoConfig.from_pretrained(adapter.base, trust_remote_code=False).dtype
    model = adapter.load(dtype or ("bf16" if saved == torch.bfloat16 else "fp32"))
    with new_folder(target) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
    return adapter


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to write into, which is renamed to the target once everything is written."""
    transformers_logging.disable_progress_bar()
    part = target.with_name(f".{target.name}{PART}")
    shutil.rmtree(part, ignore_errors=True)
    try:
        yield part
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def find_mix(strong_source: str, weak_source: str | None, output: str | None, strong_weight: float | None) -> Mix:
    """Resolve the command's arguments; errors come before a model is loaded."""
    if strong_weight is not None and not 0 <= strong_weight < math.inf:
        raise UserError(f"--strong-weight is {strong_weight}; it must be a number of at least 0.")
    if weak_source is not None:
        strong, weak, out = open_model(strong_source), open_model(weak_source), output
    else:
        folder, default_out = find_pair(Path(strong_source).expanduser())
        strong, weak = open_model(str(folder)), open_model(str(folder / WEAK_FOLDER))
        out = output or default_out
    if out is None:
        raise UserError("Only a run or a round has a default folder for its mixture; name a new one with --output.")
    target = refuse_used(Path(out).expanduser().resolve())
    if strong_weight is not None:
        return Mix(strong, weak, strong_weight, "--strong-weight", target)
    weight, origin = trained_weight(strong.folder)
    if weight in (0, 1):
        alone = "strong" if weight else "weak"
        raise UserError(f"According to {origin}, the mixture ended in the {alone} model alone; give --strong-weight.")
    return Mix(strong, weak, weight, origin, target)


def find_pair(source: Path) -> tuple[Path, Path | None]:
    """Return the folder of a strong model that holds the weak one, and the default folder of their mixture."""
    if not source.is_dir():
        raise UserError(f"There is no folder {source}; give a run directory or a training checkpoint.")
    if (source / RUN_FILE).is_file():
        source = source / f"round-{last_round(source)}"
    out = None
    if (source / "strong").is_dir():
        source, out = source / "strong", source / "mixture"
    if (source / WEAK_FOLDER).is_dir():
        return source, out
    raise UserError(
        f"{source} has no folder {WEAK_FOLDER} with its weak model. Checkpoints of a pair have one; a round has "
        "one if the recipe sets joint.save_weak: true (changing it trains the round again). To mix any two models, "
        "give STRONG, WEAK and --output."
    )


def last_round(run: Path) -> int:
    """Return the number of the last finished round of the run's current recipe."""
    plan = read_json(run / PLAN_FILE) if (run / PLAN_FILE).is_file() else {}
    rounds = {stage: re.fullmatch(r"round-(\d+)/strong", stage) for stage in plan}
    done = [int(found[1]) for stage, found in rounds.items() if found and finished_key(run / stage) == plan[stage]]
    if not done:
        raise UserError(f"{run} has no finished round of joint training; run its recipe to the end first.")
    return max(done)


def trained_weight(strong: Path) -> tuple[float, str]:
    """Return the share of the strong logits at the end of training or at a checkpoint, and the file that records it."""
    if pair := read_pair(strong):
        return pair["strong_weight"], str(strong / PAIR_FILE)
    manifest = strong / MANIFEST
    settings = read_json(manifest).get("settings", {}) if manifest.is_file() else {}
    if "strong_weight" not in settings:
        return 0.5, "the default"
    end = settings.get("strong_weight_end")
    return (settings["strong_weight"] if end is None else end), str(manifest)


@torch.no_grad()
def mixed_logits(strong: PreTrainedModel, weak: PreTrainedModel, ids: torch.Tensor, strong_weight: float) -> Any:
    """Compute the mixture by its definition, from the logits of each model alone."""
    logits = [model(input_ids=ids, use_cache=False).logits.float() for model in (strong, weak)]  # pyright: ignore
    rows = min(one.shape[-1] for one in logits)
    return strong_weight * logits[0][..., :rows] + (1 - strong_weight) * logits[1][..., :rows]


@torch.no_grad()
def refuse_other_answer(folder: Path, ids: torch.Tensor, expected: torch.Tensor) -> None:
    """Load what was saved, as a user would, and compare its logits."""
    saved: Any = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False, **SAFE)
    difference = (saved(input_ids=ids, use_cache=False).logits - expected).abs().max().item()
    if not difference <= 1e-3 * expected.std().item():
        raise UserError(
            f"The saved mixture's logits differ from those of its two models by up to {difference:.3g}, so it was "
            "removed. Check the disk and try again; if that does not help, please report it with both configurations."
        )
