"""Examples -> tokens, once, for training and entropy alike; questions of the benchmarks are kept out."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from weakdriven.config.recipe import DataSettings
from weakdriven.data.example import Example
from weakdriven.data.overlap.held_out import Hit, keep_out
from weakdriven.data.rows.files import data_key, settle_commit
from weakdriven.data.rows.hub import use_commit
from weakdriven.data.rows.sources import open_source
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
    settings = context.recipe.data
    drop = settings.held_out == "drop"

    def compute(work: Path, out: Path) -> dict[str, Any]:
        held, found, progress = context.held_out, list[Hit](), context.progress
        options = settings.model_dump(include={"path", "split", "limit", "domain", "empty_completions"})
        examples = open_source(**options)
        total, layout = examples.count(), examples.layout
        progress.note(f"layout {layout.name} (fields {', '.join(layout.fields)}), {total:,} rows")
        if settings.style != "plain" and (fault := share_in_style(examples, settings.domain, settings.style).fault()):
            raise UserError(fault)
        counters = write_tokens(
            keep_out(examples, held, found, drop=drop) if held else examples,
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
        settled = settings.model_dump(mode="json", exclude={"path", "split", "empty_completions", "held_out"})
        settled["version"] = VERSION
        if settings.system_prompt is None:  # older runs had no such setting, and stay valid
            del settled["system_prompt"]
        if settings.empty_completions == "drop":  # else there is no such row, and older runs stay valid
            settled["empty_completions"] = "drop"
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


def settle_rows(settings: DataSettings, root: Path, remote: RemoteCopy | None) -> None:
    """Look up the commit of a Hub dataset once for a run and all of its processes, before a key needs it."""
    manifest = root / "data" / MANIFEST

    def settled() -> str | None:
        finished = manifest.read_bytes() if is_stage(manifest.parent) else remote and remote.manifest("data")
        try:
            earlier = json.loads(finished or "{}")["inputs"]["rows"]
        except (ValueError, KeyError, TypeError):  # whoever needs the stage reports the damage
            earlier = None
        return settle_commit(settings.path, settings.split, earlier)

    if commit := agree(on_main(settled)):
        use_commit(settings.path, commit)


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
