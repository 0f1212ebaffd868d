"""What each stage of a recipe takes, from its shape, its rows and the machine."""

import math
from dataclasses import dataclass, replace

from weakdriven.config.baselines import SsbSettings
from weakdriven.config.recipe import LoraSettings, Recipe
from weakdriven.methods.control_stages import TokenCosts
from weakdriven.planning.costs import ANSWER_HIGH, ANSWER_LOW, ANSWER_SHARE, Cost, Workload, active_rows, micro_batch
from weakdriven.planning.devices import Machine
from weakdriven.planning.memory import Step, forward_memory, training_memory
from weakdriven.planning.rows import Rows
from weakdriven.planning.shape import Adapter, Shape
from weakdriven.planning.speed import SPREAD, generation_seconds, micro_work, scan_seconds, step_seconds
from weakdriven.runs.disk import CHECKPOINTS
from weakdriven.training.optimizer import state_bytes

TOKEN_BYTES = 8
"""Of a token in the tokenised file: its id and its label."""
SCORE_BYTES = 60
"""Of a row in a file of scores, and about as much in an active set."""
ANSWER_BYTES = 5
"""Of a token of a completion, as text with what is kept beside it."""


def epoch_rows(workload: Workload, recipe: Recipe, count: int) -> int:
    """Rows of an epoch of a training stage; of one whose rows are drawn or sampled, the most there can be.

    Args:
        count: Rows of the training data.
    """
    if workload.budget:  # what WMSS costs in rows of SFT, if all rows were of average length
        costs, joint = TokenCosts.of(recipe), recipe.joint
        drawn = active_rows(count, recipe.selection.multiplier, recipe.selection.dedup)
        rows = count if recipe.selection.match_steps or not recipe.selection.enabled else drawn
        first = 0 if recipe.sft.model else costs.sft * recipe.sft.epochs * count
        return costs.in_sft_rows(first + costs.scans * count + costs.pair * joint.rounds * joint.epochs * rows, 1.0)
    if workload.pairs or workload.adapter is not None:
        return most_pairs(workload.block, recipe, count)
    if workload.active and not workload.matched:
        return active_rows(count, recipe.selection.multiplier, recipe.selection.dedup)
    return count


def batch_is_known(workload: Workload, recipe: Recipe, count: int) -> bool:
    """Whether a step's rows are known before the stage's own: fewer than a batch are one batch, however many.

    Micro-batches divide it, so that one row more or less makes them larger or smaller.
    """
    if workload.settings is None:
        return True
    drawn = workload.pairs or workload.adapter is not None or (workload.active and not workload.matched)
    return not drawn or epoch_rows(workload, recipe, count) >= workload.settings.batch_size


def sampled_prompts(block: str, recipe: Recipe, count: int) -> int:
    """Of DPO, SPIN or SSB: rows that completions are sampled for."""
    return min(getattr(recipe, block).rollouts.subsample or count, count)


def most_pairs(block: str, recipe: Recipe, count: int) -> int:
    """Pairs or replies that come of them, at most."""
    return sampled_prompts(block, recipe, count) * (recipe.spin.rollouts.samples if block == "spin" else 1)


def student_lora(recipe: Recipe, settings: SsbSettings) -> LoraSettings:
    """The adapter of SSB's student."""
    size = settings.model_dump(include={"rank", "alpha"})
    return recipe.lora.model_copy(update=size) if recipe.lora else LoraSettings(**size)


@dataclass(frozen=True)
class Planner:
    """Everything that the stages of one plan share."""

    recipe: Recipe
    shape: Shape
    """With the recipe's adapter, if it has one."""
    rows: Rows
    machine: Machine
    fast: bool
    tokenizer_bytes: float = 12e6
    adapters: dict[int, Adapter] | None = None
    """By rank, of stages that have one of their own."""

    def cost(self, workload: Workload) -> Cost:
        if workload.kind == "train":
            return self._train(workload)
        if workload.kind == "scan":
            return self._scan(workload)
        if workload.kind == "generate":
            return self._generate(workload)
        if workload.kind == "data":
            kept = self.rows.count * (TOKEN_BYTES * self.rows.mean + self.rows.text_bytes)
            return Cost(workload, tokens=self.rows.count * self.rows.mean, kept=kept)
        if workload.name == "merged":
            return Cost(workload, self.shape.parameters, kept=self.model_bytes(replace(self.shape, adapter=None)))
        if workload.name.startswith("targets/"):  # ids, logits and one number a token, of the 20 largest each
            count = sampled_prompts("ssb", self.recipe, self.rows.count)
            found = replace(self, rows=replace(self.rows, count=count))._scan(workload)
            return replace(found, kept=count * self.rows.mean * (TOKEN_BYTES + 6 * self.recipe.ssb.top_k + 4))
        if workload.name.startswith(("pairs/", "hints/")):
            block = workload.name.partition("/")[2].partition("-")[0]
            texts = most_pairs(block, self.recipe, self.rows.count)
            return Cost(workload, kept=texts * ANSWER_BYTES * 2 * self.rows.mean)
        return Cost(workload, kept=self.rows.count * SCORE_BYTES)

    def shape_for(self, workload: Workload) -> Shape:
        if workload.adapter is None:
            return self.shape
        return self.shape.with_adapter((self.adapters or {}).get(workload.adapter))

    def step(self, workload: Workload, *, length: float, micro: int, accumulates: bool = True) -> Step:
        recipe, settings = self.recipe, workload.settings
        assert settings is not None
        return Step(
            shape=self.shape_for(workload),
            tokens=micro * length * (2 if workload.pairs else 1),
            length=length,
            models=workload.models,
            trained=workload.trained,
            teacher=workload.teacher is not None,
            precision=recipe.precision,
            optimizer=settings.optimizer,
            checkpointing=settings.gradient_checkpointing,
            offloading=settings.activation_offloading,
            fast=self.fast,
            masked=micro > 1 or workload.pairs,
            eager=recipe.attention == "eager",
            accumulates=accumulates,
            on_cpu=self.machine.device.is_cpu,
        )

    def longest(self, workload: Workload) -> int:
        return self.rows.likely_longest if workload.active or workload.pairs else self.rows.longest

    def _train(self, workload: Workload) -> Cost:
        settings, shape = workload.settings, self.shape_for(workload)
        assert settings is not None
        rows, devices = epoch_rows(workload, self.recipe, self.rows.count), self.machine.count
        micro, many = micro_batch(rows, settings.batch_size, settings.micro_batch_size, devices)
        largest = self.step(workload, length=self.longest(workload), micro=micro, accumulates=many > 1)
        mean = self.step(workload, length=self.rows.mean, micro=micro)
        steps = settings.steps(rows, workload.epochs)
        seconds = steps * step_seconds(mean, self.machine, many)
        work = micro_work(mean)
        asked = 2 * rows * self.rows.mean if workload.pairs else 0.0  # the reference's pass over both sides, once
        seconds += scan_seconds(self._asked(self.rows.mean), self.machine.device, asked) / devices
        # weights of every model as they are trained, and the optimizer's state of those that learn
        size = 2 if shape.adapter is None and self.recipe.precision == "bf16" else 4
        state = state_bytes(settings.optimizer, size)
        weights = shape.trained
        checkpoint = workload.models * weights * size + workload.trained * weights * state + self.tokenizer_bytes
        writes = min(math.ceil(steps / settings.save_steps), CHECKPOINTS)
        snapshots = len(settings.snapshots)
        saved = shape if self.recipe.lora else replace(shape, adapter=None)  # SSB's own adapter is merged
        return Cost(
            workload,
            parameters=workload.models * shape.parameters if shape.adapter is None else shape.parameters,
            trained=workload.trained * shape.trained,
            memory=training_memory(largest, self.machine),
            micro_batch=micro,
            steps=steps,
            tokens=workload.trained * mean.tokens * many * devices * steps,
            flops=work.flops * many * devices * steps + self._scan_flops(asked),
            seconds=seconds,
            low=seconds * (1 - SPREAD),
            high=seconds * (1 + SPREAD),
            kept=(workload.saves + snapshots) * self.model_bytes(saved),
            work=writes * checkpoint,
        )

    def model_bytes(self, shape: Shape) -> float:
        """A saved model: bf16 unless the recipe is fp32, an adapter as it was trained; and its tokenizer."""
        if shape.adapter:
            return shape.adapter.parameters * (2 if shape.adapter.quantized else 4) + self.tokenizer_bytes
        return shape.parameters * (4 if self.recipe.precision == "fp32" else 2) + self.tokenizer_bytes

    def _asked(self, tokens: float) -> Step:
        """A forward pass over rows of the mean length."""
        return Step(
            self.shape,
            tokens=tokens,
            length=self.rows.mean,
            trained=0,
            precision="fp32" if self.recipe.precision == "fp32" else "bf16",
            fast=self.fast,
            on_cpu=self.machine.device.is_cpu,
        )

    def _scan_flops(self, tokens: float) -> float:
        return tokens * (2.0 * self.shape.products + self.shape.attention_flops(self.rows.mean))

    def _scan(self, workload: Workload) -> Cost:
        recipe, rows = self.recipe, self.rows
        batch = max(recipe.selection.batch_tokens, rows.longest)
        asked = self._asked(batch)
        tokens = rows.count * rows.mean
        seconds = scan_seconds(asked, self.machine.device, tokens) / self.machine.count
        return Cost(
            workload,
            parameters=self.shape.parameters,
            memory=forward_memory(replace(asked, tokens=min(batch, tokens))),
            tokens=tokens,
            flops=self._scan_flops(tokens),
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
        batch = recipe.eval.batch_size or (64 if device.is_cpu else 512)
        longest = prompt + workload.new_tokens
        cache = 2 * shape.key * shape.layers * size * longest
        free = max(0.6 * device.memory - shape.parameters * size, cache)
        batch = max(min(batch, int(free / cache)), 1)
        shared = {"answers": answers / self.machine.count, "prompt": prompt, "batch": batch, "size": size}
        middle, low, high = (
            generation_seconds(shape, device, tokens=max(share * workload.new_tokens, 1.0), **shared)
            for share in (ANSWER_SHARE, ANSWER_LOW, ANSWER_HIGH)
        )
        tokens = answers * ANSWER_SHARE * workload.new_tokens
        together = min(batch, answers)
        asked = Step(self.shape, together * prompt, longest, precision=recipe.precision, on_cpu=device.is_cpu)
        return Cost(
            workload,
            parameters=shape.parameters,
            memory=forward_memory(asked, cache_tokens=together * longest),
            tokens=tokens,
            flops=2.0 * shape.products * (tokens + answers * prompt),
            seconds=middle,
            low=low,
            high=high,
            kept=tokens * ANSWER_BYTES + answers * 300,
        )
