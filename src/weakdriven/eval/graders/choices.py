r"""Find the letter that a completion chooses among the options of a question.

A completion is read backwards from its last correction ("Wait, no: ..."). In each piece the most explicit kind of
statement counts: a box or "the answer is", then "C is correct" or "I choose C", then "so C", then a letter alone, then
an option's own words. Among statements of one kind the last one counts.
"""

import re
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product

from weakdriven.eval.graders.answers import BAD_GOLD, UNFINISHED, VERIFIED, Graded, after_thinking, boxes, unfinished
from weakdriven.eval.graders.latex import TEXT_COMMAND
from weakdriven.eval.graders.workers import FAILED, TIMEOUT, ask

LETTERS = "ABCDE"
NO_CHOICE, OTHER_LETTER, AMBIGUOUS, LETTER = "no choice", "another letter", "ambiguous", "letter"
NO_SUCH_OPTION, OPTION_TEXT, OPTION_VALUE = "no such option", "option text", "option value"


@dataclass(frozen=True)
class Statement:
    start: int
    end: int
    letters: frozenset[str]
    reason: str = LETTER


# Notations of a letter: (C), **C**, "C", $\text{C}$, option C. Repetitions are bounded to avoid quadratic time.
OPEN = r"(?:[\s(\[\"'“*_$`]|\\[(\[]|\\(?:text|textbf|mathrm|mathbf|boldsymbol)\s*\{|\{|<answer>){0,12}"
CLOSE = r"(?:[)\]\"'”*_$`}]){0,12}"
NAMED = r"(?i:(?:(?:option|choice|letter|answer|statement)\s*:?\s*)?)"
SMALL = r"(?<=\()[a-e](?=\))|(?<=\*)[a-e](?=\*)|[a-e](?=[\s*)]*(?:[.!]|$))"
ONE = rf"(?:{OPEN}{NAMED}{OPEN}(?P<letter>[A-Z]|{SMALL}){CLOSE}(?![\w'’+=^/\\-]))"
# Words before a letter.
HEDGE = (
    r"(?i:\s*,?\s*(?:clearly|definitely|most likely|likely|probably|therefore|thus|then|indeed|simply|actually|in fact|"
    r"still|now|either|both)\b)*,?"
)
BE = r"(?i:(?:is|must be|should be|would be|will be|has to be|=|:|-|–|→)\s*:?)"
BEST = r"(?i:\b(?:correct|right|best|final) (?:option|choice|one|letter|conclusion|statement)\b)"
RIGHT = (
    r"(?i:(?:the\s+|a\s+)?(?:only\s+|most\s+|best\s+)*"
    r"(?:correct|right|true|best|answer|one|accurate|valid|logical|strongest)\b)"
)
CHOOSE = r"(?i:\b(?:i|we|i'll|i'd|would|will|to)\s+(?:choose|pick|select|go with|opt for|say))"
SO = (
    r"(?i:\b(?:so|thus|therefore|hence|leaving|leaves|left with|it's|it is|that's|that is|must be|only)\b\s*,?"
    r"(?:\s*(?:it is|it's|it must be|we have|that leaves|i choose|only))?)"
)


pattern = partial(re.compile, flags=re.MULTILINE)
ANSWERS = [
    pattern(
        rf"(?i:\b(?:answer|solution|ans)s?\b)(?P<gap>(?:(?!answer)[^.\n:=?!]){{0,60}}?){OPEN}{CLOSE}{BE}{HEDGE}{ONE}"
    ),
    pattern(rf"(?i:\b(?:answer|ans)\b\.?)(?P<gap>){ONE}"),
    pattern(rf"{BEST}(?P<gap>[^.\n:=?!]{{0,40}}?){OPEN}{CLOSE}{BE}{HEDGE}{ONE}"),
    pattern(rf"(?P<gap>)<answer>{ONE}\s*</answer>"),
]
VERDICTS = [
    pattern(rf"(?P<gap>){ONE}\s*,?\s*(?i:is|must be|should be|would be|will be|has to be){HEDGE}\s+{RIGHT}"),
    pattern(rf"(?P<gap>){ONE}\s*[:–-]\s*(?i:correct|right)\b"),
    pattern(rf"{CHOOSE}(?P<gap>){ONE}"),
    pattern(rf"(?i:\bnot\b){ONE}\s*,?\s*(?i:but)(?P<gap>)(?i:\s+rather)?{ONE.replace('letter>', 'second>')}"),
]
CONCLUSIONS = [
    pattern(rf"{SO}(?P<gap>){ONE}\s*(?=[.,;!\n]|$|(?i:is|follows|remains|works|fits|holds)\b)"),
    pattern(rf"(?i:\bonly\b)(?P<gap>){ONE}\s+(?=[a-z])"),
]
ALONE = pattern(rf"^[ \t]*(?:#+\s*|[-•>]\s*)?(?P<gap>){ONE}\s*[.!]?\s*$")
OPENING = pattern(rf"^\s*(?P<gap>){ONE}(?:\s*[.:,)–-]|\s+(?=because|since|as\b|due|follows))")
MENTION = pattern(rf"(?i:\b(?:option|choice))\s*(?P<gap>){ONE}")
LINE_LETTER = pattern(r"^[ \t]*(?:[-*•]\s*)?\(?\**([A-E])\s*[).:]")
CORRECTION = re.compile(
    r"(?i)\b(?:wait|actually|correction|on second thought|hold on|scratch that|i made (?:a|an) (?:mistake|error)|"
    r"let me (?:re|correct|double)\w*|sorry|my mistake)\b|(?<=[.!?\n] )no[,:]|\brather\b,"
)
NEGATION = re.compile(
    r"(?i)\b(?:not|cannot|never|neither|nor|wrong|incorrect|false|if|eliminate[sd]?|ruled? out|rules out)\b|n['’]t\b"
)
DENIED = re.compile(
    r"(?i)[\s)*\"']*[,:]?\s*(?:wrong|incorrect|false|no|"
    r"(?:is|are|was|were|would be|can be|seems|looks)\s+(?:also\s+|clearly\s+)?"
    r"(?:not|wrong|incorrect|false|out|ruled|eliminated|impossible|irrelevant)|"
    r"(?:can|could|must|need|should|would|will|does|do|is) (?:not|never)|cannot|(?:can|is|does|wo|would)n?['’]t)\b"
)
ANOTHER = re.compile(
    rf"\s*(?:,\s*(?:and|or)|,|\bor\b|\band\b|/|&|\bas well as\b|(?=\()){ONE.replace('letter', 'another')}"
    r"(?!\s+(?:is|are|was|would|can|does|has|states|says|fails|be)\b)"
)
AFTER_ARTICLE = re.compile(
    r"\s+(?!(?:because|since|as|and|or|but|which|with|due|given|for|not|is|so|based|that|by|follows|here|too|must|would|"
    r"was)\b)[a-z]"
)
RUN = re.compile(r"[^\w\\{}]{20,}")  # long runs of signs or space, on which the patterns would take seconds
WORDLESS = re.compile(r"(?i)(?:[\W_]|\b(?:and|or|also|the|my|final|correct|answer|is|so)\b)*")


def grade_choice(text: str, gold: str, options: list[str] | None = None, *, timeout: float = 10.0) -> Graded:
    """Compare the letter that a completion settles on with the gold letter.

    Args:
        gold: A letter; options are lettered from A.
        options: Texts of the choices; if given, an answer may also name an option by its text or its value.

    >>> grade_choice("It cannot be A, B or D. The answer is (C).", "C")
    Graded(correct=True, answer='C', reason='letter')
    """
    letter = gold_letter(gold, options)
    if letter is None:
        return Graded(False, None, BAD_GOLD)
    final = after_thinking(text)
    if not final.strip() and unfinished(text):
        return Graded(False, None, UNFINISHED)
    final = RUN.sub(lambda run: run[0][:8] + ("\n" if "\n" in run[0] else " ") + run[0][-8:], final)
    cuts = [0, *(match.end() for match in CORRECTION.finditer(final)), len(final)]
    pieces = (read_piece(final[start:end], options, timeout) for start, end in reversed(list(pairwise(cuts))))
    chosen = next(filter(None, pieces), Statement(0, 0, frozenset(), NO_CHOICE))
    if chosen.reason.startswith((NO_CHOICE, TIMEOUT, FAILED)):
        return Graded(False, None, chosen.reason)
    answer = ", ".join(sorted(chosen.letters))
    if len(chosen.letters) > 1:
        texts = {lettered(options).get(one, one).strip() for one in chosen.letters}
        if chosen.reason != LETTER and letter in chosen.letters and len(texts) == 1:  # AQuA has equal options
            return Graded(True, letter, chosen.reason)
        return Graded(False, answer, AMBIGUOUS)
    if answer not in allowed(options):
        return Graded(False, answer, NO_SUCH_OPTION)
    return Graded(answer == letter, answer, chosen.reason if answer == letter else OTHER_LETTER)


def gold_letter(gold: str, options: list[str] | None) -> str | None:
    letter = str(gold).strip().strip("().").upper()
    return letter if len(letter) == 1 and letter in allowed(options) else None


def allowed(options: list[str] | None) -> str:
    return LETTERS if options is None else LETTERS[: len(options)]


def lettered(options: list[str] | None) -> dict[str, str]:
    return dict(zip(LETTERS, options or [], strict=False))


def read_piece(text: str, options: list[str] | None, timeout: float) -> Statement | None:
    """Return the statement that counts in a piece between two corrections."""
    read = [(box, read_value(box.content, options, timeout)) for box in boxes(text)[-3:]]
    boxed = [replace(found, start=box.start, end=box.end) for box, found in read if found]
    if explicit := boxed + spoken_statements(text, options, timeout):
        return last_of(explicit, text)
    for patterns in (VERDICTS, CONCLUSIONS):
        if found := hints(patterns, text, options):
            return last_of(found, text)
    return lone_letter(text, options) or mentioned_option(text, options) or quoted_option(text, options)


def hints(patterns: list[re.Pattern[str]], text: str, options: list[str] | None) -> list[Statement]:
    """Find weak statements, which count only if their letters are options: "only G and H came" is about people."""
    return [found for found in statements(patterns, text) if found.letters <= set(allowed(options))]


def lone_letter(text: str, options: list[str] | None) -> Statement | None:
    """Find a letter alone on a line or in the last sentence, or at the beginning, unless the text lists options."""
    if alone := hints([ALONE], text, options) or hints([ALONE], last_sentence(text), options):
        return alone[-1]
    if len(set(LINE_LETTER.findall(text))) > 1:
        return None
    opening = hints([OPENING], text.lstrip()[:200], options)
    return opening[0] if opening and opening[0].start == 0 else None


def mentioned_option(text: str, options: list[str] | None) -> Statement | None:
    sentence = last_sentence(text)
    mentions = [] if NEGATION.search(sentence) else hints([MENTION], sentence, options)
    letters = frozenset[str]().union(*(mention.letters for mention in mentions))
    return Statement(0, 0, letters) if letters else None


def last_of(found: list[Statement], text: str) -> Statement:
    """Return the last statement, joined with the one before if they differ and no word is between them."""
    found = sorted(found, key=lambda statement: (statement.end, -statement.start))
    last = found[-1]
    for before in reversed(found[:-1]):
        if before.end <= last.start and before.letters != last.letters:
            if WORDLESS.fullmatch(text, before.end, last.start):
                return Statement(before.start, last.end, before.letters | last.letters)
            break
    return last


def statements(patterns: list[re.Pattern[str]], text: str) -> list[Statement]:
    """Find letters by `patterns`, without denied ones, and with further letters named together with them."""
    return [found for kind in patterns for match in kind.finditer(text) if (found := statement(match, text))]


def statement(match: re.Match[str], text: str) -> Statement | None:
    groups = match.groupdict()
    name = "second" if groups.get("second") else "letter"
    letter, end = groups[name], match.end(name)
    if NEGATION.search(groups["gap"] or "") or DENIED.match(text, end):
        return None
    if letter == "A" and AFTER_ARTICLE.match(text, end):
        return None
    letters, place = {letter.upper()}, match.end()
    while place >= end and (another := ANOTHER.match(text, place)):
        letters.add(another["another"].upper())
        place = another.end()
    return Statement(match.start(), max(place, match.end()), frozenset(letters))


SPOKEN = re.compile(
    r"(?i)\banswer\b[^.\n:=]{0,40}?(?:\bis\b|:|=)[\s:*]*(?P<value>[^\n]{1,200}?)[*\s]*(?:\.(?=\s|$)|\n|$)"
)


def spoken_statements(text: str, options: list[str] | None, timeout: float) -> list[Statement]:
    """Find "the answer is C" unless the text of an option follows; without a letter, find "the answer is 12 km"."""
    spoken = [match for match in SPOKEN.finditer(text) if not NEGATION.search(match[0].replace(match["value"], ""))]
    texts = [
        Statement(match.start(), match.end(), letters, OPTION_TEXT)
        for match in spoken[-2:]
        if (letters := matching_text(match["value"], options))
    ]
    found = texts + [one for one in statements(ANSWERS, text) if apart(one.start, one.end, texts)]
    for match in spoken[-2:]:
        plain = not NEGATION.search(match["value"]) and not boxes(match["value"])
        if plain and apart(match.start(), match.end(), found):
            value = matching_value(match["value"], options, timeout)
            found += [replace(value, start=match.start(), end=match.end())] if value else []
    return found


def apart(start: int, end: int, known: list[Statement]) -> bool:
    return all(end <= one.start or one.end <= start for one in known)


BOXED_LETTER = re.compile(
    rf"^{OPEN}{NAMED}{OPEN}(?P<letter>[A-Za-e]){CLOSE}(?P<rest>\s*[).:,}}]+\s*.*|\s+(?=[^=+*/^-]).*|)$", re.DOTALL
)
BOXED_LETTERS = re.compile(r"^[\s(]*[A-E][\s)]*(?:(?:,|and|or|/|&|;|\s)+[\s(]*[A-E][\s)]*)+$")


def read_value(content: str, options: list[str] | None, timeout: float) -> Statement | None:
    """Return the letter in a box, or the option with the text or value in it."""
    bare = TEXT_COMMAND.sub(r"\1", content).strip().strip("$*").strip()
    if BOXED_LETTERS.match(bare):
        return Statement(0, 0, frozenset(re.findall("[A-E]", bare)))
    if by_text := matching_text(bare, options):
        return Statement(0, 0, by_text, OPTION_TEXT)
    if (match := BOXED_LETTER.match(bare)) and (not match["rest"].strip() or match["letter"].isupper()):
        return Statement(0, 0, frozenset(match["letter"].upper()))
    return matching_value(content, options, timeout)


def plain_words(text: str) -> str:
    return " ".join(re.sub(r"[^\w.%/$°√+*<>=-]+", " ", TEXT_COMMAND.sub(r"\1", text).casefold()).split()).strip(" .")


def matching_text(text: str, options: list[str] | None) -> frozenset[str]:
    words = plain_words(text)
    return frozenset(letter for letter, option in lettered(options).items() if words and plain_words(option) == words)


def matching_value(content: str, options: list[str] | None, timeout: float) -> Statement | None:
    """Return the options that math-verify finds equal to a value; a worker that fails decides nothing."""
    if not any(map(str.isdigit, content)):
        return None
    numeric = [(letter, option) for letter, option in lettered(options).items() if any(map(str.isdigit, option))]
    replies = {letter: ask(option, content, timeout=timeout) for letter, option in numeric}
    if equal := frozenset(letter for letter, reply in replies.items() if reply == VERIFIED):
        return Statement(0, 0, equal, OPTION_VALUE)
    failures = [reply for reply in replies.values() if reply.startswith((TIMEOUT, FAILED))]
    return Statement(0, 0, frozenset(), failures[0]) if failures else None


def last_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s+|\n+", text.strip())[-1]


def quoted_option(text: str, options: list[str] | None) -> Statement | None:
    """Return the option whose words end the text, or the option of three words or more in its last sentence."""
    words = {letter: plain_words(option) for letter, option in lettered(options).items()}
    said, sentence = f" {plain_words(text)} ", f" {plain_words(last_sentence(text))} "
    ending = {letter for letter, option in words.items() if len(option) > 3 and said.endswith(f" {option} ")}
    within = {letter for letter, option in words.items() if option.count(" ") >= 2 and f" {option} " in sentence}
    held = ending or within
    inner = {a for a, b in product(held, held) if words[a] in words[b] and words[a] != words[b]}
    letters = frozenset(held - inner)
    if any(NEGATION.search(sentence.partition(words[letter])[0]) for letter in letters if words[letter] in sentence):
        return None
    return Statement(0, 0, letters, OPTION_TEXT) if letters else None
