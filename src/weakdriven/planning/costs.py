"""Compute the cost of each stage of a recipe from the model's shape, the rows of the data and the machine."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from weakdriven.config.recipe import LoraSettings, Recipe, SftSettings
from weakdriven.config.settings import SupervisedSettings, TrainSettings
from weakdriven.methods.control_stages import TokenCosts
from weakdriven.planning.devices import Machine
from weakdriven.planning.memory import Memory, Step, forward_memory, training_memory
from weakdriven.planning.model_config import shape_of
from weakdriven.planning.model_shape import Shape
from weakdriven.planning.rows import Rows, validation_count
from weakdriven.planning.speed import SPREAD, generation_seconds, micro_work, scan_seconds, step_seconds
from weakdriven.runs.directory import VALIDATION
from weakdriven.runs.disk import CHECKPOINTS
from weakdriven.runs.processes import divide
from weakdriven.stages.workload import Workload
from weakdriven.training.optimizer import state_bytes

ANSWER_SHARE, ANSWER_LOW, ANSWER_HIGH = 0.25, 0.1, 1.0
"""Assumed mean length of a completion as a share of its token limit, and the range that is reported."""
TOKEN_BYTES = 8
"""Bytes per token in the tokenized file: id and label."""
SCORE_BYTES = 60
"""Bytes per row in a file of scores; about the same in an active set."""
ANSWER_BYTES = 5
"""Bytes per token of a completion, as text with its metadata."""
LIGER = {"qwen2", "qwen3", "llama", "mistral", "gemma", "gemma2", "gemma3_text", "phi3", "granite", "olmo2", "mixtral"}
"""Model types that Liger supports, for plans of other machines."""


@dataclass(frozen=True)
class Cost:
    """The cost of one stage."""

    workload: Workload
    parameters: int = 0
    trained: int = 0
    memory: Memory | None = None
    micro_batch: int = 0
    steps: int = 0
    tokens: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    low: float = 0.0
    high: float = 0.0
    kept: float = 0.0
    """Bytes on disk once it is finished."""
    work: float = 0.0
    """Additional bytes on disk while it runs: checkpoints."""

    def to_json(self) -> dict[str, Any]:
        memory = {name: round(size) for name, size in self.memory.parts().items()} if self.memory else None
        return {
            "stage": self.workload.name,
            "kind": self.workload.kind,
            "parameters": self.parameters,
            "trained": self.trained,
            "memory_bytes": memory,
            "peak_bytes": round(self.memory.total) if self.memory else None,
            "peak_moment": self.memory.moment if self.memory else None,
            "micro_batch_size": self.micro_batch,
            "steps": self.steps,
            "tokens": round(self.tokens),
            "flops": self.flops,
            "hours": [self.low / 3600, self.seconds / 3600, self.high / 3600],
            "disk_bytes": round(self.kept),
            "work_bytes": round(self.work),
        }


def disk_bytes(costs: Iterable[Cost]) -> tuple[float, float]:
    """Return the bytes on disk after all stages, and the maximum at any time."""
    kept, most = 0.0, 0.0
    for cost in costs:
        most = max(most, kept + cost.kept + cost.work)
        kept += cost.kept
    return kept, most


def active_rows(rows: int, multiplier: float, dedup: bool) -> int:
    """Return the rows of an active set; with `dedup` the expected number for uniform probabilities, which is the most.

    >>> active_rows(1000, 1.0, dedup=True), active_rows(1000, 1.0, dedup=False)
    (632, 1000)
    """
    draws = multiplier * rows
    return max(round(rows * -math.expm1(-draws / rows) if dedup else draws), 1)


def micro_batch(rows: int, batch: int, micro: int, devices: int = 1) -> tuple[int, int]:
    """Return the rows of a micro-batch on one device, and the micro-batches of a step; fewer rows make a smaller batch.

    >>> micro_batch(1000, 512, 6), micro_batch(1000, 512, 16, devices=8)
    ((2, 256), (16, 4))
    """
    return divide(max(min(batch, rows), devices), micro, devices)


def epoch_rows(workload: Workload, recipe: Recipe, count: int) -> int:
    """Return the rows of an epoch of a training stage, or an upper bound if its rows are drawn or sampled.

    Args:
        count: Number of rows of the training data.
    """
    drawn = active_rows(count, recipe.selection.multiplier, recipe.selection.dedup)
    if workload.budget:  # the cost of WMSS in rows of SFT, as if all rows had the average length
        costs, joint = TokenCosts.of(recipe), recipe.joint
        rows = count if recipe.selection.match_steps or not recipe.selection.enabled else drawn
        first = 0 if recipe.sft.model else costs.sft * recipe.sft.epochs * count
        return costs.in_sft_rows(first + costs.scans * count + costs.pair * joint.rounds * joint.epochs * rows, 1.0)
    if workload.verified:
        return count + most_pairs("rft", recipe, count)
    if workload.sampled:
        return most_pairs(workload.block, recipe, count)
    return drawn if workload.drawn else count


def batch_is_known(workload: Workload, recipe: Recipe, count: int) -> bool:
    """Return whether the batch size is known before the stage's rows are drawn or sampled.

    It is not if they may be fewer than a batch: then they are one batch, whose divisors are the possible micro-batches.
    """
    if workload.settings is None or not (workload.sampled or workload.drawn):
        return True
    return epoch_rows(workload, recipe, count) >= workload.settings.batch_size


def most_pairs(block: str, recipe: Recipe, count: int) -> int:
    """Return the maximum number of pairs or replies of a method that samples: one per prompt, or for RFT and SPIN one
    per sample."""
    rollouts = getattr(recipe, block).rollouts
    return min(rollouts.subsample or count, count) * (rollouts.samples if block in ("rft", "spin") else 1)


_shapes: dict[tuple[type, str, str], Shape] = {}
"""Shapes by configuration and adapter, shared by changed recipes and by the runs of a comparison or sweep."""


@dataclass(frozen=True)
class Planner:
    """Computes the cost of every stage of a recipe."""

    recipe: Recipe
    machine: Machine
    rows: Rows
    config: Any
    """The model's configuration."""
    fast: bool | None = None
    """Whether Liger's layers are used; None: if the recipe and the model allow it."""
    tokenizer_bytes: float = 12e6

    def under(self, recipe: Recipe) -> "Planner":
        """Return the planner of a changed recipe, which may truncate rows."""
        names, limit = ("longest", "likely_longest", "mean"), recipe.data.max_length
        rows = replace(self.rows, **{name: min(getattr(self.rows, name), limit) for name in names})
        return replace(self, recipe=recipe, rows=rows)

    @property
    def shape(self) -> Shape:
        """Shape of the model, with the recipe's adapter if there is one."""
        return self.shape_with(self.recipe.lora)

    def shape_with(self, lora: LoraSettings | None) -> Shape:
        key = type(self.config), self.config.to_json_string(use_diff=False), lora.model_dump_json() if lora else ""
        if key not in _shapes:
            _shapes[key] = shape_of(self.config, lora, trust_remote_code=self.recipe.trust_remote_code)
        return _shapes[key]

    def shape_for(self, workload: Workload) -> Shape:
        return self.shape_with(self.recipe.student_lora) if workload.adapter else self.shape

    @property
    def liger(self) -> bool:
        if self.recipe.fast_layers == "off" or self.machine.device.is_cpu:
            return False
        return self.config.model_type in LIGER if self.fast is None else self.fast

    def longest(self, workload: Workload) -> int:
        return self.rows.likely_longest if workload.active or workload.pairs else self.rows.longest

    def cost(self, workload: Workload) -> Cost:
        rows = self.rows
        if workload.kind == "train":
            return self._train(workload)
        if workload.name.startswith(("validation/", VALIDATION)):
            rows = replace(rows, count=validation_count(self.recipe, rows.count))
            return replace(self, rows=rows)._scan_or_data(workload)
        if workload.kind in ("scan", "data"):
            return self._scan_or_data(workload)
        if workload.kind == "generate":
            return self._generate(workload)
        if workload.name == "merged":
            return Cost(workload, self.shape.parameters, kept=self._model_bytes(replace(self.shape, adapter=None)))
        if workload.name.startswith("targets/"):  # per token: ids and logits of the top_k, and one number
            count = most_pairs("ssb", self.recipe, rows.count)
            found = replace(self, rows=replace(rows, count=count))._scan(workload)
            return replace(found, kept=count * rows.mean * (TOKEN_BYTES + 6 * self.recipe.ssb.top_k + 4))
        if workload.name == "verified/rft":
            texts = rows.count + most_pairs("rft", self.recipe, rows.count)
            return Cost(workload, kept=texts * TOKEN_BYTES * rows.mean)
        if workload.name.startswith(("pairs/", "hints/")):
            block = workload.name.partition("/")[2].partition("-")[0]
            texts = most_pairs(block, self.recipe, rows.count)
            return Cost(workload, kept=texts * ANSWER_BYTES * 2 * rows.mean)
        return Cost(workload, kept=rows.count * SCORE_BYTES)

    def _train(self, workload: Workload) -> Cost:
        settings, shape = workload.settings, self.shape_for(workload)
        assert settings is not None
        rows, devices = epoch_rows(workload, self.recipe, self.rows.count), self.machine.count
        longest, fit = self.longest(workload), settings.micro_batch_size
        packing = is_packed(settings, self.recipe.precision, on_cpu=self.machine.device.is_cpu)
        if packing:
            fit = max(int(fit * self.recipe.data.max_length / self.rows.mean), 1)
        micro, many = micro_batch(rows, settings.batch_size, fit, devices)
        if packing:  # sequences are full, whatever the lengths of their rows
            longest = settings.micro_batch_size * self.recipe.data.max_length / micro
        largest = self._step(workload, length=longest, micro=micro, accumulates=many > 1)
        mean = self._step(workload, length=self.rows.mean, micro=micro)
        steps = settings.steps(rows, workload.epochs)
        seconds = steps * step_seconds(mean, self.machine, many)
        work = micro_work(mean)
        read = 2 * rows * self.rows.mean if workload.pairs else 0.0  # the reference model reads both sides once
        if isinstance(settings, SupervisedSettings) and (every := settings.evaluates_every(steps)):
            evaluations = math.ceil(steps / every)
            read += workload.models * evaluations * validation_count(self.recipe, self.rows.count) * self.rows.mean
        seconds += scan_seconds(self._forward(self.rows.mean), self.machine.device, read) / devices
        # the trained weights of every model, and the optimizer state of those that learn
        size = 2 if shape.adapter is None and self.recipe.precision == "bf16" else 4
        states = workload.trained * shape.trained * state_bytes(settings.optimizer, size)
        checkpoint = workload.models * shape.trained * size + states + self.tokenizer_bytes
        writes = min(settings.saves(steps), CHECKPOINTS)
        candidates = 1 + writes if isinstance(settings, SftSettings) and settings.keep == "best" else 0
        saved = shape if self.recipe.lora else replace(shape, adapter=None)  # SSB's own adapter is merged
        return Cost(
            workload,
            parameters=shape.parameters * (1 if shape.adapter else workload.models),
            trained=workload.trained * shape.trained,
            memory=training_memory(largest, self.machine),
            micro_batch=micro,
            steps=steps,
            tokens=workload.trained * mean.tokens * many * devices * steps,
            flops=work.flops * many * devices * steps + read * shape.forward_flops(self.rows.mean),
            seconds=seconds,
            low=seconds * (1 - SPREAD),
            high=seconds * (1 + SPREAD),
            kept=(workload.saves + len(settings.snapshots)) * self._model_bytes(saved),
            work=writes * checkpoint + candidates * self._model_bytes(saved),
        )

    def _step(self, workload: Workload, *, length: float, micro: int, accumulates: bool = True) -> Step:
        settings = workload.settings
        assert settings is not None
        return Step(
            shape=self.shape_for(workload),
            tokens=micro * length * (2 if workload.pairs else 1),
            length=length,
            models=workload.models,
            trained=workload.trained,
            teacher=workload.teacher is not None,
            precision="bf16-mixed" if self.recipe.precision == "fp16-mixed" else self.recipe.precision,
            optimizer=settings.optimizer,
            checkpointing=settings.gradient_checkpointing,
            offloading=settings.activation_offloading,
            fast=self.liger,
            masked=micro > 1 or workload.pairs,
            eager=self.recipe.attention == "eager",
            accumulates=accumulates,
            on_cpu=self.machine.device.is_cpu,
        )

    def _forward(self, tokens: float) -> Step:
        """Return a forward pass over rows of the mean length."""
        precision = "fp32" if self.recipe.precision == "fp32" else "bf16"
        options: dict[str, Any] = {"fast": self.liger, "on_cpu": self.machine.device.is_cpu}
        return Step(self.shape, tokens, self.rows.mean, trained=0, precision=precision, **options)

    def _model_bytes(self, shape: Shape) -> float:
        """Return the bytes of a saved model (bf16 unless the recipe is fp32) or adapter (as trained), with
        tokenizer."""
        if shape.adapter:
            return shape.adapter.parameters * (2 if shape.adapter.quantized else 4) + self.tokenizer_bytes
        return shape.parameters * (4 if self.recipe.precision == "fp32" else 2) + self.tokenizer_bytes

    def _scan_or_data(self, workload: Workload) -> Cost:
        rows = self.rows
        if workload.kind == "scan":
            return self._scan(workload)
        kept = rows.count * (TOKEN_BYTES * rows.mean + rows.text_bytes)
        return Cost(workload, tokens=rows.count * rows.mean, kept=kept)

    def _scan(self, workload: Workload) -> Cost:
        rows = self.rows
        batch, tokens = max(self.recipe.selection.batch_tokens, rows.longest), rows.count * rows.mean
        seconds = scan_seconds(self._forward(batch), self.machine.device, tokens) / self.machine.count
        return Cost(
            workload,
            parameters=self.shape.parameters,
            memory=forward_memory(self._forward(min(batch, tokens))),
            tokens=tokens,
            flops=tokens * self.shape.forward_flops(rows.mean),
            seconds=seconds,
            low=seconds * (1 - SPREAD),
            high=seconds * (1 + SPREAD),
            kept=rows.count * SCORE_BYTES,
        )

    def _generate(self, workload: Workload) -> Cost:
        recipe, device, shape = self.recipe, self.machine.device, replace(self.shape, adapter=None)
        prompts = workload.prompts if workload.prompts is not None else self.rows.count
        answers, size = prompts * workload.samples, 4 if recipe.precision == "fp32" else 2
        prompt = min(self.rows.mean / 2, 512)
        longest = prompt + workload.new_tokens
        cache = 2 * shape.key * shape.layers * size * longest
        free = max(0.6 * device.memory - shape.parameters * size, cache)
        batch = recipe.eval.batch_size or (64 if device.is_cpu else 512)
        batch = max(min(batch, int(free / cache)), 1)
        shared = {"answers": answers / self.machine.count, "prompt": prompt, "batch": batch, "size": size}
        middle, low, high = (
            generation_seconds(shape, device, tokens=max(share * workload.new_tokens, 1.0), **shared)
            for share in (ANSWER_SHARE, ANSWER_LOW, ANSWER_HIGH)
        )
        tokens = answers * ANSWER_SHARE * workload.new_tokens
        together = min(batch, answers)
        return Cost(
            workload,
            parameters=shape.parameters,
            memory=forward_memory(self._forward(together * prompt), cache_tokens=together * longest),
            tokens=tokens,
            flops=2.0 * shape.products * (tokens + answers * prompt),
            seconds=middle,
            low=low,
            high=high,
            kept=tokens * ANSWER_BYTES + answers * 300,
        )


def is_packed(settings: TrainSettings, precision: str, *, on_cpu: bool) -> bool:
    """Whether a phase packs its examples, if its model keeps them apart (`training/packing.py` asks the model)."""
    if not isinstance(settings, SupervisedSettings):
        return False
    return settings.packing is True or (settings.packing == "auto" and not on_cpu and precision != "fp32")
