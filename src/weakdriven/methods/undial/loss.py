"""UNDIAL: self-distillation on adjusted teacher logits (as published), and the noisy cross-entropy of the WMSS paper.

T = tokens, D / E = trained / teacher width, V = vocabulary.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from weakdriven.errors import UserError
from weakdriven.losses.branch import Branch
from weakdriven.losses.head import Head, as_head, first_rows
from weakdriven.losses.mixed_ce import mixed_cross_entropy_with_statistics
from weakdriven.losses.tiled_loss import refuse_negative, refuse_shapes, supervised, tiled_loss
from weakdriven.losses.tiles import TiledImplementation, tiles_in_triton
from weakdriven.methods.soft_rows import Shape, adjusted_rows, noised_rows

Site = Literal["target_logit", "logits"]
Sign = Literal["signed", "abs"]


class AdjustedStatistics(NamedTuple):
    """Sums over supervised tokens, for logging; they carry no gradient."""

    tokens: Tensor
    soft_loss: Tensor
    """Cross-entropy with the adjusted teacher."""
    true_loss: Tensor
    """Cross-entropy with the true token."""
    teacher_probability: Tensor
    """Sum of the teacher's P(y)."""
    adjusted_probability: Tensor
    """Sum of q(y)."""


class NoiseStatistics(NamedTuple):
    """Sums over supervised tokens, for logging; they carry no gradient."""

    tokens: Tensor
    noised_loss: Tensor
    clean_loss: Tensor
    """Cross-entropy of the same logits without noise."""


def adjusted_logit_loss_reference(
    logits_TV: Tensor, teacher_TV: Tensor, target_T: Tensor, *, strength: float
) -> Tensor:
    hit_TV = F.one_hot(target_T, logits_TV.shape[1])
    return -((teacher_TV - strength * hit_TV).softmax(-1) * logits_TV.log_softmax(-1)).sum()


def adjusted_logit_loss(
    hidden_TD: Tensor,
    head_VD: Tensor | Head,
    teacher_TE: Tensor,
    teacher_head_VE: Tensor | Head,
    target_T: Tensor,
    *,
    strength: float = 1.0,
    ce_weight: float = 0.0,
    vocabulary: int | None = None,
    scale: float | None = None,
    ignored: bool = True,
    implementation: TiledImplementation = "auto",
) -> tuple[Tensor, AdjustedStatistics]:
    """Mean cross-entropy of a model with q = softmax(z_teacher - strength * onehot(y)) (UNDIAL).

    Targets of -100 are left out before anything is computed. The teacher gets no gradient. Logits of both are held for
    one tile of tokens at a time. The gradient can be taken once.

    Args:
        head_VD: Weights, or a `Head` where the model has a bias or caps or scales its logits.
        strength: How far the teacher's logit of the true token is lowered, 0 or more.
        ce_weight: Weight of the cross-entropy with the true token, added to the loss.
        vocabulary: Tokens of the one tokenizer that serves both; needed where the heads are padded differently, which
            are then compared over their common rows.
        scale: Factor of the summed loss, such as one over the tokens of the step; None: one over those given here.
        ignored: Whether targets may be -100; False: there are none, and no time goes into looking for them.
        implementation: `triton` (CUDA) or `chunked` (plain torch).

    >>> trained, teacher = torch.tensor([[2, 1.5, 0.5, 0]]), torch.tensor([[4.0, 1, 0, -1]])
    >>> loss, _ = adjusted_logit_loss(trained, torch.eye(4), teacher, torch.eye(4), torch.tensor([0]))
    >>> round(loss.item(), 6)
    0.824214
    """
    refuse_negative(strength=strength, ce_weight=ce_weight)
    triton = tiles_in_triton(implementation, hidden_TD)
    head, teacher = as_head(head_VD), as_head(teacher_head_VE)
    refuse_shapes(hidden_TD, head, target_T)
    refuse_shapes(teacher_TE, teacher, target_T, "The teacher's hidden states")
    rows = min(len(head.weight_VD), len(teacher.weight_VD))
    refuse_other_vocabulary(head, teacher, vocabulary)
    head, teacher = first_rows(head, rows), first_rows(teacher, rows)
    target_T, hidden_TD, teacher_TE = supervised(target_T, hidden_TD, teacher_TE.detach(), ignored=ignored)
    bias_V = None if teacher.bias_V is None else teacher.bias_V.detach()
    branch = Branch(teacher_TE, teacher.weight_VD.detach(), bias_V, [False] * 3)

    def fill(raw_RV: Tensor, begin: int, end: int, gradient: bool) -> Tensor:
        return adjusted_rows(
            raw_RV,
            branch.logits(begin, end, None),
            target_T[begin:end],
            strength=strength,
            ce_weight=ce_weight,
            shape=Shape.of(head),
            teacher_shape=Shape.of(teacher),
            gradient=gradient,
            triton=triton,
        )

    loss, sums_C = tiled_loss(hidden_TD, head, fill, columns=5, scale=scale, triton=triton, pair=True)
    return loss, AdjustedStatistics(sums_C.new_full((), len(target_T)), *sums_C[1:].unbind())


def refuse_other_vocabulary(head: Head, teacher: Head, vocabulary: int | None = None) -> None:
    rows, teacher_rows = len(head.weight_VD), len(teacher.weight_VD)
    if rows != teacher_rows and (vocabulary is None or vocabulary > min(rows, teacher_rows)):
        known = "" if vocabulary is None else f" for a tokenizer of {vocabulary} tokens"
        raise UserError(
            f"The teacher has {teacher_rows} vocabulary rows, the model {rows}{known}. "
            "Use an earlier checkpoint of the same model as teacher, or a model that shares its tokenizer."
        )


def noised_cross_entropy(
    hidden_TD: Tensor,
    head_VD: Tensor | Head,
    target_T: Tensor,
    length_T: Tensor,
    *,
    sigma: float = 1.0,
    site: Site = "target_logit",
    sign: Sign = "signed",
    seed: int = 0,
    key_T: Tensor | None = None,
    scale: float | None = None,
    ignored: bool = True,
    implementation: TiledImplementation = "auto",
) -> tuple[Tensor, NoiseStatistics]:
    """Mean cross-entropy of z - (sigma * e / sqrt(L)) * onehot(y), e ~ N(0, 1) (`paper_noise`, paper App. E.6).

    A token's noise follows from `seed` and its key alone, so it does not change with the size of tiles or batches. With
    `sigma` 0 this is the plain cross-entropy, bit for bit. The gradient can be taken once.

    Args:
        length_T: Of each token's sequence, without padding.
        site: `logits`: noise on every logit, each of its own.
        sign: `abs`: the noise only ever lowers a logit, a true penalty.
        seed: Give each step another one, or each token another key.
        key_T: An integer that tells a token from all others with this seed; None: its place among those given here.
        scale: Factor of the summed loss, such as one over the tokens of the step; None: one over those given here.
        ignored: Whether targets may be -100; False: there are none, and no time goes into looking for them.
        implementation: `triton` (CUDA) or `chunked` (plain torch, which makes all noise of the site `logits`).

    >>> logits, first = torch.tensor([[4.0, 1, 0, -1]]), torch.tensor([0])
    >>> round(noised_cross_entropy(logits, torch.eye(4), first, torch.tensor([4]), sigma=0)[0].item(), 5)
    0.07217
    """
    refuse_negative(sigma=sigma)
    triton = tiles_in_triton(implementation, hidden_TD) and site == "target_logit"
    for name, value, known in (("site", site, get_args(Site)), ("sign", sign, get_args(Sign))):
        if value not in known:
            raise UserError(f"{name} is {value!r}; expected one of {', '.join(known)}.")
    head = as_head(head_VD)
    refuse_shapes(hidden_TD, head, target_T)
    key_T = torch.arange(len(target_T), device=target_T.device) if key_T is None else key_T
    if len(length_T) != len(target_T) or len(key_T) != len(target_T):
        raise UserError(
            f"There are {len(target_T)} targets, {len(length_T)} lengths and {len(key_T)} keys; expected one of each "
            "for every token."
        )
    target_T, hidden_TD, length_T, key_T = supervised(target_T, hidden_TD, length_T, key_T, ignored=ignored)
    tokens = len(target_T)
    if sigma == 0:
        scale = 1 / max(tokens, 1) if scale is None else scale
        options = {"strong_weight": 1.0, "scale": scale, "statistics": False, "implementation": implementation}
        loss, plain = mixed_cross_entropy_with_statistics(hidden_TD, head, None, head, target_T, **options)
        return loss, NoiseStatistics(plain.mixed_loss.new_full((), tokens), plain.mixed_loss, plain.mixed_loss)
    deviation_T = sigma / length_T.float().sqrt()

    def fill(raw_RV: Tensor, begin: int, end: int, gradient: bool) -> Tensor:
        return noised_rows(
            raw_RV,
            target_T[begin:end],
            deviation_T[begin:end],
            key_T[begin:end],
            seed=seed,
            everywhere=site == "logits",
            absolute=sign == "abs",
            shape=Shape.of(head),
            gradient=gradient,
            triton=triton,
        )

    loss, sums_C = tiled_loss(hidden_TD, head, fill, columns=2, scale=scale, triton=triton)
    return loss, NoiseStatistics(sums_C.new_full((), tokens), *sums_C.unbind())
