"""`weakdriven plan`: what a recipe takes on a machine, from its configuration alone."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weakdriven.config.file import apply_override, parse_recipe
from weakdriven.config.recipe import LoraSettings, Recipe
from weakdriven.planning.advice import advise, candidates, largest_micro
from weakdriven.planning.costs import ANSWER_HIGH, ANSWER_LOW, ANSWER_SHARE, Advice, Cost, disk_bytes
from weakdriven.planning.devices import (
    DEVICES,
    MEASURED,
    NODE,
    REACHED,
    Machine,
    match_device,
    parse_machine,
    this_much,
)
from weakdriven.planning.model_shape import config_folder, read_config, shape_of
from weakdriven.planning.rows import Rows, known_rows, sampled_rows
from weakdriven.planning.shape import Adapter, Shape
from weakdriven.planning.stage_costs import Planner, epoch_rows, student_lora
from weakdriven.runs.executor import Listing
from weakdriven.runs.processes import size
from weakdriven.stages.checks import UNSHARDED, refuse_processes
from weakdriven.stages.context import Context
from weakdriven.stages.model_loader import Model
from weakdriven.stages.workload import Workload, list_workloads
from weakdriven.training.fsdp import fsdp_is_asked_for

LIGER = {"qwen2", "qwen3", "llama", "mistral", "gemma", "gemma2", "gemma3_text", "phi3", "granite", "olmo2", "mixtral"}
"""Model types that Liger has layers for, for machines that are not this one."""


@dataclass(frozen=True)
class Plan:
    """What a recipe takes on a machine."""

    recipe: Recipe
    machine: Machine
    costs: list[Cost]
    advice: list[Advice]
    micro: dict[str, int]
    """Largest micro_batch_size of each training stage."""
    assumptions: list[str]
    guesses: list[str]

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
                    "largest_micro_batch_size": one.micro_batch,
                    "changes": [
                        {"override": c.override, "saves_bytes": round(c.saves), "time": c.time, "fits": c.fits}
                        | {"result": c.result}
                        for c in one.changes
                    ],
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


@dataclass
class Planning:
    """A recipe, a machine and the rows; plans of changed recipes come from it too."""

    recipe: Recipe
    machine: Machine
    rows: Rows
    config: Any
    fast: bool | None = None
    """Whether Liger's layers are used; None: wherever the recipe and the model allow it."""
    tokenizer_bytes: float = 12e6
    _shapes: dict[str, Shape] = field(default_factory=dict)

    def shape(self, lora: LoraSettings | None) -> Shape:
        key = lora.model_dump_json() if lora else ""
        if key not in self._shapes:
            self._shapes[key] = shape_of(self.config, lora, trust_remote_code=self.recipe.trust_remote_code)
        return self._shapes[key]

    def planner(self, recipe: Recipe) -> Planner:
        shape = self.shape(recipe.lora)
        adapters: dict[int, Adapter] = {}
        if "ssb" in (recipe.method, *recipe.baselines):
            adapter = self.shape(student_lora(recipe, recipe.ssb)).adapter
            assert adapter is not None
            adapters[recipe.ssb.rank] = adapter
        rows, limit = self.rows, recipe.data.max_length
        if limit < rows.longest:  # a recipe with shorter rows than this one
            shorter = {name: min(getattr(rows, name), limit) for name in ("longest", "likely_longest", "mean")}
            rows = replace(rows, **shorter)
        return Planner(recipe, shape, rows, self.machine, self.uses_liger(recipe), self.tokenizer_bytes, adapters)

    def uses_liger(self, recipe: Recipe) -> bool:
        if recipe.fast_layers == "off" or self.machine.device.is_cpu:
            return False
        return self.config.model_type in LIGER if self.fast is None else self.fast

    def plan(self, workloads: list[Workload]) -> Plan:
        planner, advice, micro = self.planner(self.recipe), list[Advice](), dict[str, int]()
        costs = [planner.cost(workload) for workload in workloads]
        room = self.machine.device.memory
        for cost in costs:
            workload, largest = cost.workload, 0
            if workload.kind == "train" and workload.settings:
                rows = epoch_rows(workload, self.recipe, self.rows.count)
                batch = max(min(workload.settings.batch_size, rows) // self.machine.count, 1)
                largest = micro[workload.name] = largest_micro(workload, batch, room, planner.cost)
            if cost.memory and cost.memory.total > room:
                advice.append(self.advice(cost, room, largest))
        unsure = self.assumptions(workloads), self.guesses(workloads)
        return Plan(self.recipe, self.machine, costs, advice, micro, *unsure)

    def advice(self, cost: Cost, room: float, largest: int) -> Advice:
        workload, on_cpu = cost.workload, self.machine.device.is_cpu

        def attempt(overrides: list[str]) -> Cost:
            tree = self.recipe.model_dump(mode="json")
            for override in overrides:
                apply_override(tree, override)
            recipe = parse_recipe(tree, self.recipe.name)
            return self.planner(recipe).cost(workload.under(recipe))

        choices = candidates(workload, self.recipe, cost.micro_batch, on_cpu=on_cpu, sharding=self.machine.sharding)
        return advise(cost, room, choices, attempt, largest)

    def assumptions(self, workloads: list[Workload]) -> list[str]:
        """What is not known and stands in the numbers all the same."""
        found = list(self.rows.assumptions)
        recipe = self.recipe
        if any(workload.active and not workload.matched for workload in workloads) and recipe.selection.dedup:
            share = f"{100 * -np.expm1(-recipe.selection.multiplier):.0f}%"
            found.append(f"An active set has {share} of the rows, which is the most that drawing can leave.")
        if any(workload.pairs or workload.adapter for workload in workloads):
            found.append("Every prompt gives a pair or a reply to learn from, which is the most there can be.")
        if any(workload.kind == "generate" for workload in workloads):
            found.append(
                f"A completion has {ANSWER_SHARE:.0%} of the tokens that it may have; the range is {ANSWER_LOW:.0%} to "
                f"{ANSWER_HIGH:.0%}."
            )
        if self.fast is None and self.uses_liger(recipe):
            found.append("liger-kernel is installed there, so that fast_layers: auto is on.")
        if self.machine.count > NODE and any(workload.kind == "train" for workload in workloads):
            found.append(
                f"More than {NODE} devices are several computers: a device sends {self.machine.link:.0f} GB/s, at most "
                f"{REACHED:.0%} of NDR InfiniBand's 400 Gb/s."
            )
        if self.machine.split > 1:
            found.append("Weights, gradients and optimizer state are split over all devices (FSDP2).")
        return found

    def guesses(self, workloads: list[Workload]) -> list[str]:
        """What no measurement of ours stands behind."""
        recipe, device, found = self.recipe, self.machine.device, list[str]()
        trains = any(workload.kind == "train" for workload in workloads)
        if device.is_cpu:
            found.append("Time on a CPU: two cores of a small server, whatever this one is.")
        elif device.name != MEASURED:
            found.append(f"Time on {device.name}: scaled from an H200 by published rates, not measured.")
        if trains and recipe.precision == "bf16-mixed" and not recipe.lora:
            found.append("bf16-mixed: measured was bf16; fp32 weights and their copies in bf16 are counted.")
        if trains and recipe.lora and recipe.lora.quantize:
            found.append("QLoRA: counted from its formats, never run by us.")
        elif trains and recipe.lora and recipe.precision != "bf16":
            found.append(f"LoRA under {recipe.precision}: measured was precision bf16.")
        if trains and self.machine.count > 1:
            found.append("Several devices: counted from what is sent and the links' published rates, not measured.")
        if any(workload.settings and workload.settings.activation_offloading for workload in workloads):
            found.append("activation_offloading: its memory is counted, the time of its copies is not.")
        if any(workload.kind == "generate" for workload in workloads) and not device.is_cpu:
            engine = "vLLM's speed is not known" if recipe.eval.engine == "vllm" else "measured was a model of 0.5B"
            found.append(f"Time of completions: {engine}.")
        found.append("The reserve: CUDA's context and what torch's allocator cannot use, or Python on a CPU.")
        return found


def plan_recipe(
    recipe: Recipe,
    root: Path,
    work: Callable[[Context], Any],
    *,
    gpus: str | None = None,
    sharding: str | None = None,
    rows: int | None = None,
) -> Plan:
    """Every stage that `work` asks for, on the devices named or on this machine; what a run refuses is refused.

    Args:
        root: Run directory; if it has the data tokenised already, row lengths are known.
        sharding: Over several devices; unset: fsdp, or ddp for adapters, DPO and SPIN, which FSDP cannot train.
        rows: Rows of data that is not here.
    """
    whole = recipe.lora is not None or not {recipe.method, *recipe.baselines}.isdisjoint(UNSHARDED)
    machine = parse_machine(gpus, sharding or ("ddp" if whole else None)) if gpus else machine_at_hand()
    if machine.count > 1:
        refuse_processes(recipe, machine.count, sharded=machine.sharding == "fsdp")
    folder = config_folder(recipe.model)
    config = read_config(folder, trust_remote_code=recipe.trust_remote_code)
    facts = known_rows(recipe, root) or sampled_rows(recipe, folder, rows)
    planning = Planning(recipe, machine, facts, config, tokenizer_bytes=tokenizer_bytes(folder))
    given = Model("sft", folder, "given") if recipe.sft.model else None
    # a listing renders nothing and reads no key, so neither a tokenizer nor weights are needed
    context = Context(recipe, Listing(root), Model("base", folder, "base"), given, renderer=None)  # pyright: ignore
    return planning.plan(list_workloads(context, work))


def tokenizer_bytes(folder: Path) -> float:
    """Of its files, which every saved model has; assumed where they are not here."""
    return float(sum(path.stat().st_size for path in folder.glob("token*.json"))) or 12e6


def machine_at_hand() -> Machine:
    """The GPU of each process of this run, with the memory that it has; or its part of this computer's memory."""
    spread = "none" if size() == 1 else "fsdp" if fsdp_is_asked_for() else "ddp"
    if torch.cuda.is_available():
        known = match_device(torch.cuda.get_device_name()) or replace(DEVICES[MEASURED], name="this GPU")
        return Machine(this_much(known, torch.cuda.mem_get_info()[1]), size(), spread)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return Machine(this_much(DEVICES["CPU"], main_memory() / here), size(), spread)


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
