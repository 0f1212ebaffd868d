"""`method=NAME` on a recipe of the paper: what it trains, under which name, and the paper's numbers for it."""

import re
from pathlib import Path

import pytest

from recipe_cases import PAPER
from weakdriven.config.file import load_recipe, shipped_recipes
from weakdriven.config.recipe import METHODS
from weakdriven.errors import UserError

DOCS = (Path(__file__).parents[2] / "docs/baselines.md").read_text(encoding="utf-8")
DECISIVE = {  # recipe: prompts of SPIN, then SSB's start, epochs, micro_batch_size, prompts
    "qwen3-4b-math": (20000, "base", 2, 2, 20000),
    "qwen3-4b-code": (None, "base", 2, 2, None),
    "qwen3-4b-logic": (None, "base", 2, 2, None),
    "qwen3-8b-math": (20000, "base", 2, 1, 20000),
    "qwen3-8b-code": (None, "base", 2, 1, None),
    "qwen3-8b-logic": (None, "base", 2, 1, None),
    "qwen2.5-3b-math": (20000, "base", 2, 2, 20000),
    "qwen2.5-3b-code": (None, "base", 2, 2, None),
    "qwen2.5-3b-logic": (None, "base", 2, 2, None),
    "gemma-3-4b-math": (20000, "sft", 1, 2, 20000),
    "gemma-3-4b-code": (None, "sft", 1, 2, None),
    "gemma-3-4b-logic": (None, "sft", 1, 2, None),
}


def test_a_method_on_a_paper_recipe_is_that_method_alone_with_the_papers_settings():
    assert set(DECISIVE) == set(PAPER)
    for parent, decisive in DECISIVE.items():
        whole = load_recipe(parent)
        for method in METHODS[1:]:
            recipe = load_recipe(parent, [f"method={method}"])
            changed = {"name": f"{parent}-{method}", "method": method, "baselines": []}
            assert recipe == whole.model_copy(update=changed)
        spin, ssb = whole.spin, whole.ssb
        found = (spin.rollouts.subsample, ssb.start, ssb.epochs, ssb.micro_batch_size, ssb.rollouts.subsample)
        assert found == decisive, parent
        assert (whole.undial.mode, whole.neftune.alpha, whole.budget_epochs) == ("paper_noise", 5.0, 2)
        assert (spin.iterations, spin.optimizer, spin.learning_rate, spin.beta) == (1, "adamw", 5e-7, 0.1)
        assert (ssb.learning_rate, ssb.batch_size, ssb.top_k, ssb.temperature) == (1e-4, 256, 20, 1.5)
        assert (ssb.teacher.max_prompt_tokens, whole.data.max_length) == (12288, 4096)
        assert (whole.dpo.rollouts.samples, whole.dpo.rollouts.temperature, whole.dpo.beta) == (4, 0.8, 0.1)


@pytest.mark.parametrize(
    "overrides, name, baselines",
    [
        (["method=spin"], "demo-spin", []),
        (["method=wmss"], "demo", ["sft"]),
        (["method=sft"], "demo-sft", []),
        (["method=spin", "baselines=[sft]"], "demo-spin", ["sft"]),
        (["name=mine", "method=spin"], "mine", []),
        (["seed=1"], "demo", ["sft"]),
    ],
)
def test_a_method_on_a_shipped_recipe_is_a_run_of_its_own(overrides: list[str], name: str, baselines: list[str]):
    recipe = load_recipe("demo", overrides)
    assert (recipe.name, recipe.baselines) == (name, baselines)


def test_a_method_on_a_file_or_in_a_comparison_or_sweep_changes_nothing_else(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: demo\n")
    for recipe in (load_recipe(str(file), ["method=spin"]), load_recipe("demo", varied=["method=spin"])):
        assert (recipe.name, recipe.method, recipe.baselines) in [("mine", "spin", ["sft"]), ("demo", "spin", ["sft"])]


def test_the_name_of_a_recipe_and_a_method_is_answered_with_the_command(tmp_path: Path):
    with pytest.raises(UserError) as caught:
        load_recipe("qwen3-4b-math-spin")
    assert str(caught.value) == ("qwen3-4b-math-spin is not a recipe; use `weakdriven run qwen3-4b-math method=spin`.")
    (tmp_path / "mine.yaml").write_text("extends: qwen3-4b-math-spin\n")
    with pytest.raises(UserError, match=r"mine.yaml extends. is not a recipe; use `weakdriven run"):
        load_recipe(str(tmp_path / "mine.yaml"))


def rows_of(domain: str) -> tuple[list[str], dict[tuple[str, str], list[str]]]:
    """Benchmarks, and the numbers by recipe and method, of a table of docs/baselines.md."""
    table = DOCS.partition(f"**{domain.title()}**\n\n")[2].partition("\n\n")[0].splitlines()
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table]
    return cells[0][2:], {(recipe, method): numbers for recipe, method, *numbers in cells[2:]}


@pytest.mark.parametrize("domain", ["math", "code", "logic"])
def test_the_docs_quote_the_paper_for_every_recipe_and_method(domain: str):
    columns, rows = rows_of(domain)
    recipes = [name for name in PAPER if name.endswith(domain)]
    methods = ("WMSS", "SFT", "NEFTune", "UNDIAL", "SPIN", "SSB")
    assert sorted(rows) == sorted((name, method) for name in recipes for method in methods)
    wrong = {("qwen3-8b-math", "UNDIAL"), ("qwen2.5-3b-math", "SPIN"), ("qwen3-4b-math", "WMSS")}
    for what, numbers in rows.items():
        *cells, average = (float(number) for number in numbers if number != "-")
        # Half a last digit, and a little more for averages that the paper cut instead of rounding.
        assert average == pytest.approx(sum(cells) / len(cells), abs=0.08 if what in wrong else 0.0501), what
    for name in recipes:
        header = shipped_recipes()[name].read_text(encoding="utf-8")
        quoted = re.findall(r"^#   (WMSS|SFT) +([\d. ]+)$", header, flags=re.MULTILINE)
        assert {method: numbers.split() for method, numbers in quoted} == {
            method: [number for number in rows[name, method] if number != "-"] for method in ("WMSS", "SFT")
        }
        names = re.search(r"^# {6,}(\S.*Avg\.)$", header, flags=re.MULTILINE)
        assert names and names[1].split() == [one for one in columns if one != "AIME2025" or "gemma" not in name]
