"""Per-token statistics of one model's logits: the numbers of the paper's two logit tables, one tile at a time.

T = tokens, R = rows of a tile, D = width, V = vocabulary.

The vocabulary is the head including its padding rows: the losses count those too, and so does the paper, whose centered
norms are its standard deviations times the root of 151,936, the number of rows of Qwen3's head.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from weakdriven.losses.head import Head, as_head
from weakdriven.losses.tiles import CPU_TILE_BYTES, TILE_BYTES

COPIES = 5
"""Maximum number of tensors of a tile's size that are held in addition to it."""


@torch.no_grad()
def logit_statistics(hidden_TD: Tensor, head_VD: Tensor | Head, target_T: Tensor) -> dict[str, Tensor]:
    """Compute statistics of the logits of each hidden state; products in float32 or better, sums in float64.

    docs/how-to/diagnostics.md defines them: one float64 value per token, NaN where a logit of that token is not finite.

    >>> found = logit_statistics(torch.tensor([[4.0, 1, 0, -1]]), torch.eye(4), torch.tensor([0]))
    >>> [round(found[name].item(), 6) for name in ("gap", "mean", "centered_norm", "entropy", "rank")]
    [4.0, 1.0, 3.741657, 0.310639, 1.0]
    """
    head = precise(as_head(head_VD))
    parts = [
        rows_statistics(head.logits(hidden_RD), target_R)
        for hidden_RD, target_R in tiles(len(head.weight_VD), COPIES, hidden_TD, target_T, like=head.weight_VD)
    ]
    return joined(parts)


def rows_statistics(logits_RV: Tensor, target_R: Tensor) -> dict[str, Tensor]:
    vocabulary, place_R1 = logits_RV.shape[1], target_R[:, None]
    target = logits_RV.gather(1, place_R1)
    total = logits_RV.sum(-1, dtype=torch.float64)
    mean = total / vocabulary
    others = total - target[:, 0].double()
    background = others / (vocabulary - 1) if vocabulary > 1 else torch.full_like(mean, torch.nan)
    centered_norm = (logits_RV - mean[:, None].to(logits_RV.dtype)).square_().sum(-1, dtype=torch.float64).sqrt()
    top = logits_RV.amax(-1, keepdim=True)
    shifted_RV = logits_RV - top
    mass_RV = shifted_RV.exp()
    normaliser = mass_RV.sum(-1, dtype=torch.float64)
    expected = mass_RV.mul_(shifted_RV).sum(-1, dtype=torch.float64) / normaliser
    found = {
        "target": target[:, 0].double(),
        "background": background,
        "gap": target[:, 0].double() - background,
        "mean": mean,
        "std": centered_norm / vocabulary**0.5,
        "centered_norm": centered_norm,
        "max": top[:, 0].double(),
        "min": logits_RV.amin(-1).double(),
        "l2": logits_RV.square().sum(-1, dtype=torch.float64).sqrt(),
        "entropy": (normaliser.log() - expected).clamp_min(0),
        "max_probability": 1 / normaliser,
        "nll": normaliser.log() + (top - target)[:, 0].double(),
        "rank": 1 + (logits_RV > target).sum(-1).double(),
    }
    broken = ~mean.isfinite()
    return {name: column.masked_fill(broken, torch.nan) for name, column in found.items()}


def joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def precise(head: Head) -> Head:
    """Return the head in float32 or better: bf16 rounds large logits, and so their margins, to steps of 0.25."""
    wide = torch.promote_types(head.weight_VD.dtype, torch.float32)
    return head._replace(weight_VD=head.weight_VD.to(wide))


def tiles(vocabulary: int, copies: int, *columns_T: Tensor, like: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split the columns into pieces whose logits fit into a tile, on `like`'s device; real columns get its dtype."""
    budget = TILE_BYTES if like.is_cuda else CPU_TILE_BYTES
    rows = max(budget // (vocabulary * like.element_size() * copies), 1)
    for begin in range(0, max(len(columns_T[0]), 1), rows):
        pieces = (column[begin : begin + rows] for column in columns_T)
        yield tuple(x.to(like.device, like.dtype if x.is_floating_point() else x.dtype) for x in pieces)
