"""Rehearsal: two optimizer steps of every training stage on the longest rows, before the first long stage.

It uses the real trainers and settings, and the real models if they exist, else M0 in their place. Its results are
discarded, and the random number generators are restored.
"""

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from weakdriven.config.baselines import PreferenceSettings, SsbSettings
from weakdriven.config.recipe import JointSettings, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.data.tokenize import IGNORE, load_tokens, row_lengths
from weakdriven.methods.dpo_spin.trainer import train_preference
from weakdriven.methods.rollouts.preference_pairs import COLUMNS
from weakdriven.methods.ssb.loss import TopLogits
from weakdriven.methods.ssb.targets import stored
from weakdriven.methods.ssb.trainer import train_student
from weakdriven.planning.costs import batch_is_known, epoch_rows, is_packed, micro_batch
from weakdriven.planning.devices import GIB
from weakdriven.planning.preflight import will_run
from weakdriven.runs.directory import TOKENS, WORK, Progress, work_folder
from weakdriven.runs.executor import Run
from weakdriven.runs.files import read_json
from weakdriven.runs.processes import size
from weakdriven.runs.signals import Stopped
from weakdriven.runs.stage import Planned, Stage
from weakdriven.stages.context import Context
from weakdriven.stages.model import Model
from weakdriven.stages.model_loader import Loader
from weakdriven.stages.workload import Workload
from weakdriven.training.checkpoints import COMPLETE, checkpoints
from weakdriven.training.evaluation import same_random_numbers
from weakdriven.training.phase import Phase
from weakdriven.training.sft import train_supervised
from weakdriven.wmss.entropy import plan_batches, scan
from weakdriven.wmss.trainer import train_joint

STEPS = 2
"""Number of optimizer steps: only in the second one does the optimizer state exist from the beginning."""


def rehearse(context: Context, data: Stage, planned: list[Planned], work: Callable[[Context], Any]) -> list[str]:
    """Rehearse stages that will be trained or scanned; return their names.

    Of stages that differ only in their rows or models, one is rehearsed. Stages that resume from a checkpoint are not
    rehearsed, because they have already run here with the same settings.
    """
    run = context.run
    assert isinstance(run, Run)
    if size() > 1:
        run.progress.note("no rehearsal, because it needs a single process")
        return []
    names, keys = will_run(planned), {entry.name: entry.key for entry in planned}
    seen, done = set[tuple[str, bool]](), list[str]()
    count = len(load_tokens(data.path / TOKENS))
    workloads = [one for one in context.workloads(work) if one.name in names and one.kind in ("train", "scan")]
    with same_random_numbers():
        for workload in workloads:
            like = (workload.alike(), batch_is_known(workload, context.recipe, count))
            if like in seen or resumes(run.root, workload, keys[workload.name]):
                continue
            seen.add(like)
            begin = time.monotonic()
            with tempfile.TemporaryDirectory(dir=run.root / WORK, prefix="rehearsal-") as folder:
                try:
                    with run.explained(workload.name):
                        Rehearsal(context, data, Path(folder), names).of(workload)
                except Stopped as stop:
                    raise Stopped(stop.name) from None  # nothing of a rehearsal is saved
            done.append(workload.name)
            summary = f"rehearsed {workload.name} with the longest rows: {time.monotonic() - begin:.1f} s"
            gc.collect()
            if torch.cuda.is_available():
                summary += f", at most {torch.cuda.max_memory_allocated() / GIB:.1f} GiB"
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            run.progress.note(summary)
    return done


def resumes(root: Path, workload: Workload, key: str) -> bool:
    """Return whether there is a checkpoint with this key; it is not checked for damage, because that takes long."""
    home = work_folder(root, workload.name)
    if not (home / "state.json").is_file() or read_json(home / "state.json")["key"] != key:
        return False
    return any((checkpoint / COMPLETE).is_file() for checkpoint in checkpoints(home / "work/checkpoints"))


@dataclass(frozen=True)
class Rehearsal:
    """Rehearses one stage in a temporary folder."""

    context: Context
    data: Stage
    folder: Path
    running: set[str]
    """Names of stages that will run and replace the results that exist now."""

    @property
    def recipe(self) -> Recipe:
        return self.context.recipe.model_copy(update={"report_to": []})  # only the real run reports to trackers

    def of(self, workload: Workload) -> None:
        if workload.settings is None:
            self.scan()
            return
        assert workload.start is not None
        settings, rows = self.shortened(workload, workload.settings)
        folder = self.folder / workload.name.replace("/", "--") / "work"
        folder.mkdir(parents=True)
        phase = Phase(workload.name, 0, STEPS, folder, Progress(), force=True)  # writes no model
        tokenizer, loader = self.context.renderer.tokenizer, self.context.loader
        if isinstance(settings, SsbSettings):
            self.student(settings, rows, phase, workload.start)
        elif isinstance(settings, PreferenceSettings):
            model, pairs = loader.load(self.present(workload.start)), as_pairs(rows)
            train_preference(model, tokenizer, pairs, settings, self.recipe, phase, **settings.loss())
        elif isinstance(settings, JointSettings) and workload.weak is not None:
            strong, weak = loader.pair(self.present(workload.start, adapted=True), self.present(workload.weak))
            train_joint(strong, weak, tokenizer, rows, settings, self.recipe, phase)
        else:
            teacher = workload.teacher and loader.load(self.present(workload.teacher), train=False, scan=True)
            model = loader.load(self.present(workload.start))
            train_supervised(model, tokenizer, rows, settings, self.recipe, phase, workload.variant, teacher)

    def shortened(self, workload: Workload, settings: TrainSettings) -> tuple[Any, Dataset]:
        """Return settings and rows for short training: the stage's micro-batch size and the longest rows.

        A step has two micro-batches, if it has several in the run. If the size of micro-batches is only known once the
        stage's rows are drawn, they have one row: if that fails, the stage fails in any case.
        """
        tokens = load_tokens(self.data.path / TOKENS)
        rows = epoch_rows(workload, self.recipe, len(tokens))
        largest = settings.micro_batch_size if batch_is_known(workload, self.recipe, len(tokens)) else 1
        length_N = row_lengths(tokens)
        packing = is_packed(settings, self.recipe.precision, on_cpu=not torch.cuda.is_available())
        if packing:
            largest *= max(self.recipe.data.max_length // int(length_N.max()), 1)
        micro, many = micro_batch(rows, settings.batch_size, largest)
        batch = micro * min(many, 2)
        order = np.argsort(-length_N, kind="stable")[:batch]
        longest = tokens.select(np.resize(order, batch))
        # no checkpoints, not even on a signal: one of a pair may take 100 GB
        changes = {"batch_size": batch, "epochs": STEPS, "snapshots": [], "save_steps": 0}
        changes |= {} if packing else {"micro_batch_size": micro}
        return settings.model_copy(update=changes), longest

    def present(self, model: Model, *, adapted: bool = False) -> Model:
        """Return the model if it exists and will not be replaced, else M0; with `lora` and `adapted`, an adapter over
        M0."""
        changing = any(model.folder.is_relative_to(self.context.run.root / stage) for stage in self.running)
        if not changing and any(model.folder.glob("*.safetensors")):
            return model
        base = self.context.base
        if self.recipe.lora is None or not adapted:
            return base
        folder = self.folder / "adapter"
        self.context.save(self.context.loader.load(base), folder)
        return Model("stand-in", folder, "stand-in")

    def student(self, settings: SsbSettings, rows: Dataset, phase: Phase, begin: Model) -> None:
        """Rehearse SSB's student with artificial logits of a teacher."""
        recipe, start = self.recipe, self.present(begin)
        adapted = recipe.model_copy(update={"lora": recipe.student_lora})
        model = Loader(adapted, self.context.base if recipe.lora else start).load(start)
        tokens = (sum(label != IGNORE for label in labels[1:]) for labels in rows["labels"])
        found = [stored(made_up(count, settings.top_k)) for count in tokens]
        for name in found[0]:
            rows = rows.add_column(name, [one[name] for one in found])  # pyright: ignore
        train_student(model, self.context.renderer.tokenizer, rows, settings, adapted, phase)

    def scan(self) -> None:
        """Rehearse the first batch of the entropy scan, which has the longest rows."""
        tokens = load_tokens(self.data.path / TOKENS)
        first = plan_batches(row_lengths(tokens), self.recipe.selection.batch_tokens)[:1]
        for _ in scan(self.context.loader.load(self.context.base, train=False, scan=True), tokens, first):
            pass


def as_pairs(rows: Dataset) -> Dataset:
    """Make pairs with the same completion on both sides, which are as long as a pair can be."""
    pairs: dict[str, list[list[int]]] = {name: [] for name in COLUMNS}
    for row in rows:
        ids, labels = row["input_ids"], row["labels"]  # pyright: ignore
        begin = next(place for place, label in enumerate(labels) if label != IGNORE)
        for name, part in zip(COLUMNS, (ids[:begin], ids[begin:], ids[begin:]), strict=True):
            pairs[name].append(part)
    return Dataset.from_dict(pairs)


def made_up(tokens: int, k: int) -> TopLogits:
    logits_TK = torch.zeros(tokens, k)
    lse_T = logits_TK.logsumexp(-1) + 0.05
    return TopLogits(torch.arange(k).expand(tokens, k), logits_TK, lse_T, lse_T)
