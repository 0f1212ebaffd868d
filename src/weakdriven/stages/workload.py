"""What a plan needs to know about a stage's computation, such as the models, rows and settings of a training."""

from dataclasses import dataclass, replace
from typing import Literal

from weakdriven.config.baselines import SpinSettings, SsbSettings
from weakdriven.config.recipe import JointSettings, Recipe, SftSettings
from weakdriven.config.settings import TrainSettings
from weakdriven.runs.stage import Stage
from weakdriven.stages.model import Model
from weakdriven.training.variant import PLAIN, Variant


@dataclass(frozen=True)
class Workload:
    """The computation of one stage."""

    name: str
    kind: Literal["data", "train", "scan", "generate", "small"] = "small"
    settings: TrainSettings | None = None
    epochs: int | None = None
    """Number of epochs, if not that of the settings."""
    active: bool = False
    """Whether it trains on an active set."""
    matched: bool = False
    """Whether steps are matched: an epoch takes the steps of an epoch over all examples."""
    budget: bool = False
    """Whether compute is matched to that of the whole method."""
    verified: bool = False
    """Whether it trains on verified completions in addition to the data (rft)."""
    start: Model | None = None
    """The model that is trained; of a pair, the strong one."""
    weak: Model | None = None
    teacher: Model | None = None
    """A frozen model that runs forward in each step."""
    variant: Variant = PLAIN
    pairs: bool = False
    """Whether the examples are pairs of completions."""
    adapter: int | None = None
    """Rank of an adapter that this stage trains whatever `lora` is (SSB)."""
    prompts: int | None = None
    """Number of prompts of a generating stage (default: one per example)."""
    samples: int = 1
    new_tokens: int = 0
    """Maximum tokens of a completion."""

    @property
    def models(self) -> int:
        return 2 if self.weak else 1

    @property
    def trained(self) -> int:
        return 2 if isinstance(self.settings, JointSettings) and self.weak and self.settings.weak == "joint" else 1

    @property
    def saves(self) -> int:
        """Number of models that stay on the disk."""
        return 2 if isinstance(self.settings, JointSettings) and self.weak and self.settings.save_weak else 1

    @property
    def drawn(self) -> bool:
        """Whether an epoch has the rows of an active set, which are unknown until it is drawn."""
        return self.active and not self.matched

    @property
    def sampled(self) -> bool:
        """Whether it trains on pairs, replies or completions, which are unknown until they are sampled."""
        return self.pairs or self.verified or self.adapter is not None

    @property
    def block(self) -> str:
        """The block of a recipe that holds settings of this kind."""
        kinds = {JointSettings: "joint", SftSettings: "sft", SsbSettings: "ssb", SpinSettings: "spin"}
        return next((name for kind, name in kinds.items() if isinstance(self.settings, kind)), "dpo")

    def under(self, recipe: Recipe) -> "Workload":
        """Return the same stage with another recipe's settings of memory and speed."""
        if self.settings is None:
            return self
        fresh = getattr(recipe, self.block)
        names = ("optimizer", "gradient_checkpointing", "activation_offloading", "micro_batch_size", "batch_size")
        return replace(self, settings=self.settings.model_copy(update={name: getattr(fresh, name) for name in names}))

    def alike(self) -> str:
        """Return a string that is equal for stages that differ only in their rows or in the models they start from."""
        same = replace(self, name="", epochs=None, active=False, matched=False, budget=False, verified=False)
        models = [self.weak is None, self.teacher is None]
        return repr((replace(same, start=None, weak=None, teacher=None), models))


def workload_of(stage: Stage) -> Workload:
    """Return a stage's workload; without one, it is small."""
    return stage.workload or Workload(stage.name)
