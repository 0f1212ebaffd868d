"""`weakdriven plan`: predict the cost of a recipe on a machine from the configuration of its model."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from weakdriven.config.recipe import Recipe
from weakdriven.planning.advice import Advice, advise, largest_micro
from weakdriven.planning.costs import ANSWER_HIGH, ANSWER_LOW, ANSWER_SHARE, Cost, Planner, disk_bytes
from weakdriven.planning.devices import DEVICES, GIB, MEASURED, NODE, REACHED, Machine, match_device, parse_machine
from weakdriven.planning.model_config import config_folder, read_config
from weakdriven.planning.rows import Rows, known_rows, sampled_rows
from weakdriven.runs.executor import Listing
from weakdriven.runs.files import digest
from weakdriven.runs.processes import size
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.model import Model
from weakdriven.stages.workload import Workload, workload_of
from weakdriven.training.launch import UNSHARDED, fsdp_is_asked_for, refuse_processes


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
        """Low, expected and high time; the ranges of stages are added, because their errors are not independent."""
        low, about, high = (sum(getattr(cost, name) for cost in self.costs) for name in ("low", "seconds", "high"))
        return low, about, high

    @property
    def disk(self) -> tuple[float, float]:
        """Bytes on disk after the run, and the maximum during it."""
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
    """List the facts that are unknown and assumed."""
    recipe, machine, kinds = planner.recipe, planner.machine, {workload.kind for workload in workloads}
    share = f"{100 * -np.expm1(-recipe.selection.multiplier):.0f}%"
    assumed = [
        (
            recipe.selection.dedup and any(workload.drawn for workload in workloads),
            f"An active set has {share} of the rows, which is the expected maximum.",
        ),
        (
            any(workload.sampled for workload in workloads),
            "Every prompt gives a pair or a reply to learn from (rft: every sample), which is the maximum.",
        ),
        (
            "generate" in kinds,
            f"A completion takes {ANSWER_SHARE:.0%} of its token limit; the range is {ANSWER_LOW:.0%} to "
            f"{ANSWER_HIGH:.0%}.",
        ),
        (planner.fast is None and planner.liger, "liger-kernel is installed there, so fast_layers: auto uses it."),
        (
            machine.count > NODE and "train" in kinds,
            f"More than {NODE} devices are in several computers: a device sends {machine.link:.0f} GB/s, at most "
            f"{REACHED:.0%} of NDR InfiniBand's 400 Gb/s.",
        ),
        (machine.split > 1, "Weights, gradients and optimizer state are sharded over all devices (FSDP2)."),
    ]
    return [*planner.rows.assumptions, *(text for applies, text in assumed if applies)]


def list_guesses(planner: Planner, workloads: list[Workload]) -> list[str]:
    """List the parts of a plan that no measurement supports."""
    recipe, device, kinds = planner.recipe, planner.machine.device, {workload.kind for workload in workloads}
    trains, lora = "train" in kinds, recipe.lora
    offloads = any(workload.settings and workload.settings.activation_offloading for workload in workloads)
    engine = "vLLM was not measured" if recipe.eval.engine == "vllm" else "only a model of 0.5B was measured"
    guessed = [
        (device.is_cpu, "Time on a CPU: assumes two cores of a small server."),
        (
            not device.is_cpu and device.name != MEASURED,
            f"Time on {device.name}: scaled from an H200 by published rates, not measured.",
        ),
        (
            trains and recipe.precision == "bf16-mixed" and not lora,
            "bf16-mixed: fp32 weights and their bf16 copies are counted, but only bf16 was measured.",
        ),
        (trains and recipe.precision == "fp16-mixed", "fp16-mixed: counted as bf16-mixed, not measured."),
        (trains and lora and lora.quantize, "QLoRA: counted from its number formats, not measured."),
        (
            trains and lora and not lora.quantize and recipe.precision != "bf16",
            f"LoRA with {recipe.precision}: only precision bf16 was measured.",
        ),
        (
            trains and planner.machine.count > 1,
            "Several devices: counted from the traffic and published link rates, not measured.",
        ),
        (offloads, "activation_offloading: its memory is counted, the time of its copies is not."),
        ("generate" in kinds and not device.is_cpu, f"Time of completions: {engine}."),
        (True, "The reserve: CUDA's context and fragmentation in torch's allocator, or Python on a CPU."),
    ]
    return [text for applies, text in guessed if applies]


def plan_recipe(recipe: Recipe, root: Path, work: Callable[[Context], Any], **options: Any) -> Plan:
    """Plan the stages of one run that `work` asks for; `options` are those of `plan_runs`."""
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
    """Plan every stage that `work` asks for, on the named devices or this machine; settings are checked as in a run.

    Args:
        recipes: Recipes of one run, or of the runs of a comparison or a sweep; stages that runs share count once.
        root: Run directory; if its data is already tokenized, the row lengths are known.
        sharding: How weights are distributed over several devices; None for fsdp, or for ddp with adapters, DPO and
            SPIN, which FSDP cannot train.
        rows: Number of rows, if the data is not on this machine.
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
        base, room = Model("base", folder, "base"), getattr(planner.config, "max_position_embeddings", None)
        # listing stages needs neither a tokenizer nor weights
        context = Context(recipe, Listing(root), base, given, renderer=None, positions=room)  # pyright: ignore
        stages = {identity(stage, recipe): stage for stage in context.listed(work)}
        plans.append(plan_workloads(planner, [workload_of(stage) for key, stage in stages.items() if key not in known]))
        known.update(stages)
    return joined(plans)


def identity(stage: Stage, recipe: Recipe) -> str:
    """Return an identity of a stage that equal stages of several runs share: its key, if that needs no data."""
    if stage.name.startswith("eval/"):
        return digest([stage.name.split("/")[-1], stage.inputs["model"].key, recipe.eval.model_dump(mode="json")])
    if (
        workload_of(stage).kind == "data"
    ):  # the real key, and all that depend on it, would need the rows and the tokenizer
        stage.__dict__["key"] = digest([stage.name, recipe.data.model_dump(mode="json")])
    return stage.key


def joined(plans: list[Plan]) -> Plan:
    """Join the plans of several runs into one."""
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
    """Return the planner for the model in `folder`; if that has no tokenizer, its size is assumed."""
    config = read_config(folder, trust_remote_code=recipe.trust_remote_code)
    tokenizer_bytes = float(sum(path.stat().st_size for path in folder.glob("token*.json"))) or 12e6
    return Planner(recipe, machine, rows, config, fast, tokenizer_bytes)


def machine_at_hand() -> Machine:
    """Return this machine: one GPU per process of this run, or the CPU with each process's share of memory."""
    import torch

    spread = "none" if size() == 1 else "fsdp" if fsdp_is_asked_for() else "ddp"
    if torch.cuda.is_available():
        known = match_device(torch.cuda.get_device_name()) or replace(DEVICES[MEASURED], name="this GPU")
        return Machine(replace(known, memory_gib=torch.cuda.mem_get_info()[1] / GIB), size(), spread)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return Machine(replace(DEVICES["CPU"], memory_gib=main_memory() / here / GIB), size(), spread)


def main_memory() -> float:
    """Return the bytes of memory of this computer, or the limit of its container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(place).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return float(total)
