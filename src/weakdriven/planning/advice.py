"""Advice: settings that would make a stage fit, the cheapest first."""

from dataclasses import dataclass, replace

from weakdriven.config.file import apply_override, parse_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.errors import UserError
from weakdriven.planning.costs import Cost, Planner, epoch_rows, is_packed
from weakdriven.stages.workload import Workload

SAME = "same result"
OTHER = "other result"


@dataclass(frozen=True)
class Change:
    """Overrides that would reduce a stage's memory."""

    override: str
    saves_bytes: int
    """Bytes by which the peak would shrink."""
    time: float
    """Factor by which the stage's time would change."""
    fits: bool
    """Whether the stage would fit with this change alone."""
    result: str
    """Whether the result would stay the same: SAME or OTHER."""


@dataclass(frozen=True)
class Advice:
    """What a stage that does not fit needs, and which changes would help."""

    stage: str
    needs: float
    has: float
    changes: list[Change]
    together: list[str]
    """The first combination of overrides that fits; empty if none does."""


def candidates(
    workload: Workload, recipe: Recipe, micro: int, *, on_cpu: bool, sharding: str = "none"
) -> list[tuple[list[str], str]]:
    """Return overrides that may help: first free ones, then those that cost time, then those that change the result.

    Overrides that a run would reject are left out: adapters under FSDP, or with a given M1 that is a whole model.
    """
    if workload.kind == "scan":
        size = recipe.selection.batch_tokens
        return [([f"selection.batch_tokens={size // share}"], SAME) for share in (2, 4, 8) if size // share]
    if workload.settings is None:
        return []
    block = workload.block
    same = [["fast_layers=auto"]] if recipe.fast_layers == "off" and not on_cpu else []
    same += [[f"{block}.micro_batch_size={micro >> halvings}"] for halvings in range(1, micro.bit_length())]
    if is_packed(workload.settings, recipe.precision, on_cpu=on_cpu):
        same += [[f"{block}.packing=false"]]
    same += [[f"{block}.gradient_checkpointing={mode}"] for mode in ("keep_products", "keep_attention", "true")]
    same += [] if on_cpu else [[f"{block}.activation_offloading=true"]]
    other = [[f"{block}.optimizer=adamw_8bit"]]
    other += [["precision=bf16", f"{block}.optimizer={optimizer}"] for optimizer in ("adamw_bf16", "adamw_8bit")]
    other += [[f"data.max_length={recipe.data.max_length // 2}"]]
    if sharding != "fsdp" and not (recipe.sft.model and recipe.lora is None):
        other += [["lora={}"]] if on_cpu else [["lora={}"], ["lora={quantize: 4bit}"]]
    return [(overrides, SAME) for overrides in same] + [(overrides, OTHER) for overrides in other]


def advise(planner: Planner, now: Cost, room: float) -> Advice:
    """Try each change alone, and find the first few that fit together; `room` is the device's memory in bytes."""
    workload, machine, recipe = now.workload, planner.machine, planner.recipe
    assert now.memory is not None
    micro = min(now.micro_batch, workload.settings.micro_batch_size) if workload.settings else 0
    choices = candidates(workload, recipe, micro, on_cpu=machine.device.is_cpu, sharding=machine.sharding)

    def tried(overrides: list[str]) -> tuple[float, float] | None:
        """Return bytes and seconds with these overrides, or None if the recipe would reject them."""
        tree = recipe.model_dump(mode="json")
        try:
            for override in overrides:
                apply_override(tree, override)
            changed = parse_recipe(tree, recipe.name)
            cost = planner.under(changed).cost(workload.under(changed))
        except UserError:
            return None
        return (cost.memory.total, cost.seconds) if cost.memory else None

    changes, sure, together = list[Change](), list[str](), list[str]()
    for overrides, result in choices:
        if (alone := tried(overrides)) is None or (saves := now.memory.total - alone[0]) < 0.01 * 2**30:
            continue
        slower = alone[1] / now.seconds if now.seconds else 1.0
        changes.append(Change(" ".join(overrides), round(saves), slower, alone[0] <= room, result))
        replaced = {text.partition("=")[0] for text in overrides}
        joined = [text for text in sure if text.partition("=")[0] not in replaced] + overrides
        if not together and (both := tried(joined)):
            sure = joined
            together = sure if both[0] <= room else []
    for one in reversed(together):  # drop overrides that are not needed, the most expensive first
        fewer = [text for text in together if text != one]
        if fewer and (needs := tried(fewer)) and needs[0] <= room:
            together = fewer
    return Advice(workload.name, now.memory.total, room, changes, together)


def largest_micro(planner: Planner, workload: Workload) -> int:
    """Return the largest micro_batch_size that divides the batch of one device and fits; 0 if not even 1 fits."""
    settings, found = workload.settings, 0
    assert settings is not None
    rows = epoch_rows(workload, planner.recipe, planner.rows.count)
    batch = max(min(settings.batch_size, rows) // planner.machine.count, 1)
    for micro in (size for size in range(1, batch + 1) if batch % size == 0):
        changed = settings.model_copy(update={"micro_batch_size": micro})
        memory = planner.cost(replace(workload, settings=changed)).memory
        if memory is None or memory.total > planner.machine.device.memory:
            break
        found = micro
    return found
