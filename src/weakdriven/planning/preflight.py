"""Check before training that each stage fits in the device's memory, and that all of them fit on the disk.

Only facts stop a run: the longest tokenized row, the settings, memory and disk. The same plan suggests remedies for a
stage that runs out of memory.
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
"""Possible error of a predicted peak (docs/how-to/plan.md). A stage closer to the limit gets a note, not an error."""
CROWDED = 2 * GIB
"""More memory than CUDA takes for a process in addition to its tensors."""


def will_run(planned: list[Planned]) -> set[str]:
    """Return the names of stages that must be computed; those reused from other runs need only disk."""
    return {entry.name for entry in planned if entry.reason and not entry.taken}


def check_room(
    context: Context, data: Stage, planned: list[Planned], work: Callable[[Context], Any], *, force: bool = False
) -> None:
    """Raise an error if a run cannot fit in memory or on the disk; if it may fit, or with `force`, only print a
    note."""
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
        except UserError as error:  # an architecture that cannot be planned may still be trained
            progress.note(f"Memory and disk of the training stages could not be predicted. {error}")
        else:
            check_memory(costs, planner, progress, force=force)
    saved = [cost for cost in costs if cost.workload.kind != "scan"]
    ahead = [entry for entry in planned if entry.name != data.name]  # the data stage is already finished
    on_main(lambda: check_disk(saved, ahead, context.run.root, progress, force=force))


def refuse_long_rows(context: Context, longest: int) -> None:
    """Raise an error for rows longer than the model's positions.

    Some models fail at such tokens, others train on positions that they have never seen.
    """
    recipe = context.recipe
    for model in filter(None, (context.base, context.given_strong)):
        folder = context.base.folder if recipe.lora else model.folder
        room = positions(folder, trust_remote_code=recipe.trust_remote_code)
        if room is not None and longest > room:
            raise UserError(
                f"The longest example has {longest:,} tokens, but the model in {folder} has only {room:,} positions "
                f"(max_position_embeddings); set data.max_length={room}, which truncates longer examples on the right, "
                "or remove those examples."
            )


def planner_here(context: Context, data: Stage) -> Planner:
    """Return the planner for this machine and the tokenized rows."""
    folder = context.base.folder
    liger = fast_layers(context.recipe.fast_layers, model_type(folder))
    return planner_for(context.recipe, folder, machine_at_hand(), rows_of(data.path), liger)


def check_memory(costs: list[Cost], planner: Planner, progress: Progress, *, force: bool) -> None:
    """Check the memory of each training stage and scan on one device."""
    room = planner.machine.device.memory
    for cost in costs:
        if cost.memory is None or (needs := cost.memory.allocated) <= room * (1 - TOLERANCE):
            continue
        sentence = describe_need(cost, planner)
        if not batch_is_known(cost.workload, planner.recipe, planner.rows.count):
            progress.note(f"{sentence} It may have fewer rows and so smaller micro-batches, so it is tried anyway.")
        elif needs * (1 - TOLERANCE) <= room:
            progress.note(f"{sentence} The prediction may be off by {TOLERANCE:.0%}, so it is tried anyway.")
        elif force:
            progress.note(f"{sentence} It is tried anyway (--force).")
        else:
            advice = advise(planner, cost, room + cost.memory.reserve)  # the reserve is not part of `needs`
            raise UserError(f"{sentence} {remedies(advice)}")


def describe_need(cost: Cost, planner: Planner) -> str:
    """Return a sentence on what a stage needs and why."""
    memory, workload, device = cost.memory, cost.workload, planner.machine.device
    assert memory is not None
    sizes = {name: size for name, size in memory.parts().items() if size >= 0.05 * GIB and name != "reserve"}
    split = ", ".join(f"{name} {size / GIB:.1f}" for name, size in sizes.items())
    if workload.kind == "scan":
        rows = f"batches of {planner.recipe.selection.batch_tokens:,} tokens"
    else:
        rows = f"micro-batches of {cost.micro_batch} with rows of up to {planner.longest(workload):,} tokens"
    return (
        f"{workload.name} needs about {memory.allocated / GIB:.1f} GiB ({split}) for {rows}, but "
        f"{'this computer' if device.is_cpu else 'the GPU'} has {device.memory_gib:.1f} GiB."
    )


def remedies(advice: Advice) -> str:
    """Return sentences with the cheapest changes that would help, and with --force."""
    fitting = [change for change in advice.changes if change.fits][:3]
    if fitting:
        ways = "; or ".join(f"{change.override} (-{change.saves_bytes / GIB:.1f} GiB)" for change in fitting)
        found = f"Set {ways}."
    elif advice.together:
        found = f"Set all of these: {' '.join(advice.together)}."
    else:
        found = "No setting would make it fit: use a larger GPU or a smaller model."
    return f"{found} Or try it anyway: weakdriven run --force; other commands can then use the trained stage."


def check_disk(costs: list[Cost], planned: list[Planned], root: Path, progress: Progress, *, force: bool) -> None:
    """Check the disk space for saved models, their checkpoints, and copies of reused stages that cannot be linked.

    Everything else that a run writes is small, and only estimated in a plan.
    """
    sizes = {entry.name: unlinkable(entry.taken, root / WORK) for entry in planned if entry.taken}
    copies = [Cost(Workload(name), kept=size) for name, size in sizes.items() if size]
    left = {cost.workload.name: still_to_write(cost, root) for cost in (*costs, *copies)}
    need = disk_bytes(left[entry.name] for entry in planned if entry.name in left)[1]
    if not (sentence := shortage(root, round(need), "The run")):
        return
    largest = max(costs, key=lambda cost: cost.work, default=None)
    if largest and largest.work:
        most = f"checkpoints of {largest.workload.name} take up to {gib(round(largest.work))} of it"
        sentence += f", or raise save_steps ({most}; 0 saves none, so a stopped phase starts again)"
    sentence += "."
    if copies:
        sentence += (
            f" Reused stages of {gib(sum(sizes.values()))} must be copied, because they cannot be hard-linked from "
            "where they are; an --output on the same disk needs no copies."
        )
    if not force:
        raise UserError(f"{sentence} Or try it anyway: weakdriven run --force.")
    progress.note(f"{sentence} It is tried anyway (--force).")


def still_to_write(cost: Cost, root: Path) -> Cost:
    """Subtract what is already on the disk; older results stay until the run is finished (`runs/replaced.py`)."""
    return replace(cost, kept=cost.kept - held(work_folder(root, cost.workload.name)))


def ran_out(context: Context, work: Callable[[Context], Any], name: str, error: Exception) -> UserError | None:
    """Return an error with the three cheapest remedies if a stage ran out of memory; None for other errors."""
    if not is_out_of_memory(error):
        return None
    workload = next((workload for workload in context.workloads(work) if workload.name == name), None)
    cheapest = dict[str, Change]()  # the cheapest change of each setting
    if workload and workload.kind in ("train", "scan"):
        try:
            planner = planner_here(context, data_stage(context))
            for change in advise(planner, planner.cost(workload), planner.machine.device.memory).changes:
                cheapest.setdefault(change.override.partition("=")[0], change)
        except UserError:  # an architecture that cannot be planned
            pass
    crowd = held_by_others() if isinstance(error, torch.OutOfMemoryError) else ""
    if not cheapest:
        return UserError(f"{name}: {explain(error)}{crowd}")
    ways = enumerate(list(cheapest.values())[:3], 1)
    listed = "; ".join(f"({place}) {describe_change(change)}" for place, change in ways)
    what = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
    return UserError(
        f"{name} ran out of memory ({what}). The cheapest remedies by prediction: {listed}. Run again with one of "
        f"them; finished stages are kept.{crowd}"
    )


def held_by_others() -> str:
    """Return a sentence if other processes use much of the GPU's memory, else ""."""
    try:
        free, total = torch.cuda.mem_get_info()
    except (RuntimeError, AssertionError):  # the GPU is too full to be queried, or torch has no CUDA
        return ""
    if (others := total - free - torch.cuda.memory_reserved()) < CROWDED:
        return ""
    return f" Other processes, such as parallel runs, use {gib(others)} of the GPU; without them it may fit."


def describe_change(change: Change) -> str:
    slower = f", takes {change.time:.2f} times as long" if change.time > 1.005 else ""
    return f"{change.override} frees {gib(change.saves_bytes)}{slower} ({change.result})"
