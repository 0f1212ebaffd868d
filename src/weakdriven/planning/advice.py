"""Which settings would make a stage fit, in order of what they cost."""

from collections.abc import Callable
from dataclasses import replace

from weakdriven.config.recipe import Recipe
from weakdriven.errors import UserError
from weakdriven.planning.costs import Advice, Change, Cost, Workload

SAME = "same result"
OTHER = "other result"
Try = Callable[[list[str]], Cost]
"""The cost of a stage under some overrides; a UserError where the recipe would not accept them."""


def candidates(
    workload: Workload, recipe: Recipe, micro: int, *, on_cpu: bool, sharding: str = "none"
) -> list[tuple[list[str], str]]:
    """Overrides that may help, cheapest first: what costs nothing, then time, then another result.

    What a run does not support is left out: adapters under FSDP and after an M1 that is a whole model.
    """
    if workload.kind == "scan":
        size = recipe.selection.batch_tokens
        return [([f"selection.batch_tokens={size // share}"], SAME) for share in (2, 4, 8) if size // share]
    if workload.settings is None:
        return []
    block = workload.block
    same = [["fast_layers=auto"]] if recipe.fast_layers == "off" and not on_cpu else []
    same += [[f"{block}.micro_batch_size={micro >> halvings}"] for halvings in range(1, micro.bit_length())]
    same += [[f"{block}.gradient_checkpointing={mode}"] for mode in ("keep_products", "keep_attention", "true")]
    same += [] if on_cpu else [[f"{block}.activation_offloading=true"]]
    other = [[f"{block}.optimizer=adamw_8bit"]]
    other += [["precision=bf16", f"{block}.optimizer={optimizer}"] for optimizer in ("adamw_bf16", "adamw_8bit")]
    other += [[f"data.max_length={recipe.data.max_length // 2}"]]
    if sharding != "fsdp" and not (recipe.sft.model and recipe.lora is None):
        other += [["lora={}"]] if on_cpu else [["lora={}"], ["lora={quantize: 4bit}"]]
    return [(overrides, SAME) for overrides in same] + [(overrides, OTHER) for overrides in other]


def advise(now: Cost, room: float, choices: list[tuple[list[str], str]], attempt: Try, largest: int) -> Advice:
    """Each choice alone, and the first few that do it together; `room` is the device's memory in bytes."""
    assert now.memory is not None

    def tried(overrides: list[str]) -> tuple[float, float] | None:
        """Bytes and seconds; None where the recipe would not accept the overrides."""
        try:
            cost = attempt(overrides)
        except UserError:
            return None
        return (cost.memory.total, cost.seconds) if cost.memory else None

    changes, sure, together = list[Change](), list[str](), list[str]()
    for overrides, result in choices:
        if (alone := tried(overrides)) is None or (saves := now.memory.total - alone[0]) < 0.01 * 2**30:
            continue
        slower = alone[1] / now.seconds if now.seconds else 1.0
        changes.append(Change(" ".join(overrides), saves, slower, alone[0] <= room, result))
        replaced = {text.partition("=")[0] for text in overrides}
        joined = [text for text in sure if text.partition("=")[0] not in replaced] + overrides
        if not together and (both := tried(joined)):
            sure = joined
            together = sure if both[0] <= room else []
    for one in reversed(together):  # what is not needed is left out, the dearest first
        fewer = [text for text in together if text != one]
        if fewer and (needs := tried(fewer)) and needs[0] <= room:
            together = fewer
    return Advice(now.workload.name, now.memory.total, room, changes, together, largest)


def largest_micro(workload: Workload, batch: int, room: float, cost_of: Callable[[Workload], Cost]) -> int:
    """Largest micro_batch_size that divides the batch of one device and fits; 0 if not even one row does."""
    assert workload.settings is not None
    found = 0
    for micro in (size for size in range(1, batch + 1) if batch % size == 0):
        settings = workload.settings.model_copy(update={"micro_batch_size": micro})
        memory = cost_of(replace(workload, settings=settings)).memory
        if memory is None or memory.total > room:
            break
        found = micro
    return found
