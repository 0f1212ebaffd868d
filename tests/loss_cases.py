"""Problems for the mixed loss: exact random tensors, the definition in float64, and all implementations.

T = supervised tokens, D / E = strong / weak width, V = vocabulary.
"""

from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from weakdriven.losses import mixed_ce
from weakdriven.losses.head import Head
from weakdriven.losses.mixed_ce import MixStatistics, mixed_cross_entropy_with_statistics

CUDA = torch.cuda.is_available()
NAMES = ("strong_TD", "strong_head_VD", "strong_bias_V", "weak_TE", "weak_head_VE", "weak_bias_V")


class Way(NamedTuple):
    implementation: Any
    device: str


def _way(implementation: str, device: str) -> Any:
    marks = [pytest.mark.skipif(device == "cuda" and not CUDA, reason="needs CUDA")]
    if device == "cuda":
        marks.append(pytest.mark.gpu)
    elif implementation == "triton":  # without CUDA, conftest.py turns on the interpreter
        marks.append(pytest.mark.skipif(CUDA, reason="with CUDA, Triton compiles"))
    return pytest.param(Way(implementation, device), id=implementation + "-cuda" * (device == "cuda"), marks=marks)


WAYS = [_way(name, device) for device in ("cpu", "cuda") for name in ("reference", "chunked", "triton")]
FAST_WAYS = [_way(name, device) for device in ("cpu", "cuda") for name in ("chunked", "triton")]
every_way = pytest.mark.parametrize("way", WAYS)
every_fast_way = pytest.mark.parametrize("way", FAST_WAYS)


class Exact(NamedTuple):
    """The results of the definition, in float64 on the CPU."""

    loss: Tensor
    statistics: MixStatistics
    slack_T: Tensor
    """Minimum of (weak - strong)[k] - (weak - strong)[y] over k; the margin condition is that it is at least 0."""
    gradients: list[Tensor | None]
    scales: list[Tensor | None]
    """Sum of absolute terms of each gradient, to which rounding errors are relative."""
    largest: float
    """Largest magnitude of all logits."""


class Problem(NamedTuple):
    """One call of the loss. Tensors are None if there is no bias or a model need not run."""

    tensors: tuple[Tensor | None, ...]
    target_T: Tensor
    strong_weight: float = 0.5
    strong_anchor: float = 0.0
    scales: tuple[float, float] = (1.0, 1.0)
    caps: tuple[float | None, float | None] = (None, None)

    @property
    def runs(self) -> tuple[bool, bool]:
        return self.strong_weight > 0 or self.strong_anchor > 0, self.strong_weight < 1

    def solve(self, way: Way, **options: Any) -> tuple[Tensor, MixStatistics, list[Tensor | None]]:
        """Compute loss, statistics and the required gradients with the package."""
        leaves = [
            None if x is None else x.detach().to(way.device).requires_grad_(x.requires_grad) for x in self.tensors
        ]
        strong_TD, strong_head_VD, strong_bias_V, weak_TE, weak_head_VE, weak_bias_V = leaves
        loss, statistics = mixed_cross_entropy_with_statistics(
            strong_TD if self.runs[0] else None,
            Head(strong_head_VD, strong_bias_V, self.scales[0], self.caps[0]),
            weak_TE if self.runs[1] else None,
            Head(weak_head_VE, weak_bias_V, self.scales[1], self.caps[1]),
            self.target_T.to(way.device),
            strong_weight=self.strong_weight,
            strong_anchor=self.strong_anchor,
            implementation=way.implementation,
            **options,
        )
        assert not any(value.requires_grad for value in statistics)
        if loss.requires_grad:
            loss.backward()
        return loss.detach(), statistics, [None if x is None else x.grad for x in leaves]

    def exact(self) -> Exact:
        leaves = [None if x is None else x.detach().cpu().double().requires_grad_() for x in self.tensors]
        target = self.target_T.cpu()
        heads = [i for i in (1, 4) if self.runs[i // 3]]
        rows = min(len(leaves[i]) for i in heads)  # pyright: ignore
        raw, z = [], []
        for hidden, head, bias, scale, cap in zip(
            leaves[::3], leaves[1::3], leaves[2::3], self.scales, self.caps, strict=True
        ):
            logits = hidden @ head[:rows].T + (0 if bias is None else bias[:rows])  # pyright: ignore
            raw.append(F.pad(logits, (0, rows - logits.shape[1])))  # a shorter head with weight 0
            scaled = scale * raw[-1]
            z.append(scaled if cap is None else cap * (scaled / cap).tanh())
        strong, weak = z
        shares = (self.strong_weight, strong), (1 - self.strong_weight, weak)
        mixed = torch.stack([share * z for share, z in shares if share]).sum(0)  # 0 * -inf is NaN
        loss = F.cross_entropy(mixed, target, reduction="sum")
        loss = loss + self.strong_anchor * F.cross_entropy(strong, target, reduction="sum")
        asked = [i for i, x in enumerate(self.tensors) if x is not None and x.requires_grad and self.runs[i // 3]]
        gradients: list[Tensor | None] = [None] * 6
        scales: list[Tensor | None] = [None] * 6
        if asked:
            found = torch.autograd.grad(loss, [leaves[i] for i in asked] + raw, allow_unused=True)  # pyright: ignore
            for i, gradient in zip(asked, found, strict=False):
                gradients[i] = torch.zeros_like(leaves[i]) if gradient is None else gradient  # pyright: ignore
                by_logit_TV = torch.zeros_like(raw[0]) if found[i // 3 - 2] is None else found[i // 3 - 2].abs()
                hidden, head = leaves[i // 3 * 3].abs().detach(), leaves[i // 3 * 3 + 1][:rows].abs().detach()  # pyright: ignore
                scale = (by_logit_TV @ head, by_logit_TV.T @ hidden, by_logit_TV.sum(0))[i % 3]
                scales[i] = F.pad(scale, (0, 0) * (scale.dim() - 1) + (0, len(gradients[i]) - len(scale)))  # pyright: ignore
        with torch.no_grad():
            largest = max(z[z.isfinite()].abs().max().item() if z.numel() else 0.0 for z in (strong, weak))
            return Exact(loss.detach(), *self._statistics(strong, weak, mixed), gradients, scales, largest)

    def _statistics(self, strong: Tensor, weak: Tensor, mixed: Tensor) -> tuple[MixStatistics, Tensor]:
        place = self.target_T.cpu()[:, None]

        def numbers(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            log_p = z.log_softmax(-1)
            chosen = log_p.gather(1, place)
            return -chosen.sum(), chosen.exp().sum(), -torch.xlogy(log_p.exp(), log_p.exp()).sum()

        nothing = (torch.tensor(torch.nan, dtype=torch.float64),) * 3
        of_mixed = numbers(mixed)
        of_strong, of_weak = (
            numbers(z) if runs else nothing for z, runs in zip((strong, weak), self.runs, strict=True)
        )
        difference = (weak - strong).nan_to_num(torch.inf, torch.inf, -torch.inf)  # both forbid: does not count
        slack_T = (difference - difference.gather(1, place)).amin(-1)
        holds = (slack_T >= 0).double().sum() if all(self.runs) else nothing[0]
        first, probability, entropy = zip(of_mixed, of_strong, of_weak, strict=True)
        return MixStatistics(*first, *probability[:2], holds, *entropy), slack_T


def problem(
    T: int,
    D: int,
    E: int,
    V: int,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    extra: tuple[int, int] = (0, 0),
    biases: tuple[bool, bool] = (False, False),
    needs: int = 63,
    **options: Any,
) -> Problem:
    """Draw random halves between -1.5 and 1.5: all raw logits are exact in every dtype if D and E are below 10.

    Args:
        extra: Rows of padding on each head.
        needs: Bit i says that tensor i requires a gradient.
    """
    draw = torch.Generator().manual_seed(seed)
    shapes = [(T, D), (V + extra[0], D), (V + extra[0],), (T, E), (V + extra[1], E), (V + extra[1],)]
    tensors = [torch.randint(-3, 4, shape, generator=draw).to(dtype) / 2 for shape in shapes]
    present = [True, True, biases[0], True, True, biases[1]]
    tensors = tuple(
        x.requires_grad_(bool(needs >> i & 1)) if there else None
        for i, (x, there) in enumerate(zip(tensors, present, strict=True))
    )
    return Problem(tensors, torch.randint(V, (T,), generator=draw), **options)


def given_tensors(case: Problem, device: str = "cpu") -> list[Tensor]:
    """Return new leaves of the tensors that are not None, in order."""
    return [x.detach().to(device).requires_grad_(x.requires_grad) for x in case.tensors if x is not None]


def assert_solves(way: Way, case: Problem) -> None:
    """Compare loss, statistics and every gradient with float64, up to the unavoidable rounding."""
    loss, statistics, gradients = case.solve(way)
    want = case.exact()
    torch.testing.assert_close(loss.cpu().double(), want.loss, rtol=2e-5, atol=1e-4)
    for name, value, true in zip(MixStatistics._fields, statistics, want.statistics, strict=True):
        if name == "margin_tokens" and all(case.runs):  # ties in float64 need not be ties in float32
            assert (want.slack_T > 1e-5).sum() <= value.item() <= (want.slack_T > -1e-5).sum()
            continue
        if true.isnan() and not len(case.target_T):  # a sum over no tokens, for a model that did not run
            assert value.isnan() or value == 0
            continue
        torch.testing.assert_close(
            value.cpu().double(),
            true,
            rtol=2e-5,
            atol=1e-4,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    for i, (name, got, true, scale) in enumerate(zip(NAMES, gradients, want.gradients, want.scales, strict=True)):
        given = case.tensors[i]
        if true is None or given is None or scale is None:
            assert got is None, name
            continue
        assert got is not None and (got.dtype, got.shape) == (given.dtype, given.shape), name
        relative = max(2e-5, 2 * torch.finfo(given.dtype).eps)
        error = (got.cpu().double() - true).abs() - relative * scale
        # P - 1 of a confident token is as exact as its float32 logit; scale and anchor magnify that rounding
        limit = 1e-6 + 2 * 2**-23 * want.largest * max(1, *case.scales) * max(1, case.strong_anchor)
        assert error.numel() == 0 or error.max() <= limit, f"{name}: off by {error.max()}"


@contextmanager
def tiles(chunk: int, tile: int | None = None):
    """Hold `chunk` rows of strong logits at a time, and `tile` rows of weak ones if the gradient is shared."""

    def rows(*_: Any, gradients: int, **__: Any) -> tuple[int, int]:
        return chunk, chunk if tile is None or gradients == mixed_ce.SEPARATE else min(tile, chunk)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixed_ce, "tile_rows", rows)
        yield


class Watch(TorchDispatchMode):
    """Records matrix products and new memory, also inside the operator."""

    operator = torch.ops.weakdriven.mixed_cross_entropy.default
    products_of = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.matmul)

    def __init__(self):
        super().__init__()
        self.shapes: list[tuple[int, int, int]] = []
        """(rows, inner, columns) of each product."""
        self.largest = self.peak = 0
        """Bytes of the largest new tensor, and of all new tensors that existed at one time."""
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is self.operator:
            with self:
                return mixed_ce._mixed_ce._init_fn(*args, **(kwargs or {}))
        before = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in self.products_of:
            left, right = [x for x in args if isinstance(x, Tensor)][-2:]
            self.shapes.append((left.shape[0], left.shape[1], right.shape[1]))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in before:
                self.largest = max(self.largest, x.numel() * x.element_size())
                storage = x.untyped_storage()
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._live = {key: (ref, size) for key, (ref, size) in self._live.items() if not ref.expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return result

    @property
    def work(self) -> int:
        """Count all multiplications."""
        return sum(rows * inner * columns for rows, inner, columns in self.shapes)
