"""One model on one benchmark, as a stage."""

from pathlib import Path
from typing import Any

from weakdriven.config.benchmarks import TestSet, name_of
from weakdriven.eval.run import evaluate, refresh
from weakdriven.eval.test_sets import count_items, token_budget
from weakdriven.runs.processes import on_main
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.model import Model
from weakdriven.stages.workload import Workload


def evaluation_stage(context: Context, model: Model, benchmark: str | TestSet) -> Stage:
    """Generate, grade and score; if only the grader has changed, grade the saved samples again."""
    settings = context.recipe.eval
    name = f"eval/{model.name}/{name_of(benchmark)}"

    def compute(work: Path, out: Path) -> dict[str, Any]:
        options = {"model": model.key, "work": work, "out": out, "progress": context.progress}
        task, spread = context.task(benchmark), settings.engine != "vllm"
        return evaluate(task, lambda: context.engine(model), spread=spread, **options)

    stage = context.run.stage(
        name,
        compute,
        settings=lambda: context.task(benchmark).key() | context.inference_settings() | {"engine": settings.engine},
        inputs={"model": model, "prompts": lambda: context.task(benchmark).prompts_key()},
        execution=settings.model_dump(mode="json", include={"batch_size", "batching", "data_dir"}),
        shared=True,
        workload=Workload(
            name,
            "generate",
            prompts=count_items(benchmark, settings.limit),
            samples=settings.asking()["samples"],
            new_tokens=token_budget(benchmark, settings),
        ),
    )
    if context.run.computes:
        on_main(lambda: refresh(stage.path, context.task(benchmark), context.progress))
    return stage
