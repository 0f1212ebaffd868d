"""What one model's logits look like on each token: the numbers of the paper's two logit tables, one tile at a time.

T = tokens, R = rows of a tile, D = width, V = vocabulary.

The vocabulary is the head, with the rows that pad it: the losses count those too, and so does the paper, whose centered
norms are its standard deviations times the root of 151,936, the rows of Qwen3's head.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from weakdriven.errors import UserError
from weakdriven.losses.head import Head, as_head
from weakdriven.losses.tiles import CPU_TILE_BYTES, TILE_BYTES

COPIES = 5
"""Tensors like the tile that are held beside it, at most."""


class LogitStatistics(NamedTuple):
    """One float64 value per token; NaN where a logit of that token is not a finite number."""

    target_T: Tensor
    """Logit of the true token. Paper: z_target."""
    background_T: Tensor
    """Mean logit of all other tokens. Paper: z_bg, "distractors mean"."""
    gap_T: Tensor
    """Target minus background."""
    mean_T: Tensor
    std_T: Tensor
    """Over the vocabulary, divided by V and not by V - 1: the centered norm is sqrt(V) times this."""
    centered_norm_T: Tensor
    """L2 norm of the logits less their mean."""
    max_T: Tensor
    min_T: Tensor
    l2_T: Tensor
    entropy_T: Tensor
    """In nats."""
    max_probability_T: Tensor
    nll_T: Tensor
    """Negative log-likelihood of the true token."""
    rank_T: Tensor
    """1 where no token has a larger logit than the true one."""


@torch.no_grad()
def logit_statistics(hidden_TD: Tensor, head_VD: Tensor | Head, target_T: Tensor) -> LogitStatistics:
    """Statistics of the logits after each hidden state; products in float32 or better, sums in float64.

    >>> found = logit_statistics(torch.tensor([[4.0, 1, 0, -1]]), torch.eye(4), torch.tensor([0]))
    >>> [round(x.item(), 6) for x in (found.gap_T, found.mean_T, found.centered_norm_T, found.entropy_T, found.rank_T)]
    [4.0, 1.0, 3.741657, 0.310639, 1.0]
    """
    head = precise(as_head(head_VD))
    check_rows(hidden_TD, head, target_T)
    parts = [
        rows_statistics(head.logits(hidden_RD), target_R)
        for hidden_RD, target_R in tiles(len(head.weight_VD), COPIES, hidden_TD, target_T, like=head.weight_VD)
    ]
    if not parts:
        return LogitStatistics(*torch.empty(len(LogitStatistics._fields), 0, dtype=torch.float64).unbind())
    return LogitStatistics(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def rows_statistics(logits_RV: Tensor, target_R: Tensor) -> LogitStatistics:
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
    found = LogitStatistics(
        target_T=target[:, 0].double(),
        background_T=background,
        gap_T=target[:, 0].double() - background,
        mean_T=mean,
        std_T=centered_norm / vocabulary**0.5,
        centered_norm_T=centered_norm,
        max_T=top[:, 0].double(),
        min_T=logits_RV.amin(-1).double(),
        l2_T=logits_RV.square().sum(-1, dtype=torch.float64).sqrt(),
        entropy_T=(normaliser.log() - expected).clamp_min(0),
        max_probability_T=1 / normaliser,
        nll_T=normaliser.log() + (top - target)[:, 0].double(),
        rank_T=1 + (logits_RV > target).sum(-1).double(),
    )
    broken = ~mean.isfinite()
    return LogitStatistics(*(column.masked_fill(broken, torch.nan) for column in found))


def precise(head: Head) -> Head:
    """The head in float32 or better: logits rounded to bf16 lie 0.25 apart where they matter, as do their margins."""
    wide = torch.promote_types(head.weight_VD.dtype, torch.float32)
    return head._replace(weight_VD=head.weight_VD.to(wide))


def check_rows(hidden_TD: Tensor, head: Head, target_T: Tensor) -> None:
    if hidden_TD.dim() != 2 or hidden_TD.shape[1] != head.weight_VD.shape[1] or len(hidden_TD) != len(target_T):
        raise UserError(
            f"Hidden states have shape {tuple(hidden_TD.shape)}, the head {tuple(head.weight_VD.shape)}, and there are "
            f"{len(target_T)} targets; expected (tokens, width), (vocabulary, width) and one target for each token."
        )
    if len(target_T) and not 0 <= int(target_T.min()) <= int(target_T.max()) < len(head.weight_VD):
        raise UserError(
            f"Targets lie between {int(target_T.min())} and {int(target_T.max())}, and the head has "
            f"{len(head.weight_VD)} rows; leave out what is not supervised, and use the model's own tokenizer."
        )


def tiles(vocabulary: int, copies: int, *columns_T: Tensor, like: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The columns in pieces whose logits fit the memory for a tile, where `like` is and as precise if they are real."""
    budget = TILE_BYTES if like.is_cuda else CPU_TILE_BYTES
    rows = max(budget // (vocabulary * like.element_size() * copies), 1)
    for begin in range(0, len(columns_T[0]), rows):
        pieces = (column[begin : begin + rows] for column in columns_T)
        yield tuple(x.to(like.device, like.dtype if x.is_floating_point() else x.dtype) for x in pieces)
