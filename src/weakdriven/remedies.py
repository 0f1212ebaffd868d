"""What to change when training runs out of memory: the three cheapest ways, each with what it frees."""

from weakdriven.disk import gib
from weakdriven.errors import UserError
from weakdriven.plan.memory import state_bytes
from weakdriven.recipe import Recipe
from weakdriven.settings import TrainSettings

WORDS = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
"""How torch tells of it, on a GPU and on a CPU."""


def is_out_of_memory(error: BaseException) -> bool:
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in WORDS)


def out_of_memory(
    error: BaseException, settings: TrainSettings, recipe: Recipe, parameters: int, sharding: str | None = None
) -> UserError:
    """The error that a user sees.

    Args:
        parameters: Weights that are trained, of all models together.
        sharding: What they are dealt out with, FSDP or ZeRO-3; what a run refuses under it is not proposed.
    """
    found = str(error).strip().splitlines()
    what = found[0][:160] if found else type(error).__name__
    ways = "; ".join(
        f"({place}) {way}" for place, way in enumerate(remedies(settings, recipe, parameters, sharding)[:3], 1)
    )
    return UserError(
        f"Training ran out of memory ({what}). The cheapest remedies: {ways}. Run again with one of them; finished "
        "stages are kept."
    )


def remedies(settings: TrainSettings, recipe: Recipe, parameters: int, sharding: str | None = None) -> list[str]:
    """Cheapest first: what changes no result, then what costs time, then what trains otherwise."""
    ways, micro = list[str](), settings.micro_batch_size
    if micro > 1:
        smaller = next(size for size in range(micro // 2, 0, -1) if settings.batch_size % size == 0)
        share = "about half" if 2 * smaller == micro else f"about {smaller / micro:.0%}"
        ways.append(f"micro_batch_size {micro} -> {smaller}: {share} of the activations, the same result")
    if settings.gradient_checkpointing is not True:
        ways.append(
            f"gradient_checkpointing {str(settings.gradient_checkpointing).lower()} -> true: activations of one layer "
            "at a time, for about a fifth more time, the same result"
        )
    weight = 2 if recipe.precision == "bf16" else 4
    state, smaller = (int(parameters * state_bytes(name, weight)) for name in (settings.optimizer, "adamw_8bit"))
    if (freed := state - smaller) > 0 and sharding != "ZeRO-3":
        change = f"its state {gib(state)} -> {gib(state - freed)}, frees {gib(freed)}"
        ways.append(f"optimizer {settings.optimizer} -> adamw_8bit: {change}")
    if recipe.lora is None and not sharding:
        held = gib(state + parameters * weight)
        ways.append(f"lora: {{rank: 16}}: gradients and optimizer state of adapters alone, now {held}")
    elif recipe.lora and not recipe.lora.quantize:
        ways.append("lora.quantize: 4bit: the frozen weights in about a quarter of their memory")
    if recipe.precision != "bf16" and sharding != "ZeRO-3":
        half = gib(parameters * 4)
        ways.append(f"precision {recipe.precision} -> bf16: weights and gradients half as large, frees {half}")
    ways.append(f"data.max_length {recipe.data.max_length} -> {recipe.data.max_length // 2}: half of the longest row")
    if not settings.activation_offloading:
        ways.append("activation_offloading: true: activations wait in the CPU's memory (slower, needs a GPU)")
    return ways
