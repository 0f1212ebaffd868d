"""Losses of one trained model over tiles, compared with their definition on dense logits in float64.

T = tokens, D / E = trained / teacher width, V = vocabulary. A `Problem` has both models: its strong one is trained,
its weak one is the teacher.
"""

from collections.abc import Callable
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from loss_cases import Problem, Watch, problem
from weakdriven.losses import tiled_loss
from weakdriven.losses import tiles as tiling
from weakdriven.losses.head import Head
from weakdriven.methods.ssb import loss as distil

STRONG, WEAK = [4.0, 1, 0, -1], [2, 1.5, 0.5, 0]
EYE, FIRST = torch.eye(4), torch.tensor([0])
SHAPES = [(1, 1, 1, 2), (16, 8, 8, 64), (13, 3, 5, 33), (5, 8, 2, 700)]
HEADS = [
    {},
    {"biases": (True, True)},
    {"scales": (0.3, 2.0)},
    {"caps": (3.0, 2.0), "biases": (True, False)},
    {"caps": (2.0, None), "scales": (0.5, 0.25)},
]
every_head = pytest.mark.parametrize("options", HEADS, ids=["plain", "bias", "scale", "cap", "cap-scale"])
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_chunk = pytest.mark.parametrize("chunk", [1, 3, 1024])
Fused = Callable[[Tensor, Head, Tensor, Head, Tensor], tuple[Tensor, dict[str, Tensor]]]
Dense = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, tuple[Tensor, ...]]]


def whole_divergence(logits_TV: Tensor, teacher_TV: Tensor, *, temperature: float) -> Tensor:
    """Compute the full KL divergence, which the stored one equals with all logits."""
    q_TV = (teacher_TV / temperature).softmax(-1)
    return (torch.xlogy(q_TV, q_TV) - q_TV * (logits_TV / temperature).log_softmax(-1)).sum()


def near(values, tolerance=1e-6):
    return pytest.approx(values, abs=tolerance)


def logits(values) -> Tensor:
    return torch.tensor([values], dtype=torch.float32, requires_grad=True)


@contextmanager
def chunks(size: int):
    """Hold `size` rows of logits at a time."""
    with pytest.MonkeyPatch.context() as patch:
        for home in (tiled_loss, distil):
            patch.setattr(home, "tile_rows", lambda *_, **__: (size, size))
        yield


def heads(case: Problem, leaves) -> tuple[Head, Head]:
    _, weight_VD, bias_V, _, teacher_VE, teacher_bias_V = leaves
    return (
        Head(weight_VD, bias_V, case.scales[0], case.caps[0]),
        Head(teacher_VE, teacher_bias_V, case.scales[1], case.caps[1]),
    )


def dense_logits(case: Problem) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Return, in float64, the trained model's leaves, its raw logits, its logits and the teacher's."""
    leaves = [None if x is None else x.detach().double() for x in case.tensors]
    for x in leaves[:3]:
        if x is not None:
            x.requires_grad_()
    hidden_TD, weight_VD, bias_V, teacher_TE, *_ = leaves
    head, teacher = heads(case, leaves)
    raw_TV = hidden_TD @ weight_VD.T + (0 if bias_V is None else bias_V)
    z_TV = raw_TV * head.scale
    z_TV = z_TV if head.cap is None else head.cap * (z_TV / head.cap).tanh()
    return [x for x in leaves[:3] if x is not None], raw_TV, z_TV, teacher.logits(teacher_TE)


def assert_same(case: Problem, fused: Fused, dense: Dense, chunk: int = 3) -> None:
    """Compare loss, statistics and gradients of a fused loss with float64, up to rounding."""
    leaves = [None if x is None else x.detach().clone().requires_grad_(x.requires_grad) for x in case.tensors]
    head, teacher = heads(case, leaves)
    with chunks(chunk):
        loss, statistics = fused(leaves[0], head, leaves[3], teacher, case.target_T)
    loss.backward()
    exact, raw_TV, z_TV, teacher_TV = dense_logits(case)
    want, want_statistics = dense(z_TV, teacher_TV, case.target_T)
    torch.testing.assert_close(loss.double(), want, rtol=2e-5, atol=2e-5)
    for (name, value), true in zip(statistics.items(), want_statistics, strict=True):
        assert not value.requires_grad
        text = f"{name}: {value} is not {true}"
        torch.testing.assert_close(value.double(), true.detach(), rtol=2e-5, atol=2e-5, msg=text)
    *gradients, by_raw_TV = torch.autograd.grad(want, [*exact, raw_TV])
    size_TV, hidden_TD = by_raw_TV.abs(), exact[0].detach().abs()
    sizes = size_TV @ exact[1].detach().abs(), size_TV.T @ hidden_TD, size_TV.sum(0)
    eps = torch.finfo(leaves[0].dtype).eps  # tiles are as exact as the hidden states
    for got, true, size in zip([x for x in leaves[:3] if x is not None], gradients, sizes, strict=False):
        found = got.grad
        assert found is not None and (found.dtype, found.shape) == (got.dtype, got.shape)
        slack = max(2e-5, 2 * eps) * size.max()
        assert (found.double() - true).abs().max() <= slack + 1e-6
    assert all(x is None or x.grad is None for x in leaves[3:])


def assert_lean(fused: Fused, dtype: torch.dtype, largest: int = 4) -> None:
    """Check that eight times the tokens take no more memory, and that only gradients are kept for the backward pass.

    Args:
        largest: Bytes per logit of a tile in the largest tensor.
    """
    V, peaks = 4000, []
    for T in (8, 64):
        case, kept = problem(T, 1, 1, V, dtype=dtype, needs=3), []

        def keep(tensor: Tensor, kept=kept) -> Tensor:
            kept.append(tensor.numel())
            return tensor

        with chunks(4), Watch() as watch, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss, _ = fused(case.tensors[0], *heads(case, case.tensors)[:1], *case.tensors[3:5], case.target_T)
        assert watch.largest <= 4 * V * largest
        assert sum(kept) <= V + 3 * T
        loss.backward()
        peaks.append(watch.peak)
    assert peaks[1] < 1.05 * peaks[0]


def assert_in_budget(fused: Fused, dtype: torch.dtype, **options) -> None:
    """Check that, besides gradients and tokens, only the memory for logits is used."""
    V = 999
    budget = 7 * V * (2 * torch.finfo(dtype).bits // 8 + 4 * 4)
    case = problem(100, 8, 8, V, dtype=dtype, needs=3, **options)
    head, teacher = heads(case, case.tensors)
    with pytest.MonkeyPatch.context() as patch, Watch() as watch:
        patch.setattr(tiling, "CPU_TILE_BYTES", budget)
        fused(case.tensors[0], head, case.tensors[3], teacher, case.target_T)
    tokens = 100 * (3 * 8 + 16) * 4
    assert 0.4 * budget < watch.peak - V * 8 * 4 <= budget + tokens
