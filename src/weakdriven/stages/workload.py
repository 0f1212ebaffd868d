"""What a plan needs to know of a stage's computation: of a training stage its models, rows and settings."""

from dataclasses import dataclass, replace
from typing import Literal

from weakdriven.config.baselines import SpinSettings, SsbSettings
from weakdriven.config.recipe import JointSettings, Recipe, SftSettings
from weakdriven.config.settings import TrainSettings
from weakdriven.runs.stage import Stage
from weakdriven.stages.model_loader import Model
from weakdriven.training.sft import PLAIN, Variant


@dataclass(frozen=True)
class Workload:
    """One stage's work."""

    name: str
    kind: Literal["data", "train", "scan", "generate", "small"] = "small"
    settings: TrainSettings | None = None
    epochs: int | None = None
    """If not those of the settings."""
    active: bool = False
    """Trains on an active set."""
    matched: bool = False
    """Matched steps: an epoch takes the steps of one over all examples."""
    budget: bool = False
    """Matched compute: as much as the whole method."""
    verified: bool = False
    """Trains on verified completions next to the data (rft)."""
    start: Model | None = None
    """The model that is trained; of a pair the strong one."""
    weak: Model | None = None
    teacher: Model | None = None
    """A frozen model that runs forward in every step."""
    variant: Variant = PLAIN
    pairs: bool = False
    """Examples are pairs of completions."""
    adapter: int | None = None
    """Rank of an adapter that this stage trains whatever the recipe says (SSB)."""
    prompts: int | None = None
    """Prompts of a generating stage; None: one for each example."""
    samples: int = 1
    new_tokens: int = 0
    """Most tokens of a completion."""

    @property
    def models(self) -> int:
        return 2 if self.weak else 1

    @property
    def trained(self) -> int:
        return 2 if isinstance(self.settings, JointSettings) and self.weak and self.settings.weak == "joint" else 1

    @property
    def saves(self) -> int:
        """Models that stay on the disk."""
        return 2 if isinstance(self.settings, JointSettings) and self.weak and self.settings.save_weak else 1

    @property
    def drawn(self) -> bool:
        """An epoch has the rows of an active set, which are known once it is drawn."""
        return self.active and not self.matched

    @property
    def sampled(self) -> bool:
        """Trains on pairs, replies or completions, which are known once they are sampled."""
        return self.pairs or self.verified or self.adapter is not None

    @property
    def block(self) -> str:
        """The key of a recipe that holds settings of this kind."""
        kinds = {JointSettings: "joint", SftSettings: "sft", SsbSettings: "ssb", SpinSettings: "spin"}
        return next((name for kind, name in kinds.items() if isinstance(self.settings, kind)), "dpo")

    def under(self, recipe: Recipe) -> "Workload":
        """The same stage with the memory and speed settings of another recipe."""
        if self.settings is None:
            return self
        fresh = getattr(recipe, self.block)
        names = ("optimizer", "gradient_checkpointing", "activation_offloading", "micro_batch_size", "batch_size")
        return replace(self, settings=self.settings.model_copy(update={name: getattr(fresh, name) for name in names}))

    def alike(self) -> str:
        """Equal for stages that differ only by their rows or by which trained models they start from."""
        same = replace(self, name="", epochs=None, active=False, matched=False, budget=False, verified=False)
        models = [self.weak is None, self.teacher is None]
        return repr((replace(same, start=None, weak=None, teacher=None), models))


def workload_of(stage: Stage) -> Workload:
    """A stage without one is small."""
    return stage.workload or Workload(stage.name)
