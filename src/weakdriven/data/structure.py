"""The form of completions in each style, so that a model learns one way to end its answers."""

import re

from weakdriven.data.tags import strip_tags

MARKERS = ("<think>", "</think>", "<answer>", "</answer>")
_TAGGED = re.compile(r"\s*<think>(?P<thought>.*)</think>\s*<answer>(?P<answer>.*)</answer>\s*", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")


def in_style(completion: str, style: str) -> str:
    """The completion to learn: without markers in style tag-free, else unchanged."""
    return strip_tags(completion) if style == "tag-free" else completion


def with_reasoning(reasoning: str, answer: str, style: str) -> str:
    """Join reasoning and answer that came separately, with the markers of the style.

    >>> with_reasoning("1+1 is 2", "2", "tagged")
    '<think>1+1 is 2</think>\\n<answer>2</answer>'
    """
    if not reasoning.strip() or "</think>" in answer:  # a teacher may also write the markers itself
        return answer
    if style != "tagged":
        return f"{reasoning.strip()}\n\n{answer}"
    if not any(marker in answer for marker in MARKERS):
        answer = f"<answer>{answer}</answer>"
    return f"<think>{reasoning.strip()}</think>\n{answer}"


def structure_fault(completion: str, style: str) -> str | None:
    """What is wrong with the form of a completion from its source, or None.

    Style tagged: one <think>...</think>, then one <answer>...</answer>, both with text, and nothing else. Style
    tag-free: some text is left without the markers, and the reasoning is not cut off. Style plain: any text.
    """
    if style == "tagged":
        counts = {marker: completion.count(marker) for marker in MARKERS}
        if set(counts.values()) != {1}:
            found = ", ".join(f"{count} {marker}" for marker, count in counts.items())
            return f"found {found}; expected one of each"
        if (parts := _TAGGED.fullmatch(completion)) is None:
            return "expected <think>...</think> and then <answer>...</answer>, with nothing around them"
        empty = [name for name in ("thought", "answer") if not parts[name].strip()]
        return f"the {' and the '.join(empty)} between the markers is empty" if empty else None
    if style == "tag-free" and "<think>" in completion and "</think>" not in completion:
        return "the reasoning is cut off before </think>"
    return None if in_style(completion, style).strip() else "the completion is empty"


def has_box(completion: str) -> bool:
    r"""Whether there is a \boxed after the reasoning."""
    return _BOX.search(completion.rpartition("</think>")[2]) is not None
