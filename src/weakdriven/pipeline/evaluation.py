"""`weakdriven eval`: any model on benchmarks, outside a recipe; results lie in OUTPUT/<benchmark>."""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from weakdriven.data.prompts import Renderer, give_chat_template
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS, unknown_benchmark
from weakdriven.eval.harness import HARNESS_TASKS, cross_check, refuse_missing_lm_eval
from weakdriven.eval.run import Task, check_task, evaluate, prepare_task, refresh
from weakdriven.generate import Engine
from weakdriven.generate.serve import check_python
from weakdriven.generate.server import ServerEngine
from weakdriven.models.branch import Branch, open_branch
from weakdriven.models.load import DTYPES, fingerprint, load_tokenizer, positions
from weakdriven.pipeline.engines import Engines, local_engine, served_engine
from weakdriven.recipe import EvalSettings
from weakdriven.recipe_file import load_recipe
from weakdriven.rundir import (
    BENCHMARK_SCORES,
    RECIPE_FILE,
    SAMPLES,
    WORK,
    Progress,
    Run,
    Stage,
    claimed,
    digest,
    read_json,
    read_jsonl,
)

HARNESS_BATCH = 16
OWNER = "eval"
"""Stands in run.json where a run has the name of its recipe."""


@dataclass(frozen=True)
class Subject:
    """The model to evaluate and how it is asked."""

    model: str
    style: str | None = None
    """System prompt: tagged, tag-free or plain; unset, as the run that the model lies in was trained, else tagged."""
    chat_template: str | None = None
    precision: str = "bf16"
    attention: str | None = None
    trust_remote_code: bool = False
    url: str | None = None
    """A running server that holds this model; its tokenizer still comes from `model`."""
    served_name: str | None = None
    """Name of the model on that server, where it is not that of the folder."""
    seed: int = 42


def evaluate_model(subject: Subject, settings: EvalSettings, root: Path, progress: Progress) -> dict[str, Any]:
    """Answer, grade and score; what is done is skipped, what was interrupted goes on. Returns all scores in `root`."""
    transformers_logging.disable_progress_bar()
    branch = open_branch(subject.model)
    renderer = find_renderer(subject, branch)
    if settings.engine == "vllm" and branch.base is not None:
        raise UserError(f"{subject.model} is an adapter, and vLLM is given whole models here; merge it first.")
    if settings.vllm_python is not None:
        check_python(settings.vllm_python)
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

    def benchmark_stage(run: Run, task: Task) -> Stage:
        def compute(work: Path, out: Path) -> dict[str, Any]:
            shared = {"model": key, "work": work, "out": out, "progress": run.progress}
            return evaluate(task, lambda: engines.of(key, opened), **shared)

        inputs = {"model": key, "prompts": task.prompts_key()}
        return run.stage(task.benchmark, compute, settings={**task.key(), **asked}, inputs=inputs, execution=execution)

    with claimed(root, OWNER):
        plan = Run(root, subject.seed, dry=True)
        for task in tasks:
            benchmark_stage(plan, task)
        progress.plan(plan.planned)
        run = Run(root, subject.seed, progress=progress)
        try:
            for task in tasks:
                stage = benchmark_stage(run, task)
                refresh(stage.path, task, progress)
        finally:
            engines.close()
            progress.close()
    return {task.benchmark: read_json(root / task.benchmark / BENCHMARK_SCORES) for task in tasks}


def open_engine(
    subject: Subject, settings: EvalSettings, branch: Branch, renderer: Renderer, *, longest: int, log: Path
) -> AbstractContextManager[Engine]:
    if subject.url is not None:
        return nullcontext(server_of(subject))
    if settings.engine == "vllm":
        return served_engine(branch.folder, settings, precision=subject.precision, longest=longest, log=log)
    return local_engine(partial(load_subject, subject, branch), renderer.tokenizer, settings)


def server_of(subject: Subject) -> ServerEngine:
    return ServerEngine(str(subject.url), model=subject.served_name, api_key=os.environ.get("VLLM_API_KEY"))


def served_model(subject: Subject, branch: Branch) -> dict[str, str]:
    """What a running server says it serves; refused if that is not the model whose name the scores would bear."""
    served = server_of(subject).served()
    ours = {subject.model, Path(subject.model).name, str(branch.folder.resolve()), branch.folder.resolve().name}
    if subject.served_name is None and not ours & {served.name, served.folder, Path(served.folder).name}:
        raise UserError(
            f"The server at {subject.url} serves {served.name} (from {served.folder or 'a place it does not name'}), "
            f"and --model is {subject.model}; if they are the same, say so with --served-name {served.name}."
        )
    return {"served": served.name, "served_from": served.folder}


def load_subject(subject: Subject, branch: Branch) -> PreTrainedModel:
    options = {"attention": subject.attention, "trust_remote_code": subject.trust_remote_code}
    model = branch.load(subject.precision, **options)
    return model.cuda() if torch.cuda.is_available() else model  # pyright: ignore


def find_renderer(subject: Subject, branch: Branch) -> Renderer:
    """The prompts that the model was trained with, where its run is at hand, unless others are asked for."""
    trained = run_recipe_of(branch.folder)
    tokenizer = load_tokenizer(branch.tokenizer or branch.model, trust_remote_code=subject.trust_remote_code)
    template = subject.chat_template or (trained.chat_template if trained and not tokenizer.chat_template else None)
    give_chat_template(tokenizer, template, subject.model, setting="--chat-template")
    style = subject.style or (trained.data.style if trained else "tagged")
    renderer = Renderer(tokenizer, "math", style)
    renderer.check()
    return renderer


def run_recipe_of(folder: Path) -> Any:
    """Recipe of the run that a model folder lies in, if it does: RUN/sft, RUN/round-1/strong, RUN/baselines/sft."""
    for parent in folder.resolve().parents[:2]:
        if (parent / RECIPE_FILE).is_file():
            return load_recipe(str(parent / RECIPE_FILE))
    return None


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
