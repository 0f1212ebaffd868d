"""Before the first stage of a run is trained: does each stage fit in the device's memory, and all of them on the disk?

Only facts count: the longest tokenised row, the settings, memory and disk. A guess never stops a run. The same plan
gives the remedies for a stage that runs out of memory all the same.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from weakdriven.errors import UserError, explain, is_out_of_memory
from weakdriven.models.liger import fast_layers, model_type
from weakdriven.models.load import positions
from weakdriven.planning.advice import Advice, Change, advise
from weakdriven.planning.costs import Cost, Planner, batch_is_known, disk_bytes
from weakdriven.planning.devices import GIB
from weakdriven.planning.plan import machine_at_hand, planner_for
from weakdriven.planning.rows import rows_of
from weakdriven.runs.directory import VALIDATION, WORK, Progress, work_folder
from weakdriven.runs.disk import gib, held, shortage, unlinkable
from weakdriven.runs.processes import on_main
from weakdriven.runs.stage import Planned, Stage
from weakdriven.stages.context import Context
from weakdriven.stages.data import data_stage
from weakdriven.stages.workload import Workload

TOLERANCE = 0.1
"""Possible error of a predicted peak (docs/how-to/plan.md); what is closer to the limit is reported and not refused."""
CROWDED = 2 * GIB
"""More than CUDA takes for a process in addition to its tensors."""


def will_run(planned: list[Planned]) -> set[str]:
    """Names of stages that have to be computed here; a sibling's result only needs space on the disk."""
    return {entry.name for entry in planned if entry.reason and not entry.taken}


def check_room(
    context: Context, data: Stage, planned: list[Planned], work: Callable[[Context], Any], *, force: bool = False
) -> None:
    """Refuse a run that cannot fit in memory or on the disk; with `force`, and where it may fit, only report it."""
    progress, names = context.progress, will_run(planned)
    listed = [workload for workload in context.workloads(work) if workload.name in names]
    workloads = [workload for workload in listed if workload.kind in ("train", "scan") or workload.name == "merged"]
    costs: list[Cost] = []
    if workloads:
        planner = planner_here(context, data)
        found = [rows_of(context.run.root / VALIDATION)] if VALIDATION in context.run.stages else []
        refuse_long_rows(context, max(rows.longest for rows in (planner.rows, *found)))
        try:
            costs = [planner.cost(workload) for workload in workloads]
        except UserError as error:  # an architecture that a plan does not know trains all the same
            progress.note(f"Whether what it trains fits in memory and on the disk is not known. {error}")
        else:
            check_memory(costs, planner, progress, force=force)
    saved = [cost for cost in costs if cost.workload.kind != "scan"]
    ahead = [entry for entry in planned if entry.name != data.name]  # the rows are there by now
    on_main(lambda: check_disk(saved, ahead, context.run.root, progress, force=force))


def refuse_long_rows(context: Context, longest: int) -> None:
    """Some models fail at a token past their last position; others train it, on positions they have never seen."""
    recipe = context.recipe
    for model in filter(None, (context.base, context.given_strong)):
        folder = context.base.folder if recipe.lora else model.folder
        room = positions(folder, trust_remote_code=recipe.trust_remote_code)
        if room is not None and longest > room:
            raise UserError(
                f"The longest example has {longest:,} tokens, and the model in {folder} has {room:,} positions "
                f"(max_position_embeddings); set data.max_length={room}, which cuts longer examples on the right, or "
                "leave those examples out."
            )


def planner_here(context: Context, data: Stage) -> Planner:
    """For this machine and the tokenised rows."""
    folder = context.base.folder
    liger = fast_layers(context.recipe.fast_layers, model_type(folder))
    return planner_for(context.recipe, folder, machine_at_hand(), rows_of(data.path), liger)


def check_memory(costs: list[Cost], planner: Planner, progress: Progress, *, force: bool) -> None:
    """On one device, each training stage and scan alone."""
    room = planner.machine.device.memory
    for cost in costs:
        if cost.memory is None or (needs := cost.memory.allocated) <= room * (1 - TOLERANCE):
            continue
        sentence = describe_need(cost, planner)
        if not batch_is_known(cost.workload, planner.recipe, planner.rows.count):
            progress.note(f"{sentence} Its rows may be fewer, and its micro-batches smaller, so it is tried.")
        elif needs * (1 - TOLERANCE) <= room:
            progress.note(f"{sentence} The prediction may be off by {TOLERANCE:.0%}, so it is tried.")
        elif force:
            progress.note(f"{sentence} It is tried all the same (--force).")
        else:
            advice = advise(planner, cost, room + cost.memory.reserve)  # the reserve is not part of `needs`
            raise UserError(f"{sentence} {remedies(advice)}")


def describe_need(cost: Cost, planner: Planner) -> str:
    """What a stage needs and why, in one sentence."""
    memory, workload, device = cost.memory, cost.workload, planner.machine.device
    assert memory is not None
    sizes = {name: size for name, size in memory.parts().items() if size >= 0.05 * GIB and name != "reserve"}
    split = ", ".join(f"{name} {size / GIB:.1f}" for name, size in sizes.items())
    if workload.kind == "scan":
        rows = f"batches of {planner.recipe.selection.batch_tokens:,} tokens"
    else:
        rows = f"micro-batches of {cost.micro_batch} with rows of up to {planner.longest(workload):,} tokens"
    return (
        f"{workload.name} needs about {memory.allocated / GIB:.1f} GiB ({split}) for {rows}, and "
        f"{'this computer' if device.is_cpu else 'the GPU'} has {device.memory_gib:.1f}."
    )


def remedies(advice: Advice) -> str:
    """The cheapest changes that would do, and the way around."""
    fitting = [change for change in advice.changes if change.fits][:3]
    if fitting:
        ways = "; or ".join(f"{change.override} (-{change.saves_bytes / GIB:.1f} GiB)" for change in fitting)
        found = f"Set {ways}."
    elif advice.together:
        found = f"Set {' '.join(advice.together)}, together."
    else:
        found = "No setting would make it fit: take a larger GPU or a smaller model."
    return f"{found} weakdriven run --force tries it all the same; a stage trained so is there for other commands too."


def check_disk(costs: list[Cost], planned: list[Planned], root: Path, progress: Progress, *, force: bool) -> None:
    """Models that will be kept, checkpoints meanwhile, and copies of reused stages that cannot be linked.

    What else a run writes is small, and guessed in a plan.
    """
    sizes = {entry.name: unlinkable(entry.taken, root / WORK) for entry in planned if entry.taken}
    copies = [Cost(Workload(name), kept=size) for name, size in sizes.items() if size]
    left = {cost.workload.name: still_to_write(cost, root) for cost in (*costs, *copies)}
    need = disk_bytes(left[entry.name] for entry in planned if entry.name in left)[1]
    if not (sentence := shortage(root, round(need), "The run")):
        return
    largest = max(costs, key=lambda cost: cost.work, default=None)
    if largest and largest.work:
        most = f"checkpoints of {largest.workload.name} are up to {gib(round(largest.work))} of it at once"
        sentence += f", or raise save_steps ({most}; with 0 there are none, and a phase that is stopped starts again)"
    sentence += "."
    if copies:
        sentence += (
            f" Stages of {gib(sum(sizes.values()))} are copied, because they cannot be linked, such as from another "
            "disk; an --output next to them needs no copies."
        )
    if not force:
        raise UserError(f"{sentence} weakdriven run --force tries it all the same.")
    progress.note(f"{sentence} It is tried all the same (--force).")


def still_to_write(cost: Cost, root: Path) -> Cost:
    """What is not on the disk yet; an older result stays until the run is finished (`runs/replaced.py`)."""
    return replace(cost, kept=cost.kept - held(work_folder(root, cost.workload.name)))


def ran_out(context: Context, work: Callable[[Context], Any], name: str, error: Exception) -> UserError | None:
    """The three cheapest remedies for a stage that ran out of memory, with what each frees; None for other errors."""
    if not is_out_of_memory(error):
        return None
    workload = next((workload for workload in context.workloads(work) if workload.name == name), None)
    cheapest = dict[str, Change]()  # of each setting
    if workload and workload.kind in ("train", "scan"):
        try:
            planner = planner_here(context, data_stage(context))
            for change in advise(planner, planner.cost(workload), planner.machine.device.memory).changes:
                cheapest.setdefault(change.override.partition("=")[0], change)
        except UserError:  # an architecture that a plan does not know
            pass
    crowd = held_by_others() if isinstance(error, torch.OutOfMemoryError) else ""
    if not cheapest:
        return UserError(f"{name}: {explain(error)}{crowd}")
    ways = enumerate(list(cheapest.values())[:3], 1)
    listed = "; ".join(f"({place}) {describe_change(change)}" for place, change in ways)
    what = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
    return UserError(
        f"{name} ran out of memory ({what}). The cheapest remedies, as predicted: {listed}. Run again with one of "
        f"them; finished stages are kept.{crowd}"
    )


def held_by_others() -> str:
    """A sentence if other processes have much of the GPU, so that the run itself may not be at fault."""
    try:
        free, total = torch.cuda.mem_get_info()
    except (RuntimeError, AssertionError):  # a GPU too full to be queried, or torch without CUDA
        return ""
    if (others := total - free - torch.cuda.memory_reserved()) < CROWDED:
        return ""
    return f" Other processes, such as runs in parallel, hold {gib(others)} of the GPU: without them it may fit."


def describe_change(change: Change) -> str:
    slower = f", takes {change.time:.2f} times as long" if change.time > 1.005 else ""
    return f"{change.override} frees {gib(change.saves_bytes)}{slower} ({change.result})"
