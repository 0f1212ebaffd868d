"""Entropy of a model's next-token distribution, without a (T, V) tensor.

T = supervised tokens, C = tokens in a chunk, D = width, V = vocabulary.
"""

import torch
from torch import Tensor

from weakdriven.losses.head import Head


def token_entropy_reference(logits_TV: Tensor) -> Tensor:
    log_p_TV = logits_TV.float().log_softmax(-1)
    return -(log_p_TV.exp() * log_p_TV).sum(-1)


@torch.no_grad()
def token_entropy(
    hidden_TD: Tensor, head_VD: Tensor | Head, target_T: Tensor, *, chunk: int = 1024
) -> tuple[Tensor, Tensor]:
    """Entropy (nats) of each token's prediction, and the negative log-likelihood of its target; peak memory (chunk, V).

    >>> logits = torch.tensor([[4.0, 1, 0, -1], [2, 1.5, 0.5, 0]])
    >>> entropy, nll = token_entropy(logits, torch.eye(4), torch.tensor([0, 0]))
    >>> [round(x, 6) for x in (entropy.mean().item(), nll[0].item())]
    [0.724269, 0.072172]
    """
    head = head_VD if isinstance(head_VD, Head) else Head(head_VD)
    entropy, nll = [], []
    for hidden_CD, target_C in zip(hidden_TD.split(chunk), target_T.split(chunk), strict=True):
        log_p_CV = head.logits(hidden_CD).log_softmax(-1)
        nll.append(-log_p_CV.gather(1, target_C[:, None])[:, 0])
        entropy.append(-(log_p_CV.exp() * log_p_CV).sum(-1))
    return torch.cat(entropy), torch.cat(nll)
