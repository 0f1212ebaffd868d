"""Makes pairs of completions from verified rollouts: for DPO, for SPIN, and for the hint of SSB's teacher."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from weakdriven.build.distil import rendered
from weakdriven.config.baselines import HINT_FIELDS
from weakdriven.data.example import Example
from weakdriven.data.funnel import Funnel
from weakdriven.data.prompts import Renderer
from weakdriven.data.tokenize import tokenize_pair
from weakdriven.errors import UserError
from weakdriven.eval.graders.answers import BAD_GOLD
from weakdriven.eval.graders.candidates import NO_ANSWER_FOUND
from weakdriven.eval.rollouts import Rollout

Asked = tuple[Example, list[Rollout]]
"""A prompt and its rollouts."""
SIDES = ("chosen", "rejected")
COLUMNS = ("prompt_ids", *(f"{side}_ids" for side in SIDES))
"""Token ids of a pair."""

NONE_RIGHT, NONE_WRONG, UNDECIDED = "no right rollout", "no wrong rollout", "no rollout was decided"
MIXED_ADVICE = (
    "A pair needs one right and one wrong rollout of a prompt: draw more rollouts, raise the temperature, or use "
    "problems that the model sometimes solves."
)
SPIN_ADVICE = (
    "The model generates the completions of the data, so there is nothing to learn: start from an earlier checkpoint, "
    "sample at a higher temperature, or use examples that it has not learned."
)
LENGTH_ADVICE = "Raise data.max_length, which prompt and completion share."
HINT_ADVICE = (
    "Raise ssb.teacher.max_prompt_tokens up to the model's number of positions, use rollouts with fewer new tokens, or "
    "give a shorter ssb.hint."
)
ENDINGS = {
    "math": "End with the final answer in \\boxed{}.",
    "code": "End with the whole program as one Python code block.",
    "logic": "End with: The answer is (X).",
}
HINTED = """{problem}

Two attempts at this problem are given for your eyes only. The result of the first is correct:

--- correct attempt
{right}
--- end of the correct attempt

The result of the second is wrong:

--- wrong attempt
{wrong}
--- end of the wrong attempt

Find out for yourself where the two part. Then write one complete solution that stands on its own, for a reader who \
has only the problem: derive each step from it, be explicit where a mistake is easily made, and check the result. \
Never mention the attempts, or that you have seen any. {ending}"""
"""Our wording of SSB's hint."""


@dataclass(frozen=True)
class Reply:
    """One side of a pair."""

    text: str
    ended: bool = True
    """Whether an end-of-turn token follows; False if the token budget cut it."""
    sample: int | None = None
    """Number of the rollout; None for the data's own completion."""


@dataclass(frozen=True)
class Pair:
    example: Example
    chosen: Reply
    rejected: Reply

    def as_row(self) -> dict[str, Any]:
        """Return a row of pairs.jsonl; the texts are in rollouts.jsonl and in the data."""
        chosen = {"chosen_sample": self.chosen.sample, "chosen_ended": self.chosen.ended}
        rejected = {"rejected_sample": self.rejected.sample, "rejected_ended": self.rejected.ended}
        return {"id": self.example.id, **chosen, **rejected}


@dataclass
class Tally:
    """Counts what became of prompts and their rollouts; complete once the pairs are exhausted."""

    funnel: Funnel = field(default_factory=Funnel)
    """Funnel of prompts; for SPIN, where each sample may be a pair, of samples."""
    prompts: int = 0
    rollouts: Counter[str] = field(default_factory=Counter)
    """Numbers of rollouts: all, those cut at the token budget, and if judged, those undecided or without answer."""

    def add(self, tried: Sequence[Rollout], *, judged: bool) -> None:
        self.prompts += 1
        self.rollouts.update(rollouts=len(tried), cut=sum(one.row["finish"] == "length" for one in tried))
        if judged:
            faults = [one.fault.reason for one in tried if one.fault is not None]
            undecided = sum(one.undecided for one in tried)
            self.rollouts.update(undecided=undecided, no_answer=faults.count(NO_ANSWER_FOUND))


def with_rollouts(examples: Iterable[Example], rollouts: Iterable[Rollout]) -> Iterator[Asked]:
    """Yield each sampled prompt with its rollouts in sampling order, one at a time because the files may be large.

    The examples must be in the order of the rollouts; those without rollouts are skipped.
    """
    examples = iter(examples)
    for id, tried in groupby(rollouts, key=lambda one: one.row["id"]):
        example = next(one for one in examples if one.id == id)
        yield example, sorted(tried, key=lambda one: one.row["sample"])


def mixed_pairs(
    asked: Iterable[Asked], tally: Tally, pick: Callable[[list[Rollout]], Rollout] = lambda wrong: wrong[0]
) -> Iterator[Pair]:
    """Pair the first right with one wrong rollout of each prompt that has both; undecided ones are neither.

    `pick` chooses among the wrong ones, which are in sampling order: the first for DPO, the `most_frequent` for SSB.
    """
    funnel = tally.funnel
    for example, tried in asked:
        tally.add(tried, judged=True)
        right = [one for one in tried if one.fault is None]
        wrong = [one for one in tried if one.fault is not None and not one.undecided]
        reasons = Counter(one.fault.reason if one.fault else "right" for one in tried)
        detail = ", ".join(f"{reason} {times}" for reason, times in reasons.most_common())
        if reasons[BAD_GOLD]:
            funnel.drop(BAD_GOLD, example.id, detail)
        elif not right or not wrong:
            funnel.drop(NONE_RIGHT if wrong else NONE_WRONG if right else UNDECIDED, example.id, detail)
        elif (chosen := right[0]).row["text"] == (rejected := pick(wrong)).row["text"]:
            samples = f"samples {chosen.row['sample']} and {rejected.row['sample']}"
            funnel.drop("both are the same text", example.id, samples)
        else:
            funnel.keep()
            yield Pair(example, reply(chosen), reply(rejected))
    refuse_none(funnel, MIXED_ADVICE)


def most_frequent(wrong: list[Rollout]) -> Rollout:
    """Return the first rollout with the most frequent answer, or the first of all if none has an answer."""
    answers = [one.fault.answer.strip() if one.fault and one.fault.answer else "" for one in wrong]
    times = Counter(filter(None, answers))
    return wrong[max(range(len(wrong)), key=lambda place: times[answers[place]])]  # ties: the first


def spin_pairs(asked: Iterable[Asked], tally: Tally, end_tokens: Sequence[str] = ()) -> Iterator[Pair]:
    """Pair the data's completion with each of the model's own samples; strip `end_tokens` from both texts."""
    funnel = tally.funnel
    for example, tried in asked:
        tally.add(tried, judged=False)
        for own in map(reply, tried):
            own = replace(own, text=without_end(own.text, end_tokens))
            if own.text == without_end(example.completion, end_tokens):
                funnel.drop("the sample is the data's completion", example.id)
            elif not own.text and not own.ended:
                funnel.drop("empty and cut off", example.id)
            else:
                funnel.keep()
                yield Pair(example, Reply(example.completion), own)
    refuse_none(funnel, SPIN_ADVICE, "samples")


def pair_rows(
    pairs: Iterable[Pair], renderer: Renderer, funnel: Funnel, *, max_length: int
) -> Iterator[tuple[Pair, dict[str, Any]]]:
    """Tokenise pairs for a preference trainer; drop those that differ only after `max_length`."""
    for pair in pairs:
        chosen, rejected = ((side.text, side.ended) for side in (pair.chosen, pair.rejected))
        row = tokenize_pair(pair.example, chosen, rejected, renderer, max_length)
        if len(row["prompt_ids"]) >= max_length:
            funnel.drop("prompt too long", pair.example.id, f"{len(row['prompt_ids'])} tokens of {max_length}")
        elif row["chosen_ids"] == row["rejected_ids"]:
            funnel.drop("no different tokens", pair.example.id, "the completions differ only after max_length")
        else:
            funnel.keep()
            yield pair, row
    refuse_none(funnel, LENGTH_ADVICE)


def hinted_prompts(
    pairs: Iterable[Pair],
    renderer: Renderer,
    funnel: Funnel,
    *,
    domain: str,
    max_prompt_tokens: int,
    template: str | None = None,
) -> Iterator[tuple[Pair, Example]]:
    """Add hints for SSB's teacher to the problems; drop problems whose prompts get too long instead of cutting them."""
    for pair in pairs:
        example = hinted(pair, domain, template)
        if (length := len(rendered(renderer, domain, example)[0])) > max_prompt_tokens:
            funnel.drop("hinted prompt too long", pair.example.id, f"{length} tokens of {max_prompt_tokens}")
        else:
            funnel.keep()
            yield pair, example
    refuse_none(funnel, HINT_ADVICE)


def hinted(pair: Pair, domain: str, template: str | None = None) -> Example:
    """Put a right and a wrong attempt into the example's last question, and remove its completion."""
    *before, question = pair.example.prompt
    words = {
        "problem": question["content"],
        "right": pair.chosen.text.strip(),
        "wrong": pair.rejected.text.strip(),
        "ending": ENDINGS[pair.example.domain or domain],
    }
    # in one pass and for these fields only, because attempts are full of braces
    text = re.sub(rf"\{{({'|'.join(HINT_FIELDS)})\}}", lambda found: words[found[1]], template or HINTED)
    return replace(pair.example, prompt=[*before, question | {"content": text}], completion="")


def reply(rollout: Rollout) -> Reply:
    row = rollout.row
    return Reply(row["text"], row["finish"] == "stop", row["sample"])


def without_end(text: str, end_tokens: Sequence[str]) -> str:
    r"""Strip end tokens and the whitespace around them.

    >>> without_end("4 <|im_end|>\n", ["<|im_end|>"]), without_end("4 ", ["<|im_end|>"])
    ('4', '4 ')
    """
    if not end_tokens:
        return text
    return re.sub(rf"(?:\s*(?:{'|'.join(map(re.escape, end_tokens))}))+\s*\Z", "", text)


def refuse_none(funnel: Funnel, advice: str, what: str = "prompts") -> None:
    """Raise an error if no prompt or sample is left, before anything is trained."""
    if funnel.kept:
        return
    reasons = []
    for reason, one in funnel.to_json()["dropped"].items():
        first = one["first"][0]
        named = ", ".join(filter(None, (repr(first["id"]), first["detail"])))
        reasons.append(f"{reason}: {one['rows']} (first: {named})")
    raise UserError(f"Nothing is left of {funnel.seen} {what}; {', '.join(reasons) or 'there are none'}. {advice}")
