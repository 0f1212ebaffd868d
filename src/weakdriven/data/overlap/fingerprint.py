"""The parts of two texts that are compared: letters and digits, numbers, words, runs of words.

Case, layout, punctuation and Unicode variants of a character are ignored. That also ignores the difference between
`x + 1` and `x - 1`. This is right for held-out items, where dropping a row too many is harmless, and wrong for repeats
among formulas, so `signs=True` keeps signs, decimal points, factorials and brackets.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

# Chinese and Japanese are written without spaces, so each character counts as a word.
_HAN = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_COMMA_IN_NUMBER = re.compile(r"(?<=\d)(?:\\?,|\{,\})(?=\d{3}(?!\d))")
_LATEX_LOOKS = re.compile(r"\\(?:(?:left|right|displaystyle)(?![a-z])|!)")
_LATEX_FRACTION = re.compile(r"\\[dtc]frac(?![a-z])")
_LETTER = r"[^\W\d_]"
# A hyphen between two letters joins words; any other is a minus. \( and \[ only mark the start of a formula.
_SIGN = re.compile(
    rf"[+*/^=<>×÷±√≤≥≠]|(?<!{_LETTER})[-−]|[-−](?!{_LETTER})"
    r"|(?<!\\)[()\[\]{}]|\.(?=\d)|(?<=[\d)\]}])!|(?<=\b[a-z])!"
)
_WORD_OR_SIGN = re.compile(f"{_WORD.pattern}|{_SIGN.pattern}")
_NUMBER_OR_SIGN = re.compile(f"{_NUMBER.pattern}|{_SIGN.pattern}")
_BRACES_OF_ONE = re.compile(r"(?<!\\)\{(\w+)\}")
_NO_DECIMALS = re.compile(r"(?<=\d)\.0+(?!\d)")


@dataclass(frozen=True)
class Fingerprint:
    """A text in the form to compare; two texts with equal `exact` are the same."""

    exact: bytes
    template: bytes
    """Like `exact`, with all numbers replaced by one."""
    numbers: str
    """All numbers of the text, sorted; with signs, numbers and signs in their order."""
    words: list[str]


@lru_cache(maxsize=1)  # several indexes look up the same text
def fingerprint(text: str, *, signs: bool = False) -> Fingerprint:
    """
    >>> a = fingerprint("Ann pays $1,250 for 2 chairs.")
    >>> a.words, a.numbers
    (['ann', 'pays', '1250', 'for', '2', 'chairs'], '1250 2')
    >>> a.exact == fingerprint("ANN  pays 1250 for 2 chairs").exact
    True
    >>> a.template == fingerprint("Ann pays $80 for 16 chairs.").template != a.exact
    True
    >>> fingerprint("(2.5 + x^{3})!", signs=True).numbers
    '( 2.5 + ^ 3 ) !'
    """
    text = plain(text)
    if signs and "{" in text:
        text = _BRACES_OF_ONE.sub(r" \1 ", text)
    numbers = _NUMBER_OR_SIGN.findall(text) if signs else sorted(_NUMBER.findall(text))
    kept = _WORD_OR_SIGN if signs else _WORD
    words = _WORD.findall(text)
    return Fingerprint(
        exact=_digest(kept.findall(text) if signs else words),
        template=_digest(kept.findall(_NUMBER.sub("0", text))),
        numbers=" ".join(numbers),
        words=words,
    )


def answer_key(answer: str) -> str:
    """Normalize an answer, so that answers that differ only in layout are equal; other notations stay different.

    >>> answer_key("$ 1,250.00"), answer_key(r"\\dfrac{1}{2}") == answer_key(r"\\frac{1}{2}."), answer_key("-3")
    ('1250', True, '- 3')
    """
    answer = plain(answer).strip()
    return " ".join(_WORD_OR_SIGN.findall(_NO_DECIMALS.sub("", answer))) or answer


def plain(text: str) -> str:
    """Normalize a text: one case, NFKC, no commas inside numbers, no LaTeX that only changes the look.

    >>> plain("Ｆind  x² in 1,000 STEPS")
    'find  x2 in 1000 steps'
    """
    text = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    if "\\" in text:
        text = _LATEX_FRACTION.sub(r"\\frac", _LATEX_LOOKS.sub("", text))
    return _COMMA_IN_NUMBER.sub("", text) if "," in text else text


def grams(words: list[str], n: int) -> set[str]:
    """Return all runs of n words; none if there are fewer words."""
    return {" ".join(words[start : start + n]) for start in range(len(words) - n + 1)}


def _digest(parts: list[str]) -> bytes:
    """Hash the joined parts to 16 bytes, so that no text is kept."""
    return blake2b("".join(parts).encode(errors="surrogatepass"), digest_size=16).digest()
