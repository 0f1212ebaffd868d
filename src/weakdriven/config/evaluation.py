"""Settings of generation and evaluation."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from weakdriven.config.benchmarks import Entry, refuse_same_names
from weakdriven.config.settings import Settings

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"samples": 1, "temperature": 0.0, "top_p": 1.0, "k": [1]},
    "passk": {"samples": 64, "temperature": 0.7, "top_p": 0.95, "k": [1, 4, 8, 16, 32, 64]},
}
"""The paper's two protocols: one greedy completion, and many samples for pass@k."""


class EngineSettings(Settings):
    """The engine that generates completions."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """`transformers` generates in this process; `vllm` starts a server for each model."""
    vllm_python: str | None = None
    """Python interpreter of an environment with vLLM; required for `engine: vllm`."""
    batch_size: int | None = Field(default=None, ge=1)
    """Batch size of `engine: transformers` (default: what fits into memory, up to 512, or 64 on a CPU)."""
    batching: Literal["auto", "static", "continuous"] = "auto"
    """`continuous` is transformers' continuous batching, for greedy decoding only; `auto` uses it with flash
    attention."""


class EvalSettings(EngineSettings):
    """Evaluation of every model of the run."""

    benchmarks: list[Entry] = Field(default=[])
    """Benchmarks and your own test sets, on which every model is evaluated. `test.jsonl` is short for
    `{path: test.jsonl}`."""
    data_dir: str | None = None
    """Folder with a file for each benchmark (docs/reference/benchmarks.md; default: load from the Hub)."""
    preset: Literal["paper", "passk"] = "paper"
    """`paper`: one greedy completion. `passk`: 64 samples at temperature 0.7 and top-p 0.95."""
    samples: int | None = Field(default=None, ge=1)
    """Samples per item (default: the preset's, as for the next three settings)."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; 0 is greedy decoding."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample from the most probable tokens that together have this probability."""
    k: list[int] | None = None
    """Report pass@k for these values of k, each at most `samples`."""
    snapshots: bool = False
    """Also evaluate the snapshots that training phases save."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of items per benchmark, taken from the start (default: all)."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of a completion (default: the benchmark's own)."""
    max_prompt_tokens: int = Field(default=4096, ge=1)
    """Longer prompts raise an error; they are never truncated, because that would change the question."""
    code_python: str | None = None
    """Python interpreter whose packages generated code may import (default: the one that runs weakdriven)."""
    unsafe: bool = False
    """Run generated code without isolation if none is available; it can then do whatever you can."""

    _no_repeats = field_validator("benchmarks")(refuse_same_names)

    @model_validator(mode="after")
    def _can_be_reported(self) -> "EvalSettings":
        asked = self.asking()
        if too_many := [k for k in asked["k"] if not 1 <= k <= asked["samples"]]:
            raise ValueError(f"k is {too_many[0]}, but each item has {asked['samples']} samples; raise samples")
        if self.batching == "continuous" and asked["temperature"] > 0:
            raise ValueError("batching is continuous, which cannot seed each sample; use static, or temperature 0")
        if asked["samples"] > 1 and asked["temperature"] == 0:
            raise ValueError(f"temperature is 0, so all {asked['samples']} samples would be the same; raise it")
        return self

    def asking(self) -> dict[str, Any]:
        """Return samples, temperature, top-p and k: the preset with its overrides."""
        own = {name: getattr(self, name) for name in PRESETS["paper"] if getattr(self, name) is not None}
        asked = PRESETS[self.preset] | own
        if self.k is None:
            asked["k"] = sorted({1, *(k for k in PRESETS["passk"]["k"] if k <= asked["samples"])})
        return asked
