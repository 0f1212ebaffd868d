"""An adapted model as an ordinary one."""

from pathlib import Path
from typing import Any

from weakdriven.models.adapters import load_merged
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.model_loader import Model
from weakdriven.stages.workload import Workload


def merged(context: Context, model: Model) -> Stage:
    """A stage of its own, so that asking for it retrains nothing."""
    recipe = context.recipe
    precision = "fp32" if recipe.precision == "fp32" else "bf16"

    def compute(work: Path, out: Path) -> dict[str, Any]:
        network = load_merged(
            model.folder, context.base.folder, precision=precision, trust_remote_code=recipe.trust_remote_code
        )
        network.config.use_cache = True
        network.save_pretrained(out)
        context.renderer.tokenizer.save_pretrained(out)
        return {"parameters": network.num_parameters()}

    return context.run.stage(
        "merged", compute, settings={"precision": precision}, inputs={"model": model}, workload=Workload("merged")
    )
