"""One model on one benchmark: generate samples.jsonl, grade it, write scores.json.

A folder of results is self-contained: `items.jsonl` holds what the grader needs, `samples.jsonl` the completions and
their grades, `scores.json` the numbers. `regrade` recomputes grades and scores from the first two.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from weakdriven.config.benchmarks import TestSet
from weakdriven.config.evaluation import EvalSettings
from weakdriven.data.example import Message
from weakdriven.data.prompts import Renderer, with_request
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import Benchmark, Item, check_items
from weakdriven.eval.generate import Engine, Sampling
from weakdriven.eval.generate.samples import Ask, Row, by_key, collect
from weakdriven.eval.graders.grading import grade_many
from weakdriven.eval.sandbox.run import interpreter, isolation, no_isolation
from weakdriven.eval.scoring import score
from weakdriven.eval.test_sets import grading_of, load_benchmark, token_budget
from weakdriven.runs.directory import BENCHMARK_SCORES, ITEMS, SAMPLES, Progress
from weakdriven.runs.files import append_jsonl, digest, read_json, read_jsonl, salvage_jsonl, write_json, write_jsonl
from weakdriven.runs.machine import cores
from weakdriven.runs.manifest import refuse_damage, rewriting
from weakdriven.runs.processes import agree, gathered, index, is_main, share

BLOCK = 256
"""Samples that are graded between two updates of the progress display."""


@dataclass(frozen=True)
class Questions:
    """Items of a benchmark, and how answers to them are graded."""

    benchmark: str
    """Name of the benchmark or test set."""
    entry: Benchmark
    items: list[Item]
    k: list[int]
    """Values of k for which pass@k is reported."""
    grading: dict[str, Any]
    """What else decides verdicts: `unsafe` and `python` for code, the grader of a user's test set."""

    def golds_key(self) -> str:
        """Hash the items and gold answers; scores are compared only if their hashes are equal."""
        rows: list[Any] = [item.as_row() for item in self.items]
        own = {name: value for name, value in self.grading.items() if name in ("grader", "source")}
        return digest([*rows, own] if own else rows)

    def score(self, samples: list[Row]) -> dict[str, Any]:
        entry, own = self.entry, {}
        if entry.grader:
            own = {"path": entry.file, "grader": entry.grader, "found": entry.found, "rows": entry.rows}
        scores = score(self.benchmark, samples, self.k, version=entry.version, rows=entry.rows)
        return scores | ({"test_set": own} if own else {})


@dataclass(frozen=True)
class Task(Questions):
    """A benchmark rendered for one tokenizer, and how its completions are sampled."""

    prompts: list[str]
    prompt_ids: list[list[int]]
    sampling: Sampling
    samples: int
    seed: int

    def protocol(self) -> dict[str, Any]:
        """Return what decides completions besides model and prompts; models are compared only if it is equal."""
        sampling = {name: getattr(self.sampling, name) for name in ("max_new_tokens", "temperature", "top_p")}
        return {"samples": self.samples, **sampling, "seed": self.seed if self.sampling.temperature > 0 else None}

    def longest(self) -> int:
        """Count the tokens of the longest prompt with its completion."""
        return max(map(len, self.prompt_ids)) + self.sampling.max_new_tokens

    def key(self) -> dict[str, Any]:
        return {**self.protocol(), "stop_ids": list(self.sampling.stop_ids)}

    def prompts_key(self) -> str:
        """Hash what the model reads: if a template or question changes, the model must generate again."""
        return digest([self.prompts, [item.id for item in self.items]])


def prepare_task(benchmark: str | TestSet, renderer: Renderer, settings: EvalSettings, *, seed: int) -> Task:
    """Load and render a benchmark; raise an error for wrong row counts, missing fields and too long prompts."""
    name, entry, items = load_benchmark(benchmark, settings.data_dir, renderer.domain)
    items = items[: settings.limit]
    renderer = replace(renderer, domain=entry.domain or renderer.domain)
    prompts = [renderer.prompt(prompt_of(item, entry, renderer.style)) for item in items]
    prompt_ids = renderer.tokenizer(prompts, add_special_tokens=False)["input_ids"]
    limit = settings.max_prompt_tokens
    sizes = zip(items, map(len, prompt_ids), strict=True)
    if long := [f"{item.id} ({tokens} tokens)" for item, tokens in sizes if tokens > limit]:
        raise UserError(
            f"{name}: {len(long)} prompts are longer than max_prompt_tokens={limit}: {', '.join(long[:5])}"
            f"{' ...' if len(long) > 5 else ''}. Raise max_prompt_tokens if the model's context is long enough."
        )
    asked, stops = settings.asking(), tuple(renderer.stop_ids)
    sampling = Sampling(token_budget(benchmark, settings), stops, asked["temperature"], asked["top_p"])
    questions = Questions(name, entry, items, asked["k"], grading_of(entry, settings))
    return Task(
        **vars(questions),
        prompts=prompts,
        prompt_ids=prompt_ids,
        sampling=sampling,
        samples=asked["samples"],
        seed=seed,
    )


def prompt_of(item: Item, entry: Benchmark, style: str) -> list[Message]:
    """Build the messages of an item; only items of shipped benchmarks get the request for an answer form."""
    if item.messages:
        return item.messages
    asks = entry.domain and not entry.embedded
    return [{"role": "user", "content": with_request(item.question, entry.domain, style) if asks else item.question}]


def check_task(task: Task, positions: int | None = None) -> None:
    """Raise errors now that would otherwise come after hours of generation: unreadable gold answers, no sandbox."""
    if positions is not None and task.longest() > positions:
        raise UserError(
            f"{task.benchmark}: the longest prompt and {task.sampling.max_new_tokens} new tokens need "
            f"{task.longest()} positions, but the model has {positions}; lower max_new_tokens."
        )
    check_items(task.benchmark, task.items, task.entry, python=task.grading.get("python"))
    if task.entry.kind == "code":
        check_sandbox(python=task.grading["python"], unsafe=task.grading["unsafe"])


def check_sandbox(*, python: str | None, unsafe: bool) -> None:
    """Raise an error if generated programs cannot be isolated here, or the interpreter does not exist."""
    interpreter(python)
    if not unsafe and isolation() == "none":
        raise UserError(no_isolation())


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
    """Generate, grade and score, keeping what a killed attempt left in `work`. Return counters for a manifest.

    Each of several processes generates its share; the main process grades.

    Args:
        engine: Called only if a completion is missing, because it may load a model or start a server.
        model: Key of the model; scores of different models are never averaged.
        spread: False if only the main process generates, as with one server for all processes.
    """
    if task.entry.found:
        progress.note(f"grader {task.entry.grader}, chosen from the answers")
    file = work / (f"completions-{index()}.jsonl" if index() else "completions.jsonl")
    earlier = sorted(work.glob("completions*.jsonl"))
    done = agree(by_key([row for path in earlier for row in salvage_jsonl(path)]) if is_main() else {})
    asks = [
        Ask(item.id, number, ids, prompt)
        for item, ids, prompt in zip(task.items, task.prompt_ids, task.prompts, strict=True)
        for number in range(task.samples)
    ]
    found: list[Row] = []
    left = [ask for ask in asks if (ask.id, ask.sample) not in done]
    mine = share(left) if spread else left if is_main() else []

    def note(rows: list[Row]) -> None:
        found.extend(rows)
        # assumes that all processes are equally fast
        progress.update(len(asks) - len(left) + len(found) * len(left) // len(mine), len(asks))

    collect(mine, engine, task.sampling, file, seed=task.seed, on_rows=note)
    done |= by_key(gathered(found))
    if not is_main():
        return {}
    rows = [done[ask.id, ask.sample] for ask in asks]
    terms = {"protocol": task.protocol(), "model": model}
    return write_results(task, rows, terms, out=out, work=work, progress=progress)


def write_results(
    questions: Questions,
    rows: list[Row],
    terms: dict[str, Any],
    *,
    out: Path,
    work: Path | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """Grade samples and write items, samples and scores; return counters for a manifest.

    `terms` are further fields of scores.json; verdicts in `work` survive a kill.
    """
    samples = grade_samples(questions, rows, work, progress)
    scores = questions.score(samples)
    write_jsonl(out / ITEMS, (item.as_row() for item in questions.items))
    write_jsonl(out / SAMPLES, samples)
    terms = terms | {"golds": questions.golds_key(), "grading": questions.grading}
    write_json(out / BENCHMARK_SCORES, scores | terms)
    return {key: scores[key] for key in ("items", "samples", "correct", "accuracy", "unanswered", "cut")}


def grade_samples(questions: Questions, rows: list[Row], work: Path | None, progress: Progress) -> list[Row]:
    entry, by_id = questions.entry, {item.id: item for item in questions.items}
    # verdicts of an earlier attempt are valid only for the same gold answers and grader options
    terms = digest([entry.version, questions.grading, [item.as_row() for item in questions.items]])
    file = work / f"verdicts-{terms}.jsonl" if work else None
    verdicts = salvage_jsonl(file) if file else []
    sandbox = {name: questions.grading[name] for name in ("unsafe", "python")} if entry.kind == "code" else {}
    while len(verdicts) < len(rows):
        block = rows[len(verdicts) : len(verdicts) + BLOCK]
        items = [by_id[row["id"]] for row in block]
        graded = grade_many(
            entry.kind,
            [row["text"] for row in block],
            [item.gold for item in items],
            options=[item.options for item in items] if entry.kind == "choice" else None,
            workers=cores(),
            **entry.grading,
            **sandbox,
        )
        new = [{**asdict(one), "undecided": one.undecided} for one in graded]
        if file:
            append_jsonl(file, new, sealed=True)
        verdicts += new
        progress.update(len(verdicts), len(rows))
    known = {id: {"gold": item.shown_gold, "level": item.level} for id, item in by_id.items()}
    return [{**row, **verdict, **known[row["id"]]} for row, verdict in zip(rows, verdicts, strict=True)]


def regrade(folder: Path, questions: Questions, progress: Progress) -> None:
    """Grade the saved samples of one benchmark again with the current grader, without generating."""
    old, rows = read_json(folder / BENCHMARK_SCORES), list(read_jsonl(folder / SAMPLES))
    begin, name = time.monotonic(), questions.benchmark
    progress.begin(name, f"graded as version {questions.entry.version}")
    with rewriting(folder, ITEMS, SAMPLES, BENCHMARK_SCORES) as manifest:
        terms = {"protocol": old["protocol"], "model": old.get("model", "")}
        manifest["counters"] = write_results(questions, rows, terms, out=folder, progress=progress)
    progress.end(name, time.monotonic() - begin)


def refresh(folder: Path, task: Task, progress: Progress) -> None:
    """Grade a finished benchmark again if its grader, its gold answers or the k asked for have changed."""
    refuse_damage(folder)
    old = read_json(folder / BENCHMARK_SCORES)
    now = {"version": task.entry.version, "golds": task.golds_key(), "grading": task.grading}
    if any(old.get(key) != value for key, value in now.items()):
        regrade(folder, task, progress)
    elif [int(key) for key in old["pass_at_k"]] != task.k:
        scores = task.score(list(read_jsonl(folder / SAMPLES)))
        with rewriting(folder, BENCHMARK_SCORES):
            write_json(folder / BENCHMARK_SCORES, {**old, **scores})
