"""What a stage has to compute, as a plan needs to know it: of a training stage its models, rows and settings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from weakdriven.config.baselines import SpinSettings, SsbSettings
from weakdriven.config.recipe import JointSettings, Recipe, SftSettings
from weakdriven.config.settings import TrainSettings
from weakdriven.runs.executor import Listing
from weakdriven.stages.model_loader import Model
from weakdriven.training.sft import PLAIN, Variant

if TYPE_CHECKING:
    from weakdriven.stages.context import Context

Kind = Literal["data", "train", "scan", "generate", "small"]


@dataclass(frozen=True)
class Workload:
    """One stage's work."""

    name: str
    kind: Kind = "small"
    settings: TrainSettings | None = None
    epochs: int = 1
    active: bool = False
    """Trains on a drawn set."""
    matched: bool = False
    """Matched steps: an epoch takes the steps of one over all examples."""
    budget: bool = False
    """For as much compute as the whole method."""
    start: Model | None = None
    """The model that is trained; of a pair the strong one."""
    weak: Model | None = None
    teacher: Model | None = None
    """A frozen model that is asked in every step."""
    variant: Variant = PLAIN
    models: int = 1
    trained: int = 1
    pairs: bool = False
    """Examples are pairs of completions."""
    adapter: int | None = None
    """Rank of an adapter that this stage trains whatever the recipe says (SSB)."""
    saves: int = 1
    """Models that stay on the disk."""
    prompts: int | None = None
    """Prompts of a generating stage; None: as many as examples."""
    samples: int = 1
    new_tokens: int = 0
    """Most tokens of a completion."""

    @property
    def block(self) -> str:
        """The key of a recipe that holds settings of this kind."""
        kinds = {JointSettings: "joint", SftSettings: "sft", SsbSettings: "ssb", SpinSettings: "spin"}
        return next((name for kind, name in kinds.items() if isinstance(self.settings, kind)), "dpo")

    def under(self, recipe: Recipe) -> "Workload":
        """The same stage under another recipe, with that one's settings of memory and speed."""
        if self.settings is None:
            return self
        fresh = getattr(recipe, self.block)
        names = ("optimizer", "gradient_checkpointing", "activation_offloading", "micro_batch_size", "batch_size")
        return replace(self, settings=self.settings.model_copy(update={name: getattr(fresh, name) for name in names}))

    def alike(self) -> str:
        """Equal for stages that differ only by their rows or by which trained models they start from."""
        same = replace(self, name="", epochs=1, active=False, matched=False, budget=False, saves=1)
        models = [self.weak is None, self.teacher is None]
        return repr((replace(same, start=None, weak=None, teacher=None), models))


def list_workloads(context: "Context", work: Callable[["Context"], Any]) -> list[Workload]:
    """Of every stage that `work` asks for, in order; nothing is read or computed."""
    listing = Listing(context.run.root)
    work(context.with_run(listing))
    return [stage.workload or Workload(name) for name, stage in listing.stages.items()]
