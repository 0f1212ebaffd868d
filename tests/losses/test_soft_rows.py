"""The Triton rows of the baselines against their definition on dense logits in float64, one tile at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from loss_cases import CUDA
from weakdriven.losses import adjusted_logit_loss
from weakdriven.losses.triton import soft_rows as kernel
from weakdriven.methods.soft_rows import Shape, adjusted_rows, distilled_rows, noised_rows
from weakdriven.methods.undial.noise import standard_normal

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="with CUDA, Triton compiles")),
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs CUDA")]),
]
on_each_device = pytest.mark.parametrize("device", DEVICES)
on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs CUDA")]
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
PLAIN = Shape(1.0, 0.0)
VOCABULARIES = [1, 2, 17, 4095, 4096, 4097, 10_000]


def tile(rows, vocabulary, dtype, seed=0, size=3.0):
    """Raw logits of a model and of its teacher, and targets."""
    draw = torch.Generator().manual_seed(seed)
    logits = [(size * torch.randn(rows, vocabulary, generator=draw)).to(dtype) for _ in range(2)]
    return *logits, torch.randint(vocabulary, (rows,), generator=draw)


def shaped(raw, shape):
    z = raw * shape.scale
    return shape.cap * (z / shape.cap).tanh() if shape.cap else z


def dense_adjusted(raw, teacher, target, *, strength, ce_weight, shape, teacher_shape):
    place, t = target[:, None], shaped(teacher, teacher_shape)
    q = (t - strength * F.one_hot(target, t.shape[1])).softmax(-1)
    log_p = shaped(raw, shape).log_softmax(-1)
    soft, ce = -(q * log_p).sum(-1), -log_p.gather(1, place)[:, 0]
    return soft + ce_weight * ce, soft, ce, t.softmax(-1).gather(1, place)[:, 0], q.gather(1, place)[:, 0]


def dense_noised(raw, target, noise, *, shape):
    z = shaped(raw, shape)
    noised = z - noise[:, None] * F.one_hot(target, z.shape[1])
    return tuple(F.cross_entropy(x, target, reduction="none") for x in (noised, z))


def dense_distilled(
    raw, target, ids, logits, lse, *, temperature, kd_weight, ce_weight, renormalize, whole_vocabulary, shape
):
    z, stored = shaped(raw, shape), logits / temperature
    log_q = stored.log_softmax(-1) if renormalize else stored - lse[:, None]
    if whole_vocabulary:
        log_p = (z / temperature).log_softmax(-1).gather(1, ids)
    else:
        log_p = (z.gather(1, ids) / temperature).log_softmax(-1)
    kl, ce = (log_q.exp() * (log_q - log_p)).sum(-1), F.cross_entropy(z, target, reduction="none")
    return kd_weight * temperature**2 * kl + ce_weight * ce, kl, ce, (stored - lse[:, None]).exp().sum(-1)


def assert_rows(device, fill, dense, raw, *inputs, push=1.0, **options):
    """Results and gradient of the kernel; `push` is the size of a gradient's terms."""
    place = [x.to(device) for x in inputs]
    mine = raw.to(device, copy=True)
    results = fill(mine, *[x.clone() for x in place], gradient=True, triton=True, **options)
    exact = raw.double().requires_grad_()
    want = dense(exact, *(x.double() if x.is_floating_point() else x for x in inputs), **options)
    largest = max(float(x.float().abs().max()) for x in (raw, *inputs) if x.is_floating_point())
    torch.testing.assert_close(
        results.cpu().double(), torch.stack(want, 1).detach(), rtol=1e-5, atol=3e-5 + 2**-22 * largest
    )
    (by_raw,) = torch.autograd.grad(want[0].sum(), exact)
    rounding = torch.finfo(raw.dtype).eps
    atol = push * (3e-6 + 2**-22 * largest)
    torch.testing.assert_close(mine.cpu().double(), by_raw, rtol=max(rounding, 1e-5), atol=atol)
    kept = raw.to(device, copy=True)
    alone = fill(kept, *[x.clone() for x in place], gradient=False, triton=True, **options)
    assert torch.equal(kept.cpu(), raw)
    torch.testing.assert_close(alone, results, rtol=1e-6, atol=1e-6)  # another kernel, and perhaps other fusions


def assert_adjusted(device, raw, teacher, target, strength=1.0, ce_weight=0.5, shape=PLAIN, teacher_shape=PLAIN):
    options = {"strength": strength, "ce_weight": ce_weight, "shape": shape, "teacher_shape": teacher_shape}
    push = (1 + ce_weight) * max(shape.scale, 1)
    assert_rows(device, adjusted_rows, dense_adjusted, raw, teacher, target, push=push, **options)


def assert_noised(device, raw, target, absolute=False, shape=PLAIN):
    deviation, key = torch.linspace(0.3, 2.5, len(raw)), torch.arange(len(raw)) * 7 + 2**40

    def fill(raw, target, deviation, **options):
        drawn = {"seed": 3, "everywhere": False, "absolute": absolute}
        return noised_rows(raw, target, deviation, key.to(raw.device), **drawn, **options)

    def dense(raw, target, deviation, **options):
        normal = standard_normal(3, key, 1)[:, 0].double()
        return dense_noised(raw, target, deviation * (normal.abs() if absolute else normal), **options)

    assert_rows(device, fill, dense, raw, target, deviation, push=max(shape.scale, 1), shape=shape)


def assert_distilled(device, raw, teacher, target, k=5, temperature=1.5, shape=PLAIN, **changes):
    teacher = teacher.float()
    logits, ids = teacher.topk(min(k, teacher.shape[1]))
    lse = (teacher / temperature).logsumexp(-1)
    options = {"kd_weight": 0.5, "ce_weight": 0.5, "renormalize": True, "whole_vocabulary": True} | changes
    options |= {"temperature": temperature, "shape": shape}
    push = (options["kd_weight"] * temperature * 2 + options["ce_weight"]) * max(shape.scale, 1)
    assert_rows(device, distilled_rows, dense_distilled, raw, target, ids, logits, lse, push=push, **options)


@on_each_device
@settings(deadline=None, derandomize=True, database=None, max_examples=30)
@given(st.data())
def test_every_option_gives_the_results_and_gradients_of_the_definition(device, data):
    def draw(*choices):
        return data.draw(st.sampled_from(choices))

    def shape():
        return Shape(draw(1.0, 0.125, 1.7), draw(0.0, 3.0, 30.0))

    size = draw(1, 2), data.draw(st.integers(1, 70)), draw(torch.float32, torch.bfloat16)
    raw, teacher, target = tile(*size, seed=data.draw(st.integers(0, 999)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "BLOCK", draw(16, 32))  # so that rows of any length take several blocks
        assert_adjusted(device, raw, teacher, target, draw(0.0, 1.0, 10.0), draw(0.0, 0.5), shape(), shape())
        assert_noised(device, raw, target, draw(True, False), shape())
        assert_distilled(
            device,
            raw,
            teacher,
            target,
            k=draw(1, 5, 20),
            temperature=draw(0.7, 1.0, 1.5),
            kd_weight=draw(0.0, 0.5, 1.0),
            ce_weight=draw(0.0, 0.5),
            renormalize=draw(True, False),
            whole_vocabulary=draw(True, False),
            shape=shape(),
        )


@every_dtype
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@on_each_device
def test_rows_around_the_size_of_a_block_are_right(device, vocabulary, dtype):
    raw, teacher, target = tile(2, vocabulary, dtype)
    assert_adjusted(device, raw, teacher, target)
    assert_noised(device, raw, target)
    assert_distilled(device, raw, teacher, target)


@pytest.mark.parametrize("target", [0, 16, 39])
@on_each_device
def test_a_target_in_the_first_or_last_place_is_found(device, target):
    raw, teacher, _ = tile(1, 40, torch.float32)
    assert_adjusted(device, raw, teacher, torch.tensor([target]))
    assert_noised(device, raw, torch.tensor([target]))
    assert_distilled(device, raw, teacher, torch.tensor([target]))


@every_dtype
@pytest.mark.parametrize("strength, ce_weight", [(0.0, 0.0), (1.0, 0.5), (10.0, 0.0), (10.0, 0.5)])
@on_each_device
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_logits_of_any_size_are_right(device, strength, ce_weight, dtype):
    raw, teacher, target = tile(5, 100, dtype)
    raw[0], teacher[0] = 0, 0  # all equal
    raw[1], raw[1, 3], teacher[1, 7] = -1e4, 1e4, 1e4
    raw[2, target[2]], teacher[2, target[2]] = 1e4, 1e4  # a sure token
    raw[3, target[3]], teacher[3, target[3]] = -1e4, -1e4
    teacher[4, target[4]] = 30  # almost sure, so that the strength decides
    assert_adjusted(device, raw, teacher, target, strength, ce_weight)
    assert_noised(device, raw, target)


@on_each_device
def test_a_model_equal_to_its_teacher_gets_no_gradient_at_all(device):
    for shape in (PLAIN, Shape(0.3, 0.0), Shape(1.0, 5.0)):
        raw, _, target = (x.to(device) for x in tile(3, 5000, torch.float32))
        options = {"strength": 0.0, "ce_weight": 0.0, "shape": shape, "teacher_shape": shape}
        kernel.adjusted_rows(raw, raw.clone(), target, gradient=True, **options)
        assert not raw.any() or (device == "cuda" and raw.abs().max() < 1e-6)  # a compiler may fuse one side only


@on_each_device
def test_tiles_need_not_be_contiguous(device):
    raw, teacher, target = (x.to(device) for x in tile(3, 50, torch.float32))
    options = {"strength": 1.0, "ce_weight": 0.5, "shape": PLAIN, "teacher_shape": PLAIN, "gradient": True}
    wide, other = raw.clone(), teacher.clone()
    got = kernel.adjusted_rows(wide[:, :40], other[:, :40], (target % 40).repeat_interleave(2)[::2], **options)
    mine = raw[:, :40].contiguous()
    assert torch.equal(got, kernel.adjusted_rows(mine, teacher[:, :40].contiguous(), target % 40, **options))
    assert torch.equal(wide[:, :40], mine) and torch.equal(wide[:, 40:], raw[:, 40:]) and torch.equal(other, teacher)


@on_each_device
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_row_that_has_no_number_says_so_and_leaves_its_neighbours_alone(device):
    raw, teacher, target = (x.to(device) for x in tile(4, 40, torch.float32))
    options = {"strength": 1.0, "ce_weight": 0.5, "shape": PLAIN, "teacher_shape": PLAIN, "gradient": True}
    clean = kernel.adjusted_rows(raw.clone(), teacher, target, **options)
    raw[0, 5], teacher[2, 5], target[3] = torch.nan, torch.nan, 40
    found = kernel.adjusted_rows(raw, teacher, target, **options)
    assert torch.equal(found[1], clean[1]) and raw[1].isfinite().all()
    assert found[[0, 2, 3], 0].isnan().all()


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_a_gpu)])
@every_dtype
def test_rows_of_a_large_vocabulary_are_right(device, dtype):
    raw, teacher, target = tile(4, 151_936, dtype)
    assert_adjusted(device, raw, teacher, target)
    assert_noised(device, raw, target)
    assert_distilled(device, raw, teacher, target, k=20)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_a_gpu)])
def test_more_logits_than_32_bits_can_count_are_right(device):
    rows, vocabulary = 14_200, 151_936  # 2**31 and more
    row, teacher, target = (x.to(device) for x in tile(1, vocabulary, torch.bfloat16))
    raw, teachers = row.repeat(rows, 1), teacher.repeat(rows, 1)
    options = {"strength": 1.0, "ce_weight": 0.5, "shape": PLAIN, "teacher_shape": PLAIN, "gradient": True}
    results = kernel.adjusted_rows(raw, teachers, target.expand(rows), **options)
    assert (results == results[0]).all() and torch.equal(raw[0], raw[-1]) and not torch.equal(raw[-1], row[0])


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_a_gpu)])
def test_a_loss_over_many_tiles_is_that_of_torch_rows(device):
    torch.manual_seed(0)
    T, D, V = 5000, 64, 151_936
    states = [torch.randn(T, D, device=device).bfloat16().requires_grad_() for _ in range(2)]
    heads = [(torch.randn(V, D, device=device) / 4).bfloat16().requires_grad_() for _ in range(2)]
    target, found = torch.randint(V, (T,), device=device), []
    for implementation in ("chunked", "triton"):
        loss, sums = adjusted_logit_loss(
            states[0], heads[0], states[1], heads[1], target, ce_weight=0.5, implementation=implementation
        )
        found.append((torch.stack([loss.detach(), *sums]), *torch.autograd.grad(loss, [states[0], heads[0]])))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=1e-3)
    for one, other in zip(found[0][1:], found[1][1:], strict=True):
        assert (one.float() - other.float()).norm() < 0.01 * one.float().norm()


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_a_gpu)])
def test_nobody_waits_for_the_device(device):
    states, head = torch.randn(300, 16, device=device), torch.randn(1000, 16, device=device, requires_grad=True)
    target = torch.randint(1000, (300,), device=device)
    adjusted_logit_loss(states, head, states, head, target, ignored=False)[0].backward()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        adjusted_logit_loss(states, head, states, head, target, ignored=False)[0].backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
