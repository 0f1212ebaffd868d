"""The second study: what its screens and arms are made of, their cost, and the verdicts on items not used before."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import rollout_cases
from helpers import demo_examples, tiny_model
from research.evidence import gains
from research.evidence.arms import ARMS, SCREENS, choose, combine, maker, right_and_wrong
from research.evidence.collect import packed
from research.evidence.trial import collected, operations, run_seed
from small_runs import small_recipe
from weakdriven.config.file import load_recipe
from weakdriven.eval.generate.requests import request_seed
from weakdriven.eval.graders.candidates import Fault
from weakdriven.eval.rollouts import Rollout
from weakdriven.pipeline.run import RunOptions
from weakdriven.runs.directory import Progress

ROOT = Path(__file__).parents[2]
learner, says = rollout_cases.learner, rollout_cases.says


@pytest.mark.parametrize("student", ["qwen2.5-coder-0.5b", "smollm2-135m"])
def test_recipes_are_those_of_the_protocol(student):
    recipe = load_recipe(str(ROOT / f"docs/evidence/recipes/trial/{student}.yaml"), [])
    assert (recipe.eval.limit, recipe.rft.rollouts.subsample, recipe.dpo.sft_weight) == (None, 2048, 1.0)
    assert {0.5, 0.75} <= {*recipe.sft.snapshots} and recipe.sft.learning_rate == recipe.joint.learning_rate
    assert recipe.eval.benchmarks == ["gsm8k", "svamp", "mawps", "aqua"] and recipe.data.max_length == 768


def test_every_name_of_the_protocol_is_known():
    assert all(callable(maker(name)) for name in [*SCREENS, *ARMS, "sft_5", "sft_restart"])
    with pytest.raises(SystemExit, match="There is no rtf; there are average_half"):
        maker("rtf")


def test_weights_are_averaged_and_extrapolated(tmp_path):
    models = {name: tiny_model(seed=seed) for name, seed in {"a": 1, "b": 2}.items()}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
    for one, two in ((0.5, 0.5), (1.25, -0.25)):
        weights = dict(combine([(one, tmp_path / "a"), (two, tmp_path / "b")]).named_parameters())
        for name, weight in models["a"].named_parameters():
            torch.testing.assert_close(weights[name], one * weight + two * models["b"].get_parameter(name))


def test_problems_are_those_where_success_differs_most_or_any():
    weak, strong = dict.fromkeys("abcdefgh", 0.0), dict.fromkeys("abcdefgh", 0.0) | {"c": 1.0, "f": 0.5, "h": 0.25}
    assert choose([strong, weak], 1) == ({"c", "f"}, 0.75)
    drawn = [choose([strong], seed) for seed in range(20)]
    assert {len(ids) for ids, apart in drawn} == {2} and len({*map(str, drawn)}) > 1
    assert all(apart == 0 for _, apart in drawn) and choose([strong], 3) == drawn[3]


def test_pairs_take_right_completions_of_one_model_and_wrong_ones_of_the_other():
    def tried(*right):
        return [
            Rollout({"id": "1", "sample": n}, None if one else Fault("wrong answer")) for n, one in enumerate(right)
        ]

    own, theirs = tried(False, True), tried(True, False)
    example = demo_examples(1)[0]
    assert list(right_and_wrong([(example, own)], [(example, theirs)])) == [(example, [own[1], theirs[1]])]


def test_operations_count_sampling_scans_and_the_reference_of_pairs():
    pairs = {"pairs/dpo-x": {"counters": {"pairs": 10}}}
    trained = {"baselines/dpo-x": {"counters": {"trained_tokens": 600, "rows": 20}}}
    assert operations(pairs | trained, 100) == pytest.approx(6 + 1), (
        "two epochs of 300 tokens that are read once before"
    )
    assert operations({"entropy/sft": {"counters": {"tokens_read": 300}}}, 100) == pytest.approx(1)
    assert operations({"baselines/wmss_frozen": {"counters": {"trained_tokens": 300}}}, 100) == pytest.approx(4)


def result(student, seeds, right):
    """A result file; `right` has each method's share of right answers: among used items, and among all others."""
    counts = {"gsm8k": 1319, "svamp": 1000, "mawps": 238, "aqua": 254}
    random = np.random.default_rng(0)

    def answers(shares):
        first, rest = shares
        drawn = {
            name: random.random(count) < np.where((np.arange(count) < 500) & (count > 500), first, rest)
            for name, count in counts.items()
        }
        return {name: {"right": packed(values.astype(int))} for name, values in drawn.items()}

    methods = {
        name: {"seeds": {seed: answers(shares) for seed in seeds}, "epochs": 2.0, "cost": {"seconds": 1.0}}
        for name, shares in right.items()
    }
    items = {name: {"count": count} for name, count in counts.items()}
    return {"file": f"{student}.json", "study": "trial", "student": student, "items": items, "methods": methods}


def test_verdicts_are_over_items_that_were_not_used_before():
    right = {
        "m1": (0.3, 0.3),
        "sft_2": (0.1, 0.1),
        "sft_5": (0.5, 0.3),
        "rft": (0.5, 0.6),
        "weak_negatives": (0.9, 0.3),
    }
    seeds = ["42", "43", "44", "45", "46"]
    found = gains.verdict_table([result(student, seeds, right) for student in ("a", "b")], "")
    rows = {line.split(": ")[0].strip("| "): line for line in found.splitlines()[2:]}
    assert "rft vs sft_N" in rows["G1"] and rows["G1"].rstrip(" |").endswith("gain")
    assert not rows["G2"].rstrip(" |").endswith("gain"), "what it gains is on used items"
    assert rows["G5"].count("\N{EN DASH}") == 6, "it has not run"
    alone = gains.verdict_table([result("a", seeds, right)], "")
    assert "open: 1 of 2 students" in alone


def test_an_arm_above_a_longer_sft_and_below_m1_is_no_gain():
    right = {"m1": (0.8, 0.8), "sft_5": (0.3, 0.3), "rft": (0.5, 0.5)}
    seeds = ["42", "43", "44", "45", "46"]
    assert "no gain over m1" in gains.verdict_table([result(student, seeds, right) for student in ("a", "b")], "")


@pytest.mark.slow
def test_screens_and_arms_run_and_are_collected(learner, tmp_path, says):
    golds = {request_seed(42, one.id, sample): (one.gold, sample) for one in demo_examples(8) for sample in range(8)}

    def text(request):
        gold, sample = golds.get(request.seed, ("x", 0))
        return f"{sample // 2}: \\boxed{{{gold if sample % 2 else 'x'}}}"

    says(text)
    phase = [f"{name}.{one}" for name in ("joint", "dpo") for one in ("batch_size=2", "micro_batch_size=2")]
    settings = ["data.limit=8", "sft.epochs=2", "sft.snapshots=[0.5,0.75]", "rft.rollouts.max_new_tokens=32", *phase]
    recipe = small_recipe(
        "method=sft_restart", "baselines=[]", "eval.limit=4", "sft.batch_size=4", "sft.micro_batch_size=4", *settings
    )
    methods = ["sft_restart", "average_quarter", "contrast_0.1", *ARMS]
    run_one = partial(run_seed, tmp_path / "seed-42", recipe, Progress(), options=RunOptions())
    run_one(methods=methods[:-1])
    run_one(methods=["sft_restart", "wdds_problems"])
    found = collected(tmp_path, {"seed-42": recipe}, 1)
    assert set(found["methods"]) == {"base", "m1", *methods} and not found["failed"]
    epochs = {name: one["epochs"] for name, one in found["methods"].items()}
    assert epochs["base"] == 0 and epochs["m1"] == epochs["contrast_0.1"] == pytest.approx(2)
    assert epochs["sft_restart"] == pytest.approx(3) and epochs["wdds_problems"] > epochs["uniform_problems"] > 3
    stages = found["methods"]["weak_negatives"]["stages"]["42"]
    assert {"rollouts/base/rft", "rollouts/sft/rft"} <= stages.keys()
    assert found["methods"]["wdds_problems"]["stages"]["42"]["problems/wdds_problems"]["counters"]["chosen"] == 2
