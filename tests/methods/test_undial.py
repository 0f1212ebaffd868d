"""UNDIAL on adjusted logits: numbers by hand, the definition in float64, errors."""

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
    every_chunk,
    every_head,
    every_shape,
    logits,
    near,
)
from weakdriven.errors import UserError
from weakdriven.losses.head import Head
from weakdriven.methods.undial.loss import adjusted_logit_loss, adjusted_logit_loss_reference


def solve(student=WEAK, teacher=STRONG, **options):
    trained = logits(student)
    loss, statistics = adjusted_logit_loss(trained, EYE, logits(teacher), EYE, FIRST, **options)
    loss.backward()
    return loss.item(), statistics, trained.grad[0].tolist()


def definition(strength=1.0, ce_weight=0.0):
    def dense(z_TV, teacher_TV, target_T):
        place_T1 = target_T[:, None]
        q_TV = (teacher_TV - strength * F.one_hot(target_T, teacher_TV.shape[1])).softmax(-1)
        soft = -(q_TV * z_TV.log_softmax(-1)).sum()
        hard = F.cross_entropy(z_TV, target_T, reduction="sum")
        p, q = teacher_TV.softmax(-1).gather(1, place_T1).sum(), q_TV.gather(1, place_T1).sum()
        return (soft + ce_weight * hard) / len(target_T), (soft, hard, p, q)

    def fused(hidden, head, teacher, teacher_head, target):
        options = {"strength": strength, "ce_weight": ce_weight}
        return adjusted_logit_loss(hidden, head, teacher, teacher_head, target, **options)

    return fused, dense


@pytest.mark.parametrize(
    "strength, loss, q, gradient",
    [(1, 0.8242138, 0.830953, [-0.322046, 0.196210, 0.072182, 0.053654]), (3, 1.2038068, 0.399486, None)],
)
def test_numbers_of_the_fixture_are_the_published_ones(strength, loss, q, gradient):
    got, statistics, by_logit = solve(strength=strength)
    assert got == near(loss) and statistics["soft_loss"].item() == near(loss)
    assert statistics["teacher_probability"].item() == near(0.930370)
    assert statistics["adjusted_probability"].item() == near(q)
    assert statistics["true_loss"].item() == near(0.6754903)
    assert gradient is None or by_logit == near(gradient)


def test_dense_logits_in_two_lines_give_the_published_loss():
    rows = torch.tensor([WEAK]), torch.tensor([STRONG])
    assert adjusted_logit_loss_reference(*rows, FIRST, strength=1.0).item() == near(0.8242138)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_head
def test_without_strength_a_model_equal_to_its_teacher_gets_no_gradient(options, dtype):
    case = problem(5, 3, 3, 33, dtype=dtype, **options)
    hidden, weight, bias = (None if x is None else x.detach().requires_grad_() for x in case.tensors[:3])
    head = Head(weight, bias, case.scales[0], case.caps[0])
    loss, _ = adjusted_logit_loss(hidden, head, hidden, head, case.target_T, strength=0)
    loss.backward()
    assert loss > 0 and all(not x.grad.any() for x in (hidden, weight, bias) if x is not None)


@every_chunk
@every_shape
def test_any_chunk_equals_float64(shape, chunk):
    assert_same(problem(*shape), *definition(strength=2.0), chunk=chunk)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("strength, ce_weight", [(0, 0), (1, 0.5), (7.5, 2)])
@every_head
def test_any_head_and_dtype_equals_float64(options, strength, ce_weight, dtype):
    assert_same(problem(13, 3, 5, 33, dtype=dtype, **options), *definition(strength, ce_weight))


@pytest.mark.parametrize("narrow", [(3, 4), (0,), (3,)], ids=["teacher", "hidden", "teacher-hidden"])
def test_tensors_of_other_precision_are_taken_as_they_are(narrow):
    case = problem(13, 3, 5, 33)
    tensors = tuple(x.detach().bfloat16().requires_grad_() if i in narrow else x for i, x in enumerate(case.tensors))
    assert_same(case._replace(tensors=tensors), *definition())


def test_no_tokens_are_a_loss_of_zero_without_gradient():
    hidden, head = torch.randn(0, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    loss, _ = adjusted_logit_loss(hidden, head, hidden, head, torch.empty(0, dtype=torch.long))
    loss.backward()
    assert loss == 0 and not head.grad.any()


def test_logits_of_minus_infinity_in_both_models_count_for_nothing():
    closed = [*WEAK, -torch.inf], [*STRONG, -torch.inf]
    states = [torch.tensor([values], requires_grad=True) for values in closed]
    heads = [Head(torch.cat([EYE, torch.zeros(1, 4)]), torch.tensor([0, 0, 0, 0, -torch.inf])) for _ in states]
    trained, teacher = states[0].detach()[:, :4].requires_grad_(), states[1].detach()[:, :4]
    loss, _ = adjusted_logit_loss(trained, heads[0], teacher, heads[1], FIRST)
    loss.backward()
    assert loss.item() == near(0.8242138) and trained.grad[0].tolist() == near(
        [-0.322046, 0.196210, 0.072182, 0.053654]
    )


def test_a_scale_divides_by_the_tokens_of_a_step():
    case = problem(16, 8, 8, 64)
    hidden, weight, _, teacher, teacher_weight, _ = (None if x is None else x.detach() for x in case.tensors)

    def solve(tokens=slice(None), **options):
        target = case.target_T[tokens]
        return adjusted_logit_loss(hidden[tokens], weight, teacher[tokens], teacher_weight, target, **options)[0]

    share = 1 / 16
    torch.testing.assert_close(solve(slice(5), scale=share) + solve(slice(5, None), scale=share), solve())


@pytest.mark.parametrize("needs, products", [((0, 1), 4), ((0,), 3), ((1,), 3), ((), 2)])
def test_only_gradients_that_are_needed_are_computed(needs, products):
    case = problem(13, 3, 3, 33)
    leaves = [x.detach().requires_grad_(i in needs) for i, x in enumerate(case.tensors[0:2])]
    teacher = [x.detach() for x in case.tensors[3:5]]
    with Watch() as watch:
        loss, _ = adjusted_logit_loss(*leaves, *teacher, case.target_T)
    assert watch.work == products * 13 * 3 * 33
    assert loss.requires_grad == bool(needs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_does_not_grow_with_the_tokens(dtype):
    assert_lean(adjusted_logit_loss, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_head
def test_tiles_stay_inside_their_budget(options, dtype):
    assert_in_budget(lambda *inputs: adjusted_logit_loss(*inputs, ce_weight=0.5), dtype, **options)


def test_a_gradient_is_taken_once():
    trained = logits(WEAK)
    loss, _ = adjusted_logit_loss(trained, EYE, logits(STRONG), EYE, FIRST)
    loss.backward(retain_graph=True)
    with pytest.raises(UserError, match="can be taken only once"):
        loss.backward()


@pytest.mark.slow
def test_a_compiled_caller_gets_the_same_loss():
    def mean(trained):
        return adjusted_logit_loss(trained, EYE, logits(STRONG), EYE, FIRST)[0] * 2

    trained = logits(WEAK)
    loss = torch.compile(mean, backend="eager")(trained)
    loss.backward()
    assert loss.item() == near(2 * 0.8242138) and trained.grad[0, 0].item() == near(-2 * 0.322046)
