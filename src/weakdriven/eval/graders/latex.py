r"""Notations of answers: tidy LaTeX for math-verify, and interpret words, percentages, number bases and vectors.

These corrections cover where math-verify differs from a careful human reader; each has cases in
`tests/eval/graders/grading_cases.py`.
"""

import re

NUMBER = r"-?(?:\d[\d,]*)?\.?\d+"
NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
)
NUMBER_WORDS = NUMBERS.split()
REPLACED = [  # in this order: notations that math-verify misreads, and what it reads
    (r"\\(?:displaystyle|textstyle|limits|left\.|right\.)(?![a-zA-Z])", ""),
    (r"\\(?:boldsymbol|bm)(?![a-zA-Z])", r"\\mathbf"),
    (r"\\(?:textcolor|color)\s*\{[a-zA-Z]*\}\s*", ""),
    (r"\\mbox(?![a-zA-Z])", r"\\text"),
    (r"~|(?<!\\)\\ |\u00a0|\u202f|\u2009|\\(?:q?quad|enspace|thinspace)(?![a-zA-Z])", " "),
    ("[−–]", "-"),
    (r"\^\s*\{?\s*°\s*\}?|°", r"^\\circ "),
    (r"√\s*(\d+(?:\.\d+)?|[a-z]|(?=\())", r"\\sqrt{\1}"),
    (r"\\sqrt\{\}\(([^()]*)\)", r"\\sqrt{\1}"),
    ("π", r"\\pi "),
    ("×", r"\\times "),
    ("²", "^2"),
    ("³", "^3"),
    ("½", r"\\frac{1}{2}"),
    (r"\\(?:l|r)angle(?![a-zA-Z])", lambda match: "(" if "langle" in match[0] else ")"),
    (r"\\varnothing(?![a-zA-Z])|\\\{\s*\\\}", r"\\emptyset "),
    (r"(?i)^\\text\s*\{\s*(?:there (?:is|are) )?no (?:real |integer )?solutions?\.?\s*\}$", r"\\emptyset"),
    (r"(?i)^\\text\s*\{\s*all real(?:s| numbers)\.?\s*\}$", r"(-\\infty, \\infty)"),
    (r"(?i)\\text\s*\{\s*infinity\s*\}", r"\\infty "),
    (r"\^\s*\{?\s*\\(?:text|mathrm)\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?", ""),
    (
        rf"_\s*\{{?\s*\\text\s*\{{\s*({'|'.join(NUMBER_WORDS)})\s*\}}\s*\}}?",
        lambda match: f"_{{{NUMBER_WORDS.index(match[1])}}}",
    ),
    (r"(?i)\\text\s*\{\s*(per ?cent|percentage)\s*\}", r"\\%"),
    (r"(?i)^\\text\s*\{\s*(?:the )?(?:(?:final )?answer(?: is)?|approximately|about|exactly|total)\s*[:=]?\s*\}", ""),
    (r"^\s*(?:\\approx|\\simeq|≈|=)\s*", ""),
    (r"^(-?)\s*(?:USD|EUR|Rs\.?|INR|€|£|₹|\\pounds|\\euro)\s*(?=[\d.])", r"\1"),
    (rf"^({NUMBER})\s*(?:€|£|₹|USD|EUR)$", r"\1"),
    (rf"^\\text\s*\{{\s*\$?({NUMBER})\s+([a-zA-Z][a-zA-Z ]*)\}}$", r"\1 \\text{ \2}"),
    (rf"^({NUMBER})\s*((?!(?:pi|percent|pct|and)\b)[a-zA-Z]{{4,}}(?: [a-zA-Z]+)*)$", r"\1 \\text{ \2}"),
    (rf"^({NUMBER})\s*((?:[kcm]?m|mi|ft|miles|meters|feet)\s*/\s*(?:h|hr|hour|s|sec|second|min|minute))$", r"\1"),
    (rf"^({NUMBER})\s*\\text\s*\{{[^{{}}]*\}}\s*/\s*\\text\s*\{{[^{{}}]*\}}(?:\^\{{?\d\}}?)?$", r"\1"),
    (rf"^({NUMBER})\s*(?:cm|mm|km|ft|in|yd|mi|units|feet|inches|meters)\s*\^\s*\{{?[23]\}}?$", r"\1"),
    (rf"^({NUMBER})[eE]([+-]?\d+)$", r"\1\\times 10^{\2}"),
    (r"^(-?\d{1,3})((?:(?: |\\,|\\:|\\;|,\\!\s*)\d{3})+)$", lambda match: match[1] + re.sub(r"\D", "", match[2])),
]
TWICE = re.compile(r"(?<=\{)\{([^{}]*)\}(?=\})|(?<=\()\(([^()]*)\)(?=\))")  # nested braces are slow to parse
REPEATING = re.compile(r"(-?)(\d*)\.(\d*)(?:\\overline|\\bar|\\dot)\s*\{?(\d+)\}?(?:\\(?:dots|ldots|cdots))?")
PERCENT = re.compile(r"(?:\s|\\,)*(?:\\?%|(?<=[\d\s])per ?cent|\bpct)\s*$")
SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
SCALED = re.compile(
    rf"({NUMBER})\s*(?:\\text\s*\{{)?\s*({'|'.join(SCALES)})\s*\}}?(?:\s*(?:\\text\s*\{{)?[a-z ]*\}}?)?$"
)
BASE = re.compile(r"^\(?[0-9A-F]+\)?_\{?\s*(\d+|\\text)")
COLUMN = re.compile(r"^\\begin\{([pbvB]?matrix)\}([^&]*?)(?:\\\\\s*)?\\end\{\1\}$")
TEXT_COMMAND = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|textnormal|operatorname)\s*\{([^{}]*)\}"
)
WORDS = re.compile(r"[^\W\d_]+(?:[ '’-][^\W\d_]+)*")


def tidy(latex: str) -> str:
    r"""Remove dollar signs and full stops around an answer, and rewrite what math-verify cannot read.

    >>> tidy("$1\\,000$."), tidy("90°"), tidy("0.\\overline{3}")
    ('1000', '90^\\circ', '\\frac{3}{9}')
    """
    latex = latex.strip().replace("\\$", "").replace("$", "").strip()
    while (fewer := TWICE.sub(r"\1\2", latex)) != latex:
        latex = fewer
    for pattern, replacement in REPLACED:
        latex = re.sub(pattern, replacement, latex).strip()
        latex = re.sub(r"(?<!\\)(?:\\[,;!]|[.,;:\s])+$", "", latex)
    if match := REPEATING.fullmatch(latex):
        sign, whole, start, period = match.groups()
        numerator = int(whole + start + period or 0) - int(whole + start or 0)
        latex = f"{sign}\\frac{{{numerator}}}{{{'9' * len(period)}{'0' * len(start)}}}"
    return latex


def as_words(latex: str) -> str | None:
    r"""Return plain words without LaTeX, case and article, or None for anything that may be mathematics.

    >>> as_words("\\text{The Ellipse}"), as_words("\\text{(C)}"), as_words("xy"), as_words("5")
    ('ellipse', 'c', None, None)
    """
    plain, count = TEXT_COMMAND.subn(r"\1", latex)
    plain = re.sub(r"^\((.*)\)$", r"\1", plain.strip()).strip(" .")
    plain = " ".join(plain.split())
    if not WORDS.fullmatch(plain) or (count == 0 and min(map(len, re.split(r"\W", plain))) < 3):
        return None
    return re.sub(r"^(?:the|an?) ", "", plain.casefold())


def clash(gold: str, answer: str) -> bool:
    """Return whether answers differ in what math-verify ignores: number bases, or sets versus points and intervals."""
    bases = [BASE.match(latex) for latex in (gold, answer)]
    if bases[0] and bases[1]:
        return bases[0][1] != bases[1][1]
    brackets = {latex.replace("\\left", "").lstrip()[:2] for latex in (gold, answer)}
    return "\\{" in brackets and any(bracket[:1] in ("(", "[") for bracket in brackets)


def readings(latex: str, other: str) -> list[str]:
    r"""List what an answer may mean next to another one: a percentage also as a fraction, a million also as a number.

    >>> readings("12.5\\%", "12.5"), readings("12.5\\%", "9\\%"), readings("2 \\text{ million}", "2")
    (['12.5', '\\frac{12.5}{100}'], ['12.5'], ['2', '2\\times 10^{6}'])
    """
    if PERCENT.search(latex):
        number = PERCENT.sub("", latex)
        return [number] if PERCENT.search(other) else [number, f"\\frac{{{number}}}{{100}}"]
    if match := SCALED.fullmatch(latex):
        return [match[1], f"{match[1]}\\times 10^{{{SCALES[match[2]]}}}"]
    return [latex]


def columns_as_tuples(gold: str, answer: str) -> tuple[str, str]:
    """Rewrite a column vector as the tuple of its entries if only one of the two answers is a column."""
    columns = [COLUMN.match(latex) for latex in (gold, answer)]
    if (columns[0] is None) == (columns[1] is None):
        return gold, answer
    gold, answer = (
        f"({', '.join(column[2].split(chr(92) * 2))})" if column else latex
        for column, latex in zip(columns, (gold, answer), strict=True)
    )
    return gold, answer
