"""Every case of the labelled suite gets the verdict of a careful person."""

import pytest
from grading_cases import ANY, CASES

from weakdriven.eval import grade


def test_the_suite_is_large_and_says_why():
    kinds = [case.kind for case in CASES]
    assert kinds.count("math") >= 110 and kinds.count("choice") >= 70
    assert all(case.why for case in CASES)
    assert sum(case.why.startswith("KNOWN") for case in CASES) <= 5
    assert len({(case.kind, case.text, case.gold) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.kind}: {case.why}" for case in CASES])
def test_a_case_gets_the_verdict_of_a_careful_person(case):
    options = {"options": case.options} if case.kind == "choice" else {}
    graded = grade(case.kind, case.text, case.gold, timeout=3, **options)
    assert graded.correct is case.correct, graded
    assert case.answer in (ANY, graded.answer), graded
