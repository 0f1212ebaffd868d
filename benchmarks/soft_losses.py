"""The losses of the baselines, forward and backward, compared with the matrix products that they need.

    python benchmarks/soft_losses.py                                  # on a GPU: Qwen3-4B's head, 8,192 tokens, bf16
    python benchmarks/soft_losses.py --shape 8192 896 151936          # Qwen2.5-0.5B's
    python benchmarks/soft_losses.py --shape 256 64 5000 --dtype float32 --output /tmp/soft.csv       # CPU

Memory is the peak above the inputs, so it includes the gradients. UNDIAL's teacher is as wide as the model. The note is
the relative error (Frobenius) of the gradients of states and head against float64. `cross-entropy` is the mixed loss
with one model, which has a Triton kernel; the others are in torch.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from common import append, measure
from torch import Tensor

from weakdriven.losses.head import Head
from weakdriven.losses.mixed_ce import mixed_cross_entropy_with_statistics
from weakdriven.losses.tiles import Implementation
from weakdriven.methods.ssb.loss import topk_distillation
from weakdriven.methods.undial.loss import adjusted_logit_loss, adjusted_logit_loss_reference
from weakdriven.methods.undial.noise import noised_cross_entropy

K, TEMPERATURE = 20, 1.5


class Problem:
    """Inputs with logits of realistic size; every token is supervised."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, device: str):
        tokens, width, vocabulary = shape
        torch.manual_seed(0)

        def states() -> Tensor:
            return torch.randn(tokens, width, device=device).to(dtype)

        def head() -> Tensor:
            return (torch.randn(vocabulary, width, device=device) * 2 / width**0.5).to(dtype)

        self.leaves = [states().requires_grad_(), head().requires_grad_()]
        self.teacher = states(), head()
        self.target = torch.randint(vocabulary, (tokens,), device=device)
        self.lengths = torch.full_like(self.target, 2048)
        ids = torch.stack([torch.randperm(vocabulary, device=device)[:K] for _ in range(16)])
        logits = torch.randn(16, K, device=device).sort(descending=True).values.bfloat16()
        lse = (logits.float() / TEMPERATURE).logsumexp(-1) + 0.05
        self.stored = [x.repeat(-(-tokens // 16), *[1] * (x.dim() - 1))[:tokens] for x in (ids, logits, lse)]

    def cross_entropy(self, implementation: Implementation) -> Tensor:
        hidden_TD, head = self.leaves[0], Head(self.leaves[1])
        options = {"strong_weight": 1.0, "scale": 1 / len(hidden_TD), "implementation": implementation}
        return mixed_cross_entropy_with_statistics(hidden_TD, head, None, head, self.target, **options)[0]

    def undial(self) -> Tensor:
        return adjusted_logit_loss(*self.leaves, *self.teacher, self.target)[0]  # type: ignore

    def noise(self) -> Tensor:
        return noised_cross_entropy(*self.leaves, self.target, self.lengths)[0]  # type: ignore

    def distil(self) -> Tensor:
        return topk_distillation(*self.leaves, self.target, tuple(self.stored))[0]  # type: ignore

    def exact_undial(self, chunk: int = 256) -> list[Tensor]:
        """Compute gradients in float64 by autograd, on dense logits of a few tokens at a time."""
        exact = [x.detach().double().requires_grad_() for x in self.leaves]
        teacher = [x.double() for x in self.teacher]
        for rows in torch.arange(len(self.target), device=self.target.device).split(chunk):
            logits = exact[0][rows] @ exact[1].T, teacher[0][rows] @ teacher[1].T
            loss = adjusted_logit_loss_reference(*logits, self.target[rows], strength=1.0)
            (loss / len(self.target)).backward()
        return [x.grad for x in exact if x.grad is not None]

    def products(self, count: int, chunk: int = 2048) -> Callable[[], None]:
        """Compute only the matrix products, as the lower bound."""
        hidden_TD, head_VD = (x.detach() for x in self.leaves)
        logits_KV = torch.randn(chunk, len(head_VD), device=hidden_TD.device).to(hidden_TD.dtype)
        gradient_VD = torch.empty_like(head_VD)

        def step() -> None:
            for hidden_KD in hidden_TD.split(chunk):
                used_KV = logits_KV[: len(hidden_KD)]
                for _ in range(count - 2):
                    torch.mm(hidden_KD, head_VD.T, out=used_KV)
                torch.mm(used_KV, head_VD)
                torch.mm(used_KV.T, hidden_KD, out=gradient_VD)

        return step


def errors(gradients: tuple[Tensor, ...], exact: list[Tensor]) -> str:
    parts = [float((g.double() - e).norm() / e.norm()) for g, e in zip(gradients, exact, strict=True)]
    return "gradient error " + " ".join(f"{part:.2e}" for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=3, default=[8192, 2560, 151936], metavar=("T", "D", "V"))
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--exact", action="store_true", help="compare UNDIAL's gradients with float64")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.csv")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    problem = Problem(tuple(options.shape), getattr(torch, options.dtype), device)
    about = {
        "benchmark": "soft_losses",
        "shape": "T={} D={} V={}".format(*options.shape),
        "dtype": options.dtype,
    }
    exact = problem.exact_undial() if options.exact else None
    for count in (3, 4):
        row = measure(problem.products(count), repeats=options.repeats)
        append(options.output, **about, variant=f"{count} products (floor)", **row)
    losses: dict[str, Callable[[], Tensor]] = {
        "cross-entropy, chunked": partial(problem.cross_entropy, "chunked"),
        "undial": problem.undial,
        "noise": problem.noise,
        "distil": problem.distil,
    }
    if device == "cuda":
        losses["cross-entropy, triton"] = partial(problem.cross_entropy, "triton")
    for name, loss in losses.items():
        step = partial(torch.autograd.grad, inputs=problem.leaves)
        row = measure(lambda loss=loss, step=step: step(loss()), repeats=options.repeats)
        if name == "undial" and exact is not None:
            row["note"] = errors(step(loss()), exact)
        append(options.output, **about, variant=name, **row)


if __name__ == "__main__":
    main()
