"""The entropy of every example under one model, as a stage: reused from another run, or scanned."""

from pathlib import Path
from typing import Any

import numpy as np

from weakdriven.data.tokenize import load_tokens
from weakdriven.models.adapters import ADAPTER_FILE
from weakdriven.models.load import fingerprint
from weakdriven.runs.directory import TOKENS
from weakdriven.runs.files import digest, file_digest
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.model_loader import Model
from weakdriven.stages.score_examples import score_examples
from weakdriven.stages.workload import Workload
from weakdriven.wmss.score_files import VERSION, ScoreFacts


def entropy_stage(context: Context, model: Model, data: Stage, examples: int | None = None) -> Stage:
    """Entropy of each example under `model`, or of so many drawn at random."""
    recipe, settings = context.recipe, context.recipe.selection
    sample: dict[str, Any] = {"examples": examples, "seed": recipe.seed} if examples else {}
    name = f"{'pairing' if examples else 'entropy'}/{model.name}"

    def compute(work: Path, out: Path) -> dict[str, Any]:
        dataset = load_tokens(data.path / TOKENS)
        if examples and examples < len(dataset):
            draw = np.random.default_rng(recipe.seed).permutation(len(dataset))
            dataset = dataset.select(np.sort(draw[:examples]))
        return score_examples(
            lambda: context.loader.load(model, train=False, scan=True),
            dataset,
            lambda: score_facts(context, model, data, sample),
            reuse=[] if examples else settings.reuse,  # files there hold all rows
            batch_tokens=settings.batch_tokens,
            work=work,
            out=out,
            progress=context.progress,
        )

    return context.run.stage(
        name,
        compute,
        settings={"precision": context.forward_precision, "version": VERSION, **sample},
        inputs={"model": model, "data": data},
        execution=lambda: {
            "batch_tokens": settings.batch_tokens,
            "reuse": settings.reuse,
            "fast_layers": context.layers,
            "attention": recipe.attention,
        },
        shared=True,
        workload=Workload(name, "scan"),
    )


def score_facts(context: Context, model: Model, data: Stage, sample: dict[str, Any]) -> ScoreFacts:
    """What the scores are computed from, so that another run can reuse them."""
    own = fingerprint(model.folder)
    return ScoreFacts(
        model=digest([own, context.base.key]) if (model.folder / ADAPTER_FILE).is_file() else own,
        rows=digest([file_digest(data.path / TOKENS), sample]),
        tokenizer=context.tokenizer_key,
        max_length=context.recipe.data.max_length,
        precision=context.forward_precision,
    )
