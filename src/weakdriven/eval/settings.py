"""Settings of a model that generates outside a recipe, and of `weakdriven eval`."""

from typing import Any, Literal

from pydantic import Field, model_validator

from weakdriven.config.evaluation import EngineSettings, EvalSettings
from weakdriven.config.settings import Settings


class TargetSettings(EngineSettings):
    """A model and the engine that generates its completions."""

    model: str
    """Model or adapter folder, or a Hub id."""
    chat_template: str | None = None
    """A file, or `chatml`, `llama3`, `gemma` or `plain`. Default: the tokenizer's own template, else `plain`."""
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    """Precision of the weights and the arithmetic."""
    attention: str | None = None
    """Attention implementation of transformers."""
    trust_remote_code: bool = False
    """Run code that comes with the checkpoint."""
    url: str | None = None
    """Address of a running vLLM server of this model; the tokenizer still comes from `model`. Implies `engine=vllm`."""
    seed: int = Field(default=42, ge=0)
    """Seed of all samples."""

    @model_validator(mode="before")
    @classmethod
    def _a_server_is_vllm(cls, values: Any) -> Any:
        given = [values[name] for name in ("url", "vllm_python") if values.get(name)]
        if len(given) > 1:
            raise ValueError("url names a running server, but vllm_python would start one; give one of them")
        return values | {"engine": "vllm"} if given else values


class EvaluationSettings(TargetSettings, EvalSettings):
    """One model to evaluate on some benchmarks with `weakdriven eval`."""

    style: Literal["tagged", "tag-free", "plain"] | None = None
    """System prompt: `tagged`, `tag-free` or `plain`. Default: that of the model's run, else `plain`."""
    served_name: str | None = None
    """Name of the model on the server at `url`, if it differs from the name of its folder."""
    snapshots: Literal[False] = False  # pyright: ignore[reportIncompatibleVariableOverride]
    """Not supported: only models of a recipe's run have snapshots. To evaluate a snapshot, give its folder as model."""


class RegradeSettings(Settings):
    """How `weakdriven eval regrade` runs generated programs and graders."""

    code_python: str | None = None
    """Python whose packages generated code may import. Default: the Python of weakdriven."""
    unsafe: bool = False
    """If no isolation is available, run generated code without it: the code may then do all that you may do."""
    trust_grader: bool = False
    """Run the Python function that the folder names as the grader of a test set."""
