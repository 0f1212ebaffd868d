"""What the stages of one recipe share: the recipe, its run, its base model, and how prompts are rendered."""

import logging
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weakdriven.config.benchmarks import TestSet, name_of
from weakdriven.config.recipe import Recipe
from weakdriven.data.overlap.find import HeldItem
from weakdriven.data.overlap.held_out import HeldOut
from weakdriven.data.prompts import Renderer
from weakdriven.errors import UserError
from weakdriven.eval.engine_pool import Engines
from weakdriven.eval.generate import Engine
from weakdriven.eval.run import Task, prepare_task
from weakdriven.eval.test_sets import load_benchmark
from weakdriven.runs.directory import WORK
from weakdriven.runs.executor import Listing, Run
from weakdriven.runs.stage import Stage
from weakdriven.stages.model import Model
from weakdriven.stages.workload import Workload, workload_of

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from weakdriven.stages.model_loader import Loader
    from weakdriven.training.phase import Phase

logger = logging.getLogger(__name__)


@dataclass
class Context:
    """A recipe bound to a run directory."""

    recipe: Recipe
    run: Listing
    """The executor that lists, looks up or computes the stages."""
    base: Model
    given_strong: Model | None
    renderer: Renderer
    positions: int | None = None
    """Maximum number of tokens in the base model's configuration, if it sets one."""
    router_loss: float = 0.0
    """Weight of the load-balancing loss in the base model's configuration; no phase trains with it."""
    tasks: dict[str, Task] = field(default_factory=dict)
    engines: Engines = field(default_factory=Engines)
    force: bool = False
    """Train even what is predicted not to fit in memory or on the disk."""

    def with_run(self, run: Listing) -> "Context":
        """Return a copy for another executor; it keeps what is cached."""
        other = copy(self)
        other.run = run
        return other

    def workloads(self, work: Callable[["Context"], Any]) -> list[Workload]:
        """List the workload of every stage that `work` asks for, in order, without reading or computing anything."""
        return [workload_of(stage) for stage in self.listed(work)]

    def listed(self, work: Callable[["Context"], Any]) -> list[Stage]:
        listing = Listing(self.run.root)
        work(self.with_run(listing))
        return list(listing.stages.values())

    @property
    def progress(self) -> Any:
        """The progress of a run that computes."""
        assert isinstance(self.run, Run)
        return self.run.progress

    def phase(self, stage: str, number: int, epochs: int, work: Path, **options: Any) -> "Phase":
        """Make a training phase of a run that computes; `options` are further fields of `Phase`."""
        from weakdriven.training.phase import Phase

        return Phase(stage, number, epochs, work, self.progress, force=self.force, **options)

    @property
    def loader(self) -> "Loader":
        from weakdriven.stages.model_loader import Loader

        return Loader(self.recipe, self.base)

    @cached_property
    def tokenizer_key(self) -> str:
        """Hash of the tokenizer, computed once: a vocabulary of 260,000 takes seconds."""
        from weakdriven.models.load import tokenizer_fingerprint

        return tokenizer_fingerprint(self.renderer.tokenizer)

    @property
    def layers(self) -> str:
        from weakdriven.models.liger import fast_layers, model_type

        return "liger" if fast_layers(self.recipe.fast_layers, model_type(self.base.folder)) else "off"

    @property
    def forward_precision(self) -> str:
        """Precision of a model that is evaluated, not trained."""
        recipe = self.recipe
        return (recipe.lora and recipe.lora.quantize) or recipe.saved_precision

    def scored_in_training(self, model: str) -> bool:
        """Return whether a model's scores come from its training, as the recipe may request for M1."""
        return model == "sft" and self.recipe.selection.strong_scores == "training"

    def inference_settings(self) -> dict[str, Any]:
        """Return the settings that determine a model's outputs besides its weights."""
        settings = self.recipe.model_dump(include={"precision", "attention"})
        return settings | ({"quantize": lora.quantize} if (lora := self.recipe.lora) and lora.quantize else {})

    @cached_property
    def held_out(self) -> HeldOut | None:
        """Questions that must not be trained on: all of the recipe's benchmarks, even beyond eval.limit."""
        settings, allowed = self.recipe.eval, self.recipe.data.held_out
        if allowed == "allow" or not settings.benchmarks:
            return None
        try:
            items = [
                HeldItem(name_of(entry), item.id, item.question)
                for entry in settings.benchmarks
                for item in (load_benchmark(entry, settings.data_dir) if settings.limit else self.task(entry)).items
            ]
        except UserError as error:  # only in weakdriven select: a run has loaded them before
            if allowed == "drop":
                raise
            logger.warning("The rows are not compared with the benchmarks' questions before weakdriven run: %s", error)
            return None
        return HeldOut(items)

    def task(self, benchmark: str | TestSet) -> Task:
        """Load a benchmark once; a selection needs none, but its plan names those that exist."""
        if (name := name_of(benchmark)) not in self.tasks:
            self.tasks[name] = prepare_task(benchmark, self.renderer, self.recipe.eval, seed=self.recipe.seed)
        return self.tasks[name]

    def engine(self, model: Model, longest: int | None = None) -> Engine:
        """Return the engine that generates with a model.

        Args:
            longest: Tokens of the longest prompt with its completion (default: the longest in the benchmarks).
        """
        from weakdriven.eval.engines import local_engine, served_engine

        settings = self.recipe.eval
        if settings.engine == "vllm":
            longest = longest or max(task.longest() for task in self.tasks.values())
            options = {
                "precision": self.forward_precision,
                "longest": longest,
                "log": self.run.root / WORK / "vllm.log",
            }
            return self.engines.of(f"{model.key} {longest}", partial(served_engine, model.folder, settings, **options))
        load = partial(self.loader.load, model, train=False)
        return self.engines.of(model.key, lambda: local_engine(load(), self.renderer.tokenizer, settings))

    def save(self, model: "PreTrainedModel | PeftModel", out: Path, work: Path | None = None) -> None:
        """Write a model's folder on the main process, with the metrics of its phase in `work`."""
        self.loader.save(model, self.renderer, out, work)


def present(**parts: Any) -> dict[str, Any]:
    """Return the inputs of a stage that are not None."""
    return {name: part for name, part in parts.items() if part is not None}
