"""The planner against measurements: peak memory and step time of real trainers, or of recorded rows.

    python3 benchmarks/plan.py                 # on a GPU: each setting in its own process, rows to results.csv
    python3 benchmarks/plan.py --recorded      # anywhere: writes their errors into docs/background/plan-accuracy.md

Random weights and tokens of Qwen3's shapes, rows of equal length, the package's own trainers: 3 steps to warm up and 5
timed steps. The recorded rows include those of joint_step and methods, measured before the planner was written.
"""

import argparse
import csv
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import append, in_own_process
from datasets import Dataset
from joint_step import VARIANTS
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from methods import Clock, TimedPhase
from weakdriven.config.recipe import DataSettings, JointSettings, LoraSettings, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.models.adapters import add_adapter, twin
from weakdriven.models.liger import fast_layers, use_liger
from weakdriven.models.load import DTYPES, EMBEDDED, load_tokenizer, locate_model
from weakdriven.planning.devices import DEVICES, GIB, Machine
from weakdriven.planning.memory import Step, training_memory
from weakdriven.planning.model_config import shape_of
from weakdriven.planning.model_shape import Shape
from weakdriven.planning.speed import step_seconds
from weakdriven.runs.directory import Progress
from weakdriven.training.lora import lora_config
from weakdriven.training.sft import train_supervised
from weakdriven.wmss.trainer import train_joint

HERE = Path(__file__).parent
RESULTS, DOCS = HERE / "results.csv", HERE.parent / "docs" / "background" / "plan-accuracy.md"
BEGIN, END = "<!-- measured: benchmarks/plan.py --recorded -->", "<!-- end of measured -->"
WARM, TIMED = 3, 5
MACHINE = Machine(DEVICES["H200-141G"])
KEPT = {"nothing": True, "attention": "keep_attention", "products": "keep_products", "all": False}
OPTIMIZERS = {"bf16": "adamw", "AdamWFp8": "adamw_fp8", "AdamW8bit": "adamw_8bit"}
FITTED = {
    ("joint_step", "SFT, nothing recomputed", "qwen3-4b 4x4096"): "rate of products",
    ("methods", "sft", "qwen2.5-0.5b 4x2048"): "Python's share",
    ("plan", "pair, bf16, checkpointing True, 1 micro", "qwen3-0.6b 8x1024"): "Python's share",
    ("plan", "SFT, bf16-mixed, checkpointing True, 1 micro", "qwen3-0.6b 8x1024"): "launches of bf16-mixed",
    ("plan", "SFT, bf16-mixed, checkpointing True, 2 micro", "qwen3-4b 2x4096"): "casts of bf16-mixed",
    ("plan", "pair, bf16, checkpointing keep_attention, 1 micro", "qwen3-1.7b 4x2048"): "selective checkpoints",
}
"""Rows to which a constant of planning/speed.py was fitted; the memory model has no fitted constants."""
QWEN3 = {"vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 40960}
SIZES: dict[str, Any] = {
    "qwen3-0.6b": (1024, 3072, 28, 16, True),
    "qwen3-1.7b": (2048, 6144, 28, 16, True),
    "qwen3-4b": (2560, 9728, 36, 32, True),
    "qwen3-8b": (4096, 12288, 36, 32, False),
    "tiny": (64, 128, 2, 8, True),
}
METHODS: dict[str, dict[str, Any]] = {
    "sft": {},
    "sft_fused": {},
    "undial": {"teacher": True},
    "wmss": {"models": 2, "trained": 2},
    "wmss_frozen": {"models": 2},
    "ssb": {"lora": 32},
    "dpo": {},
}
"""Predicted methods of benchmarks/methods.py: all recomputed, bf16, 8192 tokens, one micro-batch per step."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A measured setting; its string is the variant in results.csv."""

    model: str
    batch: int
    length: int
    pair: bool = False
    lora: bool = False
    precision: str = "bf16"
    checkpointing: Any = True
    optimizer: str = "adamw"
    micro_steps: int = 1

    @property
    def shape(self) -> str:
        return f"{self.model} {self.batch}x{self.length}"

    def __str__(self) -> str:
        name = f"{'LoRA ' if self.lora else ''}{'pair' if self.pair else 'SFT'}, {self.precision}"
        return f"{name}, checkpointing {self.checkpointing}, {self.micro_steps} micro"


SETTINGS = [
    Setting("qwen3-0.6b", 8, 1024, precision="bf16-mixed"),
    Setting("qwen3-0.6b", 8, 1024, pair=True),
    Setting("qwen3-1.7b", 4, 2048, checkpointing=False),
    Setting("qwen3-1.7b", 4, 2048, pair=True, checkpointing="keep_attention"),
    Setting("qwen3-1.7b", 4, 4096, precision="bf16-mixed", checkpointing="keep_products"),
    Setting("qwen3-1.7b", 4, 4096, pair=True, lora=True, precision="bf16-mixed"),
    Setting("qwen3-4b", 2, 4096, precision="bf16-mixed", micro_steps=2),
    Setting("qwen3-4b", 2, 2048, pair=True, micro_steps=2),
    Setting("qwen3-4b", 4, 2048, lora=True, precision="bf16-mixed"),
    Setting("qwen3-4b", 1, 1024, pair=True),
]


def config_of(model: str) -> Any:
    if model == "qwen2.5-0.5b":
        heads = {"num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True}
        return Qwen2Config(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, **heads)
    hidden, intermediate, layers, heads, tied = SIZES[model]
    sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers}
    return Qwen3Config(**QWEN3, **sizes, num_attention_heads=heads, tie_word_embeddings=tied)


def shape_for(model: str, rank: int | None = None, known: dict[Any, Shape] = {}) -> Shape:  # noqa: B006
    if (model, rank) not in known:
        known[model, rank] = shape_of(config_of(model), LoraSettings(rank=rank) if rank else None)
    return known[model, rank]


def step_of(setting: Setting, *, fast: bool) -> Step:
    return Step(
        shape_for(setting.model, 16 if setting.lora else None),
        tokens=setting.batch * setting.length,
        length=setting.length,
        models=2 if setting.pair else 1,
        trained=2 if setting.pair else 1,
        precision=setting.precision,  # pyright: ignore
        optimizer=setting.optimizer,
        checkpointing=setting.checkpointing,
        fast=fast,
        accumulates=setting.micro_steps > 1,
    )


def recorded_step(row: dict[str, str]) -> tuple[Step, int] | None:
    """Return the step that a row of results.csv measured and its micro-batches, or None for other benchmarks."""
    fast, name = "liger-kernel" in row["versions"], row["variant"]
    if row["benchmark"] == "plan":
        for setting in SETTINGS:
            if (str(setting), setting.shape) == (name, row["shape"]):
                return step_of(setting, fast=fast), setting.micro_steps
    if row["benchmark"] == "joint_step" and "tiny" not in row["shape"]:
        options = {"pair": True, "liger": True, "lora": False, "optimizer": "bf16", "weak_trainable": True}
        options |= VARIANTS[name]
        model, sizes = row["shape"].split()
        batch, length = map(int, sizes.split("x"))
        setting = Setting(model, batch, length, options["pair"], options["lora"], "bf16", KEPT[options["keep"]])
        step = step_of(dataclasses.replace(setting, optimizer=OPTIMIZERS[options["optimizer"]]), fast=options["liger"])
        return dataclasses.replace(step, trained=step.trained if options["weak_trainable"] else 1), 1
    if row["benchmark"] == "methods" and name in METHODS and "other work" not in row["note"]:
        model = "qwen3-4b" if row["shape"].startswith("4b") else row["shape"].split()[0]
        options = dict(METHODS[name])
        shape = shape_for(model, options.pop("lora", None))
        length = 1024 if "(" in row["shape"] else 2048  # pairs of 256 + 768, twice
        return Step(shape, 8192, length, precision="bf16", fast=fast, accumulates=False, **options), 1
    return None


def predicted(step: Step, micro_steps: int) -> tuple[float, float]:
    """Predict GiB and milliseconds."""
    seconds = step_seconds(step, MACHINE, micro_steps)
    return training_memory(step, MACHINE).allocated / GIB, 1000 * seconds


@dataclasses.dataclass(frozen=True)
class Compared:
    benchmark: str
    variant: str
    shape: str
    gib: tuple[float, float]
    """Measured and predicted."""
    ms: tuple[float, float]
    fitted: str

    @property
    def errors(self) -> tuple[float, float]:
        return self.gib[1] / self.gib[0] - 1, self.ms[1] / self.ms[0] - 1


def compared(path: Path = RESULTS) -> list[Compared]:
    """Compare every recorded row on an H200 with the planner's prediction, if it has one."""
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            known = recorded_step(row) if "H200" in row["hardware"] else None
            if known is None:
                continue
            gib, ms = predicted(*known)
            key = (row["benchmark"], row["variant"], row["shape"])
            measured = float(row["peak_gib"]), float(row["median_ms"])
            found.append(Compared(*key, (measured[0], gib), (measured[1], ms), FITTED.get(key, "")))
    return found


def table(rows: list[Compared]) -> str:
    lines = ["| measured | shape | GiB | error | ms | error | used for fitting |", "|---|---|---:|---:|---:|---:|---|"]
    for row in rows:
        gib, ms = row.errors
        lines.append(
            f"| {row.benchmark}: {row.variant} | {row.shape} | {row.gib[0]:.1f} | {gib:+.1%} | "
            f"{row.ms[0]:,.0f} | {ms:+.1%} | {row.fitted} |"
        )
    memory, time = (max(abs(row.errors[place]) for row in rows) for place in (0, 1))
    lines.append(f"\nLargest error over these {len(rows)} rows: memory {memory:.1%}, time {time:.1%}.")
    return "\n".join(lines)


def write_docs() -> None:
    text = DOCS.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    DOCS.write_text(f"{before}{BEGIN}\n\n{table(compared())}\n\n{END}{after}", encoding="utf-8")


def build(setting: Setting) -> Any:
    precision = "bf16" if setting.lora else setting.precision
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config_of(setting.model), dtype=DTYPES[precision])
    return model


def run_setting(setting: Setting) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return run_in(Path(folder), setting)


def run_in(folder: Path, setting: Setting) -> dict[str, Any]:
    """Run the pipeline's trainers; one extra step shows when the last timed one ends."""
    steps, clock = WARM + TIMED, Clock(WARM + TIMED, WARM)
    lora = LoraSettings() if setting.lora else None
    models = [build(setting)]
    if setting.pair:
        models.append(twin(models[0]) if lora else build(setting))
    if lora:
        models = [add_adapter(model, lora_config(lora), seed=number) for number, model in enumerate(models)]
    fast = fast_layers("auto", "qwen3")
    for model in models if fast else []:
        use_liger(model.get_base_model() if lora else model)
    batch = setting.batch * setting.micro_steps
    ids = np.random.default_rng(0).integers(151936, size=((steps + 1) * batch, setting.length), dtype=np.int32)
    rows = Dataset.from_dict({"input_ids": list(ids), "labels": list(ids)})
    recipe = Recipe(
        model=EMBEDDED,
        data=DataSettings(path="embedded:arithmetic"),
        precision=setting.precision,  # pyright: ignore
        lora=lora,
    )
    options = {"batch_size": batch, "micro_batch_size": setting.batch, "optimizer": setting.optimizer}
    options["gradient_checkpointing"] = setting.checkpointing
    work = folder / ".work" / "stage" / "work"
    work.mkdir(parents=True)
    phase = TimedPhase("stage", 0, 1, work, Progress(), clock=clock)
    tokenizer = load_tokenizer(locate_model(EMBEDDED))
    if setting.pair:
        train_joint(models[0], models[1], tokenizer, rows, JointSettings(**options), recipe, phase)
    else:
        train_supervised(models[0], tokenizer, rows, TrainSettings(**options), recipe, phase)
    return clock.row() | {"fast": fast}


def measure_all(output: Path) -> None:
    for setting in SETTINGS:
        row = in_own_process(run_setting, setting)
        if isinstance(row, str):
            print(f"{setting!s:60} {setting.shape} not measured: {row}", flush=True)
            continue
        gib, ms = predicted(step_of(setting, fast=row.pop("fast")), setting.micro_steps)
        row["note"] = f"predicted {gib:.2f} GiB and {ms:.0f} ms"
        about = {"benchmark": "plan", "shape": setting.shape, "dtype": setting.precision, "variant": str(setting)}
        append(output, **about, **row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", action="store_true", help="no GPU: compare with results.csv, write the docs")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.recorded:
        write_docs()
        print(table(compared()))
    elif torch.cuda.is_available():
        measure_all(options.output)
    else:
        parser.error("there is no GPU here; --recorded compares with the rows of results.csv")


if __name__ == "__main__":
    main()
