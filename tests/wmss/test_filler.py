"""Rows that accelerate repeats do not count in an evaluation."""

from functools import partial

import pytest
import torch

from weakdriven.losses.mixed_ce import IGNORE
from weakdriven.training.evaluation import LENGTHS, ignore_filler, with_lengths


@pytest.mark.parametrize("left, process, own", [(5, 0, 3), (5, 1, 2), (2, 0, 2), (2, 1, 0), (3, 1, 0)])
def test_separate_and_joined_rows_keep_the_same_tokens(left, process, own):
    lengths = torch.tensor([4, 2, 3])
    apart, joined = torch.ones(3, 4), torch.ones(1, 9)
    for labels in (apart, joined):
        ignore_filler(labels, lengths, left=left, process=process)
    assert (apart != IGNORE).sum(1).tolist() == [4] * own + [0] * (3 - own)
    assert (joined != IGNORE).sum() == lengths[:own].sum()


def test_a_batch_carries_the_lengths_of_its_rows():
    found = partial(with_lengths, lambda rows: {"rows": len(rows)})([{"input_ids": [1, 2]}, {"input_ids": [1]}])
    assert found["rows"] == 2 and found[LENGTHS].tolist() == [2, 1]
