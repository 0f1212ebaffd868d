"""The page on faults says what the tests show."""

from fault_cases import CASES
from fault_matrix import table, written


def test_the_page_lists_exactly_the_cases_that_exist():
    assert written() == table(CASES), "run python tests/fault_matrix.py"
