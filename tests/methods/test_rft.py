"""RFT through a recipe: M1's own right completions next to the data; nothing to add is an error before training."""

from pathlib import Path

import pytest

import rollout_cases
from helpers import demo_examples
from small_runs import run_small, small_recipe
from weakdriven.data.tokenize import load_tokens
from weakdriven.errors import UserError
from weakdriven.eval.generate.requests import request_seed
from weakdriven.pipeline.run import all_stages
from weakdriven.planning.plan import plan_recipe
from weakdriven.runs.files import read_json

learner, says = rollout_cases.learner, rollout_cases.says
PHASE = ["batch_size=2", "micro_batch_size=2", "learning_rate=1e-3"]


def run(root, learner, *overrides):
    settings = [f"joint.{one}" for one in PHASE] + ["method=rft", "eval.benchmarks=[]", "data.limit=8"]
    return run_small(root, *settings, f"sft.model={learner}", "rft.rollouts.max_new_tokens=16", *overrides)


def counters(root, stage):
    return read_json(root / stage / "manifest.json")["counters"]


def scripted(says):
    """Samples 0 and 1 of the first three problems are right and alike, 2 is the data's text, all others are wrong."""
    texts = {}
    for place, one in enumerate(demo_examples(8)):
        right = f"So it is \\boxed{{{one.gold}}}."
        own = [right, f" {right}\n", one.completion, "\\boxed{x}"] if place < 3 else ["\\boxed{x}"] * 4
        texts |= {request_seed(42, one.id, sample): text for sample, text in enumerate(own)}
    return says(lambda request: texts[request.seed])


def test_rft_trains_m1_on_the_data_and_its_new_right_completions(learner, tmp_path, says):
    scripted(says)
    recorder = run(tmp_path / "run", learner, "baselines=[sft_restart]")
    found = ["data", "rollouts/sft/rft", "verified/rft", "baselines/rft", "baselines/sft_restart"]
    assert list(recorder.ran) == found
    rows = load_tokens(tmp_path / "run/verified/rft/tokens.arrow").to_list()
    data = load_tokens(tmp_path / "run/data/tokens.arrow").to_list()
    assert rows[:8] == data and [row["id"] for row in rows[8:]] == [f"{row['id']}#own0" for row in data[:3]]
    for own, row in zip(rows[8:], data, strict=False):
        assert own["labels"][-2:] == own["input_ids"][-2:] and own["labels"][-1] == row["labels"][-1], (
            "it ends its turn"
        )
    kept = counters(tmp_path / "run", "verified/rft")
    asked = ("rows", "data", "verified", "samples", "repeated", "prompts_solved")
    assert [kept[name] for name in asked] == [11, 8, 3, 32, 6, 3]
    funnel = read_json(tmp_path / "run/verified/rft/funnel.json")
    assert (funnel["in"], funnel["kept"]) == (32, 3) and funnel["dropped"]["wrong answer"]["rows"] == 23
    ours, theirs = (read_json(tmp_path / "run/baselines" / name / "manifest.json") for name in ("rft", "sft_restart"))
    assert (ours["counters"]["steps"], theirs["counters"]["steps"]) == (5, 4)
    assert ours["settings"] == theirs["settings"] and ours["inputs"]["start"] == theirs["inputs"]["start"]


def test_nothing_to_add_is_an_error_before_training(learner, tmp_path, says):
    says(lambda request: "\\boxed{-1}")
    with pytest.raises(UserError, match=r"Nothing is left of 32 samples; wrong answer: 32 .*draw more samples"):
        run(tmp_path / "run", learner)
    assert not (tmp_path / "run/baselines").exists()


def test_a_plan_counts_sampling_and_the_most_rows_that_there_can_be():
    def costs(samples):
        recipe = small_recipe("method=rft", "baselines=[]", f"rft.rollouts.samples={samples}")
        return {cost.workload.name: cost for cost in plan_recipe(recipe, Path("nowhere"), all_stages).costs}

    few, many = costs(1), costs(4)
    name = "rollouts/sft/rft"
    assert many[name].tokens == pytest.approx(4 * few[name].tokens) and many[name].seconds > few[name].seconds
    tokens = [one["baselines/rft"].tokens / one["sft"].tokens for one in (few, many)]
    assert tokens == pytest.approx([2, 5], rel=0.1), "every sample is right, next to the data"
