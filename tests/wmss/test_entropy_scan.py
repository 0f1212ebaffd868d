"""The entropy pass: exact, every row once, and independent of batches, order and padding."""

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from torch.nn import functional as F

from helpers import demo_examples, embedded_tokenizer, tiny_model, token_rows
from weakdriven.data.prompts import Renderer
from weakdriven.data.tokenize import IGNORE, column, load_tokens, row_lengths, write_tokens
from weakdriven.errors import UserError
from weakdriven.models.load import EMBEDDED, load_model, locate_model
from weakdriven.wmss.entropy import can_pack, plan_batches, scan, score_dataset
from weakdriven.wmss.score_files import HITS_SCHEMA, PART_SCHEMA

ROWS = 18


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens") / "tokens.arrow"
    renderer = Renderer(embedded_tokenizer(), "math", "plain")
    write_tokens(demo_examples(ROWS), renderer, path, max_length=110, long_prompts="error")
    return load_tokens(path)


@lru_cache
def model():
    return load_model(locate_model(EMBEDDED), precision="fp32")


@pytest.fixture(scope="module")
def exact_model():
    return load_model(locate_model(EMBEDDED), precision="fp32").double().eval()


@pytest.fixture(scope="module")
def exact(dataset, exact_model):
    """Dense scores of each row of the dataset."""
    return [dense(exact_model, row) for row in dataset]


def scanned(dataset, batches, network=None):
    table = pa.Table.from_batches(list(scan(network or model(), dataset, batches)), PART_SCHEMA)
    return {row["id"]: row for row in table.to_pylist()}


@torch.no_grad()
def dense(network, row, *, shift=1):
    """Means over one unpadded row in float64; logits row t - 1 predicts token t, unless `shift` is 0."""
    logits = network(input_ids=torch.tensor([row["input_ids"]])).logits[0].double()
    target = torch.tensor(row["labels"])
    places = (target != IGNORE).nonzero()[:, 0]
    p = logits[places - shift].softmax(-1)
    nll = F.cross_entropy(logits[places - 1], target[places], reduction="none")
    return len(places), -(p * p.log()).sum(-1).mean().item(), nll.mean().item(), (-nll).exp().mean().item()


def batches_of(size, *, ordered, rows=ROWS):
    order = np.arange(rows) if ordered else np.random.default_rng(size).permutation(rows)
    return [order[begin : begin + size] for begin in range(0, rows, size)]


def assert_exact(scores, dataset, exact):
    assert len(scores) == len(dataset)
    for number, (row, (tokens, *means)) in enumerate(zip(dataset, exact, strict=True)):
        score = scores[row["id"]]
        assert (score["row"], score["tokens"], score["truncated"]) == (number, tokens, row["truncated"])
        assert [score[name] for name in ("entropy", "nll", "target_probability")] == pytest.approx(means, abs=1e-5)
    assert [score["truncated"] for score in scores.values()].count(True) == sum(dataset["truncated"])


@pytest.mark.parametrize("size, ordered", [(1, True), (5, False)])
def test_scores_equal_a_dense_float64_pass_over_each_row_for_any_batches(size, ordered, dataset, exact):
    assert 0 < sum(dataset["truncated"]) < ROWS
    assert_exact(scanned(dataset, batches_of(size, ordered=ordered)), dataset, exact)


@torch.no_grad()
def test_hits_are_the_tokens_that_the_model_finds_most_probable(dataset):
    parts = list(scan(model(), dataset, batches_of(5, ordered=False), hits=True))
    found = {row["id"]: row["hits"] for row in pa.Table.from_batches(parts, HITS_SCHEMA).to_pylist()}
    for row in dataset:
        logits, target = model()(input_ids=torch.tensor([row["input_ids"]])).logits[0], torch.tensor(row["labels"])
        places = (target != IGNORE).nonzero()[:, 0]
        assert found[row["id"]] == int((logits[places - 1].argmax(-1) == target[places]).sum())
    assert sum(found.values()) > 0


@pytest.mark.parametrize("budget", [400, 100_000])
def test_scores_equal_a_dense_float64_pass_for_any_budget_of_tokens(budget, dataset, exact):
    assert_exact(scanned(dataset, plan_batches(row_lengths(dataset), budget)), dataset, exact)


def test_lengths_follow_the_order_of_the_rows_for_any_block_that_is_read(dataset, monkeypatch):
    monkeypatch.setattr("weakdriven.data.tokenize.BLOCK", 3)
    turned = dataset.select(range(len(dataset) - 1, -1, -1))
    assert row_lengths(turned).tolist() == [len(ids) for ids in turned["input_ids"]]
    assert row_lengths(turned.select([])).tolist() == []
    some = dataset.select([5, 2, 9])
    assert row_lengths(some).tolist() == [len(ids) for ids in some["input_ids"]]
    assert column(some, "id").to_pylist() == list(some["id"])


def test_rows_packed_into_one_equal_a_dense_pass_over_each(dataset, exact, monkeypatch):
    monkeypatch.setattr("weakdriven.wmss.entropy.can_pack", lambda model: True)
    assert_exact(scanned(dataset, batches_of(7, ordered=False)), dataset, exact)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma2", "granite", "phi"])
def test_other_families_are_scored_from_their_own_logits(family):
    network = tiny_model(family, **({"final_logit_softcapping": 2.0} if family == "gemma2" else {}))
    rows = token_rows(9)
    rows = rows.add_column("id", [str(i) for i in range(9)]).add_column("truncated", [False] * 9)
    scores = scanned(rows, batches_of(4, ordered=False, rows=9), network)
    network = network.double().eval()
    assert_exact(scores, rows, [dense(network, row) for row in rows])


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 8,
    "factor": 8.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}


def test_a_rotary_embedding_that_depends_on_the_longest_row_is_scored_as_each_row_alone():
    network = tiny_model("llama", max_position_embeddings=64, rope_parameters=LONG_ROPE)
    rows = token_rows(9)
    assert max(row_lengths(rows)) > 8 > min(row_lengths(rows))
    together = score_dataset(network, rows)["entropy"].to_numpy()
    alone = [score_dataset(network, rows.select([i]))["entropy"][0].as_py() for i in range(9)]
    assert together == pytest.approx(alone, abs=1e-5)


def test_a_rotary_embedding_that_depends_on_earlier_batches_is_an_error_beyond_its_context():
    rows = token_rows(9)
    longest = int(max(row_lengths(rows)))
    network = tiny_model("llama", max_position_embeddings=longest, rope_parameters=DYNAMIC)
    assert len(score_dataset(network, rows)) == 9
    network = tiny_model("llama", max_position_embeddings=longest - 1, rope_parameters=DYNAMIC)
    with pytest.raises(UserError, match=f"has {longest} tokens.* truncate rows to {longest - 1} tokens"):
        score_dataset(network, rows)


@pytest.mark.parametrize(
    "family, changes, packs",
    [
        ("qwen3", {}, True),
        ("gemma3", {}, True),
        ("llama", {}, True),
        ("llama", {"rope_parameters": DYNAMIC}, False),
        ("qwen3", {"layer_types": ["full_attention", "linear_attention"]}, False),
    ],
)
def test_rows_are_packed_only_if_every_layer_separates_them(family, changes, packs):
    network = tiny_model(family, **{k: v for k, v in changes.items() if k != "layer_types"})
    assert not can_pack(network), "only flash attention does"
    network.config._attn_implementation_internal = "flash_attention_2"
    for name, value in changes.items():
        setattr(network.config, name, value)
    assert can_pack(network) == packs


def test_the_off_by_one_reading_of_the_authors_gives_other_entropies(dataset, exact, exact_model):
    """Their code takes the logits row of each completion token itself, which predicts the token after it."""
    theirs = np.array([dense(exact_model, row, shift=0)[1] for row in dataset])
    assert np.median(np.abs(theirs - [entropy for _, entropy, *_ in exact])) > 0.05


def test_a_model_in_half_precision_is_scored_close_to_the_exact_one(dataset, exact):
    network = load_model(locate_model(EMBEDDED), precision="bf16")
    few = dataset.select(range(4))
    scores = scanned(few, batches_of(2, ordered=True, rows=4), network)
    right = [entropy for _, entropy, *_ in exact[:4]]
    assert [scores[i]["entropy"] for i in few["id"]] == pytest.approx(right, rel=0.05)


def test_a_row_without_a_supervised_token_has_a_null_score_and_changes_no_other(dataset, exact):
    first = dataset[0]
    rows = dataset.select(range(3)).map(
        lambda row: {"labels": [IGNORE] * len(row["labels"])} if row["id"] == first["id"] else {}
    )
    scores = scanned(rows, [np.array([1, 0, 2])])
    empty = scores.pop(first["id"])
    assert (empty["tokens"], empty["entropy"], empty["nll"], empty["target_probability"]) == (0, None, None, None)
    assert [score["entropy"] for score in scores.values()] == pytest.approx([exact[1][1], exact[2][1]], abs=1e-5)
    alone = scanned(rows, [np.array([0])])[first["id"]]
    assert (alone["tokens"], alone["entropy"]) == (0, None)


def test_an_entropy_that_is_nan_stops_the_scan_and_names_the_examples(dataset):
    network = load_model(locate_model(EMBEDDED), precision="fp32")
    batches = scan(network, dataset, batches_of(2, ordered=True))
    next(batches)
    with torch.no_grad():
        network.get_input_embeddings().weight.fill_(torch.nan)
    next(batches)  # launched before
    with pytest.raises(UserError, match=f"not a finite number for 2 of 2 .*{dataset[4]['id']!r}"):
        next(batches)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"labels": [1, 2]}, "'7' has 4 input_ids and 2 labels"),
        ({"labels": [1, 2, 3, 4, 5]}, "'7' has 4 input_ids and 5 labels"),
        ({"input_ids": [], "labels": []}, "'7' has 0 input_ids"),
        ({"labels": [1, 2, 3, 64]}, "'7' has token 64, but the model knows 64"),
    ],
)
def test_a_malformed_row_is_named(change, message):
    row = {"id": "7", "input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]} | change
    with pytest.raises(UserError, match=message):
        score_dataset(tiny_model(), Dataset.from_list([row]))


def test_scanning_turns_dropout_off():
    network = tiny_model(attention_dropout=0.9).train()
    rows = token_rows(4).add_column("id", list("abcd")).add_column("truncated", [False] * 4)
    assert scanned(rows, batches_of(2, ordered=True, rows=4), network) == scanned(
        rows, batches_of(2, ordered=True, rows=4), network
    )


@pytest.mark.parametrize("batch_tokens", [1, 10, 37, 10_000])
@pytest.mark.parametrize("lengths", [[], [5], [3, 9, 9, 1, 4, 7, 2, 9, 1, 1], list(range(1, 40))])
def test_batches_cover_each_row_once_longest_first_within_the_budget(lengths, batch_tokens):
    lengths = np.array(lengths, int)
    batches = plan_batches(lengths, batch_tokens)
    rows = [row for batch in batches for row in batch.tolist()]
    assert sorted(rows) == list(range(len(lengths)))
    assert lengths[rows].tolist() == sorted(lengths.tolist(), reverse=True)
    assert all(len(batch) == 1 or lengths[batch[0]] * len(batch) <= batch_tokens for batch in batches)


def test_batches_are_as_full_as_the_budget_allows():
    assert [batch.tolist() for batch in plan_batches(np.full(7, 5), 15)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_any_dataset_is_scored_in_its_order(dataset, exact):
    table = score_dataset(model(), dataset, batch_tokens=400)
    assert table["id"].to_pylist() == list(dataset["id"])
    assert table["truncated"].to_pylist() == list(dataset["truncated"])
    assert table["entropy"].to_pylist() == pytest.approx([entropy for _, entropy, *_ in exact], abs=1e-5)
    bare = score_dataset(model(), dataset.select_columns(["input_ids", "labels"]), batch_tokens=400)
    assert bare["entropy"].equals(table["entropy"])
    assert bare["id"].to_pylist() == [str(row) for row in range(ROWS)]
    assert bare["truncated"].to_pylist() == [False] * ROWS


def test_a_dataset_without_labels_is_an_error(dataset):
    with pytest.raises(UserError, match="has no labels"):
        score_dataset(model(), dataset.remove_columns("labels"))
