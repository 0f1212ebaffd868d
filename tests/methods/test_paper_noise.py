"""UNDIAL as the paper describes it: numbers worked out by hand, float64, and noise that no chunk changes."""

import pytest
import torch
from torch.nn import functional as F

from loss_cases import problem
from soft_cases import (
    EYE,
    FIRST,
    STRONG,
    assert_lean,
    assert_same,
    chunks,
    every_chunk,
    every_head,
    logits,
    near,
)
from weakdriven.methods.undial import noise as home
from weakdriven.methods.undial.noise import noised_cross_entropy, standard_normal

SHAPE = 13, 3, 1, 33
every_site = pytest.mark.parametrize("site", ["target_logit", "logits"])
every_sign = pytest.mark.parametrize("sign", ["signed", "abs"])


def lengths(target_T):
    return torch.arange(len(target_T)) % 5 + 1


def definition(site="target_logit", sign="signed", sigma=1.5, seed=3):
    def fused(hidden, head, _, __, target):
        options = {"sigma": sigma, "site": site, "sign": sign, "seed": seed}
        return noised_cross_entropy(hidden, head, target, lengths(target), **options)

    def dense(z_TV, _, target_T):
        V = z_TV.shape[1]
        noise_TV = standard_normal(seed, torch.arange(len(target_T)), V if site == "logits" else 1).double()
        noise_TV = sigma * (noise_TV.abs() if sign == "abs" else noise_TV) / lengths(target_T)[:, None].double().sqrt()
        noised_TV = z_TV - noise_TV * (1 if site == "logits" else F.one_hot(target_T, V))
        noised, clean = (F.cross_entropy(x, target_T, reduction="sum") for x in (noised_TV, z_TV))
        return noised / len(target_T), (noised, clean)

    return fused, dense


@pytest.mark.parametrize("sign, noise", [("signed", 0.5), ("abs", 0.5), ("abs", -0.5)])
def test_numbers_of_the_fixture_are_the_published_ones(sign, noise, monkeypatch):
    monkeypatch.setattr(home, "standard_normal", lambda _, keys, places: torch.full((len(keys), places), noise))
    trained = logits(STRONG)
    loss, statistics = noised_cross_entropy(trained, EYE, FIRST, torch.tensor([4]), sign=sign)
    loss.backward()
    assert loss.item() == near(0.0917560) and statistics["noised_loss"].item() == near(0.0917560)
    assert statistics["clean_loss"].item() == near(0.0721724)
    assert trained.grad[0].tolist() == near([-0.087672, 0.058323, 0.021456, 0.007893])
    noised = torch.tensor([3.75, 1, 0, -1]).softmax(0) - F.one_hot(FIRST[0], 4)
    assert trained.grad[0].tolist() == near(noised.tolist())


@every_chunk
@every_site
@every_sign
def test_any_chunk_equals_float64(sign, site, chunk):
    assert_same(problem(*SHAPE), *definition(site, sign), chunk=chunk)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@every_site
@every_head
def test_any_head_and_dtype_equals_float64(options, site, dtype):
    assert_same(problem(*SHAPE, dtype=dtype, **options), *definition(site))


@every_site
def test_a_token_keeps_its_noise_in_any_batch(site):
    case = problem(16, 3, 1, 33)
    hidden, weight = (x.detach() for x in case.tensors[:2])
    key, options = torch.arange(16) * 7 + 2**40, {"site": site, "seed": 11, "sigma": 2.0, "scale": 1.0}

    def solve(tokens, **more):
        target = case.target_T[tokens]
        length = lengths(case.target_T)[tokens]
        return noised_cross_entropy(hidden[tokens], weight, target, length, key_T=key[tokens], **options | more)[0]

    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    whole = solve(torch.arange(16))
    with chunks(5):
        torch.testing.assert_close(solve(order), whole)
    torch.testing.assert_close(solve(order[:7]) + solve(order[7:]), whole)
    assert abs(solve(order, seed=12) - whole) > 1e-3


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_noise_is_made_for_a_few_rows_at_a_time(rows, monkeypatch):
    case = problem(*SHAPE)
    hidden, weight = (x.detach() for x in case.tensors[:2])
    inputs = hidden, weight, case.target_T, lengths(case.target_T)
    want, _ = noised_cross_entropy(*inputs, site="logits")
    monkeypatch.setattr(home, "NOISE_ROWS", rows)
    assert torch.equal(noised_cross_entropy(*inputs, site="logits")[0], want)


def test_a_penalty_raises_the_loss_of_every_token():
    case = problem(16, 3, 1, 33)
    inputs = *case.tensors[:2], case.target_T, lengths(case.target_T)
    _, statistics = noised_cross_entropy(*inputs, sign="abs")
    assert statistics["noised_loss"] > statistics["clean_loss"]


@pytest.mark.parametrize("site, largest", [("target_logit", 4), ("logits", 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_does_not_grow_with_the_tokens(dtype, site, largest):
    def fused(hidden, head, _, __, target):
        return noised_cross_entropy(hidden, head, target, lengths(target), site=site)

    assert_lean(fused, dtype, largest)


# the noise itself


@pytest.mark.parametrize("seed", [0, -1, 2**40 + 1])
def test_noise_is_standard_normal(seed):
    noise = standard_normal(seed, torch.arange(500), 800).double()
    assert noise.mean().item() == near(0, 6e-3)
    assert noise.std().item() == near(1, 6e-3)
    assert (noise**4).mean().item() == near(3, 0.06)
    inside = [(noise.abs() < bound).double().mean().item() for bound in (1, 2, 3)]
    assert inside == near([0.6827, 0.9545, 0.9973], 3e-3)


def test_noise_of_two_places_or_two_tokens_is_unrelated():
    noise = standard_normal(0, torch.arange(400), 400)
    for table in (noise, noise.T):
        related = torch.corrcoef(table) - torch.eye(400)
        assert related.abs().max() < 0.3  # the largest of 80,000 is about 0.22
        assert related.square().mean().item() == near(1 / 400, 2e-4)
    shifted = torch.stack([noise[:-1, 1:].flatten(), noise[1:, :-1].flatten()])
    assert abs(torch.corrcoef(shifted)[0, 1]) < 0.02


def test_keys_and_seeds_of_more_than_32_bits_count():
    keys = torch.tensor([5, 5 + 2**32, 5 + 2**33])
    noise = torch.cat([standard_normal(seed, keys, 8) for seed in (9, 9 + 2**32)])
    assert len(noise.unique(dim=0)) == 6
