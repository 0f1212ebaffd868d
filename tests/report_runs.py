"""Run directories made by hand: one that has just started, and one that is finished."""

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np

from run_files import put, put_active, put_scores
from weakdriven.runs.directory import PLAN_FILE
from weakdriven.runs.files import write_json

EVIL = "<script>alert(1)</script>"
RECIPE = """name: demo
method: wmss
"""
PLAN = ["data", "sft", "entropy/base", "entropy/sft", "round-1/active", "round-1/strong", "baselines/sft"]
PLAN += [f"eval/{model}/arithmetic" for model in ("base", "sft", "round-1", "baseline-sft")]


def write_plan(run: Path, names: list[str], **keys: str) -> None:
    write_json(run / PLAN_FILE, {name: keys.get(name, "ab12") for name in names})


def manifest(run: Path, stage: str, second: int, **counters: Any) -> None:
    versions = {"torch": "2.9.0", "transformers": "4.57.1"}
    times = {"wall_seconds": 3.5 + second, "finished": f"2026-11-15T03:00:{second:02}+00:00"}
    rest = {"peak_memory_bytes": 812345678, "resumed": 0, "seed": 42, "counters": counters}
    put(run / stage / "manifest.json", {"stage": stage, "key": "ab12", "versions": versions, **times, **rest})


def start(run: Path, examples: int = 60, steps: int = 40, recipe: str = "demo") -> random.Random:
    """Write only the data and phase 1."""
    rng = random.Random(7)
    put(run / "run.json", {"recipe": recipe, "weakdriven": "0.1.0", "created": "2026-11-15T03:00:00+00:00"})
    put(run / "recipe.yaml", RECIPE)
    write_plan(run, PLAN)
    rows = [{"id": f"train-{i}", "prompt": [{"role": "user", "content": f"What is {i} + 2?"}]} for i in range(examples)]
    put(run / "data/examples.jsonl", [{**row, "completion": "4", "gold": "4", "meta": {}} for row in rows])
    manifest(run, "data", 1, examples=examples)
    losses = [2 * 0.95**i + 0.3 + rng.random() / 10 for i in range(steps)]
    put(run / "sft/metrics.jsonl", [{"step": i, "loss": loss, "learning_rate": 1e-3} for i, loss in enumerate(losses)])
    manifest(run, "sft", 20, steps=steps, rows=16 * steps)
    return rng


def finish(run: Path, examples: int = 60, steps: int = 40, items: int = 80, recipe: str = "demo") -> None:
    """Write everything that a run with one round and a control leaves."""
    rng, ids = start(run, examples, steps, recipe), [f"train-{i}" for i in range(examples)]
    entropy = {"base": [rng.gammavariate(3, 0.2) for _ in range(examples)]}
    entropy["sft"] = [value * rng.uniform(0.4, 1.15) for value in entropy["base"]]
    for second, (model, values) in enumerate(entropy.items(), 22):
        put_scores(run, model, ids, values)
        manifest(run, f"entropy/{model}", second, tokens_read=5000)
    draws = [rng.choice([0, 0, 1, 1, 2]) for _ in range(examples)]
    put_active(run, 1, ids, np.array(entropy["sft"]) / sum(entropy["sft"]), draws)
    shares = {"consolidation": 0.04, "difficulty": 0.95, "repair": 0.01}
    counts = {"examples": examples, "active": sum(map(bool, draws)), "falling": 48, "equal": 0, "rising": 12}
    odds = {"expected_unique": 0.61, "realised_unique": 0.6, "p_cv": 0.31, "zero_weight": 0, "formula": "paper"}
    manifest(run, "round-1/active", 24, **counts, **odds, term_shares=shares)
    losses = [0.5 * 0.97**i + 0.1 + rng.random() / 20 for i in range(steps)]
    rows = [{"step": i, "loss": x, "strong_loss": x * 0.8, "weak_loss": x * 1.4} for i, x in enumerate(losses)]
    put(run / "round-1/strong/metrics.jsonl", rows)
    manifest(run, "round-1/strong", 40, steps=steps, rows=10 * steps)
    put(run / "baselines/sft/metrics.jsonl", [{"step": 2 * i, "loss": x * 1.2} for i, x in enumerate(losses)])
    manifest(run, "baselines/sft", 41, steps=2 * steps, rows=32 * steps)
    for second, (model, chance) in enumerate(
        [("base", 0.1), ("sft", 0.5), ("baseline-sft", 0.55), ("round-1", 0.6)], 42
    ):
        right = [rng.random() < chance for _ in range(items)]
        put(run / f"eval/{model}/arithmetic/scores.json", scores(right))
        rows = [
            {"id": f"test-{i}", "prompt": f"What is {i} + 3?", "gold": i + 3, "correct": x} for i, x in enumerate(right)
        ]
        more = {"text": f"We add 3. {EVIL} The answer is 7.", "answer": "7", "reason": "other number", "tokens": 12}
        put(run / f"eval/{model}/arithmetic/samples.jsonl", [{**row, **more, "finish": "stop"} for row in rows])
        manifest(run, f"eval/{model}/arithmetic", second)


def scores(right: list[bool], version: int = 1) -> dict[str, Any]:
    accuracy = sum(right) / len(right)
    levels = {str(k): {"items": len(part), "correct": sum(part)} for k in (2, 3) if (part := right[k::2])}
    base = {"benchmark": "arithmetic", "version": version, "items": len(right), "correct": sum(right)}
    return {
        **base,
        "accuracy": accuracy,
        "interval": [accuracy - 0.05, accuracy + 0.05],
        "unanswered": 0,
        "levels": levels,
    }


def specs(page: str) -> dict[str, Any]:
    """Return the figures of a page by name."""
    (text,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)
    return json.loads(text)["specs"]


def points(page: str, turn: int = 1) -> list[dict[str, Any]]:
    """Return the points of a round's scatter plot; empty if it is not drawn."""
    found = specs(page).get(f"entropy-round-{turn}")
    return found["layer"][1]["data"]["values"] if found else []


def own_part(page: str) -> str:
    """Return a page without the script that every page includes."""
    return page[: page.index("<script>/* Vega")]
