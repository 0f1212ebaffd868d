"""UNDIAL on adjusted logits: known values, the definition in float64, and what it refuses."""

import pytest
import torch
from torch.nn import functional as F

from loss_cases import Watch
from soft_cases import (
    EYE,
    FIRST,
    STRONG,
    WEAK,
    assert_in_budget,
    assert_lean,
    assert_same,
    every_chunk,
    every_head,
    every_rows,
    every_shape,
    logits,
    masked,
    near,
)
from weakdriven.errors import UserError
from weakdriven.losses import Head, adjusted_logit_loss, tiled_loss
from weakdriven.losses.mix_rows import SHARED
from weakdriven.losses.mixed_ce import IGNORE, mixed_cross_entropy
from weakdriven.losses.tiles import tile_rows
from weakdriven.methods.undial.loss import adjusted_logit_loss_reference


def solve(student=WEAK, teacher=STRONG, **options):
    trained = logits(student)
    loss, statistics = adjusted_logit_loss(trained, EYE, logits(teacher), EYE, FIRST, **options)
    loss.backward()
    return loss.item(), statistics, trained.grad[0].tolist()


def definition(strength=1.0, ce_weight=0.0, rows="auto"):
    def dense(z_TV, teacher_TV, target_T):
        place_T1 = target_T[:, None]
        q_TV = (teacher_TV - strength * F.one_hot(target_T, teacher_TV.shape[1])).softmax(-1)
        soft = -(q_TV * z_TV.log_softmax(-1)).sum()
        hard = F.cross_entropy(z_TV, target_T, reduction="sum")
        p, q = teacher_TV.softmax(-1).gather(1, place_T1).sum(), q_TV.gather(1, place_T1).sum()
        return (soft + ce_weight * hard) / len(target_T), (soft, hard, p, q)

    def fused(hidden, head, teacher, teacher_head, target):
        options = {"strength": strength, "ce_weight": ce_weight, "implementation": rows}
        return adjusted_logit_loss(hidden, head, teacher, teacher_head, target, **options)

    return fused, dense


@pytest.mark.parametrize(
    "strength, loss, q, gradient",
    [(1, 0.8242138, 0.830953, [-0.322046, 0.196210, 0.072182, 0.053654]), (3, 1.2038068, 0.399486, None)],
)
@every_rows
def test_numbers_of_the_fixture_are_the_published_ones(rows, strength, loss, q, gradient):
    got, statistics, by_logit = solve(strength=strength, implementation=rows)
    assert got == near(loss) and statistics.soft_loss.item() == near(loss)
    assert statistics.teacher_probability.item() == near(0.930370)
    assert statistics.adjusted_probability.item() == near(q)
    assert statistics.true_loss.item() == near(0.6754903)
    assert gradient is None or by_logit == near(gradient)


@pytest.mark.parametrize(
    "strength, q", [(1, [0.830953, 0.112457, 0.041371, 0.015219]), (3, [0.399486, 0.399486, 0.146963, 0.054065])]
)
def test_the_gradient_shows_the_published_targets(strength, q):
    _, _, by_logit = solve(strength=strength)  # P - q
    assert (torch.tensor(WEAK).softmax(0) - torch.tensor(by_logit)).tolist() == near(q)


def test_a_strength_of_ten_leaves_the_true_token_almost_nothing():
    assert solve(strength=10)[1].adjusted_probability.item() == near(0.000606)


def test_dense_logits_in_two_lines_give_the_published_loss():
    rows = torch.tensor([WEAK]), torch.tensor([STRONG])
    assert adjusted_logit_loss_reference(*rows, FIRST, strength=1.0).item() == near(0.8242138)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_head
@every_rows
def test_without_strength_a_model_equal_to_its_teacher_gets_no_gradient(rows, options, dtype):
    case = masked((5, 3, 3, 33), dtype=dtype, **options)
    hidden, weight, bias = (None if x is None else x.detach().requires_grad_() for x in case.tensors[:3])
    head = Head(weight, bias, case.scales[0], case.caps[0])
    loss, _ = adjusted_logit_loss(hidden, head, hidden, head, case.target_T, strength=0, implementation=rows)
    loss.backward()
    assert loss > 0 and all(not x.grad.any() for x in (hidden, weight, bias) if x is not None)


@every_chunk
@every_shape
@every_rows
def test_any_chunk_equals_float64(rows, shape, chunk):
    assert_same(masked(shape), *definition(strength=2.0, rows=rows), chunk=chunk)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("strength, ce_weight", [(0, 0), (1, 0.5), (7.5, 2)])
@every_head
def test_any_head_and_dtype_equals_float64(options, strength, ce_weight, dtype):
    assert_same(masked((13, 3, 5, 33), dtype=dtype, **options), *definition(strength, ce_weight))


@every_head
@every_rows
def test_any_rows_serve_any_head(rows, options):
    assert_same(masked((7, 3, 5, 33), dtype=torch.bfloat16, **options), *definition(7.5, 0.5, rows))


@pytest.mark.parametrize("extra", [(0, 5), (4, 0), (2, 7)])
def test_heads_of_one_tokenizer_may_be_padded_differently(extra):
    case = masked((13, 3, 5, 33), extra=extra, biases=(True, True))
    _, dense = definition()
    assert_same(case, lambda *inputs: adjusted_logit_loss(*inputs, vocabulary=33), dense)


@pytest.mark.parametrize("narrow", [(3, 4), (0,), (3,)], ids=["teacher", "hidden", "teacher-hidden"])
@every_rows
def test_tensors_of_other_precision_are_taken_as_they_are(rows, narrow):
    case = masked((13, 3, 5, 33))
    tensors = tuple(x.detach().bfloat16().requires_grad_() if i in narrow else x for i, x in enumerate(case.tensors))
    assert_same(case._replace(tensors=tensors), *definition(rows=rows))


def test_the_target_alone_is_cross_entropy():
    case = masked((13, 3, 5, 33))
    hidden, weight, _, teacher, teacher_weight, _ = case.tensors
    loss, statistics = adjusted_logit_loss(hidden, weight, teacher, teacher_weight, case.target_T, ce_weight=3, scale=1)
    plain = mixed_cross_entropy(hidden, weight, hidden, weight, case.target_T, strong_weight=1)
    torch.testing.assert_close(loss - statistics.soft_loss, 3 * plain)


def test_no_tokens_are_a_loss_of_zero_without_gradient():
    hidden = torch.randn(3, 4, requires_grad=True)
    head = torch.randn(9, 4, requires_grad=True)
    loss, statistics = adjusted_logit_loss(hidden, head, hidden, head, torch.full((3,), IGNORE))
    loss.backward()
    assert loss == 0 and statistics.tokens == 0 and not hidden.grad.any() and not head.grad.any()


@every_rows
def test_logits_of_minus_infinity_in_both_models_count_for_nothing(rows):
    closed = [*WEAK, -torch.inf], [*STRONG, -torch.inf]
    states = [torch.tensor([values], requires_grad=True) for values in closed]
    heads = [Head(torch.cat([EYE, torch.zeros(1, 4)]), torch.tensor([0, 0, 0, 0, -torch.inf])) for _ in states]
    trained, teacher = states[0].detach()[:, :4].requires_grad_(), states[1].detach()[:, :4]
    loss, _ = adjusted_logit_loss(trained, heads[0], teacher, heads[1], FIRST, implementation=rows)
    loss.backward()
    assert loss.item() == near(0.8242138) and trained.grad[0].tolist() == near(
        [-0.322046, 0.196210, 0.072182, 0.053654]
    )


def test_a_scale_divides_by_the_tokens_of_a_step():
    case = masked((16, 8, 8, 64))
    hidden, weight, _, teacher, teacher_weight, _ = (None if x is None else x.detach() for x in case.tensors)

    def solve(tokens=slice(None), **options):
        target = case.target_T[tokens]
        return adjusted_logit_loss(hidden[tokens], weight, teacher[tokens], teacher_weight, target, **options)[0]

    share = 1 / (case.target_T != IGNORE).sum().item()
    torch.testing.assert_close(solve(slice(5), scale=share) + solve(slice(5, None), scale=share), solve())


@pytest.mark.parametrize("needs, products", [((0, 1), 4), ((0,), 3), ((1,), 3), ((), 2)])
def test_only_gradients_that_are_needed_are_computed(needs, products):
    case = masked((13, 3, 3, 33))
    leaves = [x.detach().requires_grad_(i in needs) for i, x in enumerate(case.tensors[0:2])]
    teacher = [x.detach() for x in case.tensors[3:5]]
    with Watch() as watch:
        loss, _ = adjusted_logit_loss(*leaves, *teacher, case.target_T)
    assert watch.work == products * (case.target_T != IGNORE).sum() * 3 * 33
    assert loss.requires_grad == bool(needs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_does_not_grow_with_the_tokens(dtype):
    assert_lean(adjusted_logit_loss, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_head
def test_tiles_stay_inside_their_budget(options, dtype):
    assert_in_budget(lambda *inputs: adjusted_logit_loss(*inputs, ce_weight=0.5), dtype, **options)


@pytest.mark.parametrize("chunk, tile", [(7, 3), (6, 2), (1, 1)])
@every_rows
def test_a_teacher_in_shorter_tiles_gives_the_same(rows, chunk, tile, monkeypatch):
    case = masked((26, 3, 5, 33))
    want = adjusted_logit_loss(*case.tensors[:2], *case.tensors[3:5], case.target_T, implementation="chunked")
    monkeypatch.setattr(tiled_loss, "tile_rows", lambda *_, **__: (chunk, tile))
    with Watch() as watch:
        got = adjusted_logit_loss(*case.tensors[:2], *case.tensors[3:5], case.target_T, implementation=rows)
    torch.testing.assert_close(torch.stack(got[1]), torch.stack(want[1]))
    gradients = [torch.autograd.grad(loss, case.tensors[:2]) for loss, _ in (got, want)]
    torch.testing.assert_close(*gradients)
    tokens = int((case.target_T != IGNORE).sum())
    by_width = [[rows for rows, inner, V in watch.shapes if (inner, V) == (width, 33)] for width in (3, 5)]
    assert [max(sizes) for sizes in by_width] == [chunk, tile] and [sum(sizes) for sizes in by_width] == [tokens] * 2


def test_a_kernel_needs_no_wide_copies_so_its_tiles_are_longer():
    hidden, V = torch.empty(1, 8, dtype=torch.bfloat16), 151_936
    rows = tile_rows(hidden, V, triton=True, pair=True, gradients=SHARED)
    assert rows == (2048, 512)


@pytest.mark.parametrize("way", ["fast", "reference"])
def test_another_implementation_is_refused(way):
    with pytest.raises(UserError, match=f"implementation is '{way}'; expected one of auto, chunked, triton"):
        solve(implementation=way)


def test_a_gradient_is_taken_once():
    trained = logits(WEAK)
    loss, _ = adjusted_logit_loss(trained, EYE, logits(STRONG), EYE, FIRST)
    loss.backward(retain_graph=True)
    with pytest.raises(UserError, match="can be taken once"):
        loss.backward()


@pytest.mark.parametrize("name", ["strength", "ce_weight"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_negative_strength_is_refused(name, value):
    with pytest.raises(UserError, match=f"{name} is {value}; it must be 0 or more"):
        solve(**{name: value})


@pytest.mark.parametrize("vocabulary", [None, 5])
def test_a_teacher_with_another_vocabulary_is_refused(vocabulary):
    hidden, head = torch.randn(1, 4), torch.randn(6, 4)
    with pytest.raises(UserError, match=r"teacher has 6 vocabulary rows, the model 4.*earlier checkpoint"):
        adjusted_logit_loss(hidden, EYE, hidden, head, FIRST, vocabulary=vocabulary)


def test_hidden_states_that_do_not_fit_are_refused():
    hidden = torch.randn(2, 4)
    with pytest.raises(UserError, match="one target for each token"):
        adjusted_logit_loss(hidden, EYE, hidden, EYE, FIRST)
    with pytest.raises(UserError, match=r"teacher's hidden states have shape \(1, 3\)"):
        adjusted_logit_loss(hidden[:1], EYE, hidden[:1, :3], EYE, FIRST)


def test_a_compiled_caller_gets_the_same_loss():
    def mean(trained):
        return adjusted_logit_loss(trained, EYE, logits(STRONG), EYE, FIRST)[0] * 2

    trained = logits(WEAK)
    loss = torch.compile(mean, backend="eager")(trained)
    loss.backward()
    assert loss.item() == near(2 * 0.8242138) and trained.grad[0, 0].item() == near(-2 * 0.322046)


@pytest.mark.parametrize("T", [1, 13])
def test_targets_that_are_all_supervised_need_not_be_looked_through(T):
    case = masked((T, 3, 5, 33))
    kept = case.target_T != IGNORE
    hidden, weight, _, teacher, teacher_weight, _ = case.tensors
    want = adjusted_logit_loss(hidden, weight, teacher, teacher_weight, case.target_T)
    inputs = hidden[kept], weight, teacher[kept], teacher_weight, case.target_T[kept]
    got = adjusted_logit_loss(*inputs, ignored=False)
    assert torch.equal(got[0], want[0]) and all(torch.equal(a, b) for a, b in zip(got[1], want[1], strict=True))
