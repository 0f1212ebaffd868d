"""The stages that methods are made of: each names its settings and inputs and what to compute from them."""

import logging
import shutil
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from peft import PeftModel
from transformers import PreTrainedModel

from weakdriven.config.recipe import JointSettings, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.data.example import Example
from weakdriven.data.overlap.find import HeldItem
from weakdriven.data.overlap.held_out import HeldOut, Hit, keep_out
from weakdriven.data.prompts import Renderer
from weakdriven.data.rows.source_key import data_key
from weakdriven.data.rows.sources import open_source
from weakdriven.data.tokenize import VERSION as TOKENS_VERSION
from weakdriven.data.tokenize import load_tokens, unlearned_warning, write_tokens
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import load_items
from weakdriven.eval.engine_pool import Engines, local_engine, served_engine
from weakdriven.eval.generate import Engine
from weakdriven.eval.run import Task, evaluate, prepare_task, refresh
from weakdriven.methods.token_loss import PLAIN, Variant
from weakdriven.models.adapters import ADAPTER_FILE
from weakdriven.models.liger import fast_layers, model_type
from weakdriven.models.load import (
    fingerprint,
    tokenizer_fingerprint,
)
from weakdriven.models.sharded import gathered_model, is_sharded
from weakdriven.runs.directory import (
    ACTIVE,
    BUDGET,
    EXAMPLES,
    FUNNEL,
    SCORES,
    SNAPSHOTS,
    TOKENS,
    TRAIN,
    WORK,
    Compute,
    Run,
    Stage,
)
from weakdriven.runs.files import append_jsonl, digest, file_digest, read_json, read_jsonl, write_json
from weakdriven.runs.manifest import MANIFEST, refuse_damage
from weakdriven.runs.processes import is_main, on_main, size
from weakdriven.stages.model_loader import Loader, Model
from weakdriven.stages.score_examples import score_examples
from weakdriven.training.lora import name_base
from weakdriven.training.sft import Phase, save_model, train_supervised
from weakdriven.training.snapshots import percent, publish_snapshots
from weakdriven.wmss.entropy import column
from weakdriven.wmss.pair import WEAK_FOLDER
from weakdriven.wmss.score_files import VERSION, ScoreFacts, read_scores
from weakdriven.wmss.selection import align_scores, draw_active, selection_counters, selection_probabilities
from weakdriven.wmss.trainer import train_joint

logger = logging.getLogger(__name__)
SPEED_ONLY = {"micro_batch_size", "gradient_checkpointing", "activation_offloading", "save_steps", "logging_steps"}
"""Training settings that change time, memory or bookkeeping and not the result."""


@dataclass
class Stages:
    """Binds a recipe to a run; every method here is one stage, skipped when its result is there."""

    recipe: Recipe
    run: Run
    base: Model
    given_strong: Model | None
    renderer: Renderer
    tasks: dict[str, Task] = field(default_factory=dict)
    engines: Engines = field(default_factory=Engines)

    @property
    def loader(self) -> Loader:
        return Loader(self.recipe, self.base)

    @cached_property
    def tokenizer_key(self) -> str:
        """Hash of the tokenizer, computed once: a vocabulary of 260,000 takes seconds."""
        return tokenizer_fingerprint(self.renderer.tokenizer)

    def data(self) -> Stage:
        """Rows -> tokens, once, for training and entropy alike."""
        settings = self.recipe.data
        drop = settings.held_out == "drop"

        def compute(work: Path, out: Path) -> dict[str, Any]:
            held, found = self.held_out, list[Hit]()
            examples = open_source(
                settings.path,
                settings.split,
                settings.limit,
                domain=settings.domain,
                empty_completions=settings.empty_completions,
            )
            total = examples.count()
            layout = examples.layout
            self.run.progress.note(f"layout {layout.name} (fields {', '.join(layout.fields)}), {total:,} rows")
            counters = write_tokens(
                keep_out(examples, held, found, drop=drop) if held else examples,
                self.renderer,
                out / TOKENS,
                max_length=settings.max_length,
                long_prompts=settings.long_prompts,
                on_row=lambda done: self.run.progress.update(done, total),
                on_kept=lambda kept: append_jsonl(out / EXAMPLES, (example.as_row() for example in kept)),
            )
            for warning in filter(None, (self.renderer.warning, unlearned_warning(counters))):
                logger.warning(warning)
            file = Path(settings.path).expanduser()
            if file.name == TRAIN and (funnel := file.with_name(FUNNEL)).is_file():  # from weakdriven data build
                shutil.copyfile(funnel, out / FUNNEL)
            compared = {"held_out": held.key} if held else {}
            compared |= {"dropped_held_out": len(found)} if drop else {}
            return {**counters, **compared, "rows_read": total, "layout": layout.name}

        decisive = settings.model_dump(mode="json", exclude={"path", "split", "empty_completions", "held_out"})
        decisive["version"] = TOKENS_VERSION
        if settings.empty_completions == "drop":  # else there is no such row, and older runs stay good
            decisive["empty_completions"] = "drop"
        if drop and (held := self.held_out):  # else the questions decide only whether there is an error
            decisive["held_out"] = held.key
        tokenizer_key = digest([self.base.key, self.renderer.tokenizer.chat_template])
        inputs = {"rows": data_key(settings.path, settings.split), "tokenizer": tokenizer_key}
        source = settings.model_dump(mode="json", include={"path", "split"})
        stage = self.run.stage("data", compute, settings=decisive, inputs=inputs, execution=source)
        if not self.run.dry:
            self._compare_again(stage)
        return stage

    @cached_property
    def held_out(self) -> HeldOut | None:
        """Questions that must not be trained on: all of the recipe's benchmarks, also those after eval.limit."""
        settings = self.recipe.eval
        if self.recipe.data.held_out == "allow" or not settings.benchmarks:
            return None
        try:
            items = [
                HeldItem(name, item.id, item.question)
                for name in settings.benchmarks
                for item in (load_items(name, settings.data_dir) if settings.limit else self.task(name).items)
            ]
        except UserError as error:  # a run has looked for them before; only a selection comes this far without
            if self.recipe.data.held_out == "drop":
                raise
            logger.warning("The rows are not compared with the benchmarks' questions until weakdriven run: %s", error)
            return None
        return HeldOut(items)

    def _compare_again(self, data: Stage) -> None:
        """Rows that were tokenised for other benchmarks, or none, are compared with today's questions."""
        held, manifest = self.held_out, read_json(data.path / MANIFEST)
        if held and manifest["counters"].get("held_out") != held.key:
            refuse_damage(data.path)
            rows = (Example.from_row(row) for row in read_jsonl(data.path / EXAMPLES))
            for _ in keep_out(rows, held, [], drop=False):
                pass
            manifest["counters"]["held_out"] = held.key
            if self.run.leads:
                write_json(data.path / MANIFEST, manifest)

    def supervised(
        self,
        name: str,
        start: Model,
        data: Stage,
        settings: TrainSettings,
        *,
        epochs: int,
        active: Stage | None = None,
        turn: int = 0,
        variant: Variant = PLAIN,
        teacher: Model | None = None,
        budget: Stage | None = None,
    ) -> Model:
        """Supervised fine-tuning of `start`, on the active set where one is given.

        Args:
            variant: What a baseline does otherwise.
            teacher: A frozen model for a variant that needs one.
            budget: Holds the number of rows that an epoch has, if not that of the rows there are.
        """

        def compute(work: Path, out: Path) -> dict[str, Any]:
            model = self.loader.load(start)
            rows = training_rows(data, active)
            epoch_rows = read_json(budget.path / BUDGET)["rows"] if budget else self._epoch_rows(data, active)
            phase = Phase(name, turn, epochs, work, self.run.progress, epoch_rows, partial(self.save, model))
            frozen = self.loader.load(teacher, train=False, scan=True) if teacher else None
            shared = self.renderer.tokenizer, rows, settings, self.recipe, phase
            counters = train_supervised(model, *shared, variant.noise, variant.loss, frozen)
            self.save(model, out, work)
            publish_snapshots(work, out, settings.snapshots)
            return counters

        inputs = keys(start=start, data=data, active=active, teacher=teacher, budget=budget)
        also: dict[str, Any] = {"epochs": epochs, **self._matching(active), **variant.settings}
        if self.recipe.lora and start.name == self.base.name:  # a later adapter goes on as the one it starts from
            also["lora"] = self.recipe.lora.model_dump(mode="json", exclude={"output", "quantize"})
        return self.model_stage(name, compute, settings, inputs=inputs, also=also)

    def entropy(self, model: Model, data: Stage, examples: int | None = None) -> Stage:
        """Entropy of each example under `model`, or of some drawn at random; taken over from another run or scanned."""
        settings = self.recipe.selection
        sample: dict[str, Any] = {"examples": examples, "seed": self.recipe.seed} if examples else {}

        def compute(work: Path, out: Path) -> dict[str, Any]:
            dataset = load_tokens(data.path / TOKENS)
            if examples and examples < len(dataset):
                draw = np.random.default_rng(self.recipe.seed).permutation(len(dataset))
                dataset = dataset.select(np.sort(draw[:examples]))
            return score_examples(
                lambda: self.loader.load(model, train=False, scan=True),
                dataset,
                lambda: self._score_facts(model, data, sample),
                reuse=[] if examples else settings.reuse,  # files there hold all rows
                batch_tokens=settings.batch_tokens,
                work=work,
                out=out,
                progress=self.run.progress,
            )

        return self.run.stage(
            f"{'pairing' if examples else 'entropy'}/{model.name}",
            compute,
            settings={"precision": self._forward_precision(), "version": VERSION, **sample},
            inputs=keys(model=model, data=data),
            execution={
                "batch_tokens": settings.batch_tokens,
                "reuse": settings.reuse,
                "fast_layers": self._layers(),
                "attention": self.recipe.attention,
            },
            shared=True,
        )

    def _score_facts(self, model: Model, data: Stage, sample: dict[str, Any]) -> ScoreFacts:
        own = fingerprint(model.folder)
        return ScoreFacts(
            model=digest([own, self.base.key]) if (model.folder / ADAPTER_FILE).is_file() else own,
            rows=digest([file_digest(data.path / TOKENS), sample]),
            tokenizer=self.tokenizer_key,
            max_length=self.recipe.data.max_length,
            precision=self._forward_precision(),
        )

    def _forward_precision(self) -> str:
        """Of a model that is asked and not trained."""
        recipe = self.recipe
        return (recipe.lora and recipe.lora.quantize) or ("fp32" if recipe.precision == "fp32" else "bf16")

    def selection(self, name: str, turn: int, data: Stage, weak: Model, strong: Model) -> Stage:
        """WD-DS: both models' entropies -> the active set of this round."""
        weak_scores, strong_scores = self.entropy(weak, data), self.entropy(strong, data)
        settings = self.recipe.selection
        weights = settings.model_dump(include={"consolidation", "difficulty", "repair", "formula"})

        def compute(work: Path, out: Path) -> dict[str, Any]:
            ids = column(load_tokens(data.path / TOKENS), "id")
            tables = [read_scores(stage.path / SCORES, ["id", "entropy"]) for stage in (weak_scores, strong_scores)]
            weak, strong = ((table["id"], table["entropy"]) for table in tables)
            weak_N, strong_N = align_scores(weak, strong, ids)
            probabilities_N = selection_probabilities(weak_N, strong_N, **weights)
            active = draw_active(
                probabilities_N, seed=[self.recipe.seed, turn], multiplier=settings.multiplier, dedup=settings.dedup
            )
            draws_N = np.bincount(active, minlength=len(ids)).astype(np.int32)
            pq.write_table(pa.table({"id": ids, "probability": probabilities_N, "draws": draws_N}), out / ACTIVE)
            return selection_counters(
                weak_N, strong_N, probabilities_N, active, multiplier=settings.multiplier, **weights
            )

        return self.run.stage(
            name,
            compute,
            settings={
                **settings.model_dump(mode="json", exclude={"enabled", "batch_tokens", "reuse", "match_steps"}),
                "seed": [self.recipe.seed, turn],
                "version": VERSION,
                **self._other_weak(weak),
            },
            inputs=keys(data=data, weak_scores=weak_scores, strong_scores=strong_scores),
        )

    def joint(
        self,
        name: str,
        turn: int,
        weak: Model,
        strong: Model,
        data: Stage,
        active: Stage | None,
        settings: JointSettings,
    ) -> Model:
        """WD-JT: weak and strong trained on their mixed logits; the strong one is kept."""

        def compute(work: Path, out: Path) -> dict[str, Any]:
            strong_model, weak_model = self.loader.pair(strong, weak)
            keep, epoch_rows = partial(self.save, strong_model), self._epoch_rows(data, active)
            phase = Phase(name, turn, settings.epochs, work, self.run.progress, epoch_rows, keep)
            rows, tokenizer = training_rows(data, active), self.renderer.tokenizer
            counters = train_joint(strong_model, weak_model, tokenizer, rows, settings, self.recipe, phase)
            self.save(strong_model, out, work)
            publish_snapshots(work, out, settings.snapshots)
            if settings.save_weak:
                self.save(weak_model, out / WEAK_FOLDER, work)
            return counters

        mixing = settings.mixing() | settings.model_dump(include={"weak", "save_weak"}) | self._matching(active)
        mixing |= self._other_weak(weak)
        inputs = keys(weak=weak, strong=strong, data=data, active=active)
        return self.model_stage(name, compute, settings, inputs=inputs, also=mixing)

    def evaluation(self, model: Model, benchmark: str) -> Stage:
        """One model on one benchmark; graded again, and not asked again, where only the grader has changed."""
        settings, task = self.recipe.eval, self.task(benchmark)

        def compute(work: Path, out: Path) -> dict[str, Any]:
            shared = {"model": model.key, "work": work, "out": out, "progress": self.run.progress}
            return evaluate(task, lambda: self.engine(model), spread=settings.engine != "vllm", **shared)

        stage = self.run.stage(
            f"eval/{model.name}/{benchmark}",
            compute,
            settings={**task.key(), **self.asking(), "engine": settings.engine},
            inputs={**keys(model=model), "prompts": task.prompts_key()},
            execution=settings.model_dump(mode="json", include={"batch_size", "batching", "data_dir"}),
            shared=True,
        )
        if not self.run.dry:
            on_main(lambda: refresh(stage.path, task, self.run.progress))
        return stage

    def task(self, benchmark: str) -> Task:
        """Loaded once; a selection needs none, but its plan names those that are there."""
        if benchmark not in self.tasks:
            self.tasks[benchmark] = prepare_task(benchmark, self.renderer, self.recipe.eval, seed=self.recipe.seed)
        return self.tasks[benchmark]

    def engine(self, model: Model, longest: int | None = None) -> Engine:
        """What answers for a model.

        Args:
            longest: Tokens of the longest prompt and its completion; unset, of those in the benchmarks.
        """
        settings = self.recipe.eval
        if settings.engine == "vllm":
            longest = longest or max(task.longest() for task in self.tasks.values())
            opened = partial(
                served_engine,
                model.folder,
                settings,
                precision=self._forward_precision(),
                longest=longest,
                log=self.run.root / WORK / "vllm.log",
            )
            return self.engines.of(f"{model.key} {longest}", opened)
        load = partial(self.loader.load, model, train=False)
        return self.engines.of(model.key, partial(local_engine, load, self.renderer.tokenizer, settings))

    def model_stage(
        self, name: str, compute: Compute, settings: TrainSettings, *, inputs: dict[str, str], also: dict[str, Any]
    ) -> Model:
        fields, kept = set(TrainSettings.model_fields), tuple(map(percent, settings.snapshots))
        decisive = settings.model_dump(mode="json", include=fields - SPEED_ONLY)
        if not kept:  # then older runs stay good
            del decisive["snapshots"]
        common = self.asking() | {"seed": self.recipe.seed}
        # `fast_layers` is like micro_batch_size: results differ by rounding, and turning it off should retrain nothing
        execution = settings.model_dump(mode="json", include=SPEED_ONLY) | {"fast_layers": self._layers()}
        execution |= {"processes": size()} if size() > 1 else {}
        stage = self.run.stage(
            name,
            compute,
            settings={**decisive, **common, **also},
            inputs=inputs,
            execution=execution,
            shared=True,
            holds=[f"{SNAPSHOTS}/{place}" for place in kept],
        )
        return Model(name.replace("baselines/", "baseline-").removesuffix("/strong"), stage.path, stage.key, kept)

    def _other_weak(self, weak: Model) -> dict[str, Any]:
        """Written down where the weak model is none of M0, M1, ..., so that a reader of the run finds it."""
        return {"weak_model": weak.name} if "-at-" in weak.name else {}

    def _layers(self) -> str:
        return "liger" if fast_layers(self.recipe.fast_layers, model_type(self.base.folder)) else "off"

    def _matching(self, active: Stage | None) -> dict[str, Any]:
        """Part of a training phase's key only where it changes something."""
        return {"match_steps": True} if active and self.recipe.selection.match_steps else {}

    def _epoch_rows(self, data: Stage, active: Stage | None) -> int | None:
        return len(load_tokens(data.path / TOKENS)) if self._matching(active) else None

    def asking(self) -> dict[str, Any]:
        """What decides a model's answers beside its weights."""
        settings = self.recipe.model_dump(include={"precision", "attention"})
        return settings | ({"quantize": lora.quantize} if (lora := self.recipe.lora) and lora.quantize else {})

    def save(self, model: PreTrainedModel | PeftModel, out: Path, work: Path | None = None) -> None:
        """A model's folder, with the metrics of its phase in `work`; written by the first process."""
        if is_sharded(model):
            model = gathered_model(model, torch.bfloat16 if self.recipe.precision == "bf16-mixed" else None)
        if not is_main():
            return
        if isinstance(model, PeftModel):
            name_base(model, self.recipe.model, self.base.folder)
        save_model(
            model,
            self.renderer.tokenizer,
            out,
            work=work,
            precision=self.recipe.precision,
            stop_ids=self.renderer.stop_ids,
        )


def training_rows(data: Stage, active: Stage | None) -> Any:
    """The tokenised rows of the active set, each as often as it was drawn; all rows without one."""
    dataset = load_tokens(data.path / TOKENS)
    if active is None:
        return dataset
    draws_N = pq.read_table(active.path / ACTIVE, columns=["draws"])["draws"].to_numpy()
    return dataset.select(np.repeat(np.arange(len(draws_N)), draws_N))


def keys(**parts: Model | Stage | None) -> dict[str, str]:
    return {name: part.key for name, part in parts.items() if part is not None}
