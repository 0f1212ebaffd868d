"""The engine of a model: loaded or started when first needed, and kept until another model is needed."""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from weakdriven.eval.generate import Engine


@dataclass
class Engines:
    """Opens one engine at a time, because each holds a model in memory."""

    name: str = ""
    engine: Engine | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    def of(self, name: str, opened: Callable[[], AbstractContextManager[Engine]]) -> Engine:
        if self.engine is None or name != self.name:
            self.close()
            self.name, self.engine = name, self.stack.enter_context(opened())
        return self.engine

    def close(self) -> None:
        import torch

        self.engine = None
        self.stack.close()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
