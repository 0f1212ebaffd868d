"""`weakdriven data build`: raw corpora -> verified, decontaminated training sets, and what became of every row.

Rows are read in blocks. A block's verdicts are on disk before the next one is read, so a killed build goes on where it
was; memory holds one block. What passed is then compared with the benchmarks and with itself. With a teacher, only the
problems have to pass, and what is left of them gets its completions from it.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from itertools import islice
from pathlib import Path
from typing import Any

from weakdriven.build.distil import UNIT_TESTS, Distilled, Judge, Opened, Teacher, distil, open_teacher
from weakdriven.build.overlaps import blocks, find_overlaps
from weakdriven.data.example import Example
from weakdriven.data.funnel import Funnel
from weakdriven.data.overlap.decontaminate import NGRAM_SHARE, clean
from weakdriven.data.overlap.find import HeldItem, Overlap
from weakdriven.data.prompts import Renderer, give_chat_template
from weakdriven.data.questions import bare
from weakdriven.data.rows.files import EMBEDDED, Row, count_rows, find_file, read_each
from weakdriven.data.rows.layouts import layout_name
from weakdriven.data.rows.source_key import data_key
from weakdriven.data.structure import in_style
from weakdriven.data.tokenize import tokenize
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS, load_items
from weakdriven.eval.graders.verify import (
    Candidate,
    Checks,
    Fault,
    Verify,
    form_fault,
    problem_checker,
    read_candidate,
    verifier,
)
from weakdriven.runs.directory import FUNNEL, TRAIN, WORK, Progress, claimed
from weakdriven.runs.files import append_jsonl, digest, read_json, read_jsonl, sync, write_json, write_jsonl
from weakdriven.runs.stage import Planned

VERSION = 1
"""Raised when the same rows give another set, so that finished builds know."""
CANDIDATES, KEPT, STATE = "candidates.jsonl", "kept.jsonl", "verify.json"
CLEANED, ROLLOUTS = "cleaned.jsonl", "rollouts"
OVERLAPS = "overlaps"
CHEAP = 256 << 20
"""Bytes of a file whose rows are counted just to tell the time left."""
STEPS = ("verify", "clean")
Items = dict[str, list[HeldItem]]
"""Held-out items by domain."""
ALL_BENCHMARKS = tuple(name for name, entry in BENCHMARKS.items() if not entry.embedded)


@dataclass(frozen=True)
class Keys:
    """What each step's work depends on."""

    verify: str
    clean: str
    teacher: dict[str, Any]

    def rollouts(self) -> str:
        """What the teacher wrote stays good for the same prompts, whatever else has changed."""
        return digest(self.teacher)

    def whole(self, teacher: Teacher | None) -> str:
        return digest([self.clean, self.teacher, (teacher.samples, teacher.keep) if teacher else None])


@dataclass(frozen=True)
class Build:
    """What a training set is made from."""

    domain: str
    """math, code or logic."""
    sources: tuple[str, ...]
    split: str = "train"
    style: str = "tagged"
    """How completions have to be written."""
    benchmarks: tuple[str, ...] = ALL_BENCHMARKS
    data_dir: str | None = None
    ngram_share: float | None = None
    """Share of a benchmark item's runs of words that a row has to hold to be left out; None: `NGRAM_SHARE`."""
    max_characters: int | None = None
    """Longer prompts with their completions are dropped; None keeps them."""
    max_tokens: int | None = None
    """The same in tokens of `tokenizer`, as a run with its chat template would train on them: as data.max_length."""
    tokenizer: str | None = None
    chat_template: str | None = None
    """For a tokenizer that has none."""
    limit: int | None = None
    """First rows of each source only."""
    block: int = 2048
    """Rows verified before the next note of what is done; one slow comparison holds up a block, so not too few."""
    checks: Checks = field(default_factory=Checks)
    teacher: Teacher | None = None
    """Writes the completions; those of the sources are not used then."""

    @property
    def given(self) -> bool:
        """Whether the sources bring the completions; those of logic have none."""
        return self.teacher is None and self.domain != "logic"

    def __post_init__(self) -> None:
        if (self.max_tokens is None) != (self.tokenizer is None) or (self.chat_template and not self.tokenizer):
            raise UserError("--max-tokens and --tokenizer need each other, and --chat-template needs both; give both.")
        if self.max_tokens is not None and self.result == CANDIDATES:
            raise UserError("--max-tokens counts completions too, and logic has none without --teacher; leave it out.")

    @cached_property
    def renderer(self) -> Renderer | None:
        """What counts tokens, if they are to be counted."""
        if self.tokenizer is None:
            return None
        from weakdriven.models.load import load_tokenizer, locate_model  # brings torch

        tokenizer = load_tokenizer(locate_model(self.tokenizer))
        give_chat_template(tokenizer, self.chat_template, self.tokenizer, setting="--chat-template")
        renderer = Renderer(tokenizer, self.domain, self.style)
        renderer.check()
        return renderer

    @property
    def result(self) -> str:
        """Name of the file with the rows; without completions it is not called a training set."""
        return TRAIN if self.given or self.teacher else CANDIDATES


def build(settings: Build, root: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Make the set in `root`, or go on with it; what is done is not done again. Returns the funnel as written."""
    progress = progress or Progress()
    items = held_items(settings.benchmarks, settings.data_dir)  # before any work: one may be missing
    opened = open_teacher(settings.teacher, settings.domain) if settings.teacher else None
    verifying = digest(verify_facts(settings))
    keys = Keys(verifying, digest([verifying, items, shares_of(settings)]), opened.facts if opened else {})
    with claimed(root, f"data build {settings.domain}"):
        progress.plan([Planned(name, "", "") for name in (*STEPS, *(["distil"] if opened else []))])
        try:
            return _build(settings, root, progress, items, keys, opened)
        finally:
            progress.close()


def _build(
    settings: Build, root: Path, progress: Progress, items: Items, keys: Keys, opened: Opened | None
) -> dict[str, Any]:
    result, work = root / settings.result, root / WORK
    whole = keys.whole(settings.teacher)
    if result.exists() and (done := finished(root / FUNNEL, whole)):
        for step in done["steps"]:
            progress.skip(step)
        return done
    steps = {"verify": verify_rows(settings, keys.verify, work, progress)}
    steps["clean"] = clean_rows(settings, items, steps["verify"].kept, work, progress)
    if opened is None:
        os.replace(work / CLEANED, work / settings.result)
        more = {"rows": steps["clean"].kept}
    else:
        folder = root / ROLLOUTS / keys.rollouts()[:12]
        distilled = distil_rows(settings, opened, steps["clean"].kept, work, folder, progress)
        steps["distil"] = distilled.problems
        more = {"rows": distilled.completions.kept, "completions": distilled.completions.to_json()}
    funnel = report(settings, items, steps) | more
    (root / FUNNEL).unlink(missing_ok=True)  # the key in it says that the result is its own
    if not funnel["kept"]:
        write_json(root / FUNNEL, funnel)
        raise UserError(nothing_kept(settings, funnel, root / FUNNEL))
    os.replace(work / settings.result, result)
    write_json(root / FUNNEL, funnel := funnel | {"key": whole})
    return funnel


def clean_rows(settings: Build, items: Items, total: int, work: Path, progress: Progress) -> Funnel:
    """Write the rows that may be trained on to `cleaned.jsonl`."""
    funnel, begin = Funnel(), time.monotonic()
    progress.begin("clean", f"{total} rows against {', '.join(settings.benchmarks) or 'no benchmark'}")
    examples = counted((Example.from_row(row) for row in read_jsonl(work / KEPT)), total, progress)
    overlaps = overlaps_of(settings, items, total, work, progress)
    rows = clean(examples, overlaps, settings.domain, funnel)
    write_jsonl(work / CLEANED, (example.as_row() for example in rows))
    progress.end("clean", time.monotonic() - begin)
    return funnel


def distil_rows(settings: Build, opened: Opened, total: int, work: Path, folder: Path, progress: Progress) -> Distilled:
    """Have the teacher complete the problems in `cleaned.jsonl`."""
    assert settings.teacher is not None
    counts, begin = Distilled(), time.monotonic()
    progress.begin("distil", f"{total} problems, {settings.teacher.samples} tries each at most")
    examples = (Example.from_row(row) for row in read_jsonl(work / CLEANED))
    judge = Judge(partial(as_learned, settings), verifier(settings.checks), verify_facts(settings, sources=False))
    shared = {"total": total, "counts": counts, "progress": progress}
    rows = distil(examples, settings.teacher, opened, judge, folder, **shared)
    write_jsonl(work / settings.result, (example.as_row() for example in rows))
    progress.end("distil", time.monotonic() - begin)
    return counts


def held_items(benchmarks: tuple[str, ...], data_dir: str | None) -> Items:
    """The questions of the benchmarks, by domain."""
    items: Items = {}
    missing: dict[str, UserError] = {}
    for name in benchmarks:
        try:
            found = [HeldItem(name, item.id, bare(item.question)) for item in load_items(name, data_dir)]
        except UserError as error:
            missing[name] = error
            continue
        items.setdefault(BENCHMARKS[name].domain, []).extend(found)
    if missing:
        here = ",".join(name for name in benchmarks if name not in missing) or "none"
        raise UserError(
            f"Rows are to be kept away from {', '.join(missing)}, which cannot be read (first: "
            f"{next(iter(missing.values()))}) Put their files into --data-dir, or go without them: --benchmarks {here}."
        )
    return items


def shares_of(settings: Build) -> dict[str, float]:
    return NGRAM_SHARE if settings.ngram_share is None else dict.fromkeys(NGRAM_SHARE, settings.ngram_share)


def verify_facts(settings: Build, *, sources: bool = True) -> dict[str, Any]:
    """What decides which rows pass, for the key of the work that survives a kill."""
    facts = {name: getattr(settings, name) for name in ("domain", "split", "style", "max_characters", "limit")}
    checks = {"timeout": settings.checks.timeout, "python": settings.checks.python}
    facts["given"] = settings.given
    if settings.renderer:
        from weakdriven.models.load import tokenizer_fingerprint

        facts |= {"max_tokens": settings.max_tokens, "tokenizer": tokenizer_fingerprint(settings.renderer.tokenizer)}
    if sources:
        facts["sources"] = [[Path(path).name, data_key(path, settings.split)] for path in settings.sources]
    return {"version": VERSION, **facts, **checks}


def verify_rows(settings: Build, key: str, work: Path, progress: Progress) -> Funnel:
    """Append the rows that pass to `kept.jsonl`; the state says how much of the sources and of that file counts."""
    state = read_json(work / STATE) if (work / STATE).exists() else {}
    kept = work / KEPT
    if not kept.exists():
        kept.touch()
    if state.get("key") != key or kept.stat().st_size < state["bytes"]:
        state = {"key": key, "rows": [0] * len(settings.sources), "bytes": 0, "whole": False, **Funnel().to_json()}
        write_json(work / STATE, state, exact=True)  # before the rows of other settings go
    funnel = Funnel.from_json(state)
    if kept.stat().st_size > state["bytes"]:  # what a killed build wrote after its last note
        os.truncate(kept, state["bytes"])
    if state["whole"]:
        progress.skip("verify")
        return funnel
    begin = time.monotonic()
    progress.begin("verify", f"{funnel.seen} rows are done" if funnel.seen else "not run yet")
    verify = verifier(settings.checks) if settings.given else problem_checker(settings.checks)
    total = sum(map(cheap_count, settings.sources))
    for place, path in enumerate(settings.sources):
        progress.note(f"{path}: {layout_of(settings, path)}")
        for rows in blocks(rows_from(settings, path, state["rows"][place]), settings.block):
            first = state["rows"][place] + 1
            passed, counts = verify_block(settings, path, first, rows, verify)
            append_jsonl(kept, (example.as_row() for example in passed))
            sync(kept)
            funnel.merge(counts)
            state["rows"][place] += len(rows)
            state |= {"bytes": kept.stat().st_size, **funnel.to_json()}
            write_json(work / STATE, state, exact=True)
            progress.update(funnel.seen, max(total, funnel.seen), kept=funnel.kept)
    if digest(verify_facts(settings)) != key:
        (work / STATE).unlink()
        raise UserError("A source has changed while it was read; run the same command again.")
    write_json(work / STATE, state | {"whole": True}, exact=True)
    progress.end("verify", time.monotonic() - begin)
    return funnel


def layout_of(settings: Build, path: str) -> str:
    """What the first row that can be read shows; each row is read by its own layout."""
    row = next((row for row in rows_from(settings, path, 0) if isinstance(row, dict)), {})
    name = "LogiQA 2.0" if "text" in row else "ReClor" if "answers" in row else None
    name = (name if settings.domain == "logic" else None) or layout_name(row)
    return f"layout {name}" if name else f"no layout that is known (fields {', '.join(row) or 'none'})"


def cheap_count(path: str) -> int:
    """Rows of a source where counting them takes a moment, for the time left; else 0."""
    file = None if path == EMBEDDED else find_file(path)
    return count_rows(path) if file is not None and file.stat().st_size <= CHEAP else 0


def rows_from(settings: Build, path: str, start: int) -> Iterator[Row | UserError]:
    left = None if settings.limit is None else max(settings.limit - start, 0)
    return islice(read_each(path, settings.split, start=start), left)


def verify_block(
    settings: Build, path: str, first: int, rows: list[Row | UserError], verify: Verify
) -> tuple[list[Example], Funnel]:
    """The rows of a block that pass, and the counts of all.

    Args:
        first: Number of the first row in its source, from 1.
    """
    funnel, candidates = Funnel(), list[Candidate]()
    for number, row in enumerate(rows, start=first):
        found = candidate_or_fault(settings, row, number, path)
        if isinstance(found, Fault):
            funnel.drop(found.reason, row_id(row, number), found.detail)
        else:
            candidates.append(found)
    passed: list[Example] = []
    for candidate, fault in zip(candidates, verify(candidates), strict=True):
        if fault is None:
            funnel.keep()
            passed.append(candidate.example)
        else:
            funnel.drop(fault.reason, candidate.example.id, fault.detail)
    return passed, funnel


def candidate_or_fault(settings: Build, row: Row | UserError, number: int, path: str) -> Candidate | Fault:
    """All that can be said of a row without a verifier."""
    if isinstance(row, UserError):
        return Fault("malformed row", str(row))
    candidate = read_candidate(settings.domain, row, number, path)
    if isinstance(candidate, Fault):
        return candidate
    example = candidate.example
    if not settings.given:
        meta = example.meta | ({UNIT_TESTS: candidate.tests} if candidate.tests else {})
        return replace(candidate, example=replace(example, completion="", meta=meta, all_turns=False))
    learned = as_learned(settings, example)
    return learned if isinstance(learned, Fault) else replace(candidate, example=learned)


def as_learned(settings: Build, example: Example) -> Example | Fault:
    """A row in the style of the set, or what is wrong with its form or its length."""
    if fault := form_fault(example, settings.style):
        return fault
    said = [{**turn, "content": in_style(turn["content"], settings.style)} for turn in example.prompt]
    said = [new if old["role"] == "assistant" else old for old, new in zip(example.prompt, said, strict=True)]
    completion = in_style(example.completion, settings.style)
    example = replace(example, prompt=said, completion=completion, all_turns=False)  # only the last reply is verified
    length = sum(len(turn["content"]) for turn in example.prompt) + len(example.completion)
    if settings.max_characters is not None and length > settings.max_characters:
        return Fault("too long", f"{length} characters")
    return token_fault(settings, example) or example


def token_fault(settings: Build, example: Example) -> Fault | None:
    if settings.renderer is None or settings.max_tokens is None:
        return None
    try:
        length = len(tokenize(example, settings.renderer)["input_ids"])
    except UserError as error:  # the chat template refuses such a conversation
        return Fault("malformed row", str(error))
    return Fault("too long", f"{length} tokens") if length > settings.max_tokens else None


def row_id(row: Row | UserError, number: int) -> str:
    given = None if isinstance(row, UserError) else row.get("id")
    return str(number if given is None else given)


def overlaps_of(settings: Build, items: Items, total: int, work: Path, progress: Progress) -> Iterator[Overlap | None]:
    """What each kept row shares with the benchmarks: the first half of cleaning."""
    workers, tell = settings.checks.workers, lambda done: progress.update(min(done, total), 2 * total)
    shares = shares_of(settings)
    return find_overlaps(work / KEPT, total, items, shares, work / OVERLAPS, workers=workers, on_rows=tell)


def counted(examples: Iterator[Example], total: int, progress: Progress) -> Iterator[Example]:
    """The second half of cleaning, as it gets on."""
    for done, example in enumerate(examples, start=1):
        yield example
        if done % 256 == 0:
            progress.update(total + done, 2 * total)


def finished(path: Path, key: str) -> dict[str, Any] | None:
    """The funnel of a build at this key, if there is one."""
    funnel = read_json(path) if path.exists() else {}
    return funnel if funnel.get("key") == key else None


def report(settings: Build, items: Items, steps: dict[str, Funnel]) -> dict[str, Any]:
    """funnel.json: the whole, then each step."""
    whole = reduce(Funnel.then, steps.values())
    return {
        "domain": settings.domain,
        "sources": list(settings.sources),
        "style": settings.style if settings.result == TRAIN else None,
        "teacher": settings.teacher.facts() if settings.teacher else None,
        "held_out": Counter(item.benchmark for some in items.values() for item in some),
        "settings": verify_facts(settings) | {"ngram_share": shares_of(settings)},
        **whole.to_json(),
        "steps": {name: step.to_json() for name, step in steps.items()},
    }


def nothing_kept(settings: Build, funnel: dict[str, Any], path: Path) -> str:
    dropped = funnel["dropped"] | funnel.get("completions", {}).get("dropped", {})
    reasons = [f"{reason} ({one['rows']})" for reason, one in dropped.items()][:6]
    return (
        f"{', '.join(settings.sources)}: none of {funnel['in']} rows is kept; found {', '.join(reasons) or 'no row'}. "
        f"{path} names the first rows of each reason."
    )
