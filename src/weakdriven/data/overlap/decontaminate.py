"""Keep examples that may be trained on: without overlap with held-out items, and each problem once."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from weakdriven.data.example import Example
from weakdriven.data.funnel import Funnel
from weakdriven.data.overlap.find import KINDS, REMOVED, RULES, Held, HeldItem, Overlap, Rules, deduplicate
from weakdriven.data.overlap.fingerprint import answer_key
from weakdriven.data.questions import LETTERS, bare, split_options

REPEATS = RULES | {"math": Rules(signs=True), "logic": replace(RULES["logic"], ordered=0.8)}
"""By domain of the set: when two problems with one answer are the same. Formulas with different signs differ, and so do
puzzles that use the same words in another order."""

NGRAM_SHARE = {"math": 0.0, "code": 0.0, "logic": 0.2}
"""By domain of the held-out items: the share of an item's n-grams that a row must contain to be removed as `ngram`.

At 0, one n-gram is enough. Logic needs more, because its questions end in stock phrases: 159 of LogiQA 2.0's
development rows share an n-gram with a test item, and all but 6 of them less than a fifth of the item's."""


def index_items(items: Mapping[str, Iterable[HeldItem]]) -> dict[str, Held]:
    """Build one index for each domain of held-out items, because the definition of overlap depends on it."""
    return {domain: Held(some, replace(RULES[domain], short_items=True)) for domain, some in items.items()}


def clean(
    examples: Iterable[Example], overlaps: Iterable[Overlap | None], domain: str, funnel: Funnel
) -> Iterator[Example]:
    """Yield the examples to keep, in order and with unique ids; `funnel` counts all of them.

    `overlaps` has the result of `worst_overlap` for each. Memory grows with the words of the kept prompts, not with
    completions.
    """
    compared: list[str] = []  # ids by the row numbers of `deduplicate`
    ids: set[str] = set()
    numbers = Counter[str]()

    def not_held() -> Iterator[Example]:
        for example, overlap in zip(examples, overlaps, strict=True):
            if overlap is None:
                compared.append(example.id)
                yield example
            else:
                detail = f"item {overlap.id}, score {overlap.score:.2f}"
                funnel.drop(f"overlap {overlap.kind} with {overlap.benchmark}", example.id, detail)

    for example, repeat in deduplicate(not_held(), with_options, key=answer_of, rules=REPEATS[domain]):
        if repeat is not None:
            detail = f"repeats {compared[repeat.row]}, score {repeat.score:.2f}"
            funnel.drop(f"duplicate {repeat.kind}", example.id, detail)
            continue
        funnel.keep()
        id = unused(example.id, ids, numbers)
        ids.add(id)
        yield replace(example, id=id)


def worst_overlap(texts: Iterable[str], held: Mapping[str, Held], shares: Mapping[str, float]) -> Overlap | None:
    """Return the strongest overlap for which a row with these `asked_texts` is removed, or None."""
    found = [
        overlap
        for text in texts
        for domain, index in held.items()
        for overlap in index.find(text)
        if overlap.kind in REMOVED and (overlap.kind != "ngram" or overlap.score >= shares[domain])
    ]
    return min(found, key=lambda overlap: (KINDS.index(overlap.kind), -overlap.score), default=None)


def asked_texts(example: Example) -> list[str]:
    """List the texts compared with held-out items: each turn that is not the assistant's, and all of them joined.

    A question may be in a system prompt, in a later turn, or span two turns. Plain text is compared whole.
    """
    turns = [turn["content"] for turn in example.prompt if turn["role"] != "assistant"]
    turns += [] if example.prompt else [example.completion]
    texts = map(bare, [*turns, "\n".join(turns)] if len(turns) > 1 else turns)
    return [text for text in dict.fromkeys(texts) if text]


def with_options(example: Example) -> str:
    """Join the user's question with its sorted options, because many questions consist of the same few words."""
    asked, options = asked_with_options(example)
    return "\n".join([asked, *sorted(options)])


def answer_of(example: Example) -> str:
    """Return what repeats must share exactly: the answer (the text of an option, if any) and the system prompts.

    The problem may be in a system prompt, and the user turn only "Solve it."
    """
    gold, options = (example.gold or "").strip(), asked_with_options(example)[1]
    place = LETTERS.find(gold.upper()) if len(gold) == 1 else -1
    if 0 <= place < len(options):
        gold = options[place]
    system = [turn["content"] for turn in example.prompt if turn["role"] == "system"]
    return "\n".join([answer_key(gold), *system] if gold or system else [])


def asked_with_options(example: Example) -> tuple[str, list[str]]:
    asked, written = split_options("\n".join(turn["content"] for turn in example.prompt if turn["role"] == "user"))
    options = example.meta.get("options")
    return asked, [str(option) for option in options] if isinstance(options, list) and options else written


def unused(id: str, ids: set[str], numbers: Counter[str]) -> str:
    """Find a free variant of an id, such as `7#2`; `numbers` remembers the last number of each id."""
    free = id
    while free in ids:
        numbers[id] = max(numbers[id], 1) + 1
        free = f"{id}#{numbers[id]}"
    return free
