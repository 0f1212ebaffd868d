"""One optimizer step of every method with the package's trainers: the cost of a baseline relative to SFT and TRL.

    python benchmarks/methods.py                                   # Qwen2.5-0.5B, 4 x 2048 tokens or 4 pairs of 1024
    python benchmarks/methods.py --model 4b --methods sft,sft_fused,undial
    python benchmarks/methods.py --model tiny --length 128 --prompt 16 --completion 48 --out /tmp/methods.csv     # CPU

Random weights and tokens, one micro-batch per step, the package's defaults (all recomputed, Liger's layers on CUDA),
each method in its own process. A step lasts until the next one begins, so it includes the loading of rows and logging.
Memory is the total peak during the timed steps. Each row is used twice, to show whether DPO's reference runs only once
per pair. `sft` is TRL's SFTTrainer with its tiled head, which also measures entropy and accuracy; `sft_fused` has the
head of this package. `trl_dpo` is TRL's DPOTrainer with the layers of `dpo`, `trl_dpo_stock` with those of
transformers, and `trl_dpo_each_step` runs the reference in every step.
"""

import argparse
import dataclasses
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl.trainer.dpo_trainer as upstream
from common import append, in_own_process
from datasets import Dataset
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config, TrainerCallback

from weakdriven.config.baselines import DpoSettings, SsbSettings
from weakdriven.config.recipe import DataSettings, JointSettings, LoraSettings, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.methods.dpo_spin.trainer import PreferenceTrainer, preference_arguments, train_preference
from weakdriven.methods.neftune import EmbeddingNoise, NoisyEmbeddings
from weakdriven.methods.other_loss import AdjustedLogits, NoisedLogits, OtherLoss, ScaledLogits
from weakdriven.methods.rollouts.preference_pairs import COLUMNS
from weakdriven.methods.ssb.loss import TopLogits
from weakdriven.methods.ssb.targets import STORED, stored
from weakdriven.methods.ssb.trainer import train_student
from weakdriven.models.adapters import add_adapter
from weakdriven.models.liger import fast_layers, use_liger
from weakdriven.models.load import DTYPES, EMBEDDED, load_tokenizer, locate_model
from weakdriven.runs.directory import Progress
from weakdriven.training.lora import lora_config
from weakdriven.training.phase import Phase, fit
from weakdriven.training.sft import train_supervised
from weakdriven.training.variant import PLAIN, Variant
from weakdriven.wmss.trainer import train_joint

QWEN2 = {"num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True}
QWEN3 = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
WIDTHS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
SIZES: dict[str, tuple[Any, dict[str, Any], tuple[int, ...]]] = {
    "qwen2.5-0.5b": (Qwen2Config, QWEN2, (151936, 896, 4864, 24)),
    "4b": (Qwen3Config, QWEN3, (151936, 2560, 9728, 36)),
    "tiny": (Qwen2Config, QWEN2, (4096, 224, 512, 2)),
}
REFERENCES = {"sft": ("sft", "sft_fused"), "dpo": ("trl_dpo", "trl_dpo_stock")}
"""What a method is compared with; the limits below are relative to the faster of the two."""
LIMITS = {"undial": 1.4, "dpo": 1.1}


class Clock(TrainerCallback):
    """Records when steps begin, the peak memory after the dropped steps, and the cost of a reference."""

    def __init__(self, steps: int, dropped: int):
        self.steps, self.dropped = steps, dropped
        self.begins: list[float] = []
        self.notes: dict[str, float] = {}

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            if len(self.begins) == self.dropped:
                torch.cuda.reset_peak_memory_stats()
        self.begins.append(time.perf_counter())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_save = False  # else several processes save at the last step

    def count(self, owner: Any, function: str, note: str, size: Callable[..., int] | None = None) -> None:
        """Add up in a note the seconds spent in a function, or `size` of its arguments."""
        asked = getattr(owner, function)

        def counted(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = asked(*args, **kwargs)
            spent = time.perf_counter() - begin if size is None else size(*args, **kwargs)
            self.notes[note] = self.notes.get(note, 0) + spent
            return result

        setattr(owner, function, counted)

    def row(self) -> dict[str, Any]:
        times = sorted((1000 * np.diff(self.begins)[self.dropped : self.steps]).tolist())
        peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else float("nan")
        return {
            "median_ms": round(statistics.median(times), 2),
            "low_ms": round(times[len(times) // 5], 2),
            "high_ms": round(times[-1 - len(times) // 5], 2),
            "peak_gib": round(peak, 3),
            "note": ", ".join(f"{name} {round(value, 2):g}" for name, value in self.notes.items()),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedPhase(Phase):
    clock: Clock

    def prepare(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        made = super().prepare(*args, **kwargs)
        return made | {"callbacks": [*made["callbacks"], self.clock]}


@dataclasses.dataclass(frozen=True)
class Bench:
    """What all methods share: a model, rows, pairs and settings."""

    options: argparse.Namespace
    clock: Clock
    folder: Path

    @property
    def recipe(self) -> Recipe:
        return Recipe(model=EMBEDDED, data=DataSettings(path="embedded:arithmetic"), precision=self.options.precision)

    @property
    def tokenizer(self) -> Any:
        return load_tokenizer(locate_model(EMBEDDED))

    @property
    def vocabulary(self) -> int:
        return SIZES[self.options.model][2][0]

    def settings(self, kind: Any = TrainSettings, **changes: Any) -> Any:
        return kind(batch_size=self.options.batch, micro_batch_size=self.options.batch, **changes)

    def phase(self, epochs: int = 2) -> TimedPhase:
        work = self.folder / ".work" / "stage" / "work"
        work.mkdir(parents=True)
        return TimedPhase("stage", 0, epochs, work, Progress(), clock=self.clock)

    def model(self, *, trained: bool = True, stock: bool = False) -> Any:
        """Make a model with weights in the precision of the package's loader."""
        kind, heads, widths = SIZES[self.options.model]
        config = kind(**heads, **dict(zip(WIDTHS, widths, strict=True)))
        precision = self.options.precision if trained or self.options.precision == "fp32" else "bf16"
        torch.manual_seed(0)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[precision])
        if not stock and fast_layers("auto", model.config.model_type):
            use_liger(model)
        return model

    def tokens(self, length: int) -> np.ndarray:
        """Draw random ids of rows for half of the steps; one extra step shows when the last timed one ends."""
        rows = math.ceil((self.options.steps + 1) / 2) * self.options.batch
        return np.random.default_rng(length).integers(self.vocabulary, size=(rows, length), dtype=np.int32)

    def rows(self) -> Dataset:
        ids = self.tokens(self.options.length)
        return Dataset.from_dict({"input_ids": list(ids), "labels": list(ids)})

    def pairs(self) -> Dataset:
        prompt, reply = self.options.prompt, self.options.completion
        parts = np.split(self.tokens(prompt + 2 * reply), [prompt, prompt + reply], axis=1)
        return Dataset.from_dict({name: list(part) for name, part in zip(COLUMNS, parts, strict=True)})


def supervised(bench: Bench, variant: Variant = PLAIN, teacher: bool = False) -> None:
    frozen = bench.model(trained=False) if teacher else None
    shared = bench.tokenizer, bench.rows(), bench.settings(), bench.recipe, bench.phase()
    train_supervised(bench.model(), *shared, variant, frozen)


def joint(bench: Bench, weak: str) -> None:
    settings = bench.settings(JointSettings, weak=weak)
    train_joint(bench.model(), bench.model(), bench.tokenizer, bench.rows(), settings, bench.recipe, bench.phase())


def student(bench: Bench) -> None:
    """Train an adapter on the 20 largest logits of a teacher, which are random."""
    settings = bench.settings(SsbSettings)
    lora = LoraSettings(rank=settings.rank, alpha=settings.alpha)
    model = add_adapter(bench.model(trained=False), lora_config(lora), seed=0)
    rows, shape = bench.rows(), (bench.options.length - 1, settings.top_k)  # the first token is not predicted
    teachers = []
    for _ in range(len(rows)):
        logits_TK = torch.randn(shape).sort(descending=True).values
        lse_T = (logits_TK / settings.temperature).logsumexp(-1) + 0.05
        teachers.append(stored(TopLogits(torch.randint(bench.vocabulary, shape), logits_TK, lse_T, lse_T)))
    for name in STORED:
        rows = rows.add_column(name, [teacher[name] for teacher in teachers])
    recipe = bench.recipe.model_copy(update={"lora": lora})
    train_student(model, bench.tokenizer, rows, settings, recipe, bench.phase())


def preference(bench: Bench) -> None:
    watch_reference(bench.clock, PreferenceTrainer)
    train_preference(
        bench.model(), bench.tokenizer, bench.pairs(), bench.settings(DpoSettings), bench.recipe, bench.phase()
    )


class GivenTokens(upstream.DPOTrainer):
    """TRL's DPOTrainer without tokenisation, which is not part of a step."""

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset


def trl_preference(bench: Bench, stock: bool = False, each_step: bool = False) -> None:
    """Train with TRL's DPOTrainer on the arguments of `dpo`, and on its rows in two epochs."""
    watch_reference(bench.clock, GivenTokens)
    made = bench.phase(epochs=1).prepare(bench.pairs(), bench.settings(DpoSettings), bench.recipe, COLUMNS)
    del made["optimizer_cls_and_kwargs"]  # upstream's constructor does not take it
    made["args"] = preference_arguments(made["args"], beta=0.1)
    made["args"].num_train_epochs, made["args"].precompute_ref_log_probs = 2, not each_step
    reference = bench.model(stock=stock) if each_step else None
    fit(GivenTokens(bench.model(stock=stock), reference, processing_class=bench.tokenizer, **made))


def watch_reference(clock: Clock, trainer: Any) -> None:
    """Time upstream's reference; before it runs, upstream hashes all weights to name its cache."""

    def pairs(self: Any, model: Any, batch: Any, *_: Any) -> int:
        return len(batch["input_ids"]) // 2

    clock.count(upstream, "hash_module", "seconds of hashing")
    clock.count(trainer, "compute_ref_log_probs", "reference pairs", pairs)
    clock.count(trainer, "_precompute_ref_logps", "reference seconds")
    clock.count(trainer, "_compute_loss", "pairs trained", pairs)


METHODS: dict[str, Callable[[Bench], None]] = {
    "sft": supervised,
    "sft_fused": partial(supervised, OtherLoss(loss=ScaledLogits(1.0))),
    "scaled_ce": partial(supervised, OtherLoss(loss=ScaledLogits(0.5))),
    "neftune": partial(supervised, NoisyEmbeddings(noise=EmbeddingNoise(5.0))),
    "undial": partial(supervised, OtherLoss(loss=AdjustedLogits(strength=1.0, ce_weight=0.0)), teacher=True),
    "undial_paper_noise": partial(
        supervised, OtherLoss(loss=NoisedLogits(1.0, "target_logit", "signed", seed=(42, 0)))
    ),
    "wmss": partial(joint, weak="joint"),
    "wmss_frozen": partial(joint, weak="frozen"),
    "ssb": student,
    "trl_dpo": trl_preference,
    "trl_dpo_stock": partial(trl_preference, stock=True),
    "trl_dpo_each_step": partial(trl_preference, each_step=True),
    "dpo": preference,
}


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    clock = Clock(options.steps, options.dropped)
    with tempfile.TemporaryDirectory() as folder:
        METHODS[name](Bench(options, clock, Path(folder)))
    return clock.row()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SIZES, default="qwen2.5-0.5b")
    parser.add_argument("--methods", default=",".join(METHODS), help="names separated by commas")
    parser.add_argument("--batch", type=int, default=4, help="rows, or pairs, per step")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a row")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a pair's prompt")
    parser.add_argument("--completion", type=int, default=768, help="tokens of each side of a pair")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--dropped", type=int, default=3, help="first steps, which are not timed")
    parser.add_argument("--precision", choices=DTYPES, default="bf16" if torch.cuda.is_available() else "fp32")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.csv")
    options = parser.parse_args()
    chosen = options.methods.split(",")
    if unknown := set(chosen) - set(METHODS):
        parser.error(f"no method {', '.join(sorted(unknown))}; there are {', '.join(METHODS)}")
    found: dict[str, float] = {}
    for name in (name for name in METHODS if name in chosen):  # references come first
        kind = "dpo" if "dpo" in name else "sft"
        row = in_own_process(measured, name, options)
        if isinstance(row, str):
            print(f"{name:40} not measured: {row}", flush=True)
            continue
        found[name] = row["median_ms"]
        ratios = (f"{found[name] / found[other]:.3f}x {other}" for other in REFERENCES[kind] if other in found)
        row["note"] = "; ".join([", ".join(ratios), *filter(None, [row["note"]])])
        length = f"({options.prompt}+2x{options.completion})" if kind == "dpo" else options.length
        shape = f"{options.model} {options.batch}x{length}"
        append(options.out, benchmark="methods", variant=name, shape=shape, dtype=options.precision, **row)
    for name, limit in LIMITS.items():
        others = [found[other] for other in REFERENCES["dpo" if name == "dpo" else "sft"] if other in found]
        if name in found and others:
            ratio = found[name] / min(others)
            verdict = "within" if ratio <= limit else "OVER"
            print(f"{name}: {ratio:.3f} x the fastest reference of this run; {verdict} the limit of {limit}")


if __name__ == "__main__":
    main()
