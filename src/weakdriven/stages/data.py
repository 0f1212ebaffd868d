"""Examples -> tokens, once, for training and entropy alike; questions of the benchmarks are kept out."""

import json
import logging
import shutil
from collections import Counter
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
from weakdriven.errors import UserError
from weakdriven.runs.directory import EXAMPLES, FUNNEL, TOKENS, TRAIN
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
    settings, sources = context.recipe.data, context.recipe.data.each
    names = source_names([one.path for one in sources])
    drop = settings.held_out == "drop"

    def compute(work: Path, out: Path) -> dict[str, Any]:
        held, found, progress = context.held_out, list[Hit](), context.progress
        examples = open_rows(settings)
        total, kept = examples.count(), Counter[str]()
        progress.note(examples.described(total))

        def keep(rows: list[Example]) -> None:
            append_jsonl(out / EXAMPLES, (example.as_row() for example in rows))
            kept.update(example.id.partition(SEPARATOR)[0] for example in rows)

        if settings.style != "plain" and (fault := share_in_style(examples, settings.domain, settings.style).fault()):
            raise UserError(fault)
        counters = write_tokens(
            keep_out(examples, held, found, drop=drop) if held else examples,
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
        left_out = {"path", "split", "fields", "sources", "empty_completions", "held_out"}
        settled = settings.model_dump(mode="json", exclude=left_out) | {"version": VERSION}
        if len(sources) > 1:
            told = {"limit", "weight", "fields"}
            parts = [one.model_dump(mode="json", include=told, exclude_defaults=True) for one in sources]
            settled["mixture"] = [{"name": name} | part for name, part in zip(names, parts, strict=True)]
        else:
            settled["limit"] = sources[0].limit
            if sources[0].fields:
                settled["fields"] = sources[0].fields
        if settings.system_prompt is None:  # older runs had no such setting, and stay valid
            del settled["system_prompt"]
        if settings.empty_completions == "drop":  # else there is no such row, and older runs stay valid
            settled["empty_completions"] = "drop"
        if drop and (held := context.held_out):  # else the questions decide only whether there is an error
            settled["held_out"] = held.key
        return settled

    inputs = {name: partial(data_key, one.path, one.split) for name, one in rows_inputs(settings).items()}
    inputs["tokenizer"] = lambda: digest([context.base.key, context.renderer.tokenizer.chat_template])
    source = sources[0].model_dump(mode="json", include={"path", "split"})
    if len(sources) > 1:
        source = {"sources": [one.model_dump(mode="json", exclude_defaults=True) for one in sources]}
    workload = Workload("data", "data")
    stage = context.run.stage("data", compute, settings=decisive, inputs=inputs, execution=source, workload=workload)
    if context.run.computes:
        refuse_plain_text(context, stage)
        compare_again(context, stage)
    return stage


def open_rows(settings: DataSettings) -> Source | Mixture:
    """The examples of a recipe, of one source or mixed."""
    options = settings.model_dump(include={"domain", "empty_completions"})
    return open_sources([one.model_dump() for one in settings.each], **options)


def rows_inputs(settings: DataSettings) -> dict[str, SourceSettings]:
    """Each source by the name under which its key is among the stage's inputs."""
    sources = settings.each
    names = source_names([one.path for one in sources])
    return dict(zip((f"rows of {name}" for name in names) if len(sources) > 1 else ["rows"], sources, strict=True))


def source_counts(mixture: Mixture, kept: Counter[str]) -> dict[str, dict[str, Any]]:
    """For each source its rows, those in the mixture, and those that are trained on."""
    facts = zip(mixture.names, mixture.sources, mixture.rows, mixture.used, strict=True)
    return {
        name: {"path": source.path, "layout": source.layout.name, "rows": rows, "used": used, "examples": kept[name]}
        for name, source, rows, used in facts
    }


def settle_rows(settings: DataSettings, root: Path, remote: RemoteCopy | None) -> None:
    """Look up the commits of Hub datasets once for a run and all of its processes, before a key needs them.

    The first rows of other sources are read, so that a source that cannot be trained on is found before all else.
    """
    manifest = root / "data" / MANIFEST

    def settled() -> dict[str, str]:
        finished = manifest.read_bytes() if is_stage(manifest.parent) else remote and remote.manifest("data")
        try:
            earlier = dict(json.loads(finished or "{}")["inputs"])
        except (ValueError, KeyError, TypeError):  # whoever needs the stage reports the damage
            earlier = {}
        commits = dict[str, str]()
        for name, one in rows_inputs(settings).items():
            if commit := settle_commit(one.path, one.split, earlier.get(name)):
                commits[one.path] = commit
            else:
                open_source(**one.model_dump(exclude={"weight"}), empty_completions=settings.empty_completions)
        return commits

    for path, commit in agree(on_main(settled)).items():
        use_commit(path, commit)


def refuse_plain_text(context: Context, data: Stage) -> None:
    """Raise an error if a method of the recipe generates completions of prompts, and the rows are plain text."""
    layouts = read_json(data.path / MANIFEST)["counters"].get("layout", "").split(", ")
    if context.recipe.samples_rollouts and "text" in layouts:
        raise UserError(
            "Some training rows are plain text without prompts, and dpo, spin and ssb generate completions of prompts; "
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
