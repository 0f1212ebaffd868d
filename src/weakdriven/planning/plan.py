"""`weakdriven plan`: the cost of a recipe on a machine, from the configuration of its model alone."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weakdriven.config.recipe import Recipe
from weakdriven.planning.advice import Advice, advise, largest_micro
from weakdriven.planning.costs import ANSWER_HIGH, ANSWER_LOW, ANSWER_SHARE, Cost, Planner, disk_bytes
from weakdriven.planning.devices import DEVICES, GIB, MEASURED, NODE, REACHED, Machine, match_device, parse_machine
from weakdriven.planning.model_shape import config_folder, read_config
from weakdriven.planning.rows import Rows, known_rows, sampled_rows
from weakdriven.runs.executor import Listing
from weakdriven.runs.files import digest
from weakdriven.runs.processes import size
from weakdriven.runs.stage import Stage
from weakdriven.stages.checks import UNSHARDED, refuse_processes
from weakdriven.stages.context import Context
from weakdriven.stages.model_loader import Model
from weakdriven.stages.workload import Workload, workload_of
from weakdriven.training.fsdp import fsdp_is_asked_for


@dataclass(frozen=True)
class Plan:
    """The cost of a recipe on a machine."""

    recipe: Recipe
    machine: Machine
    costs: list[Cost]
    advice: list[Advice]
    micro: dict[str, int]
    """Largest micro_batch_size of each training stage."""
    assumptions: list[str]
    guesses: list[str]
    runs: int = 1

    @property
    def seconds(self) -> tuple[float, float, float]:
        """At least, about, at most; ranges of stages add up, since what is wrong in one is wrong in all."""
        low, about, high = (sum(getattr(cost, name) for cost in self.costs) for name in ("low", "seconds", "high"))
        return low, about, high

    @property
    def disk(self) -> tuple[float, float]:
        """Bytes that stay, and the most there are at a time."""
        return disk_bytes(self.costs)

    @property
    def fits(self) -> bool:
        return not self.advice

    def to_json(self) -> dict[str, Any]:
        low, about, high = (value / 3600 for value in self.seconds)
        return {
            "recipe": self.recipe.name,
            "runs": self.runs,
            "machine": {
                "device": self.machine.device.name,
                "count": self.machine.count,
                "sharding": self.machine.sharding,
                "memory_bytes": round(self.machine.device.memory),
            },
            "stages": [
                cost.to_json() | {"largest_micro_batch_size": self.micro.get(cost.workload.name)} for cost in self.costs
            ],
            "fits": self.fits,
            "advice": [
                {
                    "stage": one.stage,
                    "needs_bytes": round(one.needs),
                    "largest_micro_batch_size": self.micro.get(one.stage, 0),
                    "changes": [asdict(change) for change in one.changes],
                    "together": one.together,
                }
                for one in self.advice
            ],
            "hours": [low, about, high],
            "gpu_hours": about * self.machine.count,
            "disk_bytes": round(self.disk[0]),
            "most_disk_bytes": round(self.disk[1]),
            "assumptions": self.assumptions,
            "guesses": self.guesses,
        }


def list_assumptions(planner: Planner, workloads: list[Workload]) -> list[str]:
    """What is not known and assumed in the numbers."""
    recipe, machine, kinds = planner.recipe, planner.machine, {workload.kind for workload in workloads}
    share = f"{100 * -np.expm1(-recipe.selection.multiplier):.0f}%"
    assumed = [
        (
            recipe.selection.dedup and any(workload.drawn for workload in workloads),
            f"An active set has {share} of the rows, which is the most that drawing can leave.",
        ),
        (
            any(workload.sampled for workload in workloads),
            "Every prompt gives a pair or a reply to learn from (rft: every sample), which is the most there can be.",
        ),
        (
            "generate" in kinds,
            f"A completion has {ANSWER_SHARE:.0%} of its limit of tokens; the range is {ANSWER_LOW:.0%} to "
            f"{ANSWER_HIGH:.0%}.",
        ),
        (planner.fast is None and planner.liger, "liger-kernel is installed there, so that fast_layers: auto is on."),
        (
            machine.count > NODE and "train" in kinds,
            f"More than {NODE} devices are several computers: a device sends {machine.link:.0f} GB/s, at most "
            f"{REACHED:.0%} of NDR InfiniBand's 400 Gb/s.",
        ),
        (machine.split > 1, "Weights, gradients and optimizer state are sharded over all devices (FSDP2)."),
    ]
    return [*planner.rows.assumptions, *(text for applies, text in assumed if applies)]


def list_guesses(planner: Planner, workloads: list[Workload]) -> list[str]:
    """What none of our measurements supports."""
    recipe, device, kinds = planner.recipe, planner.machine.device, {workload.kind for workload in workloads}
    trains, lora = "train" in kinds, recipe.lora
    offloads = any(workload.settings and workload.settings.activation_offloading for workload in workloads)
    engine = "vLLM's speed is not known" if recipe.eval.engine == "vllm" else "measured was a model of 0.5B"
    guessed = [
        (device.is_cpu, "Time on a CPU: two cores of a small server, whatever this one is."),
        (
            not device.is_cpu and device.name != MEASURED,
            f"Time on {device.name}: scaled from an H200 by published rates, not measured.",
        ),
        (
            trains and recipe.precision == "bf16-mixed" and not lora,
            "bf16-mixed: measured was bf16; fp32 weights and their copies in bf16 are counted.",
        ),
        (trains and recipe.precision == "fp16-mixed", "fp16-mixed: counted as bf16-mixed, not measured."),
        (trains and lora and lora.quantize, "QLoRA: counted from its formats, never run by us."),
        (
            trains and lora and not lora.quantize and recipe.precision != "bf16",
            f"LoRA under {recipe.precision}: measured was precision bf16.",
        ),
        (
            trains and planner.machine.count > 1,
            "Several devices: counted from what is sent and the links' published rates, not measured.",
        ),
        (offloads, "activation_offloading: its memory is counted, the time of its copies is not."),
        ("generate" in kinds and not device.is_cpu, f"Time of completions: {engine}."),
        (True, "The reserve: CUDA's context and what torch's allocator cannot use, or Python on a CPU."),
    ]
    return [text for applies, text in guessed if applies]


def plan_recipe(recipe: Recipe, root: Path, work: Callable[[Context], Any], **options: Any) -> Plan:
    """Every stage that `work` asks for; `options` are those of `plan_runs`."""
    return plan_runs([recipe], root, work, **options)


def plan_runs(
    recipes: Sequence[Recipe],
    root: Path,
    work: Callable[[Context], Any],
    *,
    gpus: str | None = None,
    sharding: str | None = None,
    rows: int | None = None,
) -> Plan:
    """Every stage that `work` asks for, on the devices named or on this machine; what a run refuses is refused.

    Args:
        recipes: Of one run, or of the runs of a comparison or a sweep, in which a stage that several have is computed
            once.
        root: Run directory; if it has the data tokenised already, row lengths are known.
        sharding: Over several devices; unset: fsdp, or ddp for adapters, DPO and SPIN, which FSDP cannot train.
        rows: Rows of data that is not here.
    """
    planners: dict[str, Planner] = {}
    known: set[str] = set()
    plans = []
    for recipe in recipes:
        machine = machine_for(recipe, gpus, sharding)
        folder = config_folder(recipe.model)
        same = recipe.model_dump_json(include={"model", "data", "chat_template", "trust_remote_code"})
        if same not in planners:
            lengths = known_rows(recipe, root) or sampled_rows(recipe, folder, rows)
            planners[same] = planner_for(recipe, folder, machine, lengths)
        planner = replace(planners[same], recipe=recipe, machine=machine)
        given = Model("sft", folder, "given") if recipe.sft.model else None
        # a listing renders nothing, so neither a tokenizer nor weights are needed
        context = Context(recipe, Listing(root), Model("base", folder, "base"), given, renderer=None)  # pyright: ignore
        stages = {identity(stage, recipe): stage for stage in context.listed(work)}
        plans.append(plan_workloads(planner, [workload_of(stage) for key, stage in stages.items() if key not in known]))
        known.update(stages)
    return joined(plans)


def identity(stage: Stage, recipe: Recipe) -> str:
    """What two runs share if it is equal: the stage's key where nothing has to be read for it."""
    if stage.name.startswith("eval/"):
        return digest([stage.name.split("/")[-1], stage.inputs["model"].key, recipe.eval.model_dump(mode="json")])
    if workload_of(stage).kind == "data":  # its key, and those of all after it, would need the rows and the tokenizer
        stage.__dict__["key"] = digest([stage.name, recipe.data.model_dump(mode="json")])
    return stage.key


def joined(plans: list[Plan]) -> Plan:
    """One plan of several runs."""
    first = plans[0]
    return replace(
        first,
        costs=[cost for plan in plans for cost in plan.costs],
        advice=list({advice.stage: advice for plan in plans for advice in plan.advice}.values()),
        micro={name: most for plan in reversed(plans) for name, most in plan.micro.items()},
        assumptions=list(dict.fromkeys(line for plan in plans for line in plan.assumptions)),
        guesses=list(dict.fromkeys(line for plan in plans for line in plan.guesses)),
        runs=len(plans),
    )


def machine_for(recipe: Recipe, gpus: str | None, sharding: str | None) -> Machine:
    whole = recipe.lora is not None or not {recipe.method, *recipe.baselines}.isdisjoint(UNSHARDED)
    machine = parse_machine(gpus, sharding or ("ddp" if whole else None)) if gpus else machine_at_hand()
    if machine.count > 1:
        refuse_processes(recipe, machine.count, sharded=machine.sharding == "fsdp")
    return machine


def plan_workloads(planner: Planner, workloads: list[Workload]) -> Plan:
    room = planner.machine.device.memory
    costs = [planner.cost(workload) for workload in workloads]
    return Plan(
        planner.recipe,
        planner.machine,
        costs,
        advice=[advise(planner, cost, room) for cost in costs if cost.memory and cost.memory.total > room],
        micro={workload.name: largest_micro(planner, workload) for workload in workloads if workload.kind == "train"},
        assumptions=list_assumptions(planner, workloads),
        guesses=list_guesses(planner, workloads),
    )


def planner_for(recipe: Recipe, folder: Path, machine: Machine, rows: Rows, fast: bool | None = None) -> Planner:
    """From the configuration of the model in `folder`, and the size of its tokenizer, assumed if it is not there."""
    config = read_config(folder, trust_remote_code=recipe.trust_remote_code)
    tokenizer_bytes = float(sum(path.stat().st_size for path in folder.glob("token*.json"))) or 12e6
    return Planner(recipe, machine, rows, config, fast, tokenizer_bytes)


def machine_at_hand() -> Machine:
    """The GPU of each process of this run, or its part of this computer's memory."""
    spread = "none" if size() == 1 else "fsdp" if fsdp_is_asked_for() else "ddp"
    if torch.cuda.is_available():
        known = match_device(torch.cuda.get_device_name()) or replace(DEVICES[MEASURED], name="this GPU")
        return Machine(replace(known, memory_gib=torch.cuda.mem_get_info()[1] / GIB), size(), spread)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return Machine(replace(DEVICES["CPU"], memory_gib=main_memory() / here / GIB), size(), spread)


def main_memory() -> float:
    """Bytes of this computer's memory, or of what its container may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(place).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return float(total)
