"""The entropy scan of WD-DS against a bare forward pass and other ways to compute the same numbers; random weights.

    python benchmarks/scan.py                            # Qwen3-4B, 32 rows of 4096 tokens, bf16, on a GPU
    python benchmarks/scan.py --layers liger             # with Liger's fused layers under every variant
    python benchmarks/scan.py --layers liger --varied    # rows of many lengths: the gain of sorting and of no mask
    python benchmarks/scan.py --model tiny --rows 16 --length 64 --budget 256        # on a CPU, as a test

Every token but the first is supervised, the most expensive case. Times are of the whole pass: `scan` reads the rows
from Arrow and returns scores per example; the others read token ids on the device and leave their results there.
Memory is the peak above the weights.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import append, measure
from datasets import Dataset
from joint_step import SIZES
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config
from trl.kernels import ChunkedLogProbFunction

from weakdriven.data.tokenize import row_lengths
from weakdriven.models.liger import use_liger
from weakdriven.wmss.entropy import plan_batches, scan, score_dataset

Score = Callable[[Any, Tensor], Any]


def no_head(model: Any, ids_BL: Tensor) -> Tensor:
    return model.model(input_ids=ids_BL, use_cache=False).last_hidden_state


def shifted(model: Any, ids_BL: Tensor) -> tuple[Tensor, Tensor]:
    return no_head(model, ids_BL)[:, :-1].flatten(0, 1), ids_BL[:, 1:].flatten()


def fused_cross_entropy(model: Any, ids_BL: Tensor) -> Tensor:
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    hidden, target = shifted(model, ids_BL)
    return liger_fused_linear_cross_entropy(hidden, model.lm_head.weight, target, reduction="sum")


def trl_chunked(model: Any, ids_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Compute TRL's chunked entropy as TRL does, with vocabulary chunks of 32768."""
    hidden, target = shifted(model, ids_BL)
    log_p, entropy, *_ = ChunkedLogProbFunction.apply(
        hidden, model.lm_head.weight, None, target, 1.0, 32768, None, 1.0, ("entropy",)
    )
    return entropy, -log_p


def dense(model: Any, ids_BL: Tensor) -> Tensor:
    """Compute entropies as the authors do: softmax over the logits of all positions, one example at a time."""
    means = []
    for ids_1L in ids_BL.split(1):
        p_LV = model(input_ids=ids_1L, use_cache=False).logits[0].float().softmax(-1)
        means.append(-(p_LV * (p_LV + 1e-12).log()).sum(-1).mean())
    return torch.stack(means)


def masked(model: Any, ids_BL: Tensor) -> Tensor:
    """Run a forward pass with right padding (id 0) and its mask, as a collator makes them."""
    mask_BL = (ids_BL != 0).long()
    return model.model(input_ids=ids_BL, attention_mask=mask_BL, use_cache=False).last_hidden_state


VARIANTS: dict[str, Score] = {
    "forward, no head": no_head,
    "forward, fused cross-entropy (liger)": fused_cross_entropy,
    "forward, TRL's chunked entropy": trl_chunked,
    "dense softmax, one row at a time": dense,
}


def build(size: str, *, liger: bool, device: str) -> Any:
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    config = Qwen3Config(vocab_size=151936, max_position_embeddings=40960, **heads, **SIZES[size])
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if liger:
        use_liger(model)
    return model.eval()


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SIZES, default="4b")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--budget", type=int, default=32768, help="tokens of a batch")
    parser.add_argument("--varied", action="store_true", help="lengths from a log-normal, median 1,000")
    parser.add_argument("--layers", choices=["stock", "liger"], default="stock")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.csv")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = build(options.model, liger=options.layers == "liger", device=device)
    ids = torch.randint(1, 151936, (options.rows, options.length), device=device)
    lengths = [options.length] * options.rows
    if options.varied:
        draws = np.random.default_rng(0).lognormal(np.log(1000), 0.7, options.rows)
        lengths = draws.clip(64, options.length).astype(int).tolist()
    texts = [row[:length] for row, length in zip(ids.tolist(), lengths, strict=True)]
    for row, length in zip(ids, lengths, strict=True):
        row[length:] = 0
    dataset = Dataset.from_list([{"id": str(i), "input_ids": t, "labels": t} for i, t in enumerate(texts)])
    batches = plan_batches(row_lengths(dataset), options.budget)
    in_order = np.array_split(np.arange(options.rows), -(-options.rows * options.length // options.budget))
    tokens = sum(lengths)

    def step(score: Score, groups: list[np.ndarray]) -> Callable[[], None]:
        def run() -> None:
            for numbers in groups:
                width = max(lengths[number] for number in numbers)
                score(model, ids[numbers.tolist(), :width])

        return run

    def ours() -> None:
        for _ in scan(model, dataset, batches):
            pass

    about = {
        "benchmark": "scan",
        "shape": f"qwen3-{options.model} {options.rows}x{'varied to ' * options.varied}{options.length} in batches of "
        f"{options.budget}",
        "dtype": "bfloat16",
    }
    entropy, smaller = (
        score_dataset(model, dataset, batch_tokens=budget)["entropy"].to_numpy()
        for budget in (options.budget, options.budget // 8)
    )
    steady = f", entropies in batches of an eighth differ by {abs(entropy - smaller).max():.0e} nats at most"
    times: dict[str, float] = {}
    runs = {"weakdriven scan": ours}
    if options.varied:
        runs["forward, no head, sorted, unmasked"] = step(no_head, batches)
        runs["forward, no head, sorted, masked"] = step(masked, batches)
        runs["forward, no head, in order, masked"] = step(masked, in_order)
    else:
        runs |= {name: step(score, batches) for name, score in VARIANTS.items()}
    for name, run in runs.items():
        try:
            row = measure(run, repeats=options.repeats, warmup=1)
        except (ImportError, RuntimeError, ValueError) as error:
            print(f"{name:40} not measured: {str(error).splitlines()[0][:100]}", flush=True)
            continue
        times[name] = row["median_ms"]
        row["note"] = f"{1000 * tokens / row['median_ms']:.0f} tokens/s, {options.layers} layers"
        row["note"] += steady if name == "weakdriven scan" else ""
        append(options.output, **about, variant=name, **row)
    ours_ms = times["weakdriven scan"]
    for name, ms in times.items():
        print(f"scan takes {ours_ms / ms:.3f} x {name}")
    if not options.varied:
        other = trl_chunked(model, ids[batches[0].tolist()])[0].view(len(batches[0]), -1).mean(1)
        print(f"largest difference from TRL's entropies: {abs(entropy[batches[0]] - other.cpu().numpy()).max():.2e}")


if __name__ == "__main__":
    main()
