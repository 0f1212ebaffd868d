"""Training by a recipe on rows of realistic lengths, against TRL's SFTTrainer as a user would write it.

    python benchmarks/end_to_end.py                                  # Qwen2.5-0.5B's shape, on a GPU
    python benchmarks/end_to_end.py --model gemma-3-270m Qwen3-4B
    python benchmarks/end_to_end.py --profile "SFT, packed"          # where the time of a step goes
    python benchmarks/end_to_end.py --whole --model Qwen2.5-0.5B     # a whole `weakdriven compare` of SFT and WMSS
    python benchmarks/end_to_end.py --model embedded --batch 8 --steps 5 --dropped 2   # on a CPU

Weights and tokens are random. Lengths are those of the study's solutions (docs/evidence/solutions.jsonl.gz, at 3.5
characters per token, 256 tokens on average); a third of each row is the prompt. A step has 128 rows. Each variant runs
in its own process. Tokens are counted without padding. The share of the peak counts 6 operations per token and weight
of a matrix product, and causal attention, without recomputation, relative to 790 TFLOP/s.
"""

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import append, in_own_process
from datasets import Dataset
from joint_step import PEAK, flops
from padding import lengths
from transformers import AutoConfig, AutoModelForCausalLM, TrainerCallback
from trl import SFTConfig, SFTTrainer

from methods import Clock, TimedPhase
from weakdriven.config.recipe import DataSettings, JointSettings, Recipe, SftSettings
from weakdriven.models.liger import fast_layers, use_liger
from weakdriven.models.load import DTYPES, EMBEDDED, load_tokenizer, locate_model
from weakdriven.planning.model_config import SHAPES
from weakdriven.runs.directory import Progress
from weakdriven.runs.files import read_json
from weakdriven.training.sft import train_supervised
from weakdriven.wmss.trainer import train_joint

LONGEST = 1024
TINY = "embedded"
MODELS = {"Qwen2.5-0.5B", "Qwen3-4B", "gemma-3-270m", TINY}
"""Shapes that ship with the planner, and the demo's model for a CPU."""
TRL = {"trl": True, "micro_batch_size": 8}
VARIANTS: dict[str, dict[str, Any]] = {
    "TRL": TRL,
    "TRL, Liger": TRL | {"use_liger_kernel": True},
    "TRL, Liger, 32 rows": TRL | {"use_liger_kernel": True, "micro_batch_size": 32},
    "TRL, Liger, 32 rows, nothing recomputed": TRL
    | {"use_liger_kernel": True, "micro_batch_size": 32, "gradient_checkpointing": False},
    "TRL, Liger, 32 rows, padding-free": TRL
    | {"use_liger_kernel": True, "micro_batch_size": 32, "padding_free": True, "gradient_checkpointing": False},
    "SFT, 8 rows": {"micro_batch_size": 8, "packing": False},
    "SFT, packed": {"micro_batch_size": 8, "packing": True},
    "SFT, packed, products kept": {"micro_batch_size": 8, "packing": True, "gradient_checkpointing": "keep_products"},
    "SFT, packed, nothing recomputed": {"micro_batch_size": 8, "packing": True, "gradient_checkpointing": False},
    "SFT, packed fourfold": {"micro_batch_size": 32, "packing": True},
    "SFT, packed fourfold, products kept": {
        "micro_batch_size": 32,
        "packing": True,
        "gradient_checkpointing": "keep_products",
    },
    "SFT, packed fourfold, nothing recomputed": {
        "micro_batch_size": 32,
        "packing": True,
        "gradient_checkpointing": False,
    },
    "pair, 8 rows": {"pair": True, "micro_batch_size": 8, "packing": False},
    "pair, packed": {"pair": True, "micro_batch_size": 8, "packing": True},
    "pair, packed, nothing recomputed": {
        "pair": True,
        "micro_batch_size": 8,
        "packing": True,
        "gradient_checkpointing": False,
    },
    "pair, packed fourfold": {"pair": True, "micro_batch_size": 32, "packing": True},
    "pair, packed fourfold, nothing recomputed": {
        "pair": True,
        "micro_batch_size": 32,
        "packing": True,
        "gradient_checkpointing": False,
    },
}
KERNELS = {
    "attention": r"flash|fmha|attention|softmax_warp",
    "products": r"gemm|nvjet|cutlass|xmma|cublas|splitk",
    "optimizer": r"multi_tensor|adam|lpnorm",
    "layers of Liger": r"_rms_norm|_rope|swiglu|geglu|liger",
    "loss": r"row_kernel|entropy|cross_entropy|log_?softmax|_mixed",
    "copies and casts": r"memcpy|memset|copy_kernel|direct_copy|CatArray",
}
"""Groups of kernels, by parts of their names; the first match counts."""


class Share(TrainerCallback):
    """Profiles the kernels of two steps after the warm-up, in groups."""

    def __init__(self, first: int):
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        self.first, self.profile = first, torch.profiler.profile(activities=activities)
        self.begin = self.seconds = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.first:
            torch.cuda.synchronize()
            self.profile.start()
            self.begin = time.perf_counter()
        if state.global_step == self.first + 2:
            torch.cuda.synchronize()
            self.seconds = time.perf_counter() - self.begin
            self.profile.stop()

    def table(self) -> dict[str, float]:
        """Return milliseconds per step: kernels by group, time without kernels, and the slowest CPU operations."""
        kernels, cpu = Counter[str](), Counter[str]()
        for event in self.profile.key_averages():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                group = next((name for name, part in KERNELS.items() if re.search(part, event.key, re.I)), "other")
                kernels[group] += event.self_device_time_total / 2000
            else:
                cpu[event.key] += event.self_cpu_time_total / 2000
        idle = {"no kernel": 500 * self.seconds - sum(kernels.values())}
        return dict(kernels.most_common()) | idle | {f"CPU {name}": spent for name, spent in cpu.most_common(8)}


def config_of(name: str) -> Any:
    return AutoConfig.from_pretrained(locate_model(EMBEDDED) if name == TINY else SHAPES / name)


def rows(options: argparse.Namespace) -> Dataset:
    """Make random rows for all steps and one more, whose start is the end of the last timed step."""
    draw, vocabulary = np.random.default_rng(0), config_of(options.model).vocab_size
    count = (options.steps + 1) * options.batch
    length_N = draw.choice(lengths().clip(12, LONGEST), count) // options.shorter
    ids = [draw.integers(1, vocabulary, length, dtype=np.int32) for length in length_N]
    labels = [np.where(np.arange(len(row)) < len(row) // 3, -100, row) for row in ids]
    return Dataset.from_dict({"input_ids": ids, "labels": labels})


def model_of(name: str, *, fast: bool, dtype: torch.dtype) -> Any:
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config_of(name), dtype=dtype)
    if fast and fast_layers("auto", model.config.model_type):
        use_liger(model)
    return model


def run_variant(name: str, options: argparse.Namespace) -> dict[str, Any]:
    settings = dict(VARIANTS[name])
    clock, found = Clock(options.steps, options.dropped), rows(options)
    share = Share(options.dropped) if options.profile else None
    dtype = DTYPES[options.precision]
    with tempfile.TemporaryDirectory() as folder:
        if settings.pop("trl", False):
            model = model_of(options.model, fast=False, dtype=dtype)
            micro = min(settings.pop("micro_batch_size"), options.batch)
            settings |= {"per_device_train_batch_size": micro, "gradient_accumulation_steps": options.batch // micro}
            config = SFTConfig(
                folder,
                bf16=options.precision == "bf16-mixed",
                max_steps=options.steps + 1,
                logging_steps=1,
                report_to=[],
                disable_tqdm=True,
                save_strategy="no",
                max_length=None,
                dataset_kwargs={"skip_prepare_dataset": True},
                use_cpu=not torch.cuda.is_available(),
                **settings,
            )
            tokenizer = load_tokenizer(locate_model(EMBEDDED))
            watchers = [clock, *([share] if share else [])]
            SFTTrainer(model, config, train_dataset=found, processing_class=tokenizer, callbacks=watchers).train()
            models = 1
        else:
            models = 2 if settings.pop("pair", False) else 1
            model = train(found, folder, settings, models, options, clock, share)
    row = clock.row()
    tokens = sum(map(len, found["input_ids"])) / (options.steps + 1)  # per step
    work = models * flops(model, 1, round(float(np.mean([len(one) for one in found["input_ids"]])))) * options.batch
    seconds = row["median_ms"] / 1000
    row["note"] = f"{tokens / seconds:,.0f} tokens/s, {work / seconds / PEAK:.1%} of the peak"
    if share:
        row["profile"] = share.table()
    return row


def train(
    found: Dataset,
    folder: str,
    settings: dict[str, Any],
    models: int,
    options: argparse.Namespace,
    clock: Clock,
    share: Share | None,
) -> Any:
    """Train through the package's own phases."""
    work = Path(folder) / ".work" / "stage" / "work"
    work.mkdir(parents=True)
    data = DataSettings(path="embedded:arithmetic", max_length=LONGEST)
    recipe = Recipe(model=EMBEDDED, data=data, precision=options.precision)
    phase = Watched("stage", 0, 1, work, Progress(), clock=clock, share=share)
    kind = JointSettings if models == 2 else SftSettings
    settings["micro_batch_size"] = min(settings["micro_batch_size"], options.batch)
    own = kind(**settings, batch_size=options.batch, save_steps=0)
    network = [model_of(options.model, fast=True, dtype=DTYPES[options.precision]) for _ in range(models)]
    shared = load_tokenizer(locate_model(EMBEDDED)), found, own, recipe, phase
    if models == 2:
        train_joint(*network, *shared)
    else:
        train_supervised(*network, *shared)
    return network[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched(TimedPhase):
    share: Share | None

    def prepare(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        made = super().prepare(*args, **kwargs)
        return made | {"callbacks": [*made["callbacks"], *([self.share] if self.share else [])]}


def whole(options: argparse.Namespace) -> None:
    """Time every stage of SFT over two epochs and of WMSS, from random weights and without evaluation."""
    tokenizer = load_tokenizer(locate_model(EMBEDDED))
    with tempfile.TemporaryDirectory() as folder:
        model, data = Path(folder) / "model", Path(folder) / "rows.jsonl"
        model_of(options.model, fast=False, dtype=torch.bfloat16).cpu().save_pretrained(model)
        tokenizer.save_pretrained(model)
        draw = np.random.default_rng(0)
        with data.open("w", encoding="utf-8") as file:
            for length in draw.choice(lengths().clip(12, LONGEST), options.rows) // options.shorter:
                words = " ".join(map(str, draw.integers(10, size=length)))
                file.write(json.dumps({"prompt": "1 + 1 =", "completion": words[:length]}) + "\n")
        phase = f"{{batch_size: {options.batch}, micro_batch_size: 8, packing: true, save_steps: 0}}"
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text(
            f"name: whole\nmodel: {model}\ndata: {{path: {data}, max_length: {LONGEST}}}\n"
            f"precision: {options.precision}\nsft: {phase}\njoint: {phase}\neval: {{benchmarks: []}}\n",
            encoding="utf-8",
        )
        for method in ("sft", "wmss"):
            output, begin = Path(folder) / method, time.perf_counter()
            command = ["run", str(recipe), f"method={method}", "--output", str(output), "--no-rehearsal"]
            subprocess.run([sys.executable, "-m", "weakdriven", *command], check=True)
            spent = {"all": time.perf_counter() - begin}
            for manifest in sorted(output.rglob("manifest.json")):
                name = str(manifest.parent.relative_to(output))
                spent[name] = read_json(manifest)["wall_seconds"]
            about = {"benchmark": "end_to_end", "shape": f"{options.model}, {options.rows} rows"}
            for name, seconds in spent.items():
                row = {"median_ms": round(1000 * seconds), "peak_gib": float("nan"), "note": "one run"}
                append(options.output, **about, dtype=options.precision, variant=f"{method}: {name}", **row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=sorted(MODELS), default=["Qwen2.5-0.5B"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME")
    parser.add_argument(
        "--profile", nargs="+", choices=VARIANTS, default=[], metavar="NAME", help="profile only these variants"
    )
    parser.add_argument("--whole", action="store_true", help="a whole comparison of SFT and WMSS instead")
    parser.add_argument("--rows", type=int, default=4096, help="rows of --whole")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--shorter", type=int, default=1, help="divisor of the lengths, for a CPU")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dropped", type=int, default=3, help="first steps, which are not timed")
    parser.add_argument("--precision", choices=DTYPES, default="bf16-mixed" if torch.cuda.is_available() else "fp32")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.csv")
    options = parser.parse_args()
    for model in options.model:
        chosen = argparse.Namespace(**vars(options) | {"model": model})
        if options.whole:
            whole(chosen)
            continue
        for name in options.profile or options.variants:
            row = in_own_process(run_variant, name, chosen)
            if isinstance(row, str):
                print(f"{model}: {name:40} not measured: {row}", flush=True)
                continue
            for part, spent in row.pop("profile", {}).items():
                print(f"    {part:60} {spent:9.2f} ms a step", flush=True)
            about = {"benchmark": "end_to_end", "shape": f"{model} {options.batch} rows", "dtype": options.precision}
            append(options.output, variant=name, **about, **row)


if __name__ == "__main__":
    main()
