"""Every labelled case gets the verdict of a careful person, and the faster parser changes no answer."""

import pytest
from grading_cases import ANY, CASES
from latex2sympy2_extended import latex2sympy2

from weakdriven.eval import grade
from weakdriven.eval.graders.answers import last_boxed
from weakdriven.eval.graders.judge import TwoStages
from weakdriven.eval.graders.latex import tidy


@pytest.mark.parametrize("kind", ["math", "choice"])
def test_every_labelled_case_gets_the_verdict_of_a_careful_person(kind):
    wrong = []
    for case in (case for case in CASES if case.kind == kind):
        options = {"options": case.options} if kind == "choice" else {}
        graded = grade(kind, case.text, case.gold, timeout=60, **options)
        if graded.correct is not case.correct or case.answer not in (ANY, graded.answer):
            wrong.append((case.why, case.text, case.gold, graded))
    assert not wrong


def test_labelled_cases_differ_and_few_of_them_are_known_faults():
    assert len({(case.kind, case.text, case.gold) for case in CASES}) == len(CASES)
    assert sum(case.why.startswith("KNOWN") for case in CASES) <= 5


def read(parser, text):
    try:
        return repr(parser(is_real=True).parse(text))
    except Exception as error:
        return type(error).__name__


def test_a_letter_that_is_no_latex_is_an_error_in_both_parsers():
    for text in ("5\x00", "(1, 2\x00)", "3x^2 + 5\x00x"):
        assert read(TwoStages, text) == read(latex2sympy2._Latex2Sympy, text) == "Exception"


@pytest.mark.slow
def test_the_parser_in_two_stages_reads_every_answer_as_the_full_one_does():
    answers = {tidy(text) for case in CASES for text in (case.gold, last_boxed(case.text) or "")}
    texts = [text for text in sorted(answers) if 0 < len(text) < 60]
    own, ours = [[read(parser, text) for text in texts] for parser in (latex2sympy2._Latex2Sympy, TwoStages)]
    assert own == ours and len(texts) > 150 and own.count("Exception") < len(texts) / 3
