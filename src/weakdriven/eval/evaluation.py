"""`weakdriven eval`: any model on benchmarks, outside a recipe; results lie in OUTPUT/<benchmark>."""

from functools import partial
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from weakdriven.config.recipe import EvalSettings
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS, unknown_benchmark
from weakdriven.eval.engine_pool import Engines
from weakdriven.eval.harness import HARNESS_TASKS, cross_check, refuse_missing_lm_eval
from weakdriven.eval.run import Task, check_task, evaluate, prepare_task, refresh
from weakdriven.eval.target import Subject, check_engine, find_renderer, open_engine, served_model
from weakdriven.models.branch import open_branch
from weakdriven.models.load import DTYPES, fingerprint, positions
from weakdriven.runs.directory import BENCHMARK_SCORES, SAMPLES, WORK, Progress, claimed
from weakdriven.runs.executor import DryRun, Listing, Run
from weakdriven.runs.files import digest, read_json, read_jsonl
from weakdriven.runs.stage import Stage

HARNESS_BATCH = 16
OWNER = "eval"
"""Stands in run.json where a run has the name of its recipe."""


def evaluate_model(subject: Subject, settings: EvalSettings, root: Path, progress: Progress) -> dict[str, Any]:
    """Answer, grade and score; what is done is skipped, what was interrupted goes on. Returns all scores in `root`."""
    transformers_logging.disable_progress_bar()
    branch = open_branch(subject.model)
    renderer = find_renderer(subject, branch)
    check_engine(subject, settings, branch)
    served = served_model(subject, branch) if subject.url is not None else {}
    room = None if served else positions(branch.model, trust_remote_code=subject.trust_remote_code)
    tasks = [prepare_task(name, renderer, settings, seed=subject.seed) for name in settings.benchmarks]
    for task in tasks:
        check_task(task, room)
    key = digest([fingerprint(branch.folder), fingerprint(branch.model)])
    longest, log = max(task.longest() for task in tasks), root / WORK / "vllm.log"
    opened = partial(open_engine, subject, settings, branch, renderer, longest=longest, log=log)
    engines = Engines()
    asked = {"engine": settings.engine, "precision": subject.precision, "attention": subject.attention}
    execution = {"model": subject.model, "url": subject.url, "style": renderer.style, "data_dir": settings.data_dir}
    execution |= served | settings.model_dump(mode="json", include={"batch_size", "batching"})

    def benchmark_stage(run: Listing, task: Task) -> Stage:
        def compute(work: Path, out: Path) -> dict[str, Any]:
            shared = {"model": key, "work": work, "out": out, "progress": progress}
            return evaluate(task, lambda: engines.of(key, opened), **shared)

        inputs = {"model": key, "prompts": task.prompts_key()}
        return run.stage(task.benchmark, compute, settings={**task.key(), **asked}, inputs=inputs, execution=execution)

    with claimed(root, OWNER):
        plan = DryRun(root)
        for task in tasks:
            benchmark_stage(plan, task)
        progress.plan(plan.planned)
        run = Run(root, seed=subject.seed, progress=progress)
        try:
            for task in tasks:
                stage = benchmark_stage(run, task)
                refresh(stage.path, task, progress)
        finally:
            engines.close()
            progress.close()
    return {task.benchmark: read_json(root / task.benchmark / BENCHMARK_SCORES) for task in tasks}


def known_benchmarks(names: str) -> list[Any]:
    """Names from a list with commas; an unknown one is an error with the nearest."""
    found = [name.strip() for name in names.split(",") if name.strip()]
    for name in found:
        if name not in BENCHMARKS:
            raise unknown_benchmark(name)
    if not found:
        raise UserError(f"--benchmarks names none; expected some of {', '.join(BENCHMARKS)}.")
    return found


def refuse_no_cross_check(settings: EvalSettings) -> None:
    """Before hours of generation: lm-eval must be there, have one of the benchmarks, and be asked the same way."""
    refuse_missing_lm_eval()
    if not set(settings.benchmarks) & set(HARNESS_TASKS):
        raise UserError(f"--harness checks {', '.join(HARNESS_TASKS)}; none of them is in --benchmarks.")
    if settings.asking()["temperature"] > 0:
        raise UserError("--harness checks greedy answers; leave it out where they are sampled.")


def cross_checks(subject: Subject, settings: EvalSettings, root: Path) -> list[dict[str, Any]]:
    """The same prompts through lm-evaluation-harness, on the benchmarks that both have; kept in <benchmark>/harness."""
    branch = open_branch(subject.model)
    renderer = find_renderer(subject, branch)
    checks = []
    for name in (name for name in settings.benchmarks if name in HARNESS_TASKS):
        scores, rows = read_json(root / name / BENCHMARK_SCORES), list(read_jsonl(root / name / SAMPLES))
        found = cross_check(
            branch.model,
            name,
            rows,
            max_new_tokens=scores["protocol"]["max_new_tokens"],
            stop=[str(renderer.tokenizer.decode([token])) for token in renderer.stop_ids],
            batch_size=settings.batch_size or HARNESS_BATCH,
            dtype=DTYPES[subject.precision],
            out=root / name / "harness",
            adapter=branch.folder if branch.base else None,
            trust_remote_code=subject.trust_remote_code,
        )
        checks.append({"benchmark": name, "ours": scores["accuracy"], **found})
    return checks
