"""How DPO and SSB label a completion: by its answer; a completion that stays undecided is in no pair."""

from dataclasses import replace

import pytest

import rollout_cases
from helpers import demo_examples
from small_runs import run_small, small_recipe
from weakdriven.eval.generate.requests import Completion, request_seed
from weakdriven.eval.graders import candidates
from weakdriven.eval.graders.answers import Graded
from weakdriven.eval.graders.workers import FAILED, TIMEOUT
from weakdriven.eval.rollouts import Rollout
from weakdriven.methods.rollouts import stage as rolling
from weakdriven.runs.files import read_json, read_jsonl

says = rollout_cases.says
ONE = replace(demo_examples(1)[0], gold="5")


def labels(*texts, style="tagged", finish="stop", tokens=9, room=None, gold="5"):
    """The reason of each fault, None for what is right; and whether it is decided."""
    examples, stages = (
        {ONE.id: replace(ONE, gold=gold)},
        type("Stages", (), {"recipe": small_recipe(f"data.style={style}")}),
    )
    rows = [
        {"id": ONE.id, "sample": n, "text": text, "tokens": tokens, "finish": finish} for n, text in enumerate(texts)
    ]
    faults = rolling.judged(stages, examples, {ONE.id: room}, rows)
    return [(fault and fault.reason, not Rollout({}, fault).undecided) for fault in faults]


@pytest.mark.parametrize("style", ["tagged", "tag-free", "plain"])
def test_the_answer_decides_in_any_style(style):
    tagged = "<think>2+3</think> <answer>\\boxed{5}</answer>"
    right = labels(tagged, "so \\boxed{5}", "\\boxed{5} </answer>", "</think> \\boxed{5.0}", style=style)
    assert right == [(None, True)] * 4
    assert labels("\\boxed{3}", tagged.replace("5", "3"), style=style) == [("wrong answer", True)] * 2


def test_no_answer_is_wrong():
    assert labels("It is 5.", "", "\\boxed{}", "<think>\\boxed{5}") == [("no answer", True)] * 4


@pytest.mark.parametrize("how", [{"finish": "length"}, {"tokens": 9, "room": 8}])
def test_a_truncated_completion_is_wrong_if_its_answer_is_and_undecided_if_that_is_right(how):
    found = labels("\\boxed{5} and", "\\boxed{3} and", "and", **how)
    assert found == [("right but cut off", False), ("wrong answer", True), ("no answer", True)]
    assert labels("\\boxed{5}", tokens=9, room=9) == [(None, True)]


def test_a_fault_of_the_row_the_verifier_or_the_server_leaves_a_completion_undecided(monkeypatch):
    assert labels("\\boxed{5}", gold="\\frac{") == [("bad gold", False)]
    assert labels("\\boxed{5}", "", finish="content_filter") == [("refused", False)] * 2
    reasons = {"\\boxed{5}": TIMEOUT, "\\boxed{6}": FAILED}
    monkeypatch.setattr(candidates, "grade", lambda kind, text, *_, **__: Graded(False, "5", f"{reasons[text]}: why"))
    assert labels("\\boxed{5}", "\\boxed{6}") == [("verifier timeout", False), ("verifier failed", False)]


def test_a_run_pairs_decided_completions_and_counts_the_rest(tmp_path, says):
    examples = demo_examples(8)
    by_seed = {request_seed(42, one.id, sample): (one, sample) for one in examples for sample in range(4)}

    def text(request):
        one, sample = by_seed[request.seed]
        right = f"\\boxed{{{one.gold}}}"
        if sample == 0:
            return Completion(right + " and so on", 64, "length")
        if sample == 1:
            return Completion("and so on", 64, "length")
        return right if sample == 3 else "\\boxed{-1}"

    says(text)
    root, train = tmp_path / "run", ["dpo.batch_size=8", "dpo.micro_batch_size=8", "dpo.gradient_checkpointing=false"]
    small = ["data.limit=8", "sft.model=embedded:base", "baselines=[]", "eval.benchmarks=[]"]
    run_small(root, "method=dpo", "dpo.rollouts.max_new_tokens=64", *train, *small)
    rolled = read_json(root / "rollouts/sft/dpo/manifest.json")["counters"]
    assert rolled | {"right": 8, "wrong": 16, "undecided": 8, "cut": 16} == rolled
    paired = read_json(root / "pairs/dpo/manifest.json")["counters"]
    assert paired | {"rollouts": 32, "cut": 16, "undecided": 8, "no_answer": 8, "pairs": 8, "dropped": 0} == paired
    for pair in read_jsonl(root / "pairs/dpo/pairs.jsonl"):
        assert (pair["chosen_sample"], pair["chosen_ended"]) == (3, True)
        assert (pair["rejected_sample"], pair["rejected_ended"]) == (1, False)
