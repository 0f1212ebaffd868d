"""Entropy of a model's next-token distribution, and the likelihood of the true token, without a (T, V) tensor.

T = tokens, R = rows of a tile, D = width, V = vocabulary. The row function is that of the mixed loss without a weak
model: one pass over the logits gives both log-sum-exp and entropy.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from weakdriven.errors import UserError
from weakdriven.losses.branch import Branch
from weakdriven.losses.head import Head, as_head
from weakdriven.losses.mix_rows import NO_GRADIENT, Mixing
from weakdriven.losses.mixed_ce import MixStatistics
from weakdriven.losses.tiles import Implementation, row_function, tile_rows, use_triton


class TokenScores(NamedTuple):
    """One value per token, in float32 or better."""

    entropy_T: Tensor
    """Entropy of the whole distribution, in nats."""
    nll_T: Tensor
    """Negative log-likelihood of the true token."""
    hit_T: Tensor | None = None
    """1 if the true token has the largest logit, else 0; None if not requested."""


def token_entropy_reference(logits_TV: Tensor) -> Tensor:
    log_p_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32)).log_softmax(-1)
    return -torch.xlogy(p_TV := log_p_TV.exp(), p_TV).sum(-1)  # 0 log 0 is 0


def token_entropy(hidden_TD: Tensor, head_VD: Tensor | Head, *, implementation: Implementation = "auto") -> Tensor:
    """Compute the entropy (nats) of the next-token distribution after each hidden state, without a gradient.

    Args:
        head_VD: Weights, or a `Head` if the model has a bias or caps or scales its logits.
        implementation: `triton` (CUDA) and `chunked` (plain torch) hold one tile of logits, `reference` all of them.

    >>> logits = torch.tensor([[4.0, 1, 0, -1], [2, 1.5, 0.5, 0]])
    >>> [round(x, 6) for x in token_entropy(logits, torch.eye(4)).tolist()]
    [0.310639, 1.137899]
    """
    anything_T = torch.zeros(len(hidden_TD), dtype=torch.long, device=hidden_TD.device)
    return token_scores(hidden_TD, head_VD, anything_T, implementation=implementation).entropy_T


@torch.no_grad()
def token_scores(
    hidden_TD: Tensor,
    head_VD: Tensor | Head,
    target_T: Tensor,
    *,
    hits: bool = False,
    implementation: Implementation = "auto",
) -> TokenScores:
    """Compute the entropy and the negative log-likelihood of the targets in one pass over the logits.

    Args:
        hits: Also find out whether each target has the largest logit, in a second pass.

    >>> scores = token_scores(torch.tensor([[4.0, 1, 0, -1]]), torch.eye(4), torch.tensor([0]))
    >>> [round(x.item(), 5) for x in scores[:2]]
    [0.31064, 0.07217]
    """
    head = as_head(head_VD)
    if hidden_TD.dim() != 2 or hidden_TD.shape[1] != head.weight_VD.shape[1] or len(hidden_TD) != len(target_T):
        raise UserError(
            f"Hidden states have shape {tuple(hidden_TD.shape)}, the head {tuple(head.weight_VD.shape)}, and there are "
            f"{len(target_T)} targets; expected (tokens, width), (vocabulary, width) and one target for each token."
        )
    triton = use_triton(implementation, hidden_TD)
    if implementation == "reference":
        logits_TV = head.logits(hidden_TD)
        nll_T = -logits_TV.log_softmax(-1).gather(1, target_T[:, None])[:, 0]
        return TokenScores(token_entropy_reference(logits_TV), nll_T, _hits(logits_TV, target_T) if hits else None)
    fill, vocabulary = row_function(triton), len(head.weight_VD)
    rows, _ = tile_rows(hidden_TD, vocabulary, triton=triton, pair=False, gradients=NO_GRADIENT)
    tile_RV = hidden_TD.new_empty(min(rows, len(hidden_TD)), vocabulary)
    branch = Branch(hidden_TD, head.weight_VD, head.bias_V, [False] * 3)
    result_T9 = torch.empty(len(hidden_TD), 9, dtype=branch.wide, device=hidden_TD.device)
    hit_T = torch.empty_like(result_T9[:, 0]) if hits else None
    mixing = Mixing(strong_scale=head.scale, strong_cap=head.cap or 0.0)
    with torch.autocast(hidden_TD.device.type, enabled=False):
        for begin in range(0, len(hidden_TD), rows):
            end = min(begin + rows, len(hidden_TD))
            logits_RV, target_R = branch.logits(begin, end, tile_RV), target_T[begin:end].contiguous()
            if hit_T is not None:
                hit_T[begin:end] = _hits(logits_RV, target_R)
            result_T9[begin:end] = fill(logits_RV, None, target_R, mixing, statistics=True, gradients=NO_GRADIENT)
    found = MixStatistics(*result_T9.unbind(1))
    # the entropy of a fully confident prediction may be slightly negative by rounding
    return TokenScores(found.mixed_entropy.clamp_min(0), found.mixed_loss, hit_T)


def _hits(logits_RV: Tensor, target_R: Tensor) -> Tensor:
    """Compare the largest logit with the target; scaling and capping, as some models do, do not change which it is."""
    return (logits_RV.argmax(-1) == target_R).to(logits_RV.dtype)
