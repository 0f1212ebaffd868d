"""The parser in two stages reads every answer as the library's own does."""

from grading_cases import CASES
from latex2sympy2_extended import latex2sympy2

from weakdriven.eval.graders.answers import last_boxed
from weakdriven.eval.graders.judge import TwoStages
from weakdriven.eval.graders.latex import tidy

ANSWERS = {tidy(text) for case in CASES for text in (str(case[2]), last_boxed(case[1]) or "")}


def read(parser, text):
    try:
        return repr(parser(is_real=True).parse(text))
    except Exception as error:
        return type(error).__name__


def test_both_stages_together_read_what_the_full_one_reads():
    texts = [text for text in sorted(ANSWERS) if 0 < len(text) < 60]
    own, ours = [[read(parser, text) for text in texts] for parser in (latex2sympy2._Latex2Sympy, TwoStages)]
    assert own == ours and len(texts) > 200 and own.count("Exception") < len(texts) / 3


def test_a_letter_that_is_no_latex_is_an_error_in_both():
    for text in ("5\x00", "(1, 2\x00)", "3x^2 + 5\x00x"):
        assert read(TwoStages, text) == read(latex2sympy2._Latex2Sympy, text) == "Exception"
