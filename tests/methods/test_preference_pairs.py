"""Which rollouts become pairs, which do not and why, and what SSB's teacher is asked."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from helpers import embedded_tokenizer
from recipe_cases import parse
from weakdriven.build.distil import Judge, rendered
from weakdriven.data.example import Example
from weakdriven.data.funnel import Funnel
from weakdriven.data.prompts import Renderer
from weakdriven.errors import UserError
from weakdriven.eval.generate import Sampling
from weakdriven.eval.generate.requests import Completion
from weakdriven.eval.generate.samples import Ask
from weakdriven.eval.graders.answers import BAD_GOLD
from weakdriven.eval.graders.candidates import BAD_TESTS, NO_ANSWER_FOUND, VERIFIER_TIMEOUT, Checks, Fault, verifier
from weakdriven.eval.graders.workers import FAILED
from weakdriven.eval.rollouts import Rollout, Rollouts, as_fault, as_label
from weakdriven.methods.rollouts import preference_pairs as pairs
from weakdriven.methods.rollouts.preference_pairs import Pair, Reply, Tally, hinted, hinted_prompts, with_rollouts
from weakdriven.runs.files import read_jsonl

WRONG = Fault("wrong answer", "found 3, expected 5", "3")


def rollout(id, sample, fault=None, *, text=None, finish="stop"):
    row = {"id": id, "sample": sample, "prompt": "?", "text": f"{id}-{sample}" if text is None else text}
    return Rollout(row | {"tokens": 5, "finish": finish}, fault)


def labelled(id, labels):
    """True is right, False wrong, None a verifier that took too long."""
    faults = {True: None, False: WRONG, None: Fault(VERIFIER_TIMEOUT)}
    return [rollout(id, sample, faults[label]) for sample, label in enumerate(labels)]


def example(id="a", completion="real", **more):
    return Example(id, [{"role": "user", "content": f"{id}?"}], completion, **more)


def all_pairs(make, rollouts, **options):
    """What a maker of pairs gives and counts, where all examples have the same completion."""
    examples, tally = map(example, dict.fromkeys(one.row["id"] for one in rollouts)), Tally()
    made = list(make(with_rollouts(examples, rollouts), tally, **options))
    return SimpleNamespace(pairs=made, funnel=tally.funnel, counts=dict(tally.rollouts), prompts=tally.prompts)


dpo_pairs, trace_pairs, spin_pairs = (
    partial(all_pairs, make)
    for make in (pairs.mixed_pairs, partial(pairs.mixed_pairs, pick=pairs.most_frequent), pairs.spin_pairs)
)


def samples(paired):
    return [(pair.example.id, pair.chosen.sample, pair.rejected.sample) for pair in paired.pairs]


def dropped(funnel):
    return {reason: one["rows"] for reason, one in funnel.to_json()["dropped"].items()}


ALWAYS = labelled("always", [True, False])


def test_a_dpo_pair_is_the_first_right_and_the_first_wrong_rollout():
    prompts = {"a": [0, 1, 1, 0], "b": [1, 1, 1, 1], "c": [0, 0, 0, 0], "d": [None, 1, 0, 0]}
    rollouts = [
        one for id, labels in prompts.items() for one in labelled(id, [x if x is None else bool(x) for x in labels])
    ]
    paired = dpo_pairs(rollouts)
    assert samples(paired) == [("a", 1, 0), ("d", 1, 2)]
    assert dropped(paired.funnel) == {"no right rollout": 1, "no wrong rollout": 1} and paired.funnel.seen == 4
    assert paired.counts == {"rollouts": 16, "cut": 0, "undecided": 1, "no_answer": 0}
    assert paired.pairs[0].chosen == Reply("a-1", True, 1)
    assert samples(dpo_pairs(rollouts[::-1])) == [("d", 1, 2), ("a", 1, 0)], "sampling order, not that of the list"


def test_an_undecided_completion_is_in_no_pair():
    faults = [Fault(FAILED), Fault(VERIFIER_TIMEOUT), Fault(BAD_TESTS), None]
    rollouts = [rollout("a", sample, fault) for sample, fault in enumerate(faults)]
    paired = dpo_pairs([*rollouts, *[rollout("b", n, Fault(FAILED)) for n in range(2)], *ALWAYS])
    assert samples(paired) == [("always", 0, 1)]
    assert dropped(paired.funnel) == {"no wrong rollout": 1, "no rollout was decided": 1}
    assert paired.counts["undecided"] == 5


def test_a_prompt_with_a_bad_gold_answer_is_skipped():
    rollouts = [rollout("a", 0), rollout("a", 1, Fault(BAD_GOLD)), rollout("a", 2, WRONG)]
    paired = dpo_pairs([*rollouts, *ALWAYS])
    assert samples(paired) == [("always", 0, 1)] and dropped(paired.funnel) == {BAD_GOLD: 1}


def test_no_answer_is_a_wrong_answer_and_counted():
    rollouts = [rollout("a", 0, Fault(NO_ANSWER_FOUND, "no boxed answer")), rollout("a", 1)]
    paired = dpo_pairs(rollouts)
    assert samples(paired) == [("a", 1, 0)] and paired.counts["no_answer"] == 1


def test_two_equal_texts_are_no_pair():
    same = [rollout("a", 0, text="4"), rollout("a", 1, WRONG, text="4")]
    paired = dpo_pairs([*same, *ALWAYS])
    assert samples(paired) == [("always", 0, 1)] and dropped(paired.funnel) == {"both are the same text": 1}


def test_a_truncated_completion_has_no_end_token():
    cut = rollout("a", 0, Fault("cut off", "after 5 tokens"), finish="length")
    [pair] = dpo_pairs([cut, rollout("a", 1)]).pairs
    assert (pair.chosen.ended, pair.rejected.ended) == (True, False)
    assert pair.as_row() == {
        "id": "a",
        "chosen_sample": 1,
        "chosen_ended": True,
        "rejected_sample": 0,
        "rejected_ended": False,
    }


@pytest.mark.parametrize("make", [dpo_pairs, trace_pairs])
def test_no_prompt_with_both_is_an_error_that_says_why(make):
    rollouts = [*labelled("a", [True, True]), *labelled("b", [True]), *labelled("c", [False, False])]
    with pytest.raises(
        UserError, match=r"of 3 prompts; no wrong rollout: 2 \(first: 'a', right 2\), no right rollout: 1 .*more"
    ):
        make(rollouts)
    with pytest.raises(UserError, match="of 0 prompts; there are none"):
        make([])


def answered(answers, gold="5", id="a"):
    return [
        rollout(id, sample, None if answer == gold else Fault("wrong answer", "", answer))
        for sample, answer in enumerate(answers)
    ]


@pytest.mark.parametrize(
    "answers, right, wrong",
    [
        (["7", "3", "3", "5"], 3, 1),
        (["7", "3", "5"], 2, 0),
        (["7", "3", "3", "7", "5"], 4, 0),
        (["5", "5", "7", " 3", "3 "], 0, 3),
        ([None, "3", "5"], 2, 1),
        ([None, None, "5"], 2, 0),
        (["7", None, None, "5"], 3, 0),
    ],
)
def test_the_trace_to_avoid_has_the_most_frequent_wrong_answer(answers, right, wrong):
    assert samples(trace_pairs(answered(answers))) == [("a", right, wrong)]


def test_labels_hold_the_answer_of_a_wrong_completion(tmp_path):
    examples = {"a": Example("a", [{"role": "user", "content": "2+3?"}], "", gold="5", domain="math")}
    texts = [f"\\boxed{{{answer}}}" for answer in (7, 3, 3, 5)]

    class Four:
        def complete(self, requests, sampling, on_done):
            on_done({place: Completion(text, 3, "stop") for place, text in enumerate(texts)})

    judge = Judge(lambda example: example, verifier(Checks(workers=1)))
    faults = partial(judge.faults, examples, style="plain")
    for _ in range(2):  # the second reads the files
        rollouts = Rollouts(tmp_path, Four, Sampling(8, (2,)), faults, terms=lambda id: "", seed=0)
        found = rollouts.ask([Ask("a", sample, [1], "2+3?") for sample in range(4)])
        assert samples(trace_pairs(found)) == [("a", 3, 1)]
    assert [label.get("answer") for label in read_jsonl(tmp_path / "labels.jsonl")] == ["7", "3", "3", None]
    assert as_fault({**as_label({"id": "a", "sample": 0}, Fault("wrong answer")), "answer": None}) == Fault(
        "wrong answer"
    )
    old = {"id": "a", "sample": 0, "correct": False, "reason": "wrong answer", "detail": ""}
    assert as_fault(old) == Fault("wrong answer")


def test_a_spin_pair_is_the_data_against_the_models_own_sample():
    own = [
        rollout("a", 0, WRONG),
        rollout("b", 0, text="real"),
        rollout("c", 0, text="real<|im_end|>\n"),
        rollout("d", 0, text=""),
        rollout("e", 0, text="", finish="length"),
        rollout("f", 0, text="rea", finish="length"),
        rollout("g", 0, text="real "),
    ]
    paired = spin_pairs(own, end_tokens=["<|im_end|>", "<|endoftext|>"])
    assert [(pair.example.id, pair.rejected) for pair in paired.pairs] == [
        ("a", Reply("a-0", True, 0)),
        ("d", Reply("", True, 0)),
        ("f", Reply("rea", False, 0)),
        ("g", Reply("real ", True, 0)),
    ]
    assert all(pair.chosen == Reply("real", True, None) for pair in paired.pairs)
    assert dropped(paired.funnel) == {"the sample is the data's completion": 2, "empty and cut off": 1}
    assert paired.counts == {"rollouts": 7, "cut": 2} and paired.prompts == 7
    both = spin_pairs([rollout("a", 0), rollout("a", 1, text="real"), rollout("a", 2)])
    assert samples(both) == [("a", None, 0), ("a", None, 2)] and both.prompts == 1, "each sample may be a pair"


def test_only_samples_that_equal_the_data_are_an_error():
    with pytest.raises(UserError, match=r"of 2 samples; the sample is the data's completion: 2 .*higher temperature"):
        spin_pairs([rollout("a", 0, text="real"), rollout("b", 0, text="real")])


TRACES = Pair(example("a"), Reply("so {5} \\boxed{5}", True, 3), Reply("so \\boxed{3}", False, 1))


@pytest.mark.parametrize(
    "own, whole, ending",
    [("", "math", "\\boxed{}."), ("", "logic", "The answer is (X)."), ("code", "math", "one Python code block.")],
)
def test_the_hint_shows_both_traces_and_asks_for_the_ending_of_the_domain(own, whole, ending):
    first = {"role": "system", "content": "Be kind."}
    asked = Example("a", [first, {"role": "user", "content": "2+3?"}], "real", domain=own)
    hint = hinted(replace(TRACES, example=asked), whole)
    text = hint.prompt[1]["content"]
    assert hint.prompt[0] == first and hint.completion == "" and text.endswith(ending)
    assert text.startswith("2+3?\n") and "Never mention" in text
    assert text.index("so {5} \\boxed{5}") < text.index("so \\boxed{3}")


def test_a_hint_that_is_too_long_is_dropped_and_counted_never_cut():
    renderer = Renderer(embedded_tokenizer(), "math", "tagged")
    long, funnel = Pair(example("b"), Reply("long " * 200), Reply("x")), Funnel()
    limit = len(rendered(renderer, "math", hinted(TRACES, "math"))[0])
    options = {"domain": "math", "max_prompt_tokens": limit}
    asked = list(hinted_prompts([TRACES, long], renderer, funnel, **options))
    assert asked == [(TRACES, hinted(TRACES, "math"))] and dropped(funnel) == {"hinted prompt too long": 1}
    with pytest.raises(
        UserError, match=r"of 1 prompts; hinted prompt too long: 1 .*max_prompt_tokens .*a shorter ssb\.hint"
    ):
        list(hinted_prompts([long], renderer, Funnel(), **options))


OWN = "Q: {problem}\nGood: {right}\nBad: {wrong}\n{ending} Write $x^{2}$, {n} and \\frac{one}{two} as \\boxed{}."


def test_a_hint_of_ones_own_has_its_fields_filled_once_and_keeps_all_other_braces():
    asked = Example("a", [{"role": "user", "content": "2+3 {right}?"}], "real", domain="math")
    pair = Pair(asked, Reply("so {wrong} \\boxed{5}"), Reply("so \\1 {ending}"))
    text = hinted(pair, "math", parse(f"ssb.hint={json.dumps(OWN)}").ssb.hint).prompt[0]["content"]
    assert text == (
        "Q: 2+3 {right}?\nGood: so {wrong} \\boxed{5}\nBad: so \\1 {ending}\nEnd with the final answer in \\boxed{}. "
        "Write $x^{2}$, {n} and \\frac{one}{two} as \\boxed{}."
    )


@pytest.mark.parametrize(
    "hint, message",
    [
        ("{problem} only", r"ssb\.hint: .*needs \{problem\} and at least one of \{right\} and \{wrong\}, found"),
        ("{right} {wrong}", r"needs \{problem\} and at least one"),
        ("", r"needs \{problem\} and at least one"),
        (
            "{problem} {right} {gold}",
            r"\{gold\} is not a field of a hint; expected \{problem\}, \{right\}, \{wrong\}, \{end",
        ),
    ],
)
def test_a_hint_with_missing_or_unknown_fields_is_an_error(hint, message):
    with pytest.raises(UserError, match=message):
        parse(f"ssb.hint={json.dumps(hint)}")


def test_prompts_are_read_one_at_a_time_and_those_without_rollouts_are_skipped():
    read = []

    def reading(rows, name):
        for one in rows:
            read.append(name(one))
            yield one

    examples = reading(map(example, "abcd"), lambda one: one.id)
    rollouts = reading([one for id in "bcd" for one in labelled(id, [True, False])], lambda one: one.row["text"])
    made = pairs.mixed_pairs(with_rollouts(examples, rollouts), Tally())
    assert next(made).example == example("b")
    assert read == ["b-0", "a", "b", "b-1", "c-0"], "no further than to where the next prompt begins"
    assert [pair.example.id for pair in made] == ["c", "d"]
