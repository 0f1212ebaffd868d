"""Evaluate a model outside a recipe: each benchmark is a stage with results in ROOT/<benchmark>."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import Item
from weakdriven.eval.engine_pool import Engines
from weakdriven.eval.engines import check_engine, find_renderer, open_engine, running_server
from weakdriven.eval.run import Questions, Task, check_task, evaluate, prepare_task, refresh, regrade
from weakdriven.eval.scoring import read_folder
from weakdriven.eval.settings import EvaluationSettings, RegradeSettings
from weakdriven.eval.test_sets import grading_of, recorded_benchmark
from weakdriven.models.folder import open_model
from weakdriven.models.load import fingerprint, positions
from weakdriven.runs.directory import BENCHMARK_SCORES, ITEMS, WORK, Progress, claim_run
from weakdriven.runs.executor import DryRun, Listing, Run
from weakdriven.runs.files import digest, read_json, read_jsonl
from weakdriven.runs.redact import without_login
from weakdriven.runs.replaced import WouldReplace, drop_replaced, losses, other_output
from weakdriven.runs.stage import Planned, Stage


def evaluate_model(
    settings: EvaluationSettings, root: Path, progress: Progress, *, replace: bool = False
) -> dict[str, Any]:
    """Generate, grade and score what is not done yet; return the scores by benchmark.

    Args:
        replace: Replace finished results of other settings or another model; otherwise they raise an error.
    """
    transformers_logging.disable_progress_bar()
    branch = open_model(settings.model)
    renderer = find_renderer(settings, settings.style, branch)
    check_engine(settings, branch)
    server, served = running_server(settings, branch) if settings.url is not None else (None, {})
    room = None if server else positions(branch.model, trust_remote_code=settings.trust_remote_code)
    tasks = [prepare_task(name, renderer, settings, seed=settings.seed) for name in settings.benchmarks]
    for task in tasks:
        check_task(task, room)
    key = digest([fingerprint(branch.folder), fingerprint(branch.model)])
    longest, log = max(task.longest() for task in tasks), root / WORK / "vllm.log"
    opened = partial(open_engine, settings, branch, renderer, longest=longest, log=log)
    engines = Engines()
    decides = settings.model_dump(include={"engine", "precision", "attention"})
    execution = settings.model_dump(include={"model", "url", "data_dir", "batch_size", "batching"})
    execution |= {"url": settings.url and without_login(settings.url), "style": renderer.style, **served}

    def benchmark_stage(run: Listing, task: Task) -> Stage:
        def compute(work: Path, out: Path) -> dict[str, Any]:
            engine = partial(engines.of, key, partial(nullcontext, server) if server else opened)
            return evaluate(task, engine, model=key, work=work, out=out, progress=progress)

        inputs = {"model": key, "prompts": task.prompts_key()}
        return run.stage(task.benchmark, compute, settings=task.key() | decides, inputs=inputs, execution=execution)

    with claim_run(root, "eval"):  # "eval" is written to run.json in place of a recipe's name
        plan = DryRun(root)
        for task in tasks:
            benchmark_stage(plan, task)
        if (found := losses(root, plan.planned)) and not replace:
            raise WouldReplace(found, other_output(root))
        progress.plan(plan.planned)
        run = Run(root, seed=settings.seed, progress=progress)
        try:
            for task in tasks:
                refresh(benchmark_stage(run, task).path, task, progress)
            drop_replaced(root, progress, asked=replace)
        finally:
            engines.close()
            progress.close()
    return {task.benchmark: read_json(root / task.benchmark / BENCHMARK_SCORES) for task in tasks}


def regrade_folder(root: Path, settings: RegradeSettings, progress: Progress) -> dict[str, Any]:
    """Grade all saved samples of a folder again, without a model; return the scores by benchmark."""
    scores = read_folder(root)
    entries = {name: recorded_benchmark(name, old) for name, old in scores.items()}
    for name, entry in entries.items():
        if entry.kind == "python" and not settings.trust_grader:
            raise UserError(
                f"{name} is graded by {entry.grader}, code that the folder names; if you know that code, add "
                "trust_grader=true to run it."
            )
    progress.plan([Planned(name, "", "regrade") for name in scores])
    for name, old in scores.items():
        items = [Item(**row) for row in read_jsonl(root / name / ITEMS)]
        k, grading = [int(k) for k in old["pass_at_k"]], grading_of(entries[name], settings)
        regrade(root / name, Questions(name, entries[name], items, k, grading), progress)
    progress.close()
    return read_folder(root)
