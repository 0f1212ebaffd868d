"""Padding of a step's micro-batches: its share, and the time of a step with and without a mask, sorted or not.

Lengths are those of the study's solutions (docs/evidence/solutions.jsonl.gz, at 3.5 characters per token). The model is
random: on a GPU with the shape of Qwen2.5-0.5B, on the CPU small.
"""

import argparse
import gzip
import json
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import numpy as np
import torch
from common import append, measure
from transformers import AutoModelForCausalLM, Qwen2Config

from weakdriven.training.arguments import alike_together, training_order
from weakdriven.training.attention import without_cudnn_attention, without_padding_masks

ROOT = Path(__file__).parents[1]
CHARACTERS = 3.5
SHAPES = {
    "cpu": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "cuda": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
}


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
    model = AutoModelForCausalLM.from_config(Qwen2Config(vocab_size=512, **SHAPES[device])).to(device)

    for micro in chosen.micro:
        for (name, order), masked in product(orders.items(), (True, False)):
            whole = micro_batches(length_N, order, micro)
            padded = sum(len(part) * int(part.max()) for part in whole)
            first = micro_batches(length_N, order[: chosen.batch], micro)

            def step(parts: list[np.ndarray] = first) -> None:
                for part in parts:
                    ids = torch.randint(512, (len(part), int(part.max())), device=device)
                    mask = (torch.arange(ids.shape[1]) < torch.from_numpy(part)[:, None]).to(device)
                    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                        loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
                    loss.backward()
                model.zero_grad()

            share = f"{100 * (1 - length_N[order].sum() / padded):.1f}% padding"
            with nullcontext() if masked else without_padding_masks(model), without_cudnn_attention():
                found = measure(step, repeats=chosen.repeats, warmup=1)
            told = {
                "variant": f"{name}, {'masked' if masked else 'no mask'}",
                "shape": f"batch={chosen.batch} micro={micro}",
            }
            dtype = "bfloat16" if device == "cuda" else "float32"
            append(chosen.output, benchmark="padding", dtype=dtype, note=share, **told, **found)


if __name__ == "__main__":
    main()
