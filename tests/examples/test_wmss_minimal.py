"""The package computes what the minimal script shows: the same active sets, losses and weights."""

import ast
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.utils import parameters_to_vector
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples import wmss_minimal as minimal
from small_runs import run_small
from weakdriven.config.file import load_recipe
from weakdriven.data.demo import demo_problems
from weakdriven.models.load import EMBEDDED, locate_model

ROUNDS, EXAMPLES, EPOCHS, BATCH_SIZE, WARMUP_RATIO = 2, 24, 2, 4, 0.25
"""12 steps of SFT and about 4 in each round, of which at least one is warm-up."""
FOLDERS = ["sft", *(f"round-{number}/strong" for number in range(1, ROUNDS + 1))]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The package's run of the demo recipe."""
    root = tmp_path_factory.mktemp("runs") / "demo"
    each = [f"batch_size={BATCH_SIZE}", f"micro_batch_size={BATCH_SIZE}", f"warmup_ratio={WARMUP_RATIO}"]
    phases = [f"{phase}.{setting}" for phase in ("sft", "joint") for setting in each]
    rates = [f"sft.learning_rate={minimal.LEARNING_RATE}", f"joint.learning_rate={minimal.JOINT_LEARNING_RATE}"]
    sizes = [f"data.limit={EXAMPLES}", f"sft.epochs={EPOCHS}", f"joint.rounds={ROUNDS}"]
    run_small(root, *sizes, *phases, *rates, "baselines=[]", "eval.benchmarks=[]")
    return root


@pytest.fixture(scope="module")
def script():
    """The script's models, active sets and losses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minimal, "ROUNDS", ROUNDS)
        patch.setattr(minimal, "EPOCHS", EPOCHS)
        patch.setattr(minimal, "BATCH_SIZE", BATCH_SIZE)
        patch.setattr(minimal, "WARMUP_RATIO", WARMUP_RATIO)
        return minimal.wmss(base_model(), minimal.load_examples(tokenizer(), EXAMPLES))


def base_model():
    return AutoModelForCausalLM.from_pretrained(locate_model(EMBEDDED))


def tokenizer():
    return AutoTokenizer.from_pretrained(locate_model(EMBEDDED))


def test_the_settings_are_those_of_the_demo():
    recipe = load_recipe("demo")
    assert (recipe.joint.rounds, recipe.joint.strong_weight) == (minimal.ROUNDS, minimal.STRONG_WEIGHT)
    assert (recipe.sft.epochs, recipe.sft.learning_rate) == (minimal.EPOCHS, minimal.LEARNING_RATE)
    assert (recipe.joint.epochs, recipe.joint.learning_rate) == (1, minimal.JOINT_LEARNING_RATE)
    assert recipe.data.limit == minimal.TRAIN_PROBLEMS and recipe.seed == minimal.SEED
    for phase in (recipe.sft, recipe.joint):
        assert (phase.batch_size, phase.warmup_ratio) == (minimal.BATCH_SIZE, minimal.WARMUP_RATIO)
        assert phase.max_grad_norm == minimal.MAX_GRAD_NORM


def test_active_sets_are_the_same(run, script):
    _, actives, _ = script
    assert len(actives) == ROUNDS
    for number, active in enumerate(actives, start=1):
        draws = pq.read_table(run / f"round-{number}/active/active.parquet")["draws"].to_numpy()
        assert np.array_equal(np.flatnonzero(draws), active)


def test_losses_are_the_same_to_rounding(run, script):
    """They differ by 1e-6 at most: the package sums in another order, and never builds the mixed logits."""
    _, _, losses = script
    for folder, own in zip(FOLDERS, losses, strict=True):
        lines = (run / folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        np.testing.assert_allclose(own, [json.loads(line)["loss"] for line in lines], rtol=0, atol=2e-5)


def test_weights_are_the_same_to_rounding(run, script):
    """Seen: 7e-6 of the distance that training moved them.

    A single weight may differ by more than rounding, since AdamW turns a gradient of nearly 0 into a step whose
    direction is that of the rounding error. So the distance of all weights is compared, and not each.
    """
    base, *models = script[0]
    assert len(models) == len(FOLDERS)
    start = parameters_to_vector(base.parameters())
    for folder, model in zip(FOLDERS, models, strict=True):
        ours = parameters_to_vector(AutoModelForCausalLM.from_pretrained(run / folder).parameters())
        assert (parameters_to_vector(model.parameters()) - ours).norm() < 1e-4 * (ours - start).norm()


def test_the_script_leaves_the_base_model_as_it_was(script):
    assert torch.equal(*(parameters_to_vector(model.parameters()) for model in (script[0][0], base_model())))


def test_a_completion_counts_if_its_boxed_number_is_the_answer():
    problems, words = demo_problems("test")[:3], tokenizer()

    class Solver:
        """Solves the first problem, gets the second wrong and writes no answer to the third."""

        def eval(self):
            pass

        def generate(self, input_ids, attention_mask, **options):
            assert attention_mask[:, -1].all(), "a completion follows its prompt"
            texts = [problems[0].solution, f"\\boxed{{{problems[1].answer + 1}}}", f"It is {problems[2].answer}."]
            written = [torch.tensor(words.encode(text, add_special_tokens=False)) for text in texts]
            padded_BL = pad_sequence(written, batch_first=True, padding_value=words.pad_token_id)
            return torch.cat([input_ids, padded_BL], dim=1)

    assert minimal.count_correct(Solver(), words, problems) == 1


def test_the_script_is_short_and_imports_only_the_model_and_the_problems_from_the_package():
    text = Path(minimal.__file__).read_text(encoding="utf-8")
    modules = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert {x for x in modules if x.startswith("weakdriven")} == {"weakdriven.data.demo", "weakdriven.models.load"}
    assert len(text.splitlines()) <= 200
