"""Padding of a step's micro-batches, and the step's time, with rows as they are drawn and with like ones together.

Lengths are those of the study's solutions (docs/evidence/solutions.jsonl.gz, at 3.5 characters a token). The model is
small and random; what is compared is the share of the work that goes into padding, which no size of model changes.
"""

import argparse
import gzip
import json
from pathlib import Path

import numpy as np
import torch
from common import append, measure
from transformers import AutoModelForCausalLM, Qwen3Config

from weakdriven.training.arguments import alike_together, training_order

ROOT = Path(__file__).parents[1]
CHARACTERS = 3.5


def lengths() -> np.ndarray:
    with gzip.open(ROOT / "docs/evidence/solutions.jsonl.gz", "rt", encoding="utf-8") as file:
        return np.array([round(len(json.loads(line)["completion"]) / CHARACTERS) for line in file])


def micro_batches(length_N: np.ndarray, order: np.ndarray, micro: int) -> list[np.ndarray]:
    return [length_N[rows] for rows in order.reshape(-1, micro)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--micro", type=int, nargs="*", default=[2, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.csv")
    chosen = parser.parse_args()
    length_N = lengths()
    drawn = training_order(len(length_N), epochs=1, batch_size=chosen.batch, seed=42)
    orders = {"as drawn": drawn, "alike together": alike_together(drawn, length_N, chosen.batch)}

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = Qwen3Config(vocab_size=512, num_key_value_heads=2, head_dim=32, **size)
    model = AutoModelForCausalLM.from_config(config).to(device)

    for micro in chosen.micro:
        for name, order in orders.items():
            whole = micro_batches(length_N, order, micro)
            padded = sum(len(part) * int(part.max()) for part in whole)
            first = micro_batches(length_N, order[: chosen.batch], micro)

            def step(parts: list[np.ndarray] = first) -> None:
                for part in parts:
                    ids = torch.randint(512, (len(part), int(part.max())), device=device)
                    mask = torch.arange(ids.shape[1]) < torch.from_numpy(part)[:, None]
                    model(input_ids=ids, attention_mask=mask.to(device), labels=ids).loss.backward()
                model.zero_grad()

            note = f"{100 * (1 - length_N[order].sum() / padded):.1f}% padding"
            found = measure(step, repeats=chosen.repeats, warmup=1)
            shape = f"batch={chosen.batch} micro={micro}"
            append(chosen.output, benchmark="padding", variant=name, shape=shape, dtype="float32", note=note, **found)


if __name__ == "__main__":
    main()
