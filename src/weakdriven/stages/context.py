"""What the stages of one recipe share: the recipe, its run, its base model, how prompts are rendered."""

import logging
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel

from weakdriven.config.benchmarks import TestSet, name_of
from weakdriven.config.recipe import Recipe
from weakdriven.data.overlap.find import HeldItem
from weakdriven.data.overlap.held_out import HeldOut
from weakdriven.data.prompts import Renderer
from weakdriven.errors import UserError
from weakdriven.eval.engines import Engines, local_engine, served_engine
from weakdriven.eval.generate import Engine
from weakdriven.eval.run import Task, prepare_task
from weakdriven.eval.test_sets import load_benchmark
from weakdriven.models.gemma3.multimodal import text_config
from weakdriven.models.liger import fast_layers, model_type
from weakdriven.models.load import DTYPES, router_loss, tokenizer_fingerprint
from weakdriven.models.sharded import gathered_model, is_sharded
from weakdriven.runs.directory import WORK
from weakdriven.runs.executor import Listing, Run
from weakdriven.runs.processes import is_main
from weakdriven.runs.stage import Stage
from weakdriven.stages.model_loader import Loader, Model
from weakdriven.stages.workload import Workload, workload_of
from weakdriven.training.lora import name_base
from weakdriven.training.phase import Phase
from weakdriven.training.sft import save_model

logger = logging.getLogger(__name__)


@dataclass
class Context:
    """A recipe bound to a run directory."""

    recipe: Recipe
    run: Listing
    """What happens to the stages that are asked for: they are listed, looked up, or computed."""
    base: Model
    given_strong: Model | None
    renderer: Renderer
    tasks: dict[str, Task] = field(default_factory=dict)
    engines: Engines = field(default_factory=Engines)
    force: bool = False
    """Train what is predicted not to fit in memory or on the disk."""

    def with_run(self, run: Listing) -> "Context":
        """The same for another executor; what is cached stays."""
        other = copy(self)
        other.run = run
        return other

    def workloads(self, work: Callable[["Context"], Any]) -> list[Workload]:
        """Of every stage that `work` asks for, in order; nothing is read or computed."""
        return [workload_of(stage) for stage in self.listed(work)]

    def listed(self, work: Callable[["Context"], Any]) -> list[Stage]:
        listing = Listing(self.run.root)
        work(self.with_run(listing))
        return list(listing.stages.values())

    @property
    def progress(self) -> Any:
        """Of a run that computes."""
        assert isinstance(self.run, Run)
        return self.run.progress

    def phase(self, stage: str, number: int, epochs: int, work: Path, **options: Any) -> Phase:
        """A training phase of a run that computes; `options` are further fields of `Phase`."""
        return Phase(stage, number, epochs, work, self.progress, force=self.force, **options)

    @property
    def loader(self) -> Loader:
        return Loader(self.recipe, self.base)

    @cached_property
    def tokenizer_key(self) -> str:
        """Hash of the tokenizer, computed once: a vocabulary of 260,000 takes seconds."""
        return tokenizer_fingerprint(self.renderer.tokenizer)

    @property
    def layers(self) -> str:
        return "liger" if fast_layers(self.recipe.fast_layers, model_type(self.base.folder)) else "off"

    @property
    def forward_precision(self) -> str:
        """Of a model that is evaluated and not trained."""
        recipe = self.recipe
        return (recipe.lora and recipe.lora.quantize) or recipe.saved_precision

    @cached_property
    def router_loss(self) -> float:
        """Weight of the load-balancing loss that the base model asks for, and that no phase trains with."""
        return router_loss(text_config(self.base.folder, trust_remote_code=self.recipe.trust_remote_code))

    def scored_in_training(self, model: str) -> bool:
        """Whether the scores of a model are those of its training: of M1, if the recipe asks for it."""
        return model == "sft" and self.recipe.selection.strong_scores == "training"

    def inference_settings(self) -> dict[str, Any]:
        """What decides a model's outputs besides its weights."""
        settings = self.recipe.model_dump(include={"precision", "attention"})
        return settings | ({"quantize": lora.quantize} if (lora := self.recipe.lora) and lora.quantize else {})

    @cached_property
    def held_out(self) -> HeldOut | None:
        """Questions that must not be trained on: all of the recipe's benchmarks, also those after eval.limit."""
        settings, allowed = self.recipe.eval, self.recipe.data.held_out
        if allowed == "allow" or not settings.benchmarks:
            return None
        try:
            items = [
                HeldItem(name_of(entry), item.id, item.question)
                for entry in settings.benchmarks
                for item in (load_benchmark(entry, settings.data_dir) if settings.limit else self.task(entry)).items
            ]
        except UserError as error:  # a run has looked for them before; only a selection comes this far without
            if allowed == "drop":
                raise
            logger.warning("The rows are not compared with the benchmarks' questions until weakdriven run: %s", error)
            return None
        return HeldOut(items)

    def task(self, benchmark: str | TestSet) -> Task:
        """Loaded once; a selection needs none, but its plan names those that are there."""
        if (name := name_of(benchmark)) not in self.tasks:
            self.tasks[name] = prepare_task(benchmark, self.renderer, self.recipe.eval, seed=self.recipe.seed)
        return self.tasks[name]

    def engine(self, model: Model, longest: int | None = None) -> Engine:
        """The engine that generates with a model.

        Args:
            longest: Tokens of the longest prompt and its completion (default: of those in the benchmarks).
        """
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

    def save(self, model: PreTrainedModel | PeftModel, out: Path, work: Path | None = None) -> None:
        """A model's folder, with the metrics of its phase in `work`; written by the main process."""
        if is_sharded(model):
            model = gathered_model(model, DTYPES[self.recipe.saved_precision])
        if not is_main():
            return
        if isinstance(model, PeftModel):
            name_base(model, self.recipe.model, self.base.folder)
        options = {"precision": self.recipe.precision, "stop_ids": self.renderer.stop_ids}
        save_model(model, self.renderer.tokenizer, out, work=work, **options)


def present(**parts: Any) -> dict[str, Any]:
    """The inputs of a stage, without those that it does not have."""
    return {name: part for name, part in parts.items() if part is not None}
