"""The mixed loss, forward and backward: ours, dense logits, and single-head kernels on concatenated heads.

    python benchmarks/joint_loss.py                     # on a GPU: Qwen3-4B's head, 16,384 tokens, bf16
    python benchmarks/joint_loss.py --shape 2048 512 32000 --dtype float32

Memory is the peak above the inputs, so it includes the gradients (1.6 GiB at the default shape). On the CPU, each
variant runs in its own process, and memory is the growth of the resident set.
"""

import argparse
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import append, measure
from torch import Tensor
from torch.nn import functional as F

from weakdriven.losses.head import Head
from weakdriven.losses.mixed_ce import mixed_cross_entropy, mixed_cross_entropy_reference
from weakdriven.losses.mixed_ce import mixed_cross_entropy_with_statistics as with_statistics

STRONG_WEIGHT = 0.5
Loss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def dense(strong, strong_head, weak, weak_head, target):
    return mixed_cross_entropy_reference(
        (strong @ strong_head.T).float(), (weak @ weak_head.T).float(), target, strong_weight=STRONG_WEIGHT
    )


def concatenated(strong, strong_head, weak, weak_head):
    """Concatenate both heads into one that gives the mixed logits, at the cost of copying both."""
    hidden = torch.cat([STRONG_WEIGHT * strong, (1 - STRONG_WEIGHT) * weak], -1)
    return hidden, torch.cat([strong_head, weak_head], -1)


def torch_fused(strong, strong_head, weak, weak_head, target):
    return F.linear_cross_entropy(*concatenated(strong, strong_head, weak, weak_head), target, reduction="sum")


def liger(strong, strong_head, weak, weak_head, target):
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    hidden, head = concatenated(strong, strong_head, weak, weak_head)
    return liger_fused_linear_cross_entropy(hidden, head, target, reduction="sum")


def cce(strong, strong_head, weak, weak_head, target):
    from cut_cross_entropy import linear_cross_entropy

    hidden, head = concatenated(strong, strong_head, weak, weak_head)
    return linear_cross_entropy(hidden, head, target, reduction="sum")


def ours(implementation: str) -> Loss:
    return lambda *tensors: mixed_cross_entropy(*tensors, strong_weight=STRONG_WEIGHT, implementation=implementation)  # type: ignore


def ours_logged(strong, strong_head, weak, weak_head, target):
    return with_statistics(strong, Head(strong_head), weak, Head(weak_head), target, strong_weight=STRONG_WEIGHT)[0]


def ours_anchored(strong, strong_head, weak, weak_head, target):
    heads = Head(strong_head), Head(weak_head)
    return with_statistics(strong, heads[0], weak, heads[1], target, strong_weight=STRONG_WEIGHT, strong_anchor=0.1)[0]


VARIANTS: dict[str, Loss] = {
    "dense logits": dense,
    "torch linear_cross_entropy, concatenated": torch_fused,
    "liger, concatenated": liger,
    "cut cross-entropy, concatenated": cce,
    "weakdriven chunked": ours("chunked"),
    "weakdriven triton": ours("triton"),
    "weakdriven with statistics": ours_logged,
    "weakdriven with statistics and anchor": ours_anchored,
}


def make_inputs(shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> tuple[list[Tensor], Tensor]:
    """Make inputs with logits of realistic size; every token is supervised."""
    tokens, width, vocabulary = shape
    torch.manual_seed(0)
    draws = [(tokens, width), (vocabulary, width)] * 2
    inputs = [torch.randn(size, device=device, dtype=torch.float32) for size in draws]
    inputs = [(x if len(x) == tokens else x * 2 / width**0.5).to(dtype).requires_grad_() for x in inputs]
    return inputs, torch.randint(vocabulary, (tokens,), device=device)


def exact_gradients(inputs: list[Tensor], target: Tensor, chunk: int = 512) -> list[Tensor]:
    """Compute gradients in float64 by autograd, on dense logits of a few tokens at a time."""
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    for rows in torch.arange(len(target), device=target.device).split(chunk):
        dense64 = STRONG_WEIGHT * leaves[0][rows] @ leaves[1].T + (1 - STRONG_WEIGHT) * leaves[2][rows] @ leaves[3].T
        F.cross_entropy(dense64, target[rows], reduction="sum").backward()
    return [x.grad for x in leaves if x.grad is not None]


def errors(loss: Loss, inputs: list[Tensor], target: Tensor, exact: list[Tensor]) -> str:
    """Return the relative errors (Frobenius) of the gradients of strong states, strong head, weak states, weak head."""
    gradients = torch.autograd.grad(loss(*inputs, target), inputs)
    parts = [
        sum(float((g.double() - e).square().sum()) for g, e in zip(mine.split(8192), true.split(8192), strict=True))
        / float(true.square().sum())
        for mine, true in zip(gradients, exact, strict=True)
    ]
    return "gradient error " + " ".join(f"{part**0.5:.2e}" for part in parts)


def products(inputs: list[Tensor], chunk: int = 2048) -> Callable[[], None]:
    """Compute only the six matrix products, as the lower bound."""
    strong, strong_head, weak, weak_head = (x.detach() for x in inputs)
    logits = torch.empty(chunk, len(strong_head), dtype=strong.dtype, device=strong.device).normal_()
    head_gradient = torch.empty_like(strong_head)

    def step() -> None:
        for rows in range(0, len(strong), chunk):
            for hidden, head in ((strong[rows : rows + chunk], strong_head), (weak[rows : rows + chunk], weak_head)):
                torch.mm(hidden, head.T, out=logits[: len(hidden)])
                torch.mm(logits[: len(hidden)], head)
                torch.mm(logits[: len(hidden)].T, hidden, out=head_gradient)

    return step


def run_variant(
    name: str, shape: tuple[int, int, int], dtype: torch.dtype, device: str, repeats: int
) -> dict[str, Any]:
    inputs, target = make_inputs(shape, dtype, device)

    def step() -> None:
        VARIANTS[name](*inputs, target).backward()
        for x in inputs:
            x.grad = None

    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak, which includes making the inputs
        before = memory_kib("VmRSS")
    row = measure(step, repeats=repeats)
    if device == "cpu":
        row["peak_gib"] = round((memory_kib("VmHWM") - before) / 2**20, 3)
    return row


def memory_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=3, default=[16384, 2560, 151936], metavar=("T", "D", "V"))
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.csv")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape, dtype = tuple(options.shape), getattr(torch, options.dtype)
    about = {"benchmark": "joint_loss", "shape": "T={} D={} V={}".format(*shape), "dtype": options.dtype}
    exact = inputs = target = None
    if device == "cuda":
        inputs, target = make_inputs(shape, dtype, device)
        exact = exact_gradients(inputs, target)
        append(
            options.output,
            **about,
            variant="six products (floor)",
            **measure(products(inputs), repeats=options.repeats),
        )
    for name in options.variants:
        try:
            if device == "cuda":
                row = run_variant(name, shape, dtype, device, options.repeats)
                if "anchor" not in name:  # the anchor changes the loss and its gradients
                    row["note"] = errors(VARIANTS[name], inputs, target, exact)
            else:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    row = pool.apply(run_variant, (name, shape, dtype, device, options.repeats))
        except (
            ImportError,
            AttributeError,
            RuntimeError,
            ValueError,
        ) as error:  # not installed, or not for this device
            print(f"{name:40} not measured: {type(error).__name__}: {str(error).splitlines()[0][:120]}", flush=True)
            continue
        append(options.output, **about, variant=name, **row)
        if device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
