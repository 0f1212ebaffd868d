"""Random logits of a weak and a strong model, for property tests."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st

quick = settings(deadline=None, derandomize=True, database=None, max_examples=30)
weights = st.floats(0, 1)


def near(values, tolerance=1e-6):
    return pytest.approx(values, abs=tolerance)


@st.composite
def tokens(draw, most=6):
    """Strong logits, weak logits and targets of a few tokens, close to uniform or nearly certain."""
    count, vocabulary = draw(st.integers(1, 3)), draw(st.integers(2, most))
    size = draw(st.sampled_from([1.0, 8.0, 60.0]))
    row = st.lists(st.floats(-1, 1), min_size=vocabulary, max_size=vocabulary)
    table = st.lists(row, min_size=count, max_size=count)
    strong, weak = (size * torch.tensor(draw(table), dtype=torch.float64) for _ in range(2))
    target = draw(st.lists(st.integers(0, vocabulary - 1), min_size=count, max_size=count))
    return strong, weak, torch.tensor(target)


def narrowed(strong, target, seed, reach=6.0):
    """A weak model none of whose margins exceeds the strong one's."""
    rise = reach * torch.rand(strong.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return strong + rise.scatter(1, target[:, None], 0) - 3
