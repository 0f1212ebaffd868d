r"""Compare two answers by math-verify, inside the worker processes of `workers.py`.

math-verify can hang, needs much memory and does not support threads, so nothing else imports this module.
"""

import json
import logging
import os
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended import latex2sympy2
from math_verify import LatexExtractionConfig, parse, verify
from sympy import nan, zoo

from weakdriven.eval.graders.answers import BAD_GOLD, DIFFERENT, UNREADABLE, VERIFIED
from weakdriven.eval.graders.latex import NUMBER_WORDS, TEXT_COMMAND, as_words, clash, columns_as_tuples, readings, tidy
from weakdriven.eval.graders.workers import FAILED

MEMORY_MB = 2048


def serve() -> None:
    """Run a worker: read a line of JSON, answer with a line of text; the first line of output says that it is ready."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MB * 2**20, MEMORY_MB * 2**20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the output of libraries must not be read as a verdict
    logging.disable(logging.CRITICAL)
    latex2sympy2._Latex2Sympy = TwoStages
    print(judge(r"\frac{1}{2}", "x=0.25"), file=replies)  # loads the tables of the parser
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["timeout"] + 1)  # ends a hanging worker without a parent
        try:
            reply = judge(request["gold"], request["answer"])
        except Exception as error:
            reply = f"{FAILED}: {type(error).__name__}"
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(reply, file=replies)


def judge(gold: str, answer: str) -> str:
    gold, answer = tidy(gold), tidy(answer)
    words = as_words(gold), as_words(answer)
    if not (words[0] or values(gold)):
        return BAD_GOLD
    if words[1] in NUMBER_WORDS and not words[0]:
        answer, words = str(NUMBER_WORDS.index(words[1])), (None, None)
    plain = ["".join(TEXT_COMMAND.sub(r"\1", latex).split()) for latex in (gold, answer)]
    if plain[0] == plain[1] or (words[0] and words[0] == words[1]):
        return VERIFIED
    if words[0] and words[1] and ("\\" in gold + answer or len(words[0]) > 3):
        return DIFFERENT  # math-verify would compare the letters of two words as products
    if clash(gold, answer):
        return DIFFERENT
    pairs = [(a, b) for a in readings(gold, answer) for b in readings(answer, gold)]
    pairs = [columns_as_tuples(*pair) for pair in pairs]
    if any(same_value(*pair) for pair in pairs):
        return VERIFIED
    return DIFFERENT if words[1] or values(answer) else UNREADABLE


def same_value(gold: str, answer: str) -> bool:
    gold_values, answer_values = values(gold), values(answer)
    if not (gold_values and answer_values) or far_apart(gold_values[0], answer_values[0]):
        return False
    return verify(gold_values, answer_values, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True)


def far_apart(gold: Any, answer: Any) -> bool:
    """Return whether two plain numbers differ by more than rounding.

    This spares the verifier most wrong answers, and handles small numbers, of which it sees only six decimals.
    """
    try:
        gold, answer = float(gold), float(answer)
    except (TypeError, ValueError, AttributeError, OverflowError):
        return False
    return abs(gold - answer) > max(1e-5 * abs(gold), 1e-12)


@lru_cache(maxsize=4096)
def values(latex: str) -> list[Any]:
    """Parse an answer as math-verify does: LaTeX only, boxed first, no bare numbers; nothing where it is undefined."""
    config = LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    found = parse(
        f"\\boxed{{{latex}}}", [config], extraction_mode="first_match", parsing_timeout=0, raise_on_error=True
    )
    if not found or isinstance(found[0], str) or found[0] in (nan, zoo):
        return []
    return found


class TwoStages(latex2sympy2._Latex2Sympy):
    """math-verify's LaTeX parser in two stages, as ANTLR's authors advise (Parr, Harwell and Fisher 2014).

    The fast stage (SLL) is ten times faster on tuples and intervals. It parses a text like the full stage (LL) or
    reports a syntax error, so the meaning of an answer never changes. Only workers use it.
    """

    def create_parser(self, latex_str: str) -> Any:
        parser = super().create_parser(latex_str)
        parser._interp.predictionMode = PredictionMode.SLL
        try:
            tree = parser.math()
        except Exception:
            return super().create_parser(latex_str)  # a new parser: the lexer of this one may have moved on
        parser.math = lambda: tree
        return parser
