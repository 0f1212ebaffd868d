"""Tokenises the examples once, for training and entropy; keeps questions of the benchmarks out."""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from weakdriven.config.data import DataSettings, SourceSettings
from weakdriven.data.example import Example
from weakdriven.data.overlap.held_out import Hit, keep_out
from weakdriven.data.rows.files import data_key, settle_commit
from weakdriven.data.rows.hub import use_commit
from weakdriven.data.rows.mixture import SEPARATOR, Mixture, open_sources, source_names
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
    """Tokenise the examples of a recipe."""
    settings, sources = context.recipe.data, context.recipe.data.each
    drop = settings.held_out == "drop"

    def compute(work: Path, out: Path) -> dict[str, Any]:
        held, found, progress = context.held_out, list[Hit](), context.progress
        examples = training_rows_of(settings)
        total, kept = examples.count(), Counter[str]()
        progress.note(examples.described(total))

        def keep(rows: list[Example]) -> None:
            append_jsonl(out / EXAMPLES, (example.as_row() for example in rows))
            kept.update(example.id.partition(SEPARATOR)[0] for example in rows)

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
            on_kept=keep,
        )
        for warning in filter(None, (context.renderer.warning, unlearned_warning(counters))):
            logger.warning(warning)
        file = Path(settings.path or "").expanduser()
        if file.name == TRAIN and (funnel := file.with_name(FUNNEL)).is_file():  # from weakdriven data build
            shutil.copyfile(funnel, out / FUNNEL)
        compared = {"held_out": held.key} if held else {}
        compared |= {"dropped_held_out": len(found)} if drop else {}
        compared |= {"sources": source_counts(examples, kept)} if isinstance(examples, Mixture) else {}
        return {**counters, **compared, "rows_read": total, "layout": ", ".join(dict.fromkeys(examples.layouts))}

    def decisive() -> dict[str, Any]:
        settled = decisive_settings(settings)
        if drop and (held := context.held_out):  # else the questions can only cause an error
            settled["held_out"] = held.key
        return settled

    tokenizer = lambda: digest([context.base.key, context.renderer.tokenizer.chat_template])  # noqa: E731
    inputs = rows_keys(settings) | {"tokenizer": tokenizer}
    source = sources[0].model_dump(mode="json", include={"path", "split"})
    if len(sources) > 1:
        source = {"sources": [one.model_dump(mode="json", exclude_defaults=True) for one in sources]}
    workload = Workload("data", "data")
    stage = context.run.stage("data", compute, settings=decisive, inputs=inputs, execution=source, workload=workload)
    if context.run.computes:
        refuse_plain_text(context, stage)
        compare_again(context, stage)
    return stage


def training_rows_of(settings: DataSettings) -> Source | Mixture:
    """Open the rows of all sources, before any is left out."""
    options = settings.model_dump(include={"domain", "empty_completions"})
    return open_sources([one.model_dump() for one in settings.each], **options)


def without_validation(examples: Iterable[Example], share: float | None) -> Iterator[Example]:
    """Yield the rows that are left for training; raise an error if none is left or none is taken."""
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


def source_counts(mixture: Mixture, kept: Counter[str]) -> dict[str, dict[str, Any]]:
    """Count the rows of each source, those in the mixture, and those that are trained on."""
    facts = zip(mixture.names, mixture.sources, mixture.rows, mixture.used, strict=True)
    return {
        name: {"path": source.path, "layout": source.layout.name, "rows": rows, "used": used, "examples": kept[name]}
        for name, source, rows, used in facts
    }


def decisive_settings(settings: DataSettings) -> dict[str, Any]:
    """Return the settings that determine the tokens besides the rows and the tokenizer; some are left out at their
    default, so that older runs stay valid."""
    elsewhere = {"path", "split", "fields", "sources", "empty_completions", "held_out"}
    elsewhere |= {"validation", "validation_split", "validation_share"}
    settled = settings.model_dump(mode="json", exclude=elsewhere) | {"version": VERSION}
    if len(sources := rows_inputs(settings)) > 1:
        recorded = {"limit", "weight", "fields"}
        settled["mixture"] = [
            [name, one.model_dump(mode="json", include=recorded, exclude_defaults=True)]
            for name, one in sources.items()
        ]
    else:
        settled |= settings.each[0].model_dump(mode="json", include={"limit"})
        settled |= settings.each[0].model_dump(mode="json", include={"fields"}, exclude_defaults=True)
    if settings.system_prompt is None:
        del settled["system_prompt"]
    if settings.empty_completions == "drop":
        settled["empty_completions"] = "drop"
    if settings.validation_share is not None:
        settled["validation_share"] = settings.validation_share
    return settled


def rows_inputs(settings: DataSettings) -> dict[str, SourceSettings]:
    """Return each source by the name of its key among the stage's inputs."""
    sources = settings.each
    names = [f"rows of {name}" for name in source_names([one.path for one in sources])]
    return dict(zip(names if len(sources) > 1 else ["rows"], sources, strict=True))


def rows_keys(settings: DataSettings) -> dict[str, Callable[[], str]]:
    return {name: partial(data_key, one.path, one.split) for name, one in rows_inputs(settings).items()}


def settle_rows(settings: DataSettings, root: Path, remote: RemoteCopy | None) -> None:
    """Look up the commits of Hub datasets once for a run and all its processes, before a key needs them.

    Also read the first rows of other sources, so that errors in them come before anything else.
    """

    def settled(stage: str, sources: dict[str, SourceSettings]) -> dict[str, str]:
        manifest = root / stage / MANIFEST
        finished = manifest.read_bytes() if is_stage(manifest.parent) else remote and remote.manifest(stage)
        try:
            earlier = dict(json.loads(finished or "{}")["inputs"])
        except (ValueError, KeyError, TypeError):  # the damage is reported when the stage is needed
            earlier = {}
        commits = dict[str, str]()
        for name, one in sources.items():
            if commit := settle_commit(one.path, one.split, earlier.get(name)):
                commits[one.path] = commit
            else:
                open_source(**one.model_dump(exclude={"weight"}), empty_completions=settings.empty_completions)
        return commits

    wanted = {"data": rows_inputs(settings)}
    if settings.validation and settings.validation not in [one.path for one in settings.each]:  # else already done
        own = SourceSettings(path=settings.validation, split=settings.validation_split, fields=settings.fields)
        wanted[VALIDATION] = {"rows": own}
    for stage, sources in wanted.items():
        for path, commit in (agree(on_main(partial(settled, stage, sources))) or {}).items():
            use_commit(path, commit)


def refuse_plain_text(context: Context, data: Stage) -> None:
    """Raise an error if a method of the recipe generates completions of prompts but the rows are plain text."""
    layouts = read_json(data.path / MANIFEST)["counters"].get("layout", "").split(", ")
    if context.recipe.samples_rollouts and "text" in layouts:
        raise UserError(
            "Some training rows are plain text without prompts, but rft, dpo, spin and ssb generate completions of "
            "prompts; give rows with prompts, or leave these methods out."
        )


def compare_again(context: Context, data: Stage) -> None:
    """Compare rows with the current benchmarks' questions if they were tokenised for other benchmarks or none."""
    held, manifest = context.held_out, read_json(data.path / MANIFEST)
    if held and manifest["counters"].get("held_out") != held.key:
        refuse_damage(data.path)
        rows = (Example(**row) for row in read_jsonl(data.path / EXAMPLES))
        for _ in keep_out(rows, held, [], drop=False):
            pass
        manifest["counters"]["held_out"] = held.key
        if is_main():
            write_json(data.path / MANIFEST, manifest)
