"""Distillation from stored top-k logits: numbers worked out by hand, float64, extraction, and errors."""

import pytest
import torch
from torch.nn import functional as F

from loss_cases import Watch, problem
from soft_cases import (
    EYE,
    FIRST,
    STRONG,
    WEAK,
    assert_in_budget,
    assert_lean,
    assert_same,
    chunks,
    every_chunk,
    every_head,
    every_shape,
    heads,
    logits,
    near,
    whole_divergence,
)
from weakdriven.errors import UserError
from weakdriven.losses.head import Head
from weakdriven.methods.ssb.loss import top_logits, topk_distillation

SHAPE = 13, 3, 5, 33


def solve(k=4, temperature=1.5, **options):
    trained = logits(WEAK)
    stored = top_logits(torch.tensor([STRONG]), EYE, k=k, temperature=temperature)[:3]
    loss, statistics = topk_distillation(trained, EYE, FIRST, stored, temperature=temperature, **options)
    loss.backward()
    return loss.item(), statistics, trained.grad[0]


def definition(k, temperature=1.5, stored_dtype=None, **options):
    """Fused on what `top_logits` stores; dense on all logits in float64."""
    kept, known = {"kd_weight": 0.5, "ce_weight": 0.5, "renormalize": True, "support": "full"} | options, {}

    def fused(hidden, head, teacher, teacher_head, target):
        ids, stored, lse, _ = top_logits(teacher, teacher_head, k=k, temperature=temperature)
        stored = stored if stored_dtype is None else stored.to(stored_dtype)
        known.update(ids=ids, logits=stored.double())
        return topk_distillation(hidden, head, target, (ids.int(), stored, lse), temperature=temperature, **options)

    def dense(z_TV, teacher_TV, target_T):
        log_all_TV = (teacher_TV / temperature).log_softmax(-1)
        stored_TK = known["logits"] / temperature
        whole_T1 = (teacher_TV / temperature).logsumexp(-1, keepdim=True)
        log_q_TK = stored_TK.log_softmax(-1) if kept["renormalize"] else stored_TK - whole_T1
        if kept["support"] == "full":
            log_p_TK = (z_TV / temperature).log_softmax(-1).gather(1, known["ids"])
        else:
            log_p_TK = (z_TV.gather(1, known["ids"]) / temperature).log_softmax(-1)
        kl = (log_q_TK.exp() * (log_q_TK - log_p_TK)).sum()
        hard = F.cross_entropy(z_TV, target_T, reduction="sum")
        coverage = (stored_TK - whole_T1).exp().sum()
        if stored_dtype is None:  # that they are the largest ones, whatever their order among equals
            torch.testing.assert_close(coverage, log_all_TV.exp().topk(k).values.sum(), rtol=1e-5, atol=1e-5)
        loss = kept["kd_weight"] * temperature**2 * kl + kept["ce_weight"] * hard
        return loss / len(target_T), (kl, hard, coverage)

    return fused, dense


@pytest.mark.parametrize(
    "k, options, kl, loss",
    [
        (4, {}, 0.3053581, 0.6812730),
        (4, {"kd_weight": 1, "ce_weight": 0}, 0.3053581, 0.6870557),
        (4, {"kd_weight": 0, "ce_weight": 1}, 0.3053581, 0.6754903),
        (4, {"kd_weight": 1, "ce_weight": 0, "temperature": 2.0}, 0.8050543 / 4, 0.8050543),
        (2, {}, 0.5279677, 0.9317088),
        (2, {"kd_weight": 1, "ce_weight": 0}, 0.5279677, 1.1879274),
        (2, {"kd_weight": 1, "ce_weight": 0, "renormalize": False}, 0.4021399, 2.25 * 0.4021399),
        (2, {"kd_weight": 1, "ce_weight": 0, "support": "topk"}, 0.2147060, 2.25 * 0.2147060),
    ],
)
def test_numbers_of_the_fixture_are_the_published_ones(k, options, kl, loss):
    got, statistics, _ = solve(k, **options)
    assert got == near(loss)
    assert statistics["kd_loss"].item() == near(kl)
    assert statistics["true_loss"].item() == near(0.6754903)


def test_the_gradient_shows_the_published_targets_and_coverage():
    _, statistics, by_logit = solve(2, kd_weight=1, ce_weight=0)  # temperature * (P - q)
    q = (torch.tensor(WEAK) / 1.5).softmax(0) - by_logit / 1.5
    assert q.tolist() == near([0.880797, 0.119203, 0, 0])
    assert statistics["coverage"].item() == near(0.915229)
    assert top_logits(torch.tensor([STRONG]), EYE, k=2).coverage_T.item() == near(0.976691)


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("support", ["full", "topk"])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_all_logits_stored_are_the_full_divergence(temperature, support, renormalize):
    case = problem(*SHAPE)
    options = {"kd_weight": 1.0, "ce_weight": 0.0, "renormalize": renormalize, "support": support}

    def dense(z_TV, teacher_TV, target_T):
        kl = whole_divergence(z_TV, teacher_TV, temperature=temperature)
        hard, tokens = F.cross_entropy(z_TV, target_T, reduction="sum"), torch.tensor(len(target_T)).double()
        return temperature**2 * kl / tokens, (kl, hard, tokens)

    assert_same(case, definition(33, temperature, **options)[0], dense)


@every_chunk
@every_shape
def test_any_chunk_equals_float64(shape, chunk):
    assert_same(problem(*shape), *definition(min(shape[3], 5)), chunk=chunk)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options", [{}, {"renormalize": False}, {"support": "topk"}, {"support": "topk", "renormalize": False}], ids=str
)
@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_any_choice_and_dtype_equals_float64(temperature, options, dtype):
    weights = {"kd_weight": 0.8, "ce_weight": 0.3}
    assert_same(problem(*SHAPE, dtype=dtype), *definition(6, temperature, **weights, **options))


@every_head
def test_any_head_equals_float64(options):
    assert_same(problem(*SHAPE, **options), *definition(6))


@pytest.mark.parametrize("kd_weight, ce_weight", [(1, 0), (0, 1), (0, 0)])
def test_either_term_may_be_left_out(kd_weight, ce_weight):
    assert_same(problem(*SHAPE), *definition(6, kd_weight=kd_weight, ce_weight=ce_weight))


def test_logits_may_be_stored_in_bfloat16():
    assert_same(problem(*SHAPE, scales=(1.0, 0.3)), *definition(6, stored_dtype=torch.bfloat16))


def test_a_logit_of_minus_infinity_counts_for_nothing():
    head = Head(torch.cat([EYE, torch.zeros(1, 4)]), torch.tensor([0, 0, 0, 0, -torch.inf]))
    stored = top_logits(torch.tensor([STRONG]), head, k=5)[:3]
    trained = logits(WEAK)
    loss, _ = topk_distillation(trained, head, FIRST, stored)
    loss.backward()
    assert loss.item() == near(0.6812730) and trained.grad.isfinite().all()


def test_no_tokens_are_a_loss_of_zero():
    hidden = torch.randn(0, 4, requires_grad=True)
    loss, _ = topk_distillation(hidden, EYE, torch.empty(0, dtype=torch.long), top_logits(hidden, EYE, k=2)[:3])
    assert loss == 0 and loss.requires_grad


def test_both_terms_take_three_products():
    case = problem(*SHAPE, needs=3)
    stored = top_logits(*(x.detach() for x in case.tensors[3:5]), k=3)[:3]
    with Watch() as watch:
        topk_distillation(*case.tensors[:2], case.target_T, stored)
    assert watch.work == 3 * 13 * 3 * 33


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_does_not_grow_with_the_tokens(dtype):
    def fused(hidden, head, teacher, teacher_weight, target):
        return topk_distillation(hidden, head, target, top_logits(teacher, teacher_weight, k=4)[:3])

    assert_lean(fused, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_head
def test_tiles_stay_inside_their_budget(options, dtype):
    assert_in_budget(definition(5)[0], dtype, **options)


# extraction


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@every_chunk
@every_head
def test_what_is_stored_equals_float64(options, chunk, dtype):
    case = problem(*SHAPE, dtype=dtype, **options)
    hidden = case.tensors[3].detach()
    _, head = heads(case, [None if x is None else x.detach() for x in case.tensors])
    with chunks(chunk):
        top = top_logits(hidden, head, k=7, temperature=2.0)
    bias = None if head.bias_V is None else head.bias_V.double()
    exact = head._replace(weight_VD=head.weight_VD.double(), bias_V=bias).logits(hidden.double())
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(top.logits_TK.double(), exact.topk(7).values, **close)
    torch.testing.assert_close(exact.gather(1, top.ids_TK), top.logits_TK.double(), **close)
    torch.testing.assert_close(top.lse_T.double(), (exact / 2).logsumexp(-1), **close)
    torch.testing.assert_close(top.coverage_T.double(), exact.softmax(-1).topk(7).values.sum(-1), **close)
    assert [len(set(row)) for row in top.ids_TK.tolist()] == [7] * 13


def test_extraction_holds_one_tile_and_takes_one_product():
    hidden, head = torch.randn(60, 1, requires_grad=True), torch.randn(4000, 1)
    with chunks(4), Watch() as watch:
        top = top_logits(hidden, head, k=3)
    assert watch.largest <= 4 * 4000 * 4 and watch.peak < 5 * 4 * 4000 * 4 and watch.work == 60 * 4000
    assert not top.logits_TK.requires_grad


@pytest.mark.parametrize("k", [0, 5])
def test_more_stored_logits_than_the_vocabulary_are_an_error(k):
    with pytest.raises(UserError, match=f"k is {k}; it must be between 1 and the 4 rows"):
        solve(k)
