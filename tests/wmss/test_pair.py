"""WeakStrongPair against a dense computation from both models' own logits."""

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModel, T5Config, T5ForConditionalGeneration

from helpers import FAMILIES, VOCABULARY, padded_batch, tiny_model, token_rows
from loss_cases import Watch
from weakdriven.data.tokenize import IGNORE
from weakdriven.errors import UserError
from weakdriven.wmss.pair import (
    WeakStrongPair,
)

BATCH = padded_batch(token_rows(5))
PAIR_OPTIONS = ("strong_weight", "weak_trainable", "strong_anchor", "vocabulary", "implementation")
OTHER_HEADS = {
    "gemma2": {"final_logit_softcapping": 2.0},  # low enough to bend logits of about 1
    "granite": {"logits_scaling": 8.0},
    "cohere": {"logit_scale": 3.0},
    "phi": {"tied": False},
}
"""Families that cap, scale or shift their logits, and how strongly."""


def model_with_head(family, **options):
    model = tiny_model(family, **OTHER_HEADS.get(family, {}) | options)
    bias = model.get_output_embeddings().bias
    if bias is not None:
        bias.data.normal_(generator=torch.Generator().manual_seed(0))
    return model


def make_pair(family="qwen3", *, weak_family=None, strong_weight=0.42, **options):
    of_pair = {name: options.pop(name) for name in PAIR_OPTIONS if name in options} | {"strong_weight": strong_weight}
    strong, weak = (
        model_with_head(name, seed=seed, **options) for seed, name in ((1, family), (2, weak_family or family))
    )
    return WeakStrongPair(strong=strong, weak=weak, **of_pair)


def dense_loss(pair, batch):
    """Mean over supervised tokens of cross-entropy on mixed logits, each row predicting the next token."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    strong, weak = (model(**inputs).logits.double() for model in (pair.strong, pair.weak))
    rows = min(strong.shape[-1], weak.shape[-1])
    strong, weak = strong[..., :rows], weak[..., :rows]
    target = batch["labels"][:, 1:].flatten()
    mixed = pair.strong_weight * strong + (1 - pair.strong_weight) * weak
    losses = [F.cross_entropy(z[:, :-1].flatten(0, 1), target, ignore_index=IGNORE) for z in (mixed, strong)]
    return losses[0] + pair.strong_anchor * losses[1]


def assert_equals_dense(pair, batch=BATCH):
    parameters = {name: p for name, p in pair.named_parameters() if p.requires_grad}
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


@pytest.mark.parametrize("strong_anchor", [0.0, 0.5])
@pytest.mark.parametrize("family", OTHER_HEADS)
def test_capped_scaled_and_shifted_logits_are_mixed_as_the_models_give_them(family, strong_anchor):
    pair = make_pair(family, strong_anchor=strong_anchor)
    assert_equals_dense(pair)
    assert_equals_dense(make_pair(family, weak_family="qwen3", strong_anchor=strong_anchor, tied=False))


def test_a_cap_left_out_would_be_seen():
    pair = make_pair("gemma2")
    want = dense_loss(pair, BATCH)
    for model in (pair.strong, pair.weak):
        model.config.final_logit_softcapping = None
    assert abs(pair(**BATCH).loss - want) > 0.01


@pytest.mark.parametrize("weak_trainable", [True, False])
@pytest.mark.parametrize("strong_weight", [0.0, 0.42, 1.0])
def test_an_anchor_adds_the_strong_models_own_loss(strong_weight, weak_trainable):
    assert_equals_dense(make_pair(strong_weight=strong_weight, strong_anchor=0.7, weak_trainable=weak_trainable))


@pytest.mark.parametrize("implementation", ["reference", "chunked"])
def test_every_implementation_gives_the_dense_gradients(implementation):
    assert_equals_dense(make_pair("gemma2", implementation=implementation, strong_anchor=0.3))


@pytest.mark.filterwarnings("ignore:strong_weight is 0")
@pytest.mark.parametrize("strong_weight", [0.0, 0.5, 1.0])
def test_both_ends_of_the_mixture_equal_the_dense_computation(strong_weight):
    assert_equals_dense(make_pair(strong_weight=strong_weight))


def test_models_of_different_width_and_family_mix():
    strong, weak = tiny_model("qwen3", width=24, seed=1), tiny_model("llama", width=16, tied=False, seed=2)
    assert_equals_dense(WeakStrongPair(strong=strong, weak=weak, strong_weight=0.42))


def calls(pair, batch=BATCH):
    """How often each model ran in one forward, and the output."""
    count = {"strong": 0, "weak": 0}
    hooks = []
    for name in count:

        def ran(*_, name=name):
            count[name] += 1

        hooks.append(getattr(pair, name).base_model.register_forward_hook(ran))
    output = pair(**batch)
    for hook in hooks:
        hook.remove()
    return count, output


@pytest.mark.filterwarnings("ignore:strong_weight is 0")
@pytest.mark.parametrize(
    "strong_weight, strong_anchor, ran",
    [(0.5, 0, (1, 1)), (1.0, 0, (1, 0)), (0.0, 0, (0, 1)), (0.0, 0.5, (1, 1)), (1.0, 0.5, (1, 0))],
)
def test_a_model_that_does_not_count_does_not_run(strong_weight, strong_anchor, ran):
    pair = make_pair(strong_weight=strong_weight, strong_anchor=strong_anchor)
    count, output = calls(pair)
    assert (count["strong"], count["weak"]) == ran
    assert (not output.statistics.strong_loss.isnan(), not output.statistics.weak_loss.isnan()) == (
        ran[0] > 0,
        ran[1] > 0,
    )
    output.loss.backward()
    for model, runs in zip((pair.strong, pair.weak), ran, strict=True):
        assert all((p.grad is not None) == bool(runs) for p in model.parameters())


def test_the_weight_may_change_between_steps():
    pair = make_pair(strong_weight=0.5)
    for strong_weight in (0.5, 0.8, 1.0):
        pair.strong_weight = strong_weight
        assert_equals_dense(pair)


def test_only_supervised_positions_reach_the_heads():
    pair = make_pair(vocab_size=97)
    with Watch() as watch:
        tokens = pair(**BATCH).num_tokens.item()
    of_head = [shape for shape in watch.shapes if 97 in shape]
    assert sum(rows * inner * columns for rows, inner, columns in of_head) == 6 * tokens * 16 * 97
    assert tokens < BATCH["attention_mask"].sum() - len(BATCH["input_ids"])


def loss_and_gradients(pair, batch, *, autocast=False, **options):
    pair.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = pair(**batch, **options).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in pair.named_parameters() if p.grad is not None}


def packed(rows):
    """All rows one after another in one, told apart by positions that start again."""
    columns = {
        "input_ids": [t for row in rows for t in row["input_ids"]],
        "labels": [t for row in rows for t in row["labels"]],
        "position_ids": [i for row in rows for i in range(len(row["input_ids"]))],
    }
    return {name: torch.tensor([column]) for name, column in columns.items()}


@pytest.mark.parametrize(
    "family, attention", [*((family, name) for family in FAMILIES for name in ("eager", "sdpa")), ("gemma2", "eager")]
)
def test_a_packed_row_without_padding_equals_a_padded_batch(family, attention):
    pair = make_pair(family)
    for model in (pair.strong, pair.weak):
        model.set_attn_implementation(attention)
    want = loss_and_gradients(pair, BATCH)
    got = loss_and_gradients(pair, packed(token_rows(5)))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    unmarked = packed(token_rows(5))
    del unmarked["position_ids"]
    assert abs(loss_and_gradients(pair, unmarked)[0] - want[0]) > 1e-3  # so the positions do tell rows apart


def test_the_last_token_of_a_packed_sequence_is_not_asked_for_the_first_of_the_next():
    rows = [{**row, "labels": row["input_ids"]} for row in token_rows(5)]
    want, got = (loss_and_gradients(make_pair(), batch) for batch in (padded_batch(rows), packed(rows)))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_the_left_equals_padding_on_the_right(family):
    pair, left = make_pair(family), []
    rows = token_rows(5)
    width = max(len(row["input_ids"]) for row in rows)
    for row in rows:
        pad = width - len(row["input_ids"])
        mask = [0] * pad + [1] * len(row["input_ids"])
        left.append(([0] * pad + row["input_ids"], [IGNORE] * pad + row["labels"], mask))
    columns = (torch.tensor(column) for column in zip(*left, strict=True))
    batch = dict(zip(("input_ids", "labels", "attention_mask"), columns, strict=True))
    assert not torch.equal(batch["attention_mask"], BATCH["attention_mask"])
    torch.testing.assert_close(loss_and_gradients(pair, batch), loss_and_gradients(pair, BATCH), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "phi"])
@pytest.mark.parametrize("kind", ["bf16 weights", "autocast"])
def test_half_precision_stays_close_and_keeps_the_dtype_of_the_weights(kind, family):
    want, true = loss_and_gradients(make_pair(family), BATCH)
    pair = make_pair(family)
    if kind == "bf16 weights":
        pair.to(torch.bfloat16)
    loss, gradients = loss_and_gradients(pair, BATCH, autocast=kind == "autocast")
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(want.item(), rel=0.02)
    assert {g.dtype for g in gradients.values()} == {torch.bfloat16 if kind == "bf16 weights" else torch.float32}
    for name in ("strong", "weak"):
        mine, theirs = (
            torch.cat([g.double().flatten() for key, g in found.items() if key.startswith(name)])
            for found in (gradients, true)
        )
        assert (mine - theirs).norm() < 0.05 * theirs.norm()


def test_autocast_computes_the_heads_products_in_bfloat16():
    pair, seen = make_pair(vocab_size=97, tied=False), set()

    class Dtypes(Watch):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket in self.products_of:
                seen.update(x.dtype for x in args if isinstance(x, torch.Tensor) and 97 in x.shape)
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Dtypes(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        pair(**BATCH)
    assert seen == {torch.bfloat16}


def test_a_frozen_weak_model_may_be_narrower_than_the_strong_one():
    pair = make_pair(weak_trainable=False)
    want = pair(**BATCH).loss
    pair.weak.to(torch.bfloat16)
    loss, gradients = loss_and_gradients(pair, BATCH)
    assert loss.item() == pytest.approx(want.item(), rel=0.02)
    assert {g.dtype for g in gradients.values()} == {torch.float32}


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


@pytest.mark.parametrize("rows", [(64, 72), (80, 64), (72, 80)])
def test_heads_padded_to_different_lengths_mix_where_the_tokenizer_fits_both(rows):
    strong, weak = (tiny_model(vocab_size=count, seed=seed) for seed, count in enumerate(rows))
    pair = WeakStrongPair(strong=strong, weak=weak, strong_weight=0.42, vocabulary=VOCABULARY)
    assert_equals_dense(pair)
    pair(**BATCH).loss.backward()
    for model in (strong, weak):
        assert not model.get_output_embeddings().weight.grad[min(rows) :].any()


def test_heads_padded_to_different_lengths_are_refused_where_the_tokenizer_does_not_fit_the_shorter():
    match = "weak has 72 vocabulary rows, strong has 64 for a tokenizer of 65 tokens"
    with pytest.raises(UserError, match=match):
        WeakStrongPair(strong=tiny_model(), weak=tiny_model(vocab_size=72), vocabulary=65)


def test_equal_heads_need_no_word_about_the_tokenizer():
    WeakStrongPair(strong=tiny_model(), weak=tiny_model(seed=1), vocabulary=1000)


@pytest.mark.parametrize("branch", ["strong", "weak"])
def test_a_model_without_an_output_head_is_refused(branch):
    models = {"strong": tiny_model(), "weak": tiny_model(seed=1)}
    models[branch] = AutoModel.from_config(models[branch].config)
    with pytest.raises(UserError, match="Qwen3Model has no plain output head; weak-driven training needs a causal LM"):
        WeakStrongPair(**models)


@pytest.mark.parametrize("branch", ["strong", "weak"])
def test_an_encoder_decoder_model_is_refused(branch):
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": VOCABULARY}
    models = {"strong": tiny_model(), "weak": tiny_model(seed=1)}
    models[branch] = T5ForConditionalGeneration(T5Config(**sizes))
    with pytest.raises(UserError, match="T5ForConditionalGeneration is an encoder-decoder model"):
        WeakStrongPair(**models)


def test_a_batch_without_labels_is_refused():
    with pytest.raises(UserError, match="WeakStrongPair got no labels"):
        make_pair()(BATCH["input_ids"], BATCH["attention_mask"])


@pytest.mark.parametrize("strong_anchor", [-0.1, float("inf"), float("nan")])
def test_an_anchor_outside_its_range_is_refused(strong_anchor):
    with pytest.raises(UserError, match=r"strong_anchor is .*; it must be 0 or more"):
        make_pair(strong_anchor=strong_anchor)


def test_not_a_number_in_one_branch_shows_in_that_branch_and_in_the_loss():
    for branch in ("strong", "weak"):
        pair = make_pair(tied=False)
        getattr(pair, branch).get_output_embeddings().weight.data[5] = torch.nan
        output = pair(**BATCH)
        losses = {"strong": output.statistics.strong_loss, "weak": output.statistics.weak_loss}
        assert output.loss.isnan()
        assert [name for name, value in losses.items() if value.isnan()] == [branch]


@pytest.mark.parametrize("strong_weight", [-0.1, 1.1, float("nan")])
def test_a_mixture_weight_outside_its_range_is_refused(strong_weight):
    with pytest.raises(UserError, match=r"strong_weight is .*; it must be between 0 and 1"):
        make_pair(strong_weight=strong_weight)


def test_no_weight_on_the_strong_logits_is_allowed_with_a_warning():
    with pytest.warns(UserWarning, match="strong_weight is 0, so the strong model gets no gradient"):
        make_pair(strong_weight=0.0)


def test_one_model_in_both_places_is_refused():
    model = tiny_model()
    with pytest.raises(UserError, match="share layers; give the weak one as a path"):
        WeakStrongPair(strong=model, weak=model, weak_trainable=False)
