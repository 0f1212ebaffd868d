"""Measure how mixing a weak and a strong model changes the gradient on each token: the paper's mechanistic analysis.

T = tokens, R = rows of a tile, D / E = strong / weak width, V = vocabulary, K = reported hard negatives.

Margin of a token k: m_k = z[y] - z[k], for the true token y. Hard negatives are the paper's set H: every k other than y
whose margin is strictly smaller under weak than under strong. As in the losses, heads of different length are compared
on their common rows.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weakdriven.diagnose.logits import joined, precise, tiles
from weakdriven.losses.head import Head, as_head, first_rows

COPIES = 9
"""Maximum number of tensors of a tile's size that are held at once."""


class HardNegatives(NamedTuple):
    """Each token's hard negatives with the largest gradient, largest first, padded with id -1 and NaN."""

    ids_TK: Tensor
    weak_TK: Tensor
    strong_TK: Tensor
    mixed_TK: Tensor
    gradient_TK: Tensor
    """Gradient by the strong logit of k: strong_weight * P_mix(k). In SFT it is P_strong(k)."""


class _Softmax(NamedTuple):
    """A softmax in parts that stay accurate if the true token has nearly all probability."""

    top_R1: Tensor
    total_R: Tensor
    """Sum of exp(z - top)."""
    negative_R: Tensor
    """Probability of all tokens except the true one."""
    squares_R: Tensor
    """Sum of their squared probabilities."""
    cubes_R: Tensor
    nll_R: Tensor

    def probability(self, z: Tensor) -> Tensor:
        return (z - self.top_R1).exp() / self.total_R[:, None].to(z.dtype)

    @property
    def gradient_R(self) -> Tensor:
        """Norm of P - onehot(y)."""
        return (self.squares_R + self.negative_R.square()).sqrt()

    @property
    def curvature_R(self) -> Tensor:
        target = 1 - self.negative_R
        squares, cubes = self.squares_R + target**2, self.cubes_R + target**3
        return (squares - 2 * cubes + squares**2).clamp_min(0).sqrt()


@torch.no_grad()
def pair_statistics(
    strong_TD: Tensor,
    strong_head_VD: Tensor | Head,
    weak_TE: Tensor,
    weak_head_VE: Tensor | Head,
    target_T: Tensor,
    *,
    strong_weight: float,
) -> dict[str, Tensor]:
    """Measure the effect of mixing on each token, from both models' hidden states.

    docs/how-to/diagnostics.md defines the columns: one float64 value per token, NaN where a logit is not finite or
    there is nothing to divide by.

    >>> strong, weak = torch.tensor([[4.0, 1, 0, -1]]), torch.tensor([[2, 1.5, 0.5, 0]])
    >>> found = pair_statistics(strong, torch.eye(4), weak, torch.eye(4), torch.tensor([0]), strong_weight=0.5)
    >>> found["hard_negatives"].item(), round(found["negative_mass_mixed"].item(), 6)
    (3.0, 0.211294)
    """
    pieces = pair_tiles(strong_TD, strong_head_VD, weak_TE, weak_head_VE, target_T)
    parts = [rows_pair(*piece, strong_weight) for piece in pieces]
    return joined(parts)


def rows_pair(strong_RV: Tensor, weak_RV: Tensor, target_R: Tensor, strong_weight: float) -> dict[str, Tensor]:
    place_R1 = target_R[:, None]
    mixed_RV = mix(strong_RV, weak_RV, strong_weight)
    # m_k(strong) - m_k(weak): positive for hard negatives, zero for the target
    shrink_RV = margin_shrinkage(strong_RV, weak_RV, place_R1)
    hard_RV = shrink_RV > 0
    uniform = (shrink_RV.amin(-1) >= 0).double()
    weak, strong, mixed = (_softmax(z_RV, place_R1) for z_RV in (weak_RV, strong_RV, mixed_RV))
    needed_R1 = (mixed.nll_R - strong.nll_R)[:, None].to(shrink_RV.dtype)
    gained_RV = shrink_RV.mul_(1 - strong_weight)  # log of P_mix(k) / P_strong(k), minus that of the target
    amplified_RV = hard_RV & (gained_RV >= needed_R1)
    lost = -math.log(strong_weight) if strong_weight else math.inf
    net_RV = hard_RV & (gained_RV >= needed_R1 + lost)
    hard = hard_RV.sum(-1).double()
    hardest_R1 = mixed_RV.masked_fill(~hard_RV, -math.inf).argmax(-1, keepdim=True)
    hardest = amplified_RV.gather(1, hardest_R1)[:, 0].double().masked_fill(hard == 0, torch.nan)
    amplified, net = amplified_RV.sum(-1).double(), net_RV.sum(-1).double()
    del gained_RV, shrink_RV, amplified_RV, net_RV
    strong_p_RV, mixed_p_RV = strong.probability(strong_RV), mixed.probability(mixed_RV)
    masses = [p_RV.mul(hard_RV).sum(-1, dtype=torch.float64) for p_RV in (strong_p_RV, mixed_p_RV)]
    disagreement = (weak.probability(weak_RV) - strong_p_RV).abs_().sum(-1, dtype=torch.float64) / 2
    relative = torch.where(strong.gradient_R > 0, mixed.gradient_R / strong.gradient_R, torch.nan)
    found = {
        "hard_negatives": hard,
        "uniform_margin": uniform,
        "amplified": amplified,  # P_mix(k) >= P_strong(k): the corollary's condition, also necessary
        "net_amplified": net,  # strong_weight * P_mix(k) >= P_strong(k)
        "hardest_amplified": hardest,
        "hard_mass_strong": masses[0],
        "hard_mass_mixed": masses[1],
        "negative_mass_weak": weak.negative_R,
        "negative_mass_strong": strong.negative_R,
        "negative_mass_mixed": mixed.negative_R,
        "sft_gradient": strong.gradient_R,
        "mixed_gradient": mixed.gradient_R,
        "strong_relative": strong_weight * relative,
        "weak_relative": (1 - strong_weight) * relative,
        "curvature": mixed.curvature_R,
        "cross_curvature": strong_weight * (1 - strong_weight) * mixed.curvature_R,
        "disagreement": disagreement,
    }
    broken = ~(weak_RV.isfinite().all(-1) & strong_RV.isfinite().all(-1))
    return {name: column.masked_fill(broken, torch.nan) for name, column in found.items()}


@torch.no_grad()
def top_hard_negatives(*models: Any, strong_weight: float, count: int = 8) -> HardNegatives:
    """Find the hard negatives that mixing pushes down most on each token; `models` as in `pair_statistics`.

    >>> strong, weak = torch.tensor([[4.0, 1, 0, -1]]), torch.tensor([[2, -3, -3, 1.0]])
    >>> found = top_hard_negatives(strong, torch.eye(4), weak, torch.eye(4), torch.tensor([0]), strong_weight=0.5)
    >>> found.ids_TK.tolist(), round((found.mixed_TK / found.strong_TK)[0, 0].item(), 3)
    ([[3, -1, -1, -1]], 7.359)
    """
    parts = [rows_top(*piece, strong_weight, count) for piece in pair_tiles(*models)]
    return HardNegatives(*(torch.cat(columns).cpu() for columns in zip(*parts, strict=True)))


def rows_top(strong_RV: Tensor, weak_RV: Tensor, target_R: Tensor, strong_weight: float, count: int) -> HardNegatives:
    place_R1 = target_R[:, None]
    mixed_RV = mix(strong_RV, weak_RV, strong_weight)
    hard_RV = margin_shrinkage(strong_RV, weak_RV, place_R1) > 0
    values_RK, ids_RK = mixed_RV.masked_fill(~hard_RV, -math.inf).topk(min(count, mixed_RV.shape[1]), dim=-1)
    none_RK = values_RK == -math.inf

    def probability(z_RV: Tensor) -> Tensor:
        return _softmax(z_RV, place_R1).probability(z_RV.gather(1, ids_RK)).masked_fill(none_RK, torch.nan)

    weak_RK, strong_RK, mixed_RK = probability(weak_RV), probability(strong_RV), probability(mixed_RV)
    return HardNegatives(ids_RK.masked_fill(none_RK, -1), weak_RK, strong_RK, mixed_RK, strong_weight * mixed_RK)


def pair_tiles(
    strong_TD: Tensor, strong_head_VD: Tensor | Head, weak_TE: Tensor, weak_head_VE: Tensor | Head, target_T: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield strong logits, weak logits and targets of each tile, over the heads' common rows, in float32 or better."""
    heads = as_head(strong_head_VD), as_head(weak_head_VE)
    rows = min(len(head.weight_VD) for head in heads)
    strong, weak = (precise(first_rows(head, rows)) for head in heads)
    for strong_RD, weak_RE, target_R in tiles(rows, COPIES, strong_TD, weak_TE, target_T, like=strong.weight_VD):
        yield strong.logits(strong_RD), weak.logits(weak_RE), target_R


def mix(strong_RV: Tensor, weak_RV: Tensor, strong_weight: float) -> Tensor:
    return (strong_RV * strong_weight).add_(weak_RV, alpha=1 - strong_weight)


def margin_shrinkage(strong_RV: Tensor, weak_RV: Tensor, place_R1: Tensor) -> Tensor:
    """Compute m_k(strong) - m_k(weak) for every k."""
    difference_RV = weak_RV - strong_RV
    return difference_RV.sub_(difference_RV.gather(1, place_R1))


def _softmax(z_RV: Tensor, place_R1: Tensor) -> _Softmax:
    top_R1 = z_RV.amax(-1, keepdim=True)
    others_RV = (z_RV - top_R1).exp_()
    target = others_RV.gather(1, place_R1)[:, 0].double()
    others_RV.scatter_(1, place_R1, 0.0)
    sums = [others_RV.sum(-1, dtype=torch.float64)]
    sums += [power.sum(-1, dtype=torch.float64) for power in (others_RV.square(), others_RV.pow(3))]
    total = sums[0] + target
    far = (top_R1 - z_RV.gather(1, place_R1))[:, 0].double() + total.log()
    nll = torch.where(target > 0, (sums[0] / target).log1p(), far)  # accurate near 0 and defined for any distance
    return _Softmax(top_R1, total, sums[0] / total, sums[1] / total**2, sums[2] / total**3, nll)


def sensitivity_ratio(strong_norm: float, weak_norm: float) -> float:
    """Compute the paper's alpha: the squared ratio of the centered norms.

    >>> round(sensitivity_ratio(1240.10, 1191.33), 6)
    1.083551
    """
    return (strong_norm / weak_norm) ** 2 if weak_norm else math.nan


def crossover(ratio: float) -> float:
    """Compute the strong_weight at which both models contribute equally to a step. Paper: lambda_cross.

    >>> round(crossover(sensitivity_ratio(1240.10, 1191.33)), 6)
    0.489971
    """
    return 1 / (1 + math.sqrt(ratio))


def step_share(strong_weight: float, ratio: float) -> float:
    """Compute the strong model's share of a step's decrease of the mixed loss, to first order. Paper: E_strong.

    >>> round(step_share(crossover(4.0), 4.0), 12), step_share(1.0, 4.0)
    (0.5, 1.0)
    """
    return strong_weight**2 * ratio / effective_rate(strong_weight, ratio)


def effective_rate(strong_weight: float, ratio: float) -> float:
    """Compute the rate at which the mixed loss decreases, in units of the weak model alone. Paper: S(lambda)."""
    return (1 - strong_weight) ** 2 + ratio * strong_weight**2
