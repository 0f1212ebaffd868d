"""Read the rows of the sources and keep the verified ones, block by block.

A block's verdicts are on disk before the next block is read, so a killed build resumes there, and only one block is in
memory.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from weakdriven.build.distil import UNIT_TESTS
from weakdriven.build.settings import BuildSettings
from weakdriven.data.example import Example
from weakdriven.data.funnel import Funnel
from weakdriven.data.rows.files import Row, cheap_count, data_key, read_each
from weakdriven.data.rows.layouts import layout_name
from weakdriven.data.structure import in_style
from weakdriven.data.tokenize import tokenize
from weakdriven.errors import UserError
from weakdriven.eval.graders.candidates import (
    Candidate,
    Fault,
    Verify,
    form_fault,
    problem_checker,
    read_candidate,
    verifier,
)
from weakdriven.runs.directory import Progress
from weakdriven.runs.files import append_jsonl, batches, digest, read_json, sync, write_json

VERSION = 1
"""Raised when the same rows give another set, so that finished builds are redone."""
KEPT, STATE = "kept.jsonl", "verify.json"


def verify_rows(settings: BuildSettings, key: str, work: Path, progress: Progress) -> Funnel:
    """Append the rows that pass to `kept.jsonl`; `verify.json` records the progress in the sources and in that file."""
    state = read_json(work / STATE) if (work / STATE).exists() else {}
    kept = work / KEPT
    if not kept.exists():
        kept.touch()
    if state.get("key") != key or kept.stat().st_size < state["bytes"]:
        state = {"key": key, "rows": [0] * len(settings.sources), "bytes": 0, "whole": False, **Funnel().to_json()}
        write_json(work / STATE, state)  # before rows of other settings are removed
    funnel = Funnel.from_json(state)
    if kept.stat().st_size > state["bytes"]:  # written by a killed build after its last save
        os.truncate(kept, state["bytes"])
    if state["whole"]:
        progress.skip("verify")
        return funnel
    begin = time.monotonic()
    progress.begin("verify", f"resume after {funnel.seen} rows" if funnel.seen else "not run yet")
    verify = verifier(settings.checks) if settings.uses_completions else problem_checker(settings.checks)
    total = sum(cheap_count(path, settings.split) or 0 for path in settings.sources)
    for place, path in enumerate(settings.sources):
        progress.note(f"{path}: {describe_layout(settings, path)}")
        for rows in batches(read_rows(settings, path, state["rows"][place]), settings.block):
            first = state["rows"][place] + 1
            passed, counts = verify_block(settings, path, first, rows, verify)
            append_jsonl(kept, (example.as_row() for example in passed))
            sync(kept)
            funnel.merge(counts)
            state["rows"][place] += len(rows)
            state |= {"bytes": kept.stat().st_size, **funnel.to_json()}
            write_json(work / STATE, state)
            progress.update(funnel.seen, max(total, funnel.seen), kept=funnel.kept)
    if digest(verify_facts(settings)) != key:
        (work / STATE).unlink()
        raise UserError("A source changed while it was read; run the same command again.")
    write_json(work / STATE, state | {"whole": True})
    progress.end("verify", time.monotonic() - begin)
    return funnel


def verify_facts(settings: BuildSettings, *, sources: bool = True) -> dict[str, Any]:
    """Return what decides which rows pass; its digest is the key of the work that survives a kill."""
    facts = {name: getattr(settings, name) for name in ("domain", "split", "style", "max_characters", "limit")}
    facts["given"] = settings.uses_completions
    if settings.renderer:
        from weakdriven.models.load import tokenizer_fingerprint

        facts |= {"max_tokens": settings.max_tokens, "tokenizer": tokenizer_fingerprint(settings.renderer.tokenizer)}
    if sources:
        facts["sources"] = [[Path(path).name, data_key(path, settings.split)] for path in settings.sources]
    return {"version": VERSION, **facts, "timeout": settings.timeout, "python": settings.code_python}


def read_rows(settings: BuildSettings, path: str, start: int) -> Iterator[Row | UserError]:
    left = None if settings.limit is None else max(settings.limit - start, 0)
    return islice(read_each(path, settings.split, start=start), left)


def describe_layout(settings: BuildSettings, path: str) -> str:
    """Describe the layout of the first readable row; each row is read in its own layout."""
    row = next((row for row in read_rows(settings, path, 0) if isinstance(row, dict)), {})
    if settings.domain == "logic" and ("text" in row or "answers" in row):
        return "layout LogiQA 2.0" if "text" in row else "layout ReClor"
    name = layout_name(row)
    return f"layout {name}" if name else f"unknown layout (fields {', '.join(row) or 'none'})"


def verify_block(
    settings: BuildSettings, path: str, first: int, rows: list[Row | UserError], verify: Verify
) -> tuple[list[Example], Funnel]:
    """Return the rows of a block that pass, and the counts of all; `first` is the number of its first row, from 1."""
    funnel, candidates, passed = Funnel(), list[Candidate](), list[Example]()
    for number, row in enumerate(rows, start=first):
        found = candidate_or_fault(settings, row, number, path)
        if isinstance(found, Candidate):
            candidates.append(found)
        else:
            given = None if isinstance(row, UserError) else row.get("id")
            funnel.drop(found.reason, str(number if given is None else given), found.detail)
    for candidate, fault in zip(candidates, verify(candidates), strict=True):
        if fault is None:
            funnel.keep()
            passed.append(candidate.example)
        else:
            funnel.drop(fault.reason, candidate.example.id, fault.detail)
    return passed, funnel


def candidate_or_fault(settings: BuildSettings, row: Row | UserError, number: int, path: str) -> Candidate | Fault:
    """Check a row without a verifier."""
    if isinstance(row, UserError):
        return Fault("malformed row", str(row))
    candidate = read_candidate(settings.domain, row, number, path)
    if isinstance(candidate, Fault):
        return candidate
    example = candidate.example
    if not settings.uses_completions:
        meta = example.meta | ({UNIT_TESTS: candidate.tests} if candidate.tests else {})
        return replace(candidate, example=replace(example, completion="", meta=meta, all_turns=False))
    learned = as_learned(settings, example)
    return learned if isinstance(learned, Fault) else replace(candidate, example=learned)


def as_learned(settings: BuildSettings, example: Example) -> Example | Fault:
    """Return a row in the style of the set, or the fault of its form or length."""
    if fault := form_fault(example, settings.style):
        return fault
    prompt = [
        {**turn, "content": in_style(turn["content"], settings.style)} if turn["role"] == "assistant" else turn
        for turn in example.prompt
    ]
    completion = in_style(example.completion, settings.style)
    example = replace(example, prompt=prompt, completion=completion, all_turns=False)  # only the last reply is verified
    length = sum(len(turn["content"]) for turn in prompt) + len(completion)
    if settings.max_characters is not None and length > settings.max_characters:
        return Fault("too long", f"{length} characters")
    if settings.renderer is None or settings.max_tokens is None:
        return example
    try:
        tokens = len(tokenize(example, settings.renderer)["input_ids"])
    except UserError as error:  # the chat template rejects such a conversation
        return Fault("malformed row", str(error))
    return Fault("too long", f"{tokens} tokens") if tokens > settings.max_tokens else example
