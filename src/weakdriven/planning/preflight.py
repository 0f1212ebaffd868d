"""Before the first stage of a run is trained: does each one fit on the device at hand, and all of them on the disk?

Only facts count: the longest tokenised row, the settings, the memory and the disk that there are. What is a guess never
stops a run. A stage that runs out of memory all the same is answered from the same plan.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from weakdriven.errors import UserError, explain, is_out_of_memory
from weakdriven.models.liger import fast_layers
from weakdriven.planning.costs import Advice, Change, Cost, disk_bytes
from weakdriven.planning.devices import GIB
from weakdriven.planning.model_shape import read_config
from weakdriven.planning.plan import Planning, machine_at_hand, tokenizer_bytes
from weakdriven.planning.rows import rows_of
from weakdriven.planning.stage_costs import batch_is_known
from weakdriven.runs.directory import WORK, Progress, work_folder
from weakdriven.runs.disk import gib, held, shortage, unlinkable
from weakdriven.runs.processes import on_main
from weakdriven.runs.stage import Planned, Stage
from weakdriven.stages.context import Context
from weakdriven.stages.data import data_stage
from weakdriven.stages.workload import Workload, list_workloads

TOLERANCE = 0.1
"""How far a predicted peak may be off (docs/plan.md); what is nearer to the limit is reported and not refused."""
CROWDED = 2 * GIB
"""More than CUDA takes for a process beside its tensors."""


def will_run(planned: list[Planned]) -> set[str]:
    """Names of stages that have to be computed here; a sibling's result costs at most room on the disk."""
    return {entry.name for entry in planned if entry.reason and not entry.taken}


def check_room(
    context: Context, data: Stage, planned: list[Planned], work: Callable[[Context], Any], *, force: bool = False
) -> None:
    """Refuse a run that cannot fit in memory or on the disk; what may not fit is reported, with `force` all of it."""
    progress, names = context.progress, will_run(planned)
    listed = [workload for workload in list_workloads(context, work) if workload.name in names]
    workloads = [workload for workload in listed if workload.kind in ("train", "scan") or workload.name == "merged"]
    costs: list[Cost] = []
    if workloads:
        planning = planning_of(context, data)
        try:
            costs = [planning.planner(context.recipe).cost(workload) for workload in workloads]
        except UserError as error:  # an architecture that a plan does not know trains all the same
            progress.note(f"Whether what it trains fits in memory and on the disk is not known. {error}")
        else:
            check_memory(costs, planning, progress, force=force)
    saved = [cost for cost in costs if cost.workload.kind != "scan"]
    ahead = [entry for entry in planned if entry.name != data.name]  # the rows are here by now
    # free space changes between looks
    on_main(lambda: check_disk(saved, ahead, context.run.root, progress, force=force))


def check_memory(costs: list[Cost], planning: Planning, progress: Progress, *, force: bool) -> None:
    """On one device, each training stage and scan alone."""
    recipe, room = planning.recipe, planning.machine.device.memory
    for cost in costs:
        if cost.memory is None or (needs := cost.memory.allocated) <= room * (1 - TOLERANCE):
            continue
        sentence = told(cost, room, planning)
        if not batch_is_known(cost.workload, recipe, planning.rows.count):
            progress.note(f"{sentence} Its rows may be fewer, and its micro-batches smaller, so it is tried.")
        elif needs * (1 - TOLERANCE) <= room:
            progress.note(f"{sentence} The prediction may be off by {TOLERANCE:.0%}, so it is tried.")
        elif force:
            progress.note(f"{sentence} It is tried all the same (--force).")
        else:
            advice = planning.advice(cost, room + cost.memory.reserve, 0)  # which is not part of what was found
            raise UserError(f"{sentence} {remedies(advice)}")


def check_disk(costs: list[Cost], planned: list[Planned], root: Path, progress: Progress, *, force: bool) -> None:
    """Models that will be kept, checkpoints on the way and copies of what is taken over and cannot be linked.

    What else a run writes is small, and guessed in a plan.
    """
    names = [entry.name for entry in planned]
    sizes = {entry.name: unlinkable(entry.taken, root / WORK) for entry in planned if entry.taken}
    written = {cost.workload.name: still_to_write(cost, root) for cost in costs}
    copied = {name: still_to_copy(name, size, root) for name, size in sizes.items() if size}
    need, linked = (disk_bytes(some[name] for name in names if name in some)[1] for some in (written | copied, written))
    if not (sentence := shortage(root, round(need), "The run")):
        return
    largest = max(costs, key=lambda cost: cost.work, default=None)
    if largest and largest.work:
        most = f"checkpoints of {largest.workload.name} are up to {gib(round(largest.work))} of it at once"
        sentence += f", or raise save_steps ({most})"
    sentence += "."
    if need > linked:
        sentence += (
            f" {gib(round(need - linked))} of it is for copies: what is taken over lies where it cannot be linked, "
            "such as on another disk; an --output beside it needs none."
        )
    if not force:
        raise UserError(f"{sentence} weakdriven run --force tries it all the same.")
    progress.note(f"{sentence} It is tried all the same (--force).")


def still_to_write(cost: Cost, root: Path) -> Cost:
    """Beyond what is on the disk now: an older result and what an earlier try has begun go when the stage is done."""
    older, begun = held(root / cost.workload.name), held(work_folder(root, cost.workload.name))
    return replace(cost, kept=cost.kept - older - begun, work=cost.work + older)


def still_to_copy(name: str, size: int, root: Path) -> Cost:
    """The same for a copy: one that was begun goes first, and what a try at computing the stage has left goes last."""
    home = work_folder(root, name)
    older, begun, out = held(root / name), held(home), held(home / "out")
    return Cost(Workload(name, "small"), kept=size - older - begun, work=older + begun - out)


def planning_of(context: Context, data: Stage) -> Planning:
    """With what is known once the rows are tokenised."""
    recipe = context.recipe
    config = read_config(context.base.folder, trust_remote_code=recipe.trust_remote_code)
    liger = fast_layers(recipe.fast_layers, config.model_type)
    beside = tokenizer_bytes(context.base.folder)
    return Planning(recipe, machine_at_hand(), rows_of(data.path), config, fast=liger, tokenizer_bytes=beside)


def told(cost: Cost, room: float, planning: Planning) -> str:
    """What a stage needs and why, in one sentence."""
    memory, workload = cost.memory, cost.workload
    assert memory is not None
    sizes = {name: size for name, size in memory.parts().items() if size >= 0.05 * GIB and name != "reserve"}
    split = ", ".join(f"{name} {size / GIB:.1f}" for name, size in sizes.items())
    where = "this computer" if planning.machine.device.is_cpu else "the GPU"
    if workload.kind == "scan":
        rows = f"batches of {planning.recipe.selection.batch_tokens:,} tokens"
    else:
        longest = planning.planner(planning.recipe).longest(workload)
        rows = f"micro-batches of {cost.micro_batch} with rows of up to {longest:,} tokens"
    needs = f"{workload.name} needs about {memory.allocated / GIB:.1f} GiB ({split})"
    return f"{needs} for {rows}, and {where} has {room / GIB:.1f}."


def remedies(advice: Advice) -> str:
    """The cheapest that would do, and the way around."""
    fitting = [change for change in advice.changes if change.fits][:3]
    if fitting:
        ways = "; or ".join(f"{change.override} (-{change.saves / GIB:.1f} GiB)" for change in fitting)
        found = f"Set {ways}."
    elif advice.together:
        found = f"Set {' '.join(advice.together)}, together."
    else:
        found = "No setting would make it fit: take a larger GPU or a smaller model."
    return f"{found} weakdriven run --force tries it all the same; a stage trained so is there for other commands too."


def ran_out(context: Context, work: Callable[[Context], Any], name: str, error: Exception) -> UserError | None:
    """The three cheapest remedies for a stage that has run out of memory, with what each frees; None: another error."""
    if not is_out_of_memory(error):
        return None
    workload = next((workload for workload in list_workloads(context, work) if workload.name == name), None)
    cheapest = dict[str, Change]()  # of each setting
    if workload and workload.kind in ("train", "scan"):
        try:
            planning = planning_of(context, data_stage(context))
            cost = planning.planner(context.recipe).cost(workload)
            for change in planning.advice(cost, planning.machine.device.memory, 0).changes:
                cheapest.setdefault(change.override.partition("=")[0], change)
        except UserError:  # an architecture that a plan does not know
            pass
    crowd = held_by_others() if isinstance(error, torch.OutOfMemoryError) else ""
    if not cheapest:
        return UserError(f"{name}: {explain(error)}{crowd}")
    ways = enumerate(list(cheapest.values())[:3], 1)
    listed = "; ".join(f"({place}) {in_words(change)}" for place, change in ways)
    what = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
    return UserError(
        f"{name} ran out of memory ({what}). The cheapest remedies, as predicted: {listed}. Run again with one of "
        f"them; finished stages are kept.{crowd}"
    )


def held_by_others() -> str:
    """A sentence where other processes have much of the GPU, so that the run itself may be without fault."""
    if not torch.cuda.is_available():
        return ""
    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError:  # a GPU so full that not even this can be asked
        return ""
    if (others := total - free - torch.cuda.memory_reserved()) < CROWDED:
        return ""
    return f" Other processes, such as runs beside this one, hold {gib(others)} of the GPU: without them it may fit."


def in_words(change: Change) -> str:
    slower = f", takes {change.time:.2f} times as long" if change.time > 1.005 else ""
    return f"{change.override} frees {gib(round(change.saves))}{slower} ({change.result})"
