"""Repeats one round of a finished run in a few lines of plain PyTorch that share nothing with the package.

    python -m research.evidence.check RUN [--rows 256] [--output docs/evidence/checks/NAME.json]

It reads the run's tokens, M0, M1, entropies, active set and recipe. It compares the entropies of some rows with those
of dense logits, the selection probabilities and the draw with the paper's formula, and the loss of every logged step
and the final strong model with its own training loop. What agrees is no artefact of how the package trains. It supports
full training on one device with the defaults of WMSS: formula `paper`, `adamw`, linear schedule.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import yaml
from datasets import Dataset
from torch.nn.functional import cross_entropy, log_softmax
from transformers import AutoModelForCausalLM, AutoTokenizer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--base", help="folder of M0, if it is not where the recipe says")
    parser.add_argument("--rows", type=int, default=256, help="rows whose entropies are compared")
    parser.add_argument("--output", type=Path, help="where the comparison is written as JSON")
    args = parser.parse_args()
    found = check(args.run, args.base, args.rows)
    text = json.dumps(found, indent=2)
    print(text)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(text + "\n", encoding="utf-8")


def check(run: Path, base: str | None, rows: int) -> dict[str, Any]:
    torch.backends.cuda.enable_cudnn_sdp(False)  # its backward pass gives NaN for some lengths (pytorch#196678)
    recipe = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    base = base or recipe["model"]
    tokens = Dataset.from_file(str(run / "data/tokens.arrow"))
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    found: dict[str, Any] = {"recipe": recipe["name"], "seed": recipe["seed"], "device": device}
    entropy = {name: pq.read_table(run / f"entropy/{name}/scores.parquet") for name in ("base", "sft")}
    scored = {
        name: dict(zip(*(table[x].to_pylist() for x in ("id", "entropy")), strict=True))
        for name, table in entropy.items()
    }
    for name, folder in (("base", base), ("sft", run / "sft")):
        mine = entropies(load(folder, forward_dtype(recipe)), tokens, rows)
        found[f"entropy of {name}, largest difference"] = max(abs(scored[name][id] - value) for id, value in mine)
    found |= selection(run, recipe, tokens["id"], scored)
    return found | training(run, recipe, tokens, base)


def forward_dtype(recipe: dict[str, Any]) -> torch.dtype:
    return torch.float32 if recipe["precision"] == "fp32" else torch.bfloat16


def load(folder: Path | str, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(DEVICE)


@torch.no_grad()
def entropies(model: Any, tokens: Dataset, rows: int) -> Iterator[tuple[str, float]]:
    """Yield the mean entropy over each row's supervised tokens, from dense logits."""
    for row in tokens.select(range(min(rows, len(tokens)))):
        ids, labels = (torch.tensor(row[name], device=DEVICE) for name in ("input_ids", "labels"))
        logs = log_softmax(model(ids[None]).logits[0, :-1][labels[1:] != -100].float(), dim=-1)
        yield row["id"], float(-(logs.exp() * logs).sum(-1).mean())


def selection(run: Path, recipe: dict[str, Any], ids: list[str], scored: dict[str, dict[str, float]]) -> dict[str, Any]:
    settings = recipe["selection"]
    weak, strong = (np.array([scored[name][id] for id in ids]) for name in ("base", "sft"))
    weights = settings["consolidation"] * np.maximum(weak - strong, 0) + settings["difficulty"] * strong
    weights += settings["repair"] * np.maximum(strong - weak, 0)
    p = weights / weights.sum()
    drawn = np.random.default_rng([recipe["seed"], 1]).choice(len(p), round(settings["multiplier"] * len(p)), p=p)
    active = pq.read_table(run / "round-1/active/active.parquet")
    kept = np.flatnonzero(active["draws"].to_numpy())
    off = float(np.abs(active["probability"].to_numpy() - p).max())
    return {"probability, largest difference": off, "same active set": bool(np.array_equal(kept, np.unique(drawn)))}


def training(run: Path, recipe: dict[str, Any], tokens: Dataset, base: Path | str) -> dict[str, Any]:
    """Train both models on their mixed logits for one epoch over the active set."""
    settings, rows = recipe["joint"], np.flatnonzero(pq.read_table(run / "round-1/active/active.parquet")["draws"])
    batch, mixed = settings["batch_size"], recipe["precision"] == "bf16-mixed"
    steps = len(rows) // batch
    order = rows[np.random.default_rng([recipe["seed"], 1, 0]).permutation(len(rows))]
    strong, weak = (load(folder, torch.float32) for folder in (run / "sft", base))
    start = [weight.detach().cpu().clone() for weight in strong.parameters()]
    both = [*strong.parameters(), *weak.parameters()]
    optimizer = torch.optim.AdamW(both, lr=settings["learning_rate"], betas=settings["adam_betas"], weight_decay=0.0)
    warm_up = int(settings["warmup_ratio"] * steps)
    padding = AutoTokenizer.from_pretrained(run / "sft").pad_token_id
    losses = []
    for step in range(steps):
        ids, labels, mask = padded(tokens.select(order[step * batch : (step + 1) * batch]), padding)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=mixed):
            logits = [model(ids, attention_mask=mask).logits[:, :-1].float() for model in (strong, weak)]
        weight = settings["strong_weight"]
        mixture = weight * logits[0] + (1 - weight) * logits[1]
        loss = cross_entropy(mixture.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(both, settings["max_grad_norm"])
        share = step / warm_up if step < warm_up else (steps - step) / max(steps - warm_up, 1)
        for group in optimizer.param_groups:
            group["lr"] = settings["learning_rate"] * share
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return compared(run, losses, start, list(strong.parameters()))


def padded(rows: Dataset, padding: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids, labels = ([torch.tensor(row) for row in rows[name]] for name in ("input_ids", "labels"))
    masks = [torch.ones_like(row) for row in ids]
    pad = torch.nn.utils.rnn.pad_sequence
    parts = (ids, padding), (labels, -100), (masks, 0)
    return tuple(pad(rows, batch_first=True, padding_value=value).to(DEVICE) for rows, value in parts)  # pyright: ignore


def compared(run: Path, losses: list[float], start: list[Any], weights: list[Any]) -> dict[str, Any]:
    lines = (run / "round-1/strong/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    logged = [row for row in map(json.loads, lines) if "loss" in row]
    before = [0, *(row["step"] for row in logged)]
    mine = [float(np.mean(losses[first:last])) for first, last in pairwise(before)]
    apart = [abs(row["loss"] - own) for row, own in zip(logged, mine, strict=True)]
    theirs = [weight.detach().cpu() for weight in load(run / "round-1/strong", torch.float32).parameters()]
    own = [weight.detach().cpu() for weight in weights]

    def distance(some: list[Any], others: list[Any]) -> float:
        return float(sum(((a - b).double() ** 2).sum() for a, b in zip(some, others, strict=True)) ** 0.5)

    return {
        "steps": len(losses),
        "loss at the first and last": [logged[0]["loss"], logged[-1]["loss"]],
        "loss, mean and largest difference": [float(np.mean(apart)), max(apart)],
        "strong weights, distance of the two": distance(own, theirs),
        "strong weights, distance from the start": distance(start, theirs),
    }


if __name__ == "__main__":
    main()
