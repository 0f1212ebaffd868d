"""Settings of a model that generates outside a recipe, and of `weakdriven eval`."""

from typing import Any, Literal

from pydantic import Field, model_validator

from weakdriven.config.evaluation import EngineSettings, EvalSettings
from weakdriven.config.settings import Settings


class TargetSettings(EngineSettings):
    """A model and what generates its completions."""

    model: str
    """Model or adapter folder, or a Hub id."""
    chat_template: str | None = None
    """A chat template: a file, or `chatml`, `llama3`, `gemma` or `plain`; unset: the tokenizer's own, else `plain`."""
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    """Precision of the weights and the arithmetic."""
    attention: str | None = None
    """Attention implementation of transformers."""
    trust_remote_code: bool = False
    """Run code that comes with the checkpoint."""
    url: str | None = None
    """A running vLLM server of this model, whose tokenizer still comes from `model`. Implies `engine=vllm`."""
    seed: int = Field(default=42, ge=0)
    """Seed of all samples."""

    @model_validator(mode="before")
    @classmethod
    def _a_server_is_vllm(cls, values: Any) -> Any:
        given = [values[name] for name in ("url", "vllm_python") if values.get(name)]
        if len(given) > 1:
            raise ValueError("url names a running server and vllm_python starts one; give one of them")
        return values | {"engine": "vllm"} if given else values


class EvaluationSettings(TargetSettings, EvalSettings):
    """What `weakdriven eval` computes: one model on some benchmarks."""

    style: Literal["tagged", "tag-free", "plain"] | None = None
    """System prompt: `tagged`, `tag-free` or `plain`; unset: what the model's run trained, else `plain`."""
    served_name: str | None = None
    """Name of the model on the server at `url`, if it is not the name of its folder."""
    snapshots: Literal[False] = False  # pyright: ignore[reportIncompatibleVariableOverride]
    """Only the models of a recipe's run have snapshots; to evaluate one, give its folder as the model."""


class RegradeSettings(Settings):
    """How `weakdriven eval regrade` runs generated programs."""

    code_python: str | None = None
    """Python whose packages generated code may import; unset, this one."""
    unsafe: bool = False
    """Run generated code without isolation where none is available: it may then do all that you may do."""
    trust_grader: bool = False
    """Run the Python function that the folder names as the grader of a test set."""
