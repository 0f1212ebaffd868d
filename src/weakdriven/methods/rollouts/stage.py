"""Rollouts as a stage of a run: the completions that a method samples from a model before it trains."""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from weakdriven.build.distil import BLOCK, UNIT_TESTS, rendered, written
from weakdriven.config.baselines import RolloutSettings
from weakdriven.data.example import Example
from weakdriven.errors import UserError
from weakdriven.eval.generate import Sampling
from weakdriven.eval.generate.requests import request_seed
from weakdriven.eval.generate.samples import Ask, Row
from weakdriven.eval.graders.candidates import Candidate, Checks, Fault, unit_tests_of, verifier
from weakdriven.eval.rollouts import (
    LABELS,
    NOT_VERIFIED,
    REFUSED,
    RIGHT_BUT_CUT,
    ROLLOUTS,
    Rollout,
    Rollouts,
    as_fault,
    as_label,
)
from weakdriven.runs.directory import EXAMPLES
from weakdriven.runs.files import append_jsonl, digest, read_jsonl
from weakdriven.runs.processes import is_main, merged, share
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.model import Model
from weakdriven.stages.workload import Workload

logger = logging.getLogger(__name__)
LABELS_VERSION = 1
"""Raised when completions may get different labels than before, so that the stage runs again."""


def rollout_stage(
    context: Context,
    name: str,
    model: Model,
    prompts: Stage,
    settings: RolloutSettings,
    *,
    verified: bool = True,
    max_prompt_tokens: int | None = None,
    round_number: int = 0,
    at_most: int | None = None,
) -> Stage:
    """Sample completions of the examples of `prompts` from `model` and label them; a killed stage resumes.

    Args:
        verified: Whether completions are graded; examples without a gold answer or tests are then left out.
        max_prompt_tokens: Set if the prompts are not trained on, so that a completion may take all of
            `data.max_length`.
        round_number: Each round draws different random numbers for the same examples.
        at_most: Maximum number of prompts, for a plan (default: the settings' `subsample`).
    """
    recipe = context.recipe
    seed = request_seed(recipe.seed, "turn", round_number) if round_number else recipe.seed
    judging: dict[str, Any] = {}  # what a verdict depends on besides the answers
    if verified:
        running = recipe.eval.model_dump(include={"code_python", "unsafe"})
        judging = {"labels": LABELS_VERSION} | {name: value for name, value in running.items() if value}
    spread = recipe.eval.engine != "vllm"  # vLLM is one server, to which the main process sends all requests

    def compute(work: Path, out: Path) -> dict[str, Any]:
        examples, unverifiable = chosen_prompts(context, prompts, settings, verified=verified)
        ask = partial(rendered, context.renderer, context.recipe.data.domain)
        lengths = [len(ask(example)[0]) for example in examples]
        whole = None if max_prompt_tokens else context.recipe.data.max_length
        sampling = sampling_of(context, settings, lengths, whole)
        longest = max(lengths) + sampling.max_new_tokens
        counters = Counter(prompts=len(examples), prompt_tokens=settings.samples * sum(lengths))
        total, unjudged = len(examples) * settings.samples, Fault(NOT_VERIFIED)
        try:
            for begin in range(0, len(examples), BLOCK):
                block = {example.id: example for example in examples[begin : begin + BLOCK]}
                asked = {id: ask(example) for id, example in block.items()}
                rooms = {id: None if whole is None else whole - len(asked[id][0]) for id in block}
                rollouts = Rollouts(
                    work / f"{begin // BLOCK:05d}",
                    lambda: context.engine(model, longest),
                    sampling,
                    partial(judged, context, block, rooms) if verified else lambda rows: [unjudged] * len(rows),
                    terms={id: digest([judging, one.gold, one.meta]) for id, one in block.items()}.__getitem__,
                    seed=seed,
                )
                asks = [Ask(id, sample, *asked[id]) for id in block for sample in range(settings.samples)]
                before, mine = counters["samples"], share(asks) if spread else asks if is_main() else []
                times = len(asks) / max(len(mine), 1)  # assumes that all processes are equally fast
                found = rollouts.ask(
                    mine, lambda done, at=before, by=times: context.progress.update(at + int(done * by), total)
                )
                found = merged(found) if spread else found
                if is_main():
                    append_jsonl(out / ROLLOUTS, (rollout.row for rollout in found))
                    append_jsonl(out / LABELS, (as_label(rollout.row, rollout.fault) for rollout in found))
                counters.update(counts(found))
        finally:
            context.engines.close()  # training follows, and needs their memory
        return {**counters, "unverifiable": unverifiable, "max_new_tokens": sampling.max_new_tokens}

    decisive = settings.model_dump(mode="json") | {"verified": verified, "seed": seed, **judging}
    decisive |= {"max_prompt_tokens": max_prompt_tokens} if max_prompt_tokens else {}
    stage = f"rollouts/{model.name}/{name}"
    return context.run.stage(
        stage,
        compute,
        settings={**decisive, **context.inference_settings(), "engine": recipe.eval.engine},
        inputs={"model": model, "prompts": prompts},
        execution=recipe.eval.model_dump(mode="json", include={"batch_size", "batching"}),
        shared=True,
        workload=Workload(
            stage,
            "generate",
            prompts=at_most or settings.subsample,
            samples=settings.samples,
            new_tokens=settings.max_new_tokens or recipe.data.max_length,
        ),
    )


def chosen_prompts(
    context: Context, prompts: Stage, settings: RolloutSettings, *, verified: bool
) -> tuple[list[Example], int]:
    """Return the examples to sample for, without their long completions, and how many cannot be verified."""
    examples = [replace(Example(**row), completion="") for row in read_jsonl(prompts.path / EXAMPLES)]
    total = len(examples)
    if verified:
        domain = context.recipe.data.domain
        examples = [ready for example in examples if (ready := verifiable(example, domain)) is not None]
    if not examples:
        raise UserError(
            f"None of the {total} examples can be verified: they have no gold answers and, for programs, no tests. "
            "Use examples with answers, such as those of weakdriven data build."
        )
    unverifiable = total - len(examples)
    if settings.subsample and settings.subsample < len(examples):
        draw = np.random.default_rng([context.recipe.seed, len(examples)]).permutation(len(examples))
        examples = [examples[place] for place in np.sort(draw[: settings.subsample])]
    return examples, unverifiable


def verifiable(example: Example, domain: str) -> Example | None:
    """Return the example with what its verifier needs, or None if its completions cannot be verified."""
    if (example.domain or domain) != "code":
        return example if (example.gold or "").strip() else None
    try:
        tests = unit_tests_of({}, example)
    except UserError:
        return None
    return replace(example, meta=example.meta | {UNIT_TESTS: tests}) if tests else None


def sampling_of(context: Context, settings: RolloutSettings, lengths: list[int], whole: int | None) -> Sampling:
    """Return sampling parameters; by default, a completion may take what the shortest prompt leaves of the length."""
    recipe = context.recipe
    budget = settings.max_new_tokens
    if budget is None:
        budget = recipe.data.max_length if whole is None else whole - min(lengths)
        room = context.positions
        if room is not None and room - max(lengths) < budget:
            if whole is not None and room < whole:
                logger.warning(
                    "The longest of %d prompts has %d tokens and the model has %d positions, so every completion is "
                    "cut after %d tokens; drop long prompts, or set rollouts.max_new_tokens.",
                    *(len(lengths), max(lengths), room, max(1, room - max(lengths))),
                )
            budget = max(1, room - max(lengths))
    draws = settings.model_dump(include={"temperature", "top_p", "top_k"})
    return Sampling(budget, tuple(context.renderer.stop_ids), **draws)


def judged(
    context: Context, examples: dict[str, Example], rooms: dict[str, int | None], rows: list[Row]
) -> list[Fault | None]:
    """Return the fault of each completion; only its answer counts, not its form.

    A completion that was cut, or is too long to train on, is wrong if its answer is wrong or missing. With a right
    answer it is undecided: if preferred, it would teach not to end; if rejected, it would teach away from the answer.
    """
    settings, style = context.recipe.eval, context.recipe.data.style
    learned = [replace(examples[row["id"]], completion=written(row, style)) for row in rows]
    candidates = [Candidate(example, example.meta.get(UNIT_TESTS, {})) for example in learned]
    faults = verifier(Checks(unsafe=settings.unsafe, python=settings.code_python))(candidates)
    return [cut_fault(row, rooms[row["id"]], fault) for row, fault in zip(rows, faults, strict=True)]


def cut_fault(row: Row, room: int | None, fault: Fault | None) -> Fault | None:
    """Return the fault of a completion, given the fault of its answer."""
    if row["finish"] not in ("stop", "length"):
        return Fault(REFUSED, row["finish"])
    if fault is not None:
        return fault
    if row["finish"] == "length":
        return Fault(RIGHT_BUT_CUT, f"after {row['tokens']} tokens")
    if room is not None and row["tokens"] > room:
        return Fault(RIGHT_BUT_CUT, f"{row['tokens']} tokens, but data.max_length leaves {room}")
    return None


def counts(found: list[Rollout]) -> dict[str, int]:
    return {
        "samples": len(found),
        "tokens": sum(one.row["tokens"] for one in found),
        "right": sum(one.fault is None for one in found),
        "wrong": sum(one.fault is not None and not one.undecided for one in found),
        "undecided": sum(one.undecided for one in found),
        "cut": sum(one.row["finish"] == "length" for one in found),
    }


def read_rollouts(stage: Stage) -> Iterator[Rollout]:
    """Read the rollouts of a finished stage, in order."""
    rows, labels = (read_jsonl(stage.path / name) for name in (ROLLOUTS, LABELS))
    return (Rollout(row, as_fault(label)) for row, label in zip(rows, labels, strict=True))
