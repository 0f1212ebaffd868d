"""Rows that accelerate puts in twice are taken out of an evaluation."""

import pytest
import torch

from weakdriven.losses.mixed_ce import IGNORE
from weakdriven.wmss.filler import LENGTHS, WithLengths, ignore_filler


@pytest.mark.parametrize("left, process, own", [(5, 0, 3), (5, 1, 2), (2, 0, 2), (2, 1, 0), (3, 1, 0)])
def test_rows_apart_and_rows_joined_keep_the_same_tokens(left, process, own):
    lengths = torch.tensor([4, 2, 3])
    apart, joined = torch.ones(3, 4), torch.ones(1, 9)
    for labels in (apart, joined):
        ignore_filler(labels, lengths, left=left, process=process)
    assert (apart != IGNORE).sum(1).tolist() == [4] * own + [0] * (3 - own)
    assert (joined != IGNORE).sum() == lengths[:own].sum()


def test_a_collator_is_wrapped_once():
    collate = WithLengths(WithLengths(lambda rows: {"rows": len(rows)}))
    found = collate([{"input_ids": [1, 2]}, {"input_ids": [1]}])
    assert found["rows"] == 2 and found[LENGTHS].tolist() == [2, 1]
    assert not isinstance(collate.collate, WithLengths)
