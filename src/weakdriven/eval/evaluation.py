"""`weakdriven eval`: any model on benchmarks, outside a recipe; results lie in OUTPUT/<benchmark>."""

from functools import partial
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from weakdriven.config.recipe import EvalSettings
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS, unknown_benchmark
from weakdriven.eval.engine_pool import Engines
from weakdriven.eval.run import Task, check_task, evaluate, prepare_task, refresh
from weakdriven.eval.target import Subject, check_engine, find_renderer, open_engine, served_model
from weakdriven.models.folder import open_model
from weakdriven.models.load import fingerprint, positions
from weakdriven.runs.directory import BENCHMARK_SCORES, WORK, Progress, claimed
from weakdriven.runs.executor import DryRun, Listing, Run
from weakdriven.runs.files import digest, read_json
from weakdriven.runs.stage import Stage

OWNER = "eval"
"""Stands in run.json where a run has the name of its recipe."""


def evaluate_model(subject: Subject, settings: EvalSettings, root: Path, progress: Progress) -> dict[str, Any]:
    """Answer, grade and score; what is done is skipped, what was interrupted goes on. Returns all scores in `root`."""
    transformers_logging.disable_progress_bar()
    branch = open_model(subject.model)
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
