"""Two models' scores side by side: in the order of the data, and refused where they cannot be trusted."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakdriven.errors import UserError
from weakdriven.wmss.selection import align_scores


def scores(**entropy):
    return list(entropy), np.array(list(entropy.values()))


def test_scores_are_aligned_by_id_and_not_by_place():
    weak, strong = align_scores(scores(a=1.0, b=2.0, c=3.0), scores(c=30.0, a=10.0, b=20.0), ["b", "a", "c"])
    assert (weak.tolist(), strong.tolist()) == ([2, 1, 3], [20, 10, 30])


def test_scores_in_the_order_of_the_data_are_not_copied():
    weak, strong = scores(a=1.0, b=2.0), scores(a=3.0, b=4.0)
    aligned = align_scores(weak, strong, ["a", "b"])
    assert aligned[0] is weak[1]
    assert aligned[1] is strong[1]


@pytest.mark.parametrize(
    "column",
    [
        list,
        pa.array,
        lambda ids: pa.array(ids, pa.large_string()),
        lambda ids: pa.chunked_array([ids[:1], ids[1:]]),
        lambda ids: pa.chunked_array([pa.array(ids).dictionary_encode()]),
    ],
    ids=["list", "array", "large", "chunks", "dictionary"],
)
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]], ids=["in order", "shuffled"])
def test_ids_of_any_column_type_are_aligned(column, order):
    ids, entropy = ["a", "b", "ü 3"], np.array([1.0, 2.0, 3.0])
    given_scores = column([ids[i] for i in order]), entropy[order]
    for data_ids in (ids, column(ids)):
        weak, strong = align_scores(given_scores, (ids, pa.chunked_array([[1.0], [2.0, 3.0]])), data_ids)
        assert (weak.tolist(), strong.tolist()) == ([1, 2, 3], [1, 2, 3])


@given(st.lists(st.text(max_size=4), max_size=12, unique=True), st.integers(0, 2**32))
def test_any_order_of_the_scores_gives_the_same_columns(ids, seed):
    entropy = {i: float(number) for number, i in enumerate(ids)}
    shuffled = [ids[i] for i in np.random.default_rng(seed).permutation(len(ids))]
    weak, strong = align_scores(scores(**entropy), (shuffled, [entropy[i] for i in shuffled]), ids)
    assert weak.tolist() == strong.tolist() == list(entropy.values())


@pytest.mark.parametrize("name", ["weak", "strong"])
@pytest.mark.parametrize(
    "bad, message",
    [
        (scores(a=1.0), "lack 1 examples of the data .first: id 'b'"),
        ((["a", "b", "b"], np.ones(3)), "hold id 'b' twice"),
        ((["b", "b"], np.ones(2)), "hold id 'b' twice"),
        (scores(a=1.0, b=2.0, c=3.0), "hold 1 examples that the data does not have .first: id 'c'"),
        (scores(a=1.0, b=math.nan), "not finite for 1 examples .first: 'b'"),
        (scores(b=math.inf, a=1.0), "not finite for 1 examples .first: 'b'"),
        ((["a", "b"], np.ones(3)), "hold 2 ids and 3 entropies"),
    ],
    ids=["missing", "repeated", "repeated-for-missing", "extra", "nan", "infinite", "lengths"],
)
def test_scores_that_cannot_be_trusted_are_an_error_naming_model_id_and_remedy(name, bad, message):
    columns = {"weak": scores(a=1.0, b=2.0), "strong": scores(a=1.0, b=2.0)} | {name: bad}
    with pytest.raises(UserError, match=message) as error:
        align_scores(columns["weak"], columns["strong"], ["a", "b"])
    assert f"The {name} model's" in str(error.value)
    assert "run again." in str(error.value)


def test_up_to_five_ids_of_non_finite_entropies_are_named():
    ids = list("abcdefgh")
    with pytest.raises(UserError, match=r"for 7 examples \(first: 'b', 'c', 'd', 'e', 'f'\);"):
        align_scores((ids, [1.0] + [math.nan] * 7), (ids, np.ones(8)), ids)
