"""Examples that may be trained on: none that overlaps with a held-out item, and each problem once."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from weakdriven.data.example import Example
from weakdriven.data.funnel import Funnel
from weakdriven.data.overlap import KINDS, REMOVED, RULES, Held, HeldItem, Overlap, Rules, deduplicate
from weakdriven.data.questions import bare

REPEATS = RULES | {"math": Rules(signs=True)}
"""By domain of the set: when two of its problems are one. Formulas that differ in a sign are two."""

NGRAM_SHARE = {"math": 0.0, "code": 0.0, "logic": 0.2}
"""By domain of the held-out items: how much of an item's runs of words a row has to hold, to go for the kind `ngram`.

Above 0, one run is not enough. Logic needs that: its questions end in stock phrases, such as "which one of the
following is most strongly supported by the information above". Of LogiQA 2.0's development rows 159 share a run with
its test items, and all but 6 of them less than a fifth of the item's runs.
"""


def index_items(items: Mapping[str, Iterable[HeldItem]]) -> dict[str, Held]:
    """One index for each domain of held-out items, because what counts as overlap depends on it."""
    return {domain: Held(some, RULES[domain]) for domain, some in items.items()}


def clean(
    examples: Iterable[Example], overlaps: Iterable[Overlap | None], domain: str, funnel: Funnel
) -> Iterator[Example]:
    """The examples to keep, in their order and with unique ids; `funnel` counts all of them once it is exhausted.

    Memory grows with the words of the examples that are kept, not with their completions.

    Args:
        overlaps: For each example what `worst_overlap` says of it.
        domain: Of the set.
    """
    compared: list[str] = []  # ids of those that reach `deduplicate`, which names rows by number
    ids: set[str] = set()

    def not_held() -> Iterator[Example]:
        for example, overlap in zip(examples, overlaps, strict=True):
            if overlap is None:
                compared.append(example.id)
                yield example
            else:
                detail = f"item {overlap.id}, score {overlap.score:.2f}"
                funnel.drop(f"overlap {overlap.kind} with {overlap.benchmark}", example.id, detail)

    for example, repeat in deduplicate(not_held(), with_options, rules=REPEATS[domain]):
        if repeat is not None:
            detail = f"repeats {compared[repeat.row]}, score {repeat.score:.2f}"
            funnel.drop(f"duplicate {repeat.kind}", example.id, detail)
            continue
        funnel.keep()
        id = unused(example.id, ids)
        ids.add(id)
        yield example if id == example.id else replace(example, id=id)


def worst_overlap(text: str, held: Mapping[str, Held], shares: Mapping[str, float]) -> Overlap | None:
    """The strongest kind of overlap for which a row has to go, or None."""
    found = [
        overlap
        for domain, index in held.items()
        for overlap in index.find(text)
        if overlap.kind in REMOVED and (overlap.kind != "ngram" or overlap.score >= shares[domain])
    ]
    return min(found, key=lambda overlap: (KINDS.index(overlap.kind), -overlap.score), default=None)


def question_of(example: Example) -> str:
    """What is asked, without what all problems share: system prompts and our requests."""
    return bare("\n".join(turn["content"] for turn in example.prompt if turn["role"] == "user"))


def with_options(example: Example) -> str:
    """A question with its options: many questions have the same few words."""
    options = example.meta.get("options")
    return "\n".join([question_of(example), *map(str, options if isinstance(options, list) else [])])


def unused(id: str, ids: set[str]) -> str:
    """
    >>> unused("7", {"7", "7#2"})
    '7#3'
    """
    number, free = 1, id
    while free in ids:
        number += 1
        free = f"{id}#{number}"
    return free
