"""The stages that methods are made of: each names its settings and inputs and what to compute from them."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from peft import PeftModel
from transformers import PreTrainedModel
from transformers.integrations.integration_utils import get_available_reporting_integrations

from weakdriven.data.prompts import Renderer, give_chat_template
from weakdriven.data.sources import EMBEDDED as EMBEDDED_DATA
from weakdriven.data.sources import load_examples
from weakdriven.data.tokenize import load_tokens, write_tokens
from weakdriven.demo.problems import VERSION as PROBLEMS_VERSION
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS, Item, benchmark_source, load_items
from weakdriven.eval.run import evaluate
from weakdriven.models.adapters import ADAPTER_FILE, load_merged
from weakdriven.models.layers import fast_layers, model_type
from weakdriven.models.load import (
    check_model,
    fingerprint,
    load_tokenizer,
    locate_model,
    refuse_different_tokenizers,
)
from weakdriven.models.pair import WEAK_FOLDER
from weakdriven.models.scan import scan
from weakdriven.pipeline.loader import Loader, Model
from weakdriven.recipe import Recipe, TrainSettings
from weakdriven.rundir import (
    ACTIVE,
    EXAMPLES,
    SCORES,
    TOKENS,
    Compute,
    Run,
    Stage,
    append_jsonl,
    digest,
    file_digest,
    read_jsonl,
    salvage_jsonl,
)
from weakdriven.selection import align_scores, draw_active, selection_counters, selection_probabilities
from weakdriven.training.joint import train_joint
from weakdriven.training.lora import check_lora, name_base, ready_adapter
from weakdriven.training.optimizer import check_optimizer
from weakdriven.training.supervised import Phase, save_model, train_supervised

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
    items: dict[str, list[Item]] = field(default_factory=dict)

    @property
    def loader(self) -> Loader:
        return Loader(self.recipe, self.base)

    def data(self) -> Stage:
        """Rows -> tokens, once, for training and entropy alike."""
        settings = self.recipe.data

        def compute(work: Path, out: Path) -> dict[str, Any]:
            examples = load_examples(settings.path, settings.split, settings.limit)
            counters = write_tokens(
                examples,
                self.renderer,
                out / TOKENS,
                max_length=settings.max_length,
                long_prompts=settings.long_prompts,
                on_row=lambda done: self.run.progress.update(done, len(examples)),
            )
            kept = set(load_tokens(out / TOKENS)["id"])
            append_jsonl(out / EXAMPLES, [example.as_row() for example in examples if example.id in kept])
            return {**counters, "rows_read": len(examples)}

        decisive = settings.model_dump(mode="json", exclude={"path", "split"})
        tokenizer_key = digest([self.base.key, self.renderer.tokenizer.chat_template])
        inputs = {"rows": data_key(settings.path, settings.split), "tokenizer": tokenizer_key}
        source = settings.model_dump(mode="json", include={"path", "split"})
        return self.run.stage("data", compute, settings=decisive, inputs=inputs, execution=source)

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
    ) -> Model:
        """Supervised fine-tuning of `start`, on the active set where one is given."""

        def compute(work: Path, out: Path) -> dict[str, Any]:
            model = self.loader.load(start)
            phase = Phase(name, turn, epochs, work, self.run.progress)
            rows = training_rows(data, active)
            counters = train_supervised(model, self.renderer.tokenizer, rows, settings, self.recipe, phase)
            self._save(model, work, out)
            return counters

        inputs = keys(start=start, data=data, active=active)
        also: dict[str, Any] = {"epochs": epochs}
        if self.recipe.lora and start.name == self.base.name:  # a later adapter goes on as the one it starts from
            also["lora"] = self.recipe.lora.model_dump(mode="json", exclude={"output", "quantize"})
        return self._model_stage(name, compute, settings, inputs=inputs, also=also)

    def entropy(self, model: Model, data: Stage) -> Stage:
        """Entropy of every example under `model`, by batches that survive a kill."""

        def compute(work: Path, out: Path) -> dict[str, Any]:
            scores, dataset = work / SCORES, load_tokens(data.path / TOKENS)
            seen = {row["id"] for row in salvage_jsonl(scores)}

            def keep(batch: list[dict[str, Any]]) -> None:
                batch = [row for row in batch if row["id"] not in seen]
                append_jsonl(scores, batch)
                seen.update(row["id"] for row in batch)
                self.run.progress.update(len(seen), len(dataset))

            network = self.loader.load(model, train=False)
            scan(network, dataset, batch_tokens=self.recipe.selection.batch_tokens, skip=set(seen), on_batch=keep)
            rows = list(read_jsonl(scores))
            append_jsonl(out / SCORES, rows)
            tokens = sum(row["tokens"] for row in rows)
            means = {name: sum(row[name] for row in rows) / len(rows) for name in ("entropy", "nll")}
            truncated = sum(row["truncated"] for row in rows)
            return {"examples": len(rows), "tokens": tokens, "truncated": truncated, **means}

        return self.run.stage(
            f"entropy/{model.name}",
            compute,
            settings=self._asking(),
            inputs=keys(model=model, data=data),
            execution={"batch_tokens": self.recipe.selection.batch_tokens},
        )

    def selection(self, turn: int, data: Stage, weak_scores: Stage, strong_scores: Stage) -> Stage:
        """WD-DS: both models' entropies -> the active set of this round."""
        settings = self.recipe.selection
        weights = settings.model_dump(include={"consolidation", "difficulty", "repair", "formula"})

        def compute(work: Path, out: Path) -> dict[str, Any]:
            ids = list(load_tokens(data.path / TOKENS)["id"])
            scores = (list(read_jsonl(stage.path / SCORES)) for stage in (weak_scores, strong_scores))
            weak_N, strong_N = align_scores(next(scores), next(scores), ids)
            probabilities_N = selection_probabilities(weak_N, strong_N, **weights)
            active = draw_active(
                probabilities_N, seed=[self.recipe.seed, turn], multiplier=settings.multiplier, dedup=settings.dedup
            )
            draws = torch.bincount(torch.from_numpy(active), minlength=len(ids)).tolist()
            columns = zip(ids, probabilities_N.tolist(), draws, strict=True)
            append_jsonl(out / ACTIVE, [{"id": i, "probability": p, "draws": n} for i, p, n in columns])
            return selection_counters(
                weak_N, strong_N, probabilities_N, active, multiplier=settings.multiplier, **weights
            )

        return self.run.stage(
            f"round-{turn}/active",
            compute,
            settings={
                **settings.model_dump(mode="json", exclude={"enabled", "batch_tokens"}),
                "seed": [self.recipe.seed, turn],
            },
            inputs=keys(data=data, weak_scores=weak_scores, strong_scores=strong_scores),
        )

    def joint(self, turn: int, weak: Model, strong: Model, data: Stage, active: Stage | None) -> Model:
        """WD-JT: weak and strong trained on their mixed logits; the strong one is kept."""
        settings = self.recipe.joint

        name = f"round-{turn}/strong"

        def compute(work: Path, out: Path) -> dict[str, Any]:
            strong_model, weak_model = self.loader.pair(strong, weak)
            phase = Phase(name, turn, settings.epochs, work, self.run.progress)
            rows, tokenizer = training_rows(data, active), self.renderer.tokenizer
            counters = train_joint(strong_model, weak_model, tokenizer, rows, settings, self.recipe, phase)
            self._save(strong_model, work, out)
            if settings.save_weak:
                self._save(weak_model, work, out / WEAK_FOLDER)
            return counters

        mixing = settings.mixing() | settings.model_dump(include={"weak", "save_weak"})
        inputs = keys(weak=weak, strong=strong, data=data, active=active)
        return self._model_stage(name, compute, settings, inputs=inputs, also=mixing)

    def evaluation(self, model: Model, benchmark: str) -> Stage:
        """One model on one benchmark."""
        settings, entry = self.recipe.eval, BENCHMARKS[benchmark]
        budget = settings.max_new_tokens or entry.max_new_tokens

        def compute(work: Path, out: Path) -> dict[str, Any]:
            return evaluate(
                self.loader.load(model, train=False),
                self.renderer,
                benchmark,
                self.items[benchmark],
                max_new_tokens=budget,
                batch_size=settings.batch_size,
                work=work,
                out=out,
                progress=self.run.progress,
            )

        key = {"version": entry.version, "max_new_tokens": budget, "limit": settings.limit}
        key |= self.recipe.data.model_dump(include={"domain", "style"}) | self._asking()
        source = benchmark_source(benchmark, settings.data_dir)
        template = digest(self.renderer.tokenizer.chat_template)
        return self.run.stage(
            f"eval/{model.name}/{benchmark}",
            compute,
            settings=key,
            inputs={**keys(model=model), "items": data_key(source, "test"), "chat_template": template},
            execution={"batch_size": settings.batch_size},
        )

    def merged(self, model: Model) -> Stage:
        """An adapted model as an ordinary one; a stage of its own, so that asking for it retrains nothing."""
        recipe = self.recipe
        precision = "fp32" if recipe.precision == "fp32" else "bf16"

        def compute(work: Path, out: Path) -> dict[str, Any]:
            network = load_merged(
                model.folder, self.base.folder, precision=precision, trust_remote_code=recipe.trust_remote_code
            )
            network.config.use_cache = True
            network.save_pretrained(out)
            self.renderer.tokenizer.save_pretrained(out)
            return {"parameters": network.num_parameters()}

        return self.run.stage("merged", compute, settings={"precision": precision}, inputs=keys(model=model))

    def _model_stage(
        self, name: str, compute: Compute, settings: TrainSettings, *, inputs: dict[str, str], also: dict[str, Any]
    ) -> Model:
        fields = set(TrainSettings.model_fields)
        decisive = settings.model_dump(mode="json", include=fields - SPEED_ONLY)
        common = self._asking() | {"seed": self.recipe.seed}
        # `fast_layers` is like micro_batch_size: results differ by rounding, and turning it off should retrain nothing
        fast = fast_layers(self.recipe.fast_layers, model_type(self.base.folder))
        execution = settings.model_dump(mode="json", include=SPEED_ONLY) | {"fast_layers": "liger" if fast else "off"}
        stage = self.run.stage(
            name, compute, settings={**decisive, **common, **also}, inputs=inputs, execution=execution
        )
        return Model(name.replace("baselines/", "baseline-").removesuffix("/strong"), stage.path, stage.key)

    def _asking(self) -> dict[str, Any]:
        """What decides a model's answers beside its weights."""
        settings = self.recipe.model_dump(include={"precision", "attention"})
        return settings | ({"quantize": lora.quantize} if (lora := self.recipe.lora) and lora.quantize else {})

    def _save(self, model: PreTrainedModel | PeftModel, work: Path, out: Path) -> None:
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
    draws = [row["draws"] for row in read_jsonl(active.path / ACTIVE)]
    return dataset.select([row for row, count in enumerate(draws) for _ in range(count)])


def keys(**parts: Model | Stage | None) -> dict[str, str]:
    return {name: part.key for name, part in parts.items() if part is not None}


def data_key(path: str, split: str) -> str:
    """What decides the rows of a source: a file's content, the generator's version, a Hub dataset's commit."""
    if path == EMBEDDED_DATA:
        return f"{path}@{PROBLEMS_VERSION}/{split}"
    file = Path(path).expanduser()
    if file.is_file():
        try:
            return file_digest(file)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        commit = HfApi().dataset_info(path).sha
    except Exception:  # offline: the cached copy is used, whichever it is; a wrong name fails when it is loaded
        commit = "cached"
    return f"{path}@{commit}/{split}"


def bind(recipe: Recipe, run: Run) -> Stages:
    """Check what can be checked before anything is computed; the rows themselves are checked by the first stage."""
    if unknown := sorted(set(recipe.report_to) - set(trackers := get_available_reporting_integrations())):
        have = ", ".join(trackers) or "none"
        raise UserError(f"report_to: {', '.join(unknown)} is not a tracker installed here (installed: {have}).")
    if (devices := torch.cuda.device_count()) > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"This version trains in one process on one GPU, found {devices} GPUs visible and WORLD_SIZE "
            f"{os.environ.get('WORLD_SIZE', 'unset')}; set CUDA_VISIBLE_DEVICES=0 and start without a launcher."
        )
    for phase, settings in (("sft", recipe.sft), ("joint", recipe.joint)):
        check_optimizer(f"{phase}.optimizer", settings.optimizer)
        if settings.activation_offloading and not torch.cuda.is_available():
            raise UserError(
                f"{phase}.activation_offloading moves activations from the GPU to the CPU's memory, and there is no "
                "GPU here; set it to false."
            )
    base_folder = locate_model(recipe.model)
    check_model(base_folder, trust_remote_code=recipe.trust_remote_code)
    fast_layers(recipe.fast_layers, model_type(base_folder))
    tokenizer = load_tokenizer(base_folder, trust_remote_code=recipe.trust_remote_code)
    give_chat_template(tokenizer, recipe.chat_template, recipe.model)
    base = Model("base", base_folder, fingerprint(base_folder))
    if recipe.lora:
        check_lora(recipe.lora, base_folder, trust_remote_code=recipe.trust_remote_code)
    strong = ready_strong(recipe.sft.model, recipe, base) if recipe.sft.model else None
    items = {name: load_items(name, recipe.eval.data_dir)[: recipe.eval.limit] for name in recipe.eval.benchmarks}
    renderer = Renderer(tokenizer, recipe.data.domain, recipe.data.style)
    renderer.check()
    return Stages(recipe, run, base, strong, renderer, items)


def ready_strong(source: str, recipe: Recipe, base: Model) -> Model:
    """An M1 that was trained elsewhere: a model like the base, or with `lora` an adapter over it."""
    if recipe.lora:
        folder = ready_adapter(source, base.folder, recipe.model, trust_remote_code=recipe.trust_remote_code)
        return Model("sft", folder, digest([fingerprint(folder), base.key]))
    if (Path(source).expanduser() / ADAPTER_FILE).is_file():
        raise UserError(
            f"sft.model: {source} is an adapter; set lora to go on training adapters, or merge it into its base first."
        )
    folder = locate_model(source)
    check_model(folder, trust_remote_code=recipe.trust_remote_code)
    fast_layers(recipe.fast_layers, model_type(folder))
    refuse_different_tokenizers(base.folder, folder, trust_remote_code=recipe.trust_remote_code)
    return Model("sft", folder, fingerprint(folder))
