"""The entropy pass: batch-size independent, every row once, resumable."""

from functools import lru_cache

import pytest
import torch
from torch.nn import functional as F

from helpers import demo_examples, embedded_tokenizer
from weakdriven.data.prompts import Renderer
from weakdriven.data.tokenize import IGNORE, load_tokens, write_tokens
from weakdriven.models.load import EMBEDDED, load_model, locate_model
from weakdriven.models.scan import scan, scan_batches

ROWS = 30


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens") / "tokens.arrow"
    renderer = Renderer(embedded_tokenizer(), "math", "plain")
    write_tokens(demo_examples(ROWS), renderer, path, max_length=110, long_prompts="error")
    return load_tokens(path)


@lru_cache
def model():
    return load_model(locate_model(EMBEDDED), precision="fp32")


def scanned(dataset, batch_tokens, skip=()):
    batches = []
    scan(model(), dataset, batch_tokens=batch_tokens, skip=set(skip), on_batch=batches.append)
    return batches


@torch.no_grad()
def dense(row):
    """Mean entropy and likelihood of one unpadded row, in float64; logits row t - 1 predicts token t."""
    logits = model().eval()(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1].double()
    target = torch.tensor(row["labels"][1:])
    logits, target = logits[target != IGNORE], target[target != IGNORE]
    p = logits.softmax(-1)
    return len(target), -(p * p.log()).sum(-1).mean().item(), F.cross_entropy(logits, target).item()


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_scores_equal_a_dense_pass_over_each_row_for_any_batch_size(batch_size, dataset):
    longest = max(len(ids) for ids in dataset["input_ids"])
    batches = scanned(dataset, batch_size * longest)
    assert len(batches[0]) == batch_size
    scores = {score["id"]: score for batch in batches for score in batch}
    assert len(scores) == sum(map(len, batches)) == ROWS
    for row in dataset:
        tokens, entropy, nll = dense(row)
        score = scores[row["id"]]
        assert (score["tokens"], score["truncated"]) == (tokens, row["truncated"])
        assert (score["entropy"], score["nll"]) == pytest.approx((entropy, nll), abs=1e-5)


def test_some_rows_of_the_scan_were_truncated_and_say_so(dataset):
    truncated = [score["truncated"] for batch in scanned(dataset, 2000) for score in batch]
    assert 0 < sum(truncated) == sum(dataset["truncated"]) < ROWS


def test_batches_that_were_done_are_skipped(dataset):
    whole = scanned(dataset, 400)
    done = [score["id"] for score in whole[0] + whole[2]]
    assert scanned(dataset, 400, skip=done) == [whole[1], *whole[3:]]
    assert scanned(dataset, 400, skip=dataset["id"]) == []


def test_a_batch_that_was_done_in_part_is_done_again_whole(dataset):
    whole = scanned(dataset, 400)
    assert scanned(dataset, 400, skip=[whole[0][0]["id"]]) == whole


@pytest.mark.parametrize("batch_tokens", [1, 10, 37, 10_000])
@pytest.mark.parametrize("lengths", [[], [5], [3, 9, 9, 1, 4, 7, 2, 9, 1, 1], list(range(1, 40))])
def test_batches_cover_each_row_once_longest_first_within_the_budget(lengths, batch_tokens):
    batches = list(scan_batches(lengths, batch_tokens))
    rows = [row for batch in batches for row in batch]
    assert sorted(rows) == list(range(len(lengths)))
    assert [lengths[row] for row in rows] == sorted(lengths, reverse=True)
    assert all(len(batch) == 1 or lengths[batch[0]] * len(batch) <= batch_tokens for batch in batches)
