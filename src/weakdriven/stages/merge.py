"""An adapted model as an ordinary one."""

from pathlib import Path
from typing import Any

from weakdriven.models.adapters import load_merged
from weakdriven.runs.directory import Stage
from weakdriven.stages.stages import Model, Stages, keys


def merged(stages: Stages, model: Model) -> Stage:
    """A stage of its own, so that asking for it retrains nothing."""
    recipe = stages.recipe
    precision = "fp32" if recipe.precision == "fp32" else "bf16"

    def compute(work: Path, out: Path) -> dict[str, Any]:
        network = load_merged(
            model.folder, stages.base.folder, precision=precision, trust_remote_code=recipe.trust_remote_code
        )
        network.config.use_cache = True
        network.save_pretrained(out)
        stages.renderer.tokenizer.save_pretrained(out)
        return {"parameters": network.num_parameters()}

    return stages.run.stage("merged", compute, settings={"precision": precision}, inputs=keys(model=model))
