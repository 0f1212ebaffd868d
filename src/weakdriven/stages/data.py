"""Examples -> tokens, once, for training and entropy alike; questions of the benchmarks are kept out."""

import json
import logging
import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from weakdriven.config.data import DataSettings
from weakdriven.data.example import Example
from weakdriven.data.overlap.held_out import Hit, keep_out
from weakdriven.data.rows.files import data_key, settle_commit
from weakdriven.data.rows.hub import use_commit
from weakdriven.data.rows.sources import Source, open_source
from weakdriven.data.structure import share_in_style
from weakdriven.data.tokenize import VERSION, unlearned_warning, write_tokens
from weakdriven.data.validation import is_taken
from weakdriven.errors import UserError
from weakdriven.runs.directory import EXAMPLES, FUNNEL, TOKENS, TRAIN, VALIDATION
from weakdriven.runs.files import append_jsonl, digest, read_json, read_jsonl, write_json
from weakdriven.runs.manifest import MANIFEST, is_stage, refuse_damage
from weakdriven.runs.processes import agree, is_main, on_main
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.remote_copy import RemoteCopy
from weakdriven.stages.workload import Workload

logger = logging.getLogger(__name__)


def data_stage(context: Context) -> Stage:
    """The tokenised examples of a recipe."""
    settings = context.recipe.data
    drop = settings.held_out == "drop"

    def compute(work: Path, out: Path) -> dict[str, Any]:
        held, found, progress = context.held_out, list[Hit](), context.progress
        examples = training_rows_of(settings)
        total, layout = examples.count(), examples.layout
        progress.note(f"layout {layout.name} (fields {', '.join(layout.fields)}), {total:,} rows")
        if settings.style != "plain" and (fault := share_in_style(examples, settings.domain, settings.style).fault()):
            raise UserError(fault)
        rows = without_validation(examples, settings.validation_share)
        counters = write_tokens(
            keep_out(rows, held, found, drop=drop) if held else rows,
            context.renderer,
            out / TOKENS,
            max_length=settings.max_length,
            long_prompts=settings.long_prompts,
            on_row=lambda done: progress.update(done, total),
            on_kept=lambda kept: append_jsonl(out / EXAMPLES, (example.as_row() for example in kept)),
        )
        for warning in filter(None, (context.renderer.warning, unlearned_warning(counters))):
            logger.warning(warning)
        file = Path(settings.path).expanduser()
        if file.name == TRAIN and (funnel := file.with_name(FUNNEL)).is_file():  # from weakdriven data build
            shutil.copyfile(funnel, out / FUNNEL)
        compared = {"held_out": held.key} if held else {}
        compared |= {"dropped_held_out": len(found)} if drop else {}
        return {**counters, **compared, "rows_read": total, "layout": layout.name}

    def decisive() -> dict[str, Any]:
        settled = decisive_settings(settings)
        if drop and (held := context.held_out):  # else the questions decide only whether there is an error
            settled["held_out"] = held.key
        return settled

    inputs = {
        "rows": lambda: data_key(settings.path, settings.split),
        "tokenizer": lambda: digest([context.base.key, context.renderer.tokenizer.chat_template]),
    }
    source = settings.model_dump(mode="json", include={"path", "split"})
    workload = Workload("data", "data")
    stage = context.run.stage("data", compute, settings=decisive, inputs=inputs, execution=source, workload=workload)
    if context.run.computes:
        refuse_plain_text(context, stage)
        compare_again(context, stage)
    return stage


def training_rows_of(settings: DataSettings) -> Source:
    """The rows that `path` names, before any is left out."""
    return open_source(**settings.model_dump(include={"path", "split", "limit", "domain", "empty_completions"}))


def without_validation(examples: Iterable[Example], share: float | None) -> Iterator[Example]:
    """The rows that are left for training; an error if none is left, or none taken."""
    taken = left = 0
    for example in examples:
        if share and is_taken(example, share):
            taken += 1
        else:
            left += 1
            yield example
    if share and not (taken and left):
        what, remedy = ("no row", "raise") if left else (f"all {taken} rows", "lower")
        raise UserError(
            f"data.validation_share={share:g} takes {what} out of the training data; {remedy} it, or name a file in "
            "data.validation."
        )


def decisive_settings(settings: DataSettings) -> dict[str, Any]:
    """What decides the tokens besides the rows and the tokenizer; settings at their default left out, so that older
    runs stay valid."""
    elsewhere = {"path", "split", "empty_completions", "held_out", "validation", "validation_split", "validation_share"}
    settled = settings.model_dump(mode="json", exclude=elsewhere) | {"version": VERSION}
    if settings.system_prompt is None:
        del settled["system_prompt"]
    if settings.empty_completions == "drop":
        settled["empty_completions"] = "drop"
    if settings.validation_share is not None:
        settled["validation_share"] = settings.validation_share
    return settled


def settle_rows(settings: DataSettings, root: Path, remote: RemoteCopy | None) -> None:
    """Look up the commits of Hub datasets once for a run and all of its processes, before a key needs them."""

    def settled(stage: str, path: str, split: str) -> str | None:
        manifest = root / stage / MANIFEST
        finished = manifest.read_bytes() if is_stage(manifest.parent) else remote and remote.manifest(stage)
        try:
            earlier = json.loads(finished or "{}")["inputs"]["rows"]
        except (ValueError, KeyError, TypeError):  # whoever needs the stage reports the damage
            earlier = None
        return settle_commit(path, split, earlier)

    sources = [("data", settings.path, settings.split)]
    if settings.validation and settings.validation != settings.path:  # else it is the same commit
        sources.append((VALIDATION, settings.validation, settings.validation_split))
    for source in sources:
        if commit := agree(on_main(partial(settled, *source))):
            use_commit(source[1], commit)


def refuse_plain_text(context: Context, data: Stage) -> None:
    """Raise an error if a method of the recipe generates completions of prompts, and the rows are plain text."""
    layout = read_json(data.path / MANIFEST)["counters"].get("layout")
    if context.recipe.samples_rollouts and layout == "text":
        raise UserError(
            "The training rows are plain text without prompts, and dpo, spin and ssb generate completions of prompts; "
            "give rows with prompts, or leave these methods out."
        )


def compare_again(context: Context, data: Stage) -> None:
    """Rows that were tokenised for other benchmarks, or none, are compared with the questions of today."""
    held, manifest = context.held_out, read_json(data.path / MANIFEST)
    if held and manifest["counters"].get("held_out") != held.key:
        refuse_damage(data.path)
        rows = (Example(**row) for row in read_jsonl(data.path / EXAMPLES))
        for _ in keep_out(rows, held, [], drop=False):
            pass
        manifest["counters"]["held_out"] = held.key
        if is_main():
            write_json(data.path / MANIFEST, manifest)
