"""The engine of a model: loaded or started when first needed, kept until another model is needed."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from weakdriven.config.recipe import EngineSettings
from weakdriven.errors import UserError
from weakdriven.eval.generate import Engine
from weakdriven.eval.generate.local import LocalEngine
from weakdriven.eval.generate.serve import serve
from weakdriven.eval.generate.server import ServerEngine


@dataclass
class Engines:
    """One engine at a time, because each holds a model in memory."""

    name: str = ""
    engine: Engine | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    def of(self, name: str, opened: Callable[[], AbstractContextManager[Engine]]) -> Engine:
        if self.engine is None or name != self.name:
            self.close()
            self.name, self.engine = name, self.stack.enter_context(opened())
        return self.engine

    def close(self) -> None:
        self.engine = None
        self.stack.close()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@contextmanager
def local_engine(
    load: Callable[[], PreTrainedModel], tokenizer: PreTrainedTokenizerBase, settings: EngineSettings
) -> Iterator[Engine]:
    yield LocalEngine(load(), tokenizer, settings.batch_size, settings.batching)


@contextmanager
def served_engine(
    folder: Path, settings: EngineSettings, *, precision: str, longest: int, log: Path
) -> Iterator[Engine]:
    """A vLLM server of one model folder whose cache holds `longest` tokens, stopped afterwards."""
    if settings.vllm_python is None:
        raise UserError("engine is vllm, which needs vllm_python: the Python of an environment with vLLM.")
    with serve(settings.vllm_python, folder, log=log, dtype=DTYPES[precision], max_model_len=longest) as url:
        yield ServerEngine(url)


DTYPES = {"fp32": "float32", "bf16": "bfloat16", "bf16-mixed": "bfloat16"}
