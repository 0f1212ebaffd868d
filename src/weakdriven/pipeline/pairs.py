"""Verified rollouts -> pairs of completions: for DPO, for SPIN, and the two traces that SSB's teacher is shown."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from weakdriven.data.example import Example
from weakdriven.data.funnel import Funnel
from weakdriven.data.prompts import Renderer
from weakdriven.data.tokenize import tokenize_pair
from weakdriven.errors import UserError
from weakdriven.eval.answers import BAD_GOLD
from weakdriven.pipeline.rollouts import Rollout
from weakdriven.pipeline.verify import NO_ANSWER_FOUND

NONE_RIGHT, NONE_WRONG, UNDECIDED = "no right rollout", "no wrong rollout", "no rollout was decided"
SAME_TEXT, SAME_AS_DATA, EMPTY = "both are the same text", "the sample is the data's completion", "empty and cut off"
TOO_LONG, NO_ROOM, SAME_TOKENS = "hinted prompt too long", "prompt too long", "no different tokens"
MIXED_ADVICE = (
    "A pair needs one right and one wrong rollout of a prompt: ask for more rollouts or at a higher temperature, or "
    "take problems that the model solves sometimes."
)
SPIN_ADVICE = (
    "The model writes what the data says, so there is nothing to tell apart: start from an earlier checkpoint, sample "
    "at a higher temperature, or take rows that it has not learned."
)
LENGTH_ADVICE = "Raise data.max_length, which prompt and completion share."
HINT_ADVICE = "Raise the teacher's max_prompt_tokens, or take rollouts with fewer new tokens."
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
"""Our own wording of SSB's hint."""


@dataclass(frozen=True)
class Reply:
    """One side of a pair."""

    text: str
    ended: bool = True
    """Whether the end of the turn follows; not if the token budget cut it."""
    sample: int | None = None
    """Which rollout it is; None for the data's own completion."""


@dataclass(frozen=True)
class Pair:
    id: str
    chosen: Reply
    rejected: Reply

    def as_row(self) -> dict[str, Any]:
        """For pairs.jsonl; the texts stand in rollouts.jsonl and in the data."""
        chosen, rejected = self.chosen, self.rejected
        return {
            "id": self.id,
            "chosen_sample": chosen.sample,
            "chosen_ended": chosen.ended,
            "rejected_sample": rejected.sample,
            "rejected_ended": rejected.ended,
        }


class Paired(NamedTuple):
    pairs: list[Pair]
    funnel: Funnel
    """Of prompts."""
    counts: dict[str, int]
    """Of rollouts: all, cut at the token budget, and where they are judged, undecided and without an answer."""


def dpo_pairs(rollouts: Iterable[Rollout]) -> Paired:
    """The first right and the first wrong rollout of each prompt, in sampling order; undecided ones are neither."""
    return mixed_pairs(rollouts, lambda wrong: wrong[0])


def trace_pairs(rollouts: Iterable[Rollout]) -> Paired:
    """For SSB: the first right rollout of each prompt, and the first with the most frequent wrong answer."""
    return mixed_pairs(rollouts, most_frequent)


def mixed_pairs(rollouts: Iterable[Rollout], pick: Callable[[list[Rollout]], Rollout]) -> Paired:
    """A pair of each prompt that has right and wrong rollouts.

    Args:
        pick: Takes the wrong ones, in sampling order.
    """
    pairs, funnel, by_prompt = list[Pair](), Funnel(), grouped(rollouts)
    for id, tried in by_prompt.items():
        right = [one for one in tried if one.fault is None]
        wrong = [one for one in tried if one.fault is not None and not one.undecided]
        reasons = Counter(one.fault.reason if one.fault else "right" for one in tried)
        detail = ", ".join(f"{reason} {times}" for reason, times in reasons.most_common())
        if reasons[BAD_GOLD]:
            funnel.drop(BAD_GOLD, id, detail)
        elif not right or not wrong:
            funnel.drop(NONE_RIGHT if wrong else NONE_WRONG if right else UNDECIDED, id, detail)
        elif (chosen := right[0]).row["text"] == (rejected := pick(wrong)).row["text"]:
            funnel.drop(SAME_TEXT, id, f"samples {chosen.row['sample']} and {rejected.row['sample']}")
        else:
            pairs.append(Pair(id, reply(chosen), reply(rejected)))
            funnel.keep()
    refuse_none(funnel, MIXED_ADVICE)
    judged = [one for tried in by_prompt.values() for one in tried]
    counts = {
        "undecided": sum(one.undecided for one in judged),
        "no_answer": sum(one.fault is not None and one.fault.reason == NO_ANSWER_FOUND for one in judged),
    }
    return Paired(pairs, funnel, sizes(judged) | counts)


def most_frequent(wrong: list[Rollout]) -> Rollout:
    """The first rollout with the most frequent answer; of equally frequent ones the earliest, and likewise if none
    gives an answer."""
    answers = [one.fault.answer.strip() if one.fault and one.fault.answer else "" for one in wrong]
    times = Counter(filter(None, answers))
    return wrong[max(range(len(wrong)), key=lambda place: times[answers[place]])]  # the first of equals


def spin_pairs(examples: Mapping[str, Example], rollouts: Iterable[Rollout], end_tokens: Sequence[str] = ()) -> Paired:
    """The data's completion against the model's own sample; verdicts are not looked at.

    Args:
        end_tokens: What an engine or the data may have left at the end of a text.
    """
    pairs, funnel, by_prompt = list[Pair](), Funnel(), grouped(rollouts)
    samples = [one for tried in by_prompt.values() for one in tried]
    for one in samples:
        id, real, own = one.row["id"], examples[one.row["id"]].completion, reply(one)
        own = replace(own, text=without_end(own.text, end_tokens))
        if own.text == without_end(real, end_tokens):
            funnel.drop(SAME_AS_DATA, id)
        elif not own.text and not own.ended:
            funnel.drop(EMPTY, id)
        else:
            pairs.append(Pair(id, Reply(real), own))
            funnel.keep()
    refuse_none(funnel, SPIN_ADVICE)
    return Paired(pairs, funnel, sizes(samples))


def pair_rows(
    pairs: Iterable[Pair], examples: Mapping[str, Example], renderer: Renderer, *, max_length: int
) -> tuple[list[dict[str, Any]], Funnel]:
    """Pairs as a preference trainer takes them; those that teach nothing at this length are dropped."""
    rows, funnel = list[dict[str, Any]](), Funnel()
    for pair in pairs:
        chosen, rejected = ((side.text, side.ended) for side in (pair.chosen, pair.rejected))
        row = tokenize_pair(examples[pair.id], chosen, rejected, renderer, max_length)
        if len(row["prompt_ids"]) >= max_length:
            funnel.drop(NO_ROOM, pair.id, f"{len(row['prompt_ids'])} tokens of {max_length}")
        elif row["chosen_ids"] == row["rejected_ids"]:
            funnel.drop(SAME_TOKENS, pair.id, "the completions differ only after max_length")
        else:
            rows.append(row)
            funnel.keep()
    refuse_none(funnel, LENGTH_ADVICE)
    return rows, funnel


def hinted_prompts(
    pairs: Iterable[Pair],
    examples: Mapping[str, Example],
    prompt_tokens: Callable[[Example], int],
    *,
    domain: str,
    max_prompt_tokens: int,
) -> tuple[list[Example], Funnel]:
    """The problems as SSB's teacher is asked them; a hint that leaves no room is dropped and never cut.

    Args:
        prompt_tokens: Length of an example's rendered prompt.
        domain: Of examples that name none.
    """
    asked, funnel = list[Example](), Funnel()
    for pair in pairs:
        example = hinted(examples[pair.id], pair, domain)
        if (length := prompt_tokens(example)) > max_prompt_tokens:
            funnel.drop(TOO_LONG, pair.id, f"{length} tokens of {max_prompt_tokens}")
        else:
            asked.append(example)
            funnel.keep()
    refuse_none(funnel, HINT_ADVICE)
    return asked, funnel


def hinted(example: Example, pair: Pair, domain: str) -> Example:
    """The example with a right and a wrong trace in its last question, and nothing to learn yet."""
    *before, question = example.prompt
    text = HINTED.format(
        problem=question["content"],
        right=pair.chosen.text.strip(),
        wrong=pair.rejected.text.strip(),
        ending=ENDINGS[example.domain or domain],
    )
    return replace(example, prompt=[*before, question | {"content": text}], completion="")


def grouped(rollouts: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    """Rollouts of each prompt, in sampling order."""
    found: dict[str, list[Rollout]] = {}
    for one in rollouts:
        found.setdefault(one.row["id"], []).append(one)
    return {id: sorted(tried, key=lambda one: one.row["sample"]) for id, tried in found.items()}


def reply(rollout: Rollout) -> Reply:
    row = rollout.row
    return Reply(row["text"], row["finish"] == "stop", row["sample"])


def sizes(rollouts: Sequence[Rollout]) -> dict[str, int]:
    return {"rollouts": len(rollouts), "cut": sum(one.row["finish"] == "length" for one in rollouts)}


def without_end(text: str, end_tokens: Sequence[str]) -> str:
    r"""
    >>> without_end("4 <|im_end|>\n", ["<|im_end|>"]), without_end("4 ", ["<|im_end|>"])
    ('4', '4 ')
    """
    if not end_tokens:
        return text
    return re.sub(rf"(?:\s*(?:{'|'.join(map(re.escape, end_tokens))}))+\s*\Z", "", text)


def refuse_none(funnel: Funnel, advice: str) -> None:
    """An error where nothing is kept, before anything is trained."""
    if funnel.kept:
        return
    dropped = funnel.to_json()["dropped"]
    reasons = [f"{reason}: {one['rows']} (first: {one['first'][0]['id']!r})" for reason, one in dropped.items()]
    raise UserError(f"Nothing is left of {funnel.seen} prompts; {', '.join(reasons) or 'there are none'}. {advice}")
