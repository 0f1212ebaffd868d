"""Find the boxed answer in a completion and check it against the gold answer."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Graded:
    correct: bool
    answer: str | None
    reason: str


def last_boxed(text: str) -> str | None:
    r"""Contents of the last complete \boxed{...}, braces matched.

    >>> last_boxed(r"so \boxed{1}, no: \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    found, place = None, text.find("\\boxed{")
    while place != -1:
        depth = 0
        for i in range(place + len("\\boxed"), len(text)):
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                found = text[place + len("\\boxed{") : i]
                break
        place = text.find("\\boxed{", place + 1)
    return found


def grade_math(text: str, gold: str) -> Graded:
    r"""Whether the last boxed answer equals `gold`; no box is wrong.

    >>> grade_math(r"The answer is \boxed{0.5}.", r"\frac{1}{2}").correct
    True
    """
    answer = last_boxed(text)
    if answer is None:
        return Graded(False, None, "no boxed answer")
    if answer.strip() == gold.strip():
        return Graded(True, answer, "same text")
    from math_verify import parse, verify

    try:
        equal = verify(parse(f"${gold}$"), parse(f"$\\boxed{{{answer}}}$"))
    except Exception as error:  # a sample that breaks the verifier is a wrong sample, not a broken run
        return Graded(False, answer, f"verifier failed: {type(error).__name__}")
    return Graded(bool(equal), answer, "math-verify" if equal else "different value")
