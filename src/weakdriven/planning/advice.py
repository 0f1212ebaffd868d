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
    block, found = workload.block, list[tuple[list[str], str]]()
    if recipe.fast_layers == "off" and not on_cpu:
        found.append((["fast_layers=auto"], SAME))
    smaller = micro // 2
    while smaller >= 1:
        found.append(([f"{block}.micro_batch_size={smaller}"], SAME))
        smaller //= 2
    for mode in ("keep_products", "keep_attention", "true"):
        found.append(([f"{block}.gradient_checkpointing={mode}"], SAME))
    if not on_cpu:
        found.append(([f"{block}.activation_offloading=true"], SAME))
    found.append(([f"{block}.optimizer=adamw_8bit"], OTHER))
    found.append((["precision=bf16", f"{block}.optimizer=adamw_bf16"], OTHER))
    found.append((["precision=bf16", f"{block}.optimizer=adamw_8bit"], OTHER))
    found.append(([f"data.max_length={recipe.data.max_length // 2}"], OTHER))
    if sharding == "fsdp" or (recipe.sft.model and recipe.lora is None):
        return found
    found.append((["lora={}"], OTHER))
    if not on_cpu:
        found.append((["lora={quantize: 4bit}"], OTHER))
    return found


def advise(now: Cost, room: float, choices: list[tuple[list[str], str]], attempt: Try, largest: int) -> Advice:
    """Each choice alone, and the first few that do it together.

    Args:
        room: Bytes of the device.
        largest: The largest micro-batch that fits with nothing else changed.
    """
    assert now.memory is not None
    changes, sure, together = list[Change](), list[str](), list[str]()
    for overrides, result in choices:
        try:
            cost = attempt(overrides)
        except UserError:  # the recipe would refuse it
            continue
        if cost.memory is None or (saves := now.memory.total - cost.memory.total) < 0.01 * 2**30:
            continue
        slower = cost.seconds / now.seconds if now.seconds else 1.0
        changes.append(Change(" ".join(overrides), saves, slower, cost.memory.total <= room, result))
        if not together:
            joined = _joined(sure, overrides)
            try:
                both = attempt(joined)
            except UserError:
                continue
            if both.memory is not None:
                sure = joined
                together = sure if both.memory.total <= room else []
    kept = _without_needless(together, room, attempt)
    return Advice(now.workload.name, now.memory.total, room, changes, kept, largest)


def _joined(before: list[str], more: list[str]) -> list[str]:
    """Later ones stand for earlier ones of the same setting."""
    keys = {text.partition("=")[0] for text in more}
    return [text for text in before if text.partition("=")[0] not in keys] + more


def _without_needless(overrides: list[str], room: float, attempt: Try) -> list[str]:
    """Without those that are not needed, the dearest asked first."""
    for one in reversed(overrides):
        fewer = [text for text in overrides if text != one]
        try:
            cost = attempt(fewer)
        except UserError:
            continue
        if fewer and cost.memory is not None and cost.memory.total <= room:
            overrides = fewer
    return overrides


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
