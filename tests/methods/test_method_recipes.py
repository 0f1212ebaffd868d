"""`method=NAME` on a recipe of the paper: what it trains and under which name."""

from pathlib import Path

import pytest

from recipe_cases import PAPER
from weakdriven.config.file import load_recipe
from weakdriven.config.recipe import METHODS
from weakdriven.errors import UserError

OF_DEMO = ["sft_restart", "sft", "wmss_annealed"]


def test_a_method_on_a_paper_recipe_is_that_method_alone_with_the_papers_settings():
    for parent in PAPER:
        whole = load_recipe(parent)
        for method in METHODS[1:]:
            recipe = load_recipe(parent, [f"method={method}"])
            changed = {"name": f"{parent}-{method}", "method": method, "baselines": []}
            assert recipe == whole.model_copy(update=changed)
        spin, ssb = whole.spin, whole.ssb
        gemma, prompts = "gemma" in parent, 20000 if "math" in parent else None
        assert (spin.rollouts.subsample, ssb.rollouts.subsample) == (prompts, prompts)
        assert (ssb.start, ssb.epochs) == (("sft", 1) if gemma else ("base", 2))
        assert ssb.micro_batch_size == (1 if "8b" in parent else 2)
        assert (whole.undial.mode, whole.neftune.alpha, whole.budget_epochs) == ("paper_noise", 5.0, 2)
        assert (spin.iterations, spin.optimizer, spin.learning_rate, spin.beta) == (1, "adamw", 5e-7, 0.1)
        assert (ssb.learning_rate, ssb.batch_size, ssb.top_k, ssb.temperature) == (1e-4, 256, 20, 1.5)
        assert (ssb.teacher.max_prompt_tokens, whole.data.max_length) == (12288, 4096)
        assert (whole.dpo.rollouts.samples, whole.dpo.rollouts.temperature, whole.dpo.beta) == (4, 0.8, 0.1)


@pytest.mark.parametrize(
    "overrides, name, baselines",
    [
        (["method=spin"], "demo-spin", []),
        (["method=wmss"], "demo", OF_DEMO),
        (["method=sft"], "demo-sft", []),
        (["method=spin", "baselines=[sft]"], "demo-spin", ["sft"]),
        (["name=mine", "method=spin"], "mine", []),
        (["seed=1"], "demo", OF_DEMO),
    ],
)
def test_a_method_on_a_shipped_recipe_is_a_run_of_its_own(overrides: list[str], name: str, baselines: list[str]):
    recipe = load_recipe("demo", overrides)
    assert (recipe.name, recipe.baselines) == (name, baselines)


def test_a_method_on_a_file_or_in_a_comparison_or_sweep_changes_nothing_else(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: demo\n")
    for recipe in (load_recipe(str(file), ["method=spin"]), load_recipe("demo", varied=["method=spin"])):
        assert (recipe.name, recipe.method, recipe.baselines) in [("mine", "spin", OF_DEMO), ("demo", "spin", OF_DEMO)]


def test_the_name_of_a_recipe_and_a_method_is_an_error_with_the_right_command(tmp_path: Path):
    with pytest.raises(UserError) as caught:
        load_recipe("qwen3-4b-math-spin")
    assert str(caught.value) == ("qwen3-4b-math-spin is not a recipe; use `weakdriven run qwen3-4b-math method=spin`.")
    (tmp_path / "mine.yaml").write_text("extends: qwen3-4b-math-spin\n")
    with pytest.raises(UserError, match=r"mine.yaml extends. is not a recipe; use `weakdriven run"):
        load_recipe(str(tmp_path / "mine.yaml"))
