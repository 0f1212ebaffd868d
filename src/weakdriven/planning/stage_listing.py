"""Outline: a recipe's stages in the order in which a run asks for them, without weights, data or benchmarks.

It walks the very functions that a run walks, so a plan cannot name other stages than a run has.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weakdriven.config.baselines import SpinSettings, SsbSettings
from weakdriven.config.recipe import JointSettings, Recipe, SftSettings
from weakdriven.config.settings import TrainSettings
from weakdriven.eval.benchmarks import BENCHMARKS
from weakdriven.methods.ssb.stage import teacher_rollouts
from weakdriven.methods.token_loss import PLAIN, Variant
from weakdriven.planning.parts import Part
from weakdriven.runs.directory import Run, Stage
from weakdriven.stages.model_loader import Model
from weakdriven.stages.stages import Stages


@dataclass(frozen=True)
class Trained:
    """Which models a training stage takes, and how it differs from plain SFT."""

    start: Model
    weak: Model | None = None
    teacher: Model | None = None
    variant: Variant = PLAIN


class _NoTokens:
    """Stands where a run has its renderer; a plan renders nothing, and only the ends of turns are asked for."""

    stop_ids: tuple[int, ...] = ()
    chat_template = None

    @property
    def tokenizer(self) -> "_NoTokens":
        return self

    def convert_ids_to_tokens(self, ids: Any) -> list[str]:
        return []


@dataclass
class Outline(Stages):
    """Stages that are only listed: each training stage with its settings and models."""

    parts: dict[str, Part] = field(default_factory=dict)
    trained: dict[str, Trained] = field(default_factory=dict)

    @classmethod
    def of(cls, recipe: Recipe, root: Path, base: Path) -> "Outline":
        """For a base whose folder holds its configuration and perhaps nothing else."""
        given = Model("sft", base, "given") if recipe.sft.model else None
        run = Run(root, recipe.seed, dry=True)
        return cls(recipe, run, Model("base", base, "base"), given, renderer=_NoTokens())  # pyright: ignore

    @classmethod
    def beside(cls, stages: Stages) -> "Outline":
        """Of stages that are about to run."""
        run = Run(stages.run.root, stages.recipe.seed, dry=True)
        return cls(stages.recipe, run, stages.base, stages.given_strong, stages.renderer, stages.tasks)

    def listed(self, work: Callable[[Stages], Any]) -> list[Part]:
        """What `work` asks for, in order."""
        work(self)
        return [self.parts.get(entry.name) or self._other(entry.name) for entry in self.run.planned]

    def data(self) -> Stage:
        self._note(Part("data", "data"))
        return self.run.stage("data", _never, settings={}, inputs={})

    def supervised(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, name: str, start: Model, data: Stage, settings: TrainSettings, **options: Any
    ) -> Model:
        active, teacher = options.get("active"), options.get("teacher")
        self._note(
            Part(
                name,
                "train",
                settings,
                block_of(settings),
                epochs=options["epochs"],
                active=active is not None,
                matched=bool(self._matching(active)),
                budget=options.get("budget") is not None,
                teacher=teacher is not None,
            )
        )
        self.trained[name] = Trained(start, teacher=teacher, variant=options.get("variant", PLAIN))
        return super().supervised(name, start, data, settings, **options)

    def joint(
        self,
        name: str,
        turn: int,
        weak: Model,
        strong: Model,
        data: Stage,
        active: Stage | None,
        settings: JointSettings,
    ) -> Model:
        self._note(
            Part(
                name,
                "train",
                settings,
                "joint",
                epochs=settings.epochs,
                active=active is not None,
                matched=bool(self._matching(active)),
                models=2,
                trained=2 if settings.weak == "joint" else 1,
                saves=2 if settings.save_weak else 1,
            )
        )
        self.trained[name] = Trained(strong, weak=weak)
        return super().joint(name, turn, weak, strong, data, active, settings)

    def model_stage(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, name: str, compute: Any, settings: TrainSettings, **options: Any
    ) -> Model:
        if name not in self.parts:  # DPO, SPIN and SSB, which train by functions of their own
            part = Part(name, "train", settings, block_of(settings), epochs=settings.epochs)
            start = self.given_strong or Model("sft", self.run.root / "sft", "sft")
            if isinstance(settings, SsbSettings):
                part = replace(part, adapter=settings.rank)
                start = self.base if settings.start == "base" else start
            else:
                part = replace(part, pairs=True)
            self._note(part)
            self.trained[name] = Trained(start)
        return super().model_stage(name, compute, settings, **options)

    def entropy(self, model: Model, data: Stage, examples: int | None = None) -> Stage:
        stage = super().entropy(model, data, examples)
        self._note(Part(stage.name, "scan"))
        return stage

    def evaluation(self, model: Model, benchmark: str) -> Stage:
        settings, entry = self.recipe.eval, BENCHMARKS[benchmark]
        name = f"eval/{model.name}/{benchmark}"
        self._note(
            Part(
                name,
                "generate",
                prompts=min(settings.limit or entry.rows, entry.rows),
                samples=settings.asking()["samples"],
                new_tokens=settings.max_new_tokens or entry.max_new_tokens,
            )
        )
        return self.run.stage(name, _never, settings={}, inputs={"model": model.key})

    def _layers(self) -> str:
        return "off"  # recorded by a run, and no part of a key

    def _note(self, part: Part) -> None:
        self.parts.setdefault(part.name, part)

    def _other(self, name: str) -> Part:
        """Stages that have no method here: completions of the model's own, and small ones."""
        if not name.startswith("rollouts/"):
            return Part(name, "small")
        recipe, asked = self.recipe, name.rsplit("/", 1)[-1]
        method = asked.partition("-")[0]
        settings = {"dpo": recipe.dpo, "spin": recipe.spin, "ssb": recipe.ssb}[method].rollouts
        first = settings.subsample
        if asked == "ssb-hinted":
            settings = teacher_rollouts(self)
        new = settings.max_new_tokens or recipe.data.max_length
        return Part(name, "generate", prompts=first, samples=settings.samples, new_tokens=new)


def block_of(settings: TrainSettings) -> str:
    """The key of a recipe that settings of this kind stand under."""
    if isinstance(settings, JointSettings):
        return "joint"
    if isinstance(settings, SftSettings):
        return "sft"
    if isinstance(settings, SsbSettings):
        return "ssb"
    return "spin" if isinstance(settings, SpinSettings) else "dpo"


def with_settings(part: Part, recipe: Recipe) -> Part:
    """The same stage under another recipe: what a changed setting of its block makes of it."""
    if part.settings is None:
        return part
    fresh: TrainSettings = getattr(recipe, part.block)
    names = ("optimizer", "gradient_checkpointing", "activation_offloading", "micro_batch_size", "batch_size")
    return replace(part, settings=part.settings.model_copy(update={name: getattr(fresh, name) for name in names}))


def _never(work: Path, out: Path) -> dict[str, Any]:
    raise AssertionError("an outline computes nothing")
