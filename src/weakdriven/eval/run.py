"""Evaluate one model on one benchmark: generate -> samples.jsonl -> grade -> scores.json.

A folder of results stands on its own: `items.jsonl` holds what the grader needs, `samples.jsonl` what the model wrote
and how it was graded, `scores.json` the numbers; `regrade` makes the last two again from the first two.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from weakdriven.config.recipe import EvalSettings
from weakdriven.data.prompts import Renderer
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS, Item, check_items, load_items
from weakdriven.eval.generate import Engine, Sampling
from weakdriven.eval.generate.samples import Ask, Row, by_key, collect
from weakdriven.eval.graders.grading import grade_many
from weakdriven.eval.sandbox.run import interpreter, isolation, no_isolation
from weakdriven.eval.scoring import read_folder, score
from weakdriven.runs.directory import BENCHMARK_SCORES, ITEMS, SAMPLES, Progress
from weakdriven.runs.files import append_jsonl, digest, read_json, read_jsonl, salvage_jsonl, write_json, write_jsonl
from weakdriven.runs.machine import cores
from weakdriven.runs.manifest import refuse_damage, rewriting
from weakdriven.runs.processes import agree, gathered, index, leads, share
from weakdriven.runs.stage import Planned

BLOCK = 256
"""Samples graded between two notes of how far it has come."""


@dataclass(frozen=True)
class Task:
    """A benchmark as one tokenizer puts it, and how its answers are drawn and graded."""

    benchmark: str
    items: list[Item]
    prompts: list[str]
    prompt_ids: list[list[int]]
    sampling: Sampling
    samples: int
    k: list[int]
    seed: int
    grading: dict[str, Any]
    """Options of the grader beside the benchmark's own: `unsafe` and `python` for code."""

    def protocol(self) -> dict[str, Any]:
        """What decides the answers beside the model and the prompts; two models are compared under the same only."""
        sampling = {name: getattr(self.sampling, name) for name in ("max_new_tokens", "temperature", "top_p")}
        return {"samples": self.samples, **sampling, "seed": self.seed if self.sampling.temperature > 0 else None}

    def longest(self) -> int:
        """Tokens of the longest prompt and its completion."""
        return max(map(len, self.prompt_ids)) + self.sampling.max_new_tokens

    def key(self) -> dict[str, Any]:
        return {**self.protocol(), "stop_ids": list(self.sampling.stop_ids)}

    def prompts_key(self) -> str:
        """A changed template, system prompt or question has to be asked anew; a changed gold answer has not."""
        return digest([self.prompts, [item.id for item in self.items]])

    def golds_key(self) -> str:
        return digest([asdict(item) for item in self.items])


def prepare_task(benchmark: str, renderer: Renderer, settings: EvalSettings, *, seed: int) -> Task:
    """Load and render a benchmark; wrong row counts, missing fields and prompts over the limit are errors."""
    entry = BENCHMARKS[benchmark]
    items = load_items(benchmark, settings.data_dir)[: settings.limit]
    renderer = replace(renderer, domain=entry.domain)
    prompts = [renderer.prompt([{"role": "user", "content": item.question}]) for item in items]
    prompt_ids = renderer.tokenizer(prompts, add_special_tokens=False)["input_ids"]
    refuse_long_prompts(benchmark, items, prompt_ids, settings.max_prompt_tokens)
    asked = settings.asking()
    sampling = Sampling(
        max_new_tokens=settings.max_new_tokens or entry.max_new_tokens,
        stop_ids=tuple(renderer.stop_ids),
        temperature=asked["temperature"],
        top_p=asked["top_p"],
    )
    grading = {"unsafe": settings.unsafe, "python": settings.code_python} if entry.kind == "code" else {}
    return Task(benchmark, items, prompts, prompt_ids, sampling, asked["samples"], asked["k"], seed, grading)


def check_task(task: Task, positions: int | None = None) -> None:
    """Refuse now what would fail after hours of generation: golds that cannot be read, code that cannot be run.

    Args:
        positions: Most tokens that the model takes, where that is known.
    """
    if positions is not None and task.longest() > positions:
        raise UserError(
            f"{task.benchmark}: the longest prompt with {task.sampling.max_new_tokens} new tokens has "
            f"{task.longest()}, and the model has {positions} positions; lower max_new_tokens."
        )
    check_items(task.benchmark, task.items, python=task.grading.get("python"))
    if BENCHMARKS[task.benchmark].kind == "code":
        check_sandbox(**task.grading)


def check_sandbox(*, python: str | None, unsafe: bool) -> None:
    """Refuse to run generated programs where they cannot be isolated, or with an interpreter that is not there."""
    interpreter(python)
    if not unsafe and isolation() == "none":
        raise UserError(no_isolation())


def refuse_long_prompts(benchmark: str, items: list[Item], prompt_ids: list[list[int]], limit: int) -> None:
    long = [(item.id, len(ids)) for item, ids in zip(items, prompt_ids, strict=True) if len(ids) > limit]
    if long:
        named = ", ".join(f"{name} ({tokens} tokens)" for name, tokens in long[:5])
        raise UserError(
            f"{benchmark}: {len(long)} prompts are longer than max_prompt_tokens={limit}: {named}"
            f"{' ...' if len(long) > 5 else ''}. Raise max_prompt_tokens if the model has room for them."
        )


def evaluate(
    task: Task,
    engine: Callable[[], Engine],
    *,
    model: str = "",
    work: Path,
    out: Path,
    progress: Progress,
    spread: bool = True,
) -> dict[str, Any]:
    """Answer, grade and score all items; what a killed try left in `work` is kept.

    Of several processes each answers its share, and the first one grades.

    Args:
        engine: Called only if an answer is missing, because it may load a model or start a server.
        model: Key of what answers, so that no average is taken over two.
        spread: False where the first process is to ask alone, as of a server that serves all of them.
    """
    rows = answer(task, engine, work, progress, spread=spread)
    if not leads():
        return {}
    write_jsonl(out / ITEMS, (asdict(item) for item in task.items))
    scores = grade_samples(
        task.benchmark, rows, task.items, task.k, task.grading, out=out, work=work, progress=progress
    )
    terms = {"protocol": task.protocol(), "golds": task.golds_key(), "grading": task.grading, "model": model}
    write_json(out / BENCHMARK_SCORES, scores | terms)
    return counters(scores)


def counters(scores: dict[str, Any]) -> dict[str, Any]:
    """What a manifest repeats of the scores."""
    return {key: scores[key] for key in ("items", "samples", "correct", "accuracy", "unanswered", "cut")}


def answer(
    task: Task, engine: Callable[[], Engine], work: Path, progress: Progress, *, spread: bool = True
) -> list[Row]:
    """Every sample of every item, in order; those that any process has written into `work` are not asked for again."""
    file = work / (f"completions-{index()}.jsonl" if index() else "completions.jsonl")
    done = agree(by_key(salvaged(work.glob("completions*.jsonl"))) if leads() else {})
    asks = [
        Ask(item.id, number, ids, prompt)
        for item, ids, prompt in zip(task.items, task.prompt_ids, task.prompts, strict=True)
        for number in range(task.samples)
    ]

    found: list[Row] = []
    left = [ask for ask in asks if (ask.id, ask.sample) not in done]
    mine = share(left) if spread else left if leads() else []

    def note(rows: list[Row]) -> None:
        found.extend(rows)
        progress.update(len(asks) - len(left) + len(found) * len(left) // len(mine), len(asks))  # all go as fast

    collect(mine, engine, task.sampling, file, seed=task.seed, on_rows=note)
    done |= by_key(gathered(found))
    return [done[ask.id, ask.sample] for ask in asks]


def salvaged(files: Iterable[Path]) -> list[Row]:
    """Whole rows of several files; of what two of them hold, that of the last."""
    return [row for file in sorted(files) for row in salvage_jsonl(file)]


def grade_samples(
    benchmark: str,
    rows: list[dict[str, Any]],
    items: list[Item],
    k: list[int],
    grading: dict[str, Any],
    *,
    out: Path,
    work: Path | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """Write samples.jsonl with a verdict on each; returns the scores. Verdicts in `work` are kept if it is killed."""
    entry, by_id = BENCHMARKS[benchmark], {item.id: item for item in items}
    # verdicts of an earlier try count only if they fell on the same golds by the same means
    terms = digest([entry.version, grading, [asdict(item) for item in items]])
    file = work / f"verdicts-{terms}.jsonl" if work else None
    verdicts = salvage_jsonl(file) if file else []
    code = entry.kind == "code"
    while len(verdicts) < len(rows):
        block = rows[len(verdicts) : len(verdicts) + BLOCK]
        asked = [by_id[row["id"]] for row in block]
        graded = grade_many(
            entry.kind,
            [row["text"] for row in block],
            [item.gold for item in asked],
            options=[item.options for item in asked] if entry.kind == "choice" else None,
            workers=cores() if code else None,
            **{**entry.grading, **(grading if code else {})},
        )
        new = [{**asdict(one), "undecided": one.undecided} for one in graded]
        if file:
            append_jsonl(file, new, sealed=True)
        verdicts += new
        progress.update(len(verdicts), len(rows))
    samples = []
    for row, verdict in zip(rows, verdicts, strict=True):
        item = by_id[row["id"]]
        gold = None if code else item.gold
        samples.append({**row, **verdict, "gold": gold, "level": item.level})
    write_jsonl(out / SAMPLES, samples)
    return score(benchmark, samples, k)


def regrade(
    folder: Path,
    *,
    grading: dict[str, Any],
    progress: Progress,
    items: list[Item] | None = None,
    k: list[int] | None = None,
) -> None:
    """Grade the saved samples of one benchmark again, with today's grader; nothing is generated.

    Args:
        items: Items whose gold answers have changed; unset, those that were saved.
        k: pass@k to report; unset, as before.
    """
    old = read_json(folder / BENCHMARK_SCORES)
    benchmark = old["benchmark"]
    if items is None:
        items = [Item(**row) for row in read_jsonl(folder / ITEMS)]
    rows = list(read_jsonl(folder / SAMPLES))
    asked = {item.id for item in items}
    if unknown := [row["id"] for row in rows if row["id"] not in asked]:
        raise UserError(f"{folder}: {SAMPLES} holds answers to {unknown[0]}, which is not in {ITEMS}.")
    begin = time.monotonic()
    progress.begin(benchmark, f"graded as version {BENCHMARKS[benchmark].version}")
    k = k or [int(key) for key in old["pass_at_k"]]
    with rewriting(folder, ITEMS, SAMPLES, BENCHMARK_SCORES) as manifest:
        scores = grade_samples(benchmark, rows, items, k, grading, out=folder, progress=progress)
        write_jsonl(folder / ITEMS, (asdict(item) for item in items))
        golds = digest([asdict(item) for item in items])
        terms = {"protocol": old["protocol"], "golds": golds, "grading": grading, "model": old.get("model", "")}
        write_json(folder / BENCHMARK_SCORES, scores | terms)
        manifest["counters"] = counters(scores)
    progress.end(benchmark, time.monotonic() - begin)


def refresh(folder: Path, task: Task, progress: Progress) -> None:
    """Regrade a finished benchmark if its grader, its gold answers or the k asked for have changed since."""
    refuse_damage(folder)
    old = read_json(folder / BENCHMARK_SCORES)
    now = {"version": BENCHMARKS[task.benchmark].version, "golds": task.golds_key(), "grading": task.grading}
    if all(old.get(key) == value for key, value in now.items()):
        if [int(key) for key in old["pass_at_k"]] != task.k:
            scores = score(task.benchmark, list(read_jsonl(folder / SAMPLES)), task.k)
            with rewriting(folder, BENCHMARK_SCORES):
                write_json(folder / BENCHMARK_SCORES, {**old, **scores})
        return
    regrade(folder, grading=task.grading, progress=progress, items=task.items, k=task.k)


def regrade_folder(root: Path, *, unsafe: bool, code_python: str | None, progress: Progress) -> dict[str, Any]:
    """Grade all saved samples of a folder again, without a model."""
    scores = read_folder(root)
    progress.plan([Planned(name, "", "regrade") for name in scores])
    for name in scores:
        code = BENCHMARKS[name].kind == "code"
        regrade(root / name, grading={"unsafe": unsafe, "python": code_python} if code else {}, progress=progress)
    progress.close()
    return read_folder(root)
