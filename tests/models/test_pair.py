"""WeakStrongPair against a dense computation from both models' own logits."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from helpers import FAMILIES, padded_batch, tiny_model, token_rows, weights
from weakdriven.data.tokenize import IGNORE
from weakdriven.errors import UserError
from weakdriven.models.pair import WEAK_FOLDER, WeakStrongPair, load_pair_weights, save_pair

BATCH = padded_batch(token_rows(5))


def make_pair(family="qwen3", *, strong_weight=0.42, weak_trainable=True, weak_family=None, **options):
    strong, weak = tiny_model(family, seed=1, **options), tiny_model(weak_family or family, seed=2, **options)
    return WeakStrongPair(strong=strong, weak=weak, strong_weight=strong_weight, weak_trainable=weak_trainable)


def dense_loss(pair, batch):
    """Mean over supervised tokens of cross-entropy on mixed logits, each row predicting the next token."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    strong, weak = (model(**inputs).logits.double() for model in (pair.strong, pair.weak))
    mixed = pair.strong_weight * strong + (1 - pair.strong_weight) * weak
    return F.cross_entropy(mixed[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=IGNORE)


def assert_equals_dense(pair, batch=BATCH):
    parameters = dict(pair.named_parameters())
    got, want = pair(**batch).loss, dense_loss(pair, batch)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
    options = {"materialize_grads": True}
    gradients = torch.autograd.grad(got, parameters.values(), **options)
    true = torch.autograd.grad(want, parameters.values(), **options)
    for name, mine, theirs in zip(parameters, gradients, true, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_every_gradient_equal_the_dense_computation(family, tied):
    assert_equals_dense(make_pair(family, tied=tied))


@pytest.mark.filterwarnings("ignore:strong_weight is 0")
@pytest.mark.parametrize("strong_weight", [0.0, 0.5, 1.0])
def test_both_ends_of_the_mixture_equal_the_dense_computation(strong_weight):
    assert_equals_dense(make_pair(strong_weight=strong_weight))


def test_models_of_different_width_and_family_mix():
    strong, weak = tiny_model("qwen3", width=24, seed=1), tiny_model("llama", width=16, tied=False, seed=2)
    assert_equals_dense(WeakStrongPair(strong=strong, weak=weak, strong_weight=0.42))


def test_only_supervised_positions_count():
    pair = make_pair()
    masked = BATCH["labels"].clone()
    masked[0] = IGNORE
    fewer = BATCH | {"labels": masked}
    assert_equals_dense(pair, fewer)
    assert pair(**fewer).num_tokens == (masked != IGNORE).sum() < pair(**BATCH).num_tokens
    rest = {name: value[1:] for name, value in BATCH.items()}
    torch.testing.assert_close(pair(**fewer).loss, pair(**rest).loss)


def test_padding_does_not_change_the_loss():
    pair, rows = make_pair(), token_rows(5)
    alone = [pair(**padded_batch([row]), num_items_in_batch=1).loss for row in rows]
    torch.testing.assert_close(pair(**BATCH, num_items_in_batch=1).loss, torch.stack(alone).sum(), rtol=1e-5, atol=1e-5)


def test_a_batch_without_supervised_tokens_has_loss_zero():
    pair = make_pair()
    output = pair(**BATCH | {"labels": torch.full_like(BATCH["labels"], IGNORE)})
    output.loss.backward()
    assert (output.loss.item(), output.num_tokens.item()) == (0, 0)


@pytest.mark.parametrize("items", [7, torch.tensor(7)])
def test_the_sum_is_divided_by_the_number_of_items_in_the_step(items):
    pair = make_pair()
    mean = pair(**BATCH)
    torch.testing.assert_close(pair(**BATCH, num_items_in_batch=items).loss, mean.loss * mean.num_tokens / 7)


def test_statistics_are_sums_over_the_supervised_tokens():
    pair = make_pair()
    statistics, tokens = pair(**BATCH).statistics, pair(**BATCH).num_tokens
    for branch, total in (("strong", statistics.strong_loss), ("weak", statistics.weak_loss)):
        model = getattr(pair, branch)
        torch.testing.assert_close(model(**BATCH).loss * tokens, total, rtol=1e-5, atol=1e-5)
    assert 0 <= statistics.margin_tokens <= tokens


def test_a_frozen_weak_model_gets_no_gradient_and_leaves_the_strong_gradient_as_it_is():
    free, frozen = make_pair(), make_pair(weak_trainable=False)
    for pair in (free, frozen):
        pair(**BATCH).loss.backward()
    assert all(p.grad is None and not p.requires_grad for p in frozen.weak.parameters())
    for mine, other in zip(frozen.strong.parameters(), free.strong.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)


@pytest.mark.parametrize("weak_trainable", [True, False])
def test_only_a_frozen_weak_model_stays_in_evaluation_mode(weak_trainable):
    pair = make_pair(weak_trainable=weak_trainable).train()
    assert pair.strong.training
    assert pair.weak.training == weak_trainable
    assert not pair.eval().strong.training


def test_gradient_checkpointing_does_not_change_the_gradients():
    pair, checkpointed = make_pair().train(), make_pair().train()
    checkpointed.gradient_checkpointing_enable()
    assert checkpointed.is_gradient_checkpointing
    for each in (pair, checkpointed):
        each(**BATCH).loss.backward()
    for mine, other in zip(checkpointed.parameters(), pair.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_different_vocabularies_are_refused():
    with pytest.raises(UserError, match="Cannot mix logits: weak has 32 vocabulary rows, strong has 64"):
        WeakStrongPair(strong=tiny_model(), weak=tiny_model(vocab_size=32))


@pytest.mark.parametrize("strong_weight", [-0.1, 1.1, float("nan")])
def test_a_mixture_weight_outside_its_range_is_refused(strong_weight):
    with pytest.raises(UserError, match=r"strong_weight is .*; it must be between 0 and 1"):
        make_pair(strong_weight=strong_weight)


def test_no_weight_on_the_strong_logits_is_allowed_with_a_warning():
    with pytest.warns(UserWarning, match="strong_weight is 0, so the strong model gets no gradient"):
        make_pair(strong_weight=0.0)


def shard(folder, size="5KB"):
    def save(pair):
        pair.strong.save_pretrained(folder, max_shard_size=size)
        pair.weak.save_pretrained(folder / WEAK_FOLDER, max_shard_size=size)

    return save


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "shards"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_pair_comes_back_exactly(family, tied, sharded, tmp_path):
    saved = make_pair(family, tied=tied)
    (shard(tmp_path) if sharded else lambda pair: save_pair(pair, tmp_path))(saved)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == sharded
    other = WeakStrongPair(strong=tiny_model(family, seed=8, tied=tied), weak=tiny_model(family, seed=9, tied=tied))
    load_pair_weights(other, tmp_path)
    for branch in ("strong", "weak"):
        mine, theirs = weights(getattr(other, branch)), weights(getattr(saved, branch))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    if tied:
        assert other.strong.get_output_embeddings().weight is other.strong.get_input_embeddings().weight


@pytest.mark.parametrize("lost", [".", WEAK_FOLDER])
def test_a_saved_pair_without_a_weights_file_is_an_error(lost, tmp_path):
    pair = make_pair()
    save_pair(pair, tmp_path)
    (tmp_path / lost / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"does not fit: .* weights are missing"):
        load_pair_weights(pair, tmp_path)


@pytest.mark.parametrize("change", ["missing", "left over"])
@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "shards"])
def test_a_saved_pair_with_a_weight_missing_or_left_over_is_an_error(change, sharded, tmp_path):
    pair = make_pair()
    (shard(tmp_path) if sharded else lambda pair: save_pair(pair, tmp_path))(pair)
    file = sorted(tmp_path.glob("*.safetensors"))[0]
    tensors = load_file(file)
    if change == "missing":
        tensors.popitem()
    else:
        tensors["model.layers.7.mlp.up_proj.weight"] = torch.zeros(2)
    save_file(tensors, file)
    with pytest.raises((UserError, RuntimeError)):
        load_pair_weights(pair, tmp_path)
