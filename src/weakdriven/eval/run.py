"""Evaluate one model on one benchmark: generate -> samples.jsonl -> grade -> scores.json."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from weakdriven.data.prompts import Renderer
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS, Item
from weakdriven.eval.math_answers import grade_math
from weakdriven.eval.passk import wilson_interval
from weakdriven.generate import Completion, generate
from weakdriven.rundir import BENCHMARK_SCORES, SAMPLES, Progress, append_jsonl, salvage_jsonl, write_json


def evaluate(
    model: PreTrainedModel,
    renderer: Renderer,
    benchmark: str,
    items: list[Item],
    *,
    max_new_tokens: int,
    batch_size: int,
    work: Path,
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Complete, grade and score all items; samples of a killed try in `work` are kept."""
    raw = work / "completions.jsonl"
    done = {row["id"]: row for row in salvage_jsonl(raw)}
    left = [item for item in items if item.id not in done]
    prompts = [renderer.prompt([{"role": "user", "content": item.question}]) for item in left]

    def keep(rows: list[int], completions: list[Completion]) -> None:
        batch = [
            {"id": left[row].id, "prompt": prompts[row], "text": c.text, "tokens": c.tokens, "finish": c.finish}
            for row, c in zip(rows, completions, strict=True)
        ]
        append_jsonl(raw, batch)
        done.update({row["id"]: row for row in batch})
        progress.update(len(done), len(items))

    generate(
        model,
        renderer.tokenizer,
        prompts,
        max_new_tokens=max_new_tokens,
        stop_ids=renderer.stop_ids,
        batch_size=batch_size,
        on_batch=keep,
    )
    if missing := [item.id for item in items if item.id not in done]:
        raise UserError(f"{benchmark}: {len(missing)} items got no completion (first: {missing[0]}); run again.")
    samples = [grade_sample(done[item.id], item) for item in items]
    append_jsonl(out / SAMPLES, samples)
    scores = score(benchmark, samples)
    write_json(out / BENCHMARK_SCORES, scores)
    return {key: scores[key] for key in ("items", "correct", "accuracy", "unanswered")}


def grade_sample(row: dict[str, Any], item: Item) -> dict[str, Any]:
    graded = grade_math(row["text"], item.gold)
    verdict = {"answer": graded.answer, "gold": item.gold, "correct": graded.correct, "reason": graded.reason}
    return {**row, **verdict, "level": item.level}


def score(benchmark: str, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy with a 95% interval, and by level where items have one."""
    correct = sum(sample["correct"] for sample in samples)
    low, high = wilson_interval(correct, len(samples))
    levels: dict[str, dict[str, int]] = {}
    for sample in samples:
        if sample["level"] is not None:
            level = levels.setdefault(sample["level"], {"items": 0, "correct": 0})
            level["items"] += 1
            level["correct"] += sample["correct"]
    return {
        "benchmark": benchmark,
        "version": BENCHMARKS[benchmark].version,
        "items": len(samples),
        "correct": correct,
        "accuracy": correct / len(samples),
        "interval": [low, high],
        "unanswered": sum(sample["answer"] is None for sample in samples),
        "levels": dict(sorted(levels.items())),
    }
