"""`weakdriven data build`: make a verified, decontaminated training set from raw corpora, and account for every row.

Three steps: `verify` keeps the rows that pass, `clean` drops rows that overlap with a benchmark or repeat another row,
and `distil` generates completions if there is a teacher. Every step resumes after a kill.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

from weakdriven.build.distil import Judge, OpenTeacher, distil, open_teacher
from weakdriven.build.overlaps import find_overlaps
from weakdriven.build.rows import KEPT, as_learned, verify_facts, verify_rows
from weakdriven.build.settings import BuildSettings
from weakdriven.config.benchmarks import name_of
from weakdriven.data.example import Example
from weakdriven.data.funnel import Funnel
from weakdriven.data.overlap.decontaminate import NGRAM_SHARE, clean
from weakdriven.data.overlap.find import HeldItem
from weakdriven.data.questions import bare
from weakdriven.errors import UserError
from weakdriven.eval.graders.candidates import verifier
from weakdriven.eval.test_sets import load_benchmark
from weakdriven.runs.directory import FUNNEL, TRAIN, WORK, Progress, claim_run
from weakdriven.runs.files import digest, read_json, read_jsonl, write_json, write_jsonl
from weakdriven.runs.redact import without_login
from weakdriven.runs.stage import Planned

CLEANED, ROLLOUTS, OVERLAPS = "cleaned.jsonl", "rollouts", "overlaps"
Items = dict[str, list[HeldItem]]
"""Held-out items by domain."""


@dataclass(frozen=True)
class Build:
    """A build in one folder."""

    settings: BuildSettings
    root: Path
    progress: Progress
    items: Items
    shares: dict[str, float]
    teacher: OpenTeacher | None
    verify_key: str

    @property
    def work(self) -> Path:
        return self.root / WORK


def build(settings: BuildSettings, root: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Build the set in `root`, or resume a build; return the funnel as written to funnel.json."""
    progress = progress or Progress()
    items = held_items(settings)  # first, because one may be missing
    teacher = open_teacher(settings.teacher, settings.domain, settings.style) if settings.teacher else None
    share = settings.ngram_share
    shares = NGRAM_SHARE if share is None else dict.fromkeys(NGRAM_SHARE, share)
    job = Build(settings, root, progress, items, shares, teacher, digest(verify_facts(settings)))
    with claim_run(root, f"data build {settings.domain}"):
        progress.plan([Planned(name, "", "") for name in ("verify", "clean", *(["distil"] if teacher else []))])
        try:
            return carry_out(job)
        finally:
            progress.close()


def carry_out(job: Build) -> dict[str, Any]:
    """Do the steps that are not done yet; return the funnel."""
    settings, work, teacher = job.settings, job.work, job.teacher
    terms = [teacher.facts, (teacher.settings.samples, teacher.settings.keep)] if teacher else [{}, None]
    key = digest([digest([job.verify_key, job.items, job.shares]), *terms])
    result, funnel_file = job.root / settings.result, job.root / FUNNEL
    if result.exists() and funnel_file.exists() and (done := read_json(funnel_file)).get("key") == key:
        for step in done["steps"]:
            job.progress.skip(step)
        return done
    steps = {"verify": verify_rows(settings, job.verify_key, work, job.progress)}
    steps["clean"] = clean_rows(job, steps["verify"].kept)
    more: dict[str, Any] = {"rows": steps["clean"].kept}
    if teacher is None:
        os.replace(work / CLEANED, work / settings.result)
    else:
        steps["distil"], completions = distil_rows(job, teacher, steps["clean"].kept)
        more = {"rows": completions.kept, "completions": completions.to_json()}
    funnel = report(job, steps) | more
    funnel_file.unlink(missing_ok=True)  # its key claims that the result is up to date
    if not funnel["kept"]:
        write_json(funnel_file, funnel)
        dropped = funnel["dropped"] | funnel.get("completions", {}).get("dropped", {})
        reasons = [f"{reason} ({one['rows']})" for reason, one in dropped.items()][:6]
        raise UserError(
            f"{', '.join(settings.sources)}: all {funnel['in']} rows were dropped: "
            f"{', '.join(reasons) or 'the sources are empty'}. {funnel_file} lists the first rows for each reason."
        )
    os.replace(work / settings.result, result)
    write_json(funnel_file, funnel := funnel | {"key": key})
    return funnel


def clean_rows(job: Build, total: int) -> Funnel:
    """Write the rows that may be trained on to `cleaned.jsonl`."""
    settings, progress, kept = job.settings, job.progress, job.work / KEPT
    funnel, begin = Funnel(), time.monotonic()
    progress.begin("clean", f"{total} rows against {', '.join(map(name_of, settings.benchmarks)) or 'no benchmark'}")

    def examples() -> Iterator[Example]:
        for done, row in enumerate(read_jsonl(kept), start=1):
            yield Example(**row)
            if done % 256 == 0:
                progress.update(total + done, 2 * total)

    overlaps = find_overlaps(
        kept,
        total,
        job.items,
        job.shares,
        job.work / OVERLAPS,
        workers=settings.workers,
        on_rows=lambda done: progress.update(min(done, total), 2 * total),
    )
    rows = clean(examples(), overlaps, settings.domain, funnel)
    write_jsonl(job.work / CLEANED, (example.as_row() for example in rows))
    progress.end("clean", time.monotonic() - begin)
    return funnel


def distil_rows(job: Build, teacher: OpenTeacher, total: int) -> tuple[Funnel, Funnel]:
    """Let the teacher complete the problems in `cleaned.jsonl`; return the counts of problems and of completions."""
    settings, begin = job.settings, time.monotonic()
    job.progress.begin("distil", f"{total} problems, at most {teacher.settings.samples} samples each")
    examples = (Example(**row) for row in read_jsonl(job.work / CLEANED))
    judge = Judge(partial(as_learned, settings), verifier(settings.checks), verify_facts(settings, sources=False))
    # completions stay valid for the same prompts, whatever else has changed
    folder = job.root / ROLLOUTS / digest(teacher.facts)[:12]
    counts = Funnel(), Funnel()
    rows = distil(examples, teacher, judge, folder, total=total, counts=counts, progress=job.progress)
    write_jsonl(job.work / settings.result, (example.as_row() for example in rows))
    job.progress.end("distil", time.monotonic() - begin)
    return counts


def held_items(settings: BuildSettings) -> Items:
    """Load the benchmarks' questions by domain; test sets of the user have the domain of the rows."""
    items: Items = {}
    missing: dict[str, UserError] = {}
    for entry in settings.benchmarks:
        try:
            name, benchmark, held = load_benchmark(entry, settings.data_dir)
        except UserError as error:
            missing[name_of(entry)] = error
            continue
        found = [HeldItem(name, item.id, bare(item.question)) for item in held]
        items.setdefault(benchmark.domain or settings.domain, []).extend(found)
    if missing:
        here = ",".join(name for name in map(name_of, settings.benchmarks) if name not in missing) or "none"
        raise UserError(
            f"These benchmarks cannot be read: {', '.join(missing)}. First error: {next(iter(missing.values()))} Put "
            f"their files into --data-dir, or omit them with --benchmarks {here}."
        )
    return items


def report(job: Build, steps: dict[str, Funnel]) -> dict[str, Any]:
    """Make the content of funnel.json: the totals, then each step."""
    settings, teacher = job.settings, None
    if used := settings.teacher:
        facts = {"model", "samples", "keep", "temperature", "top_p", "max_new_tokens", "max_prompt_tokens"}
        teacher = {"url": used.url and without_login(used.url), **used.model_dump(include=facts)}
    return {
        "domain": settings.domain,
        "sources": [without_login(source) for source in settings.sources],
        "style": settings.style if settings.result == TRAIN else None,
        "teacher": teacher,
        "held_out": Counter(item.benchmark for some in job.items.values() for item in some),
        "settings": verify_facts(settings) | {"ngram_share": job.shares},
        **reduce(Funnel.then, steps.values()).to_json(),
        "steps": {name: step.to_json() for name, step in steps.items()},
    }
