"""Recipes of the paper's methods alone: what each extends, sets and quotes."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from recipe_cases import ALONE, DPO, GREEDY, parse
from weakdriven.config.file import extended, load_recipe, shipped_recipes

SHIPPED = shipped_recipes()


def leaves(tree: dict[str, Any], *parents: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, *parents, key)
        else:
            yield (*parents, key), value


@pytest.mark.parametrize("name", ALONE)
def test_a_method_recipe_runs_the_method_of_its_name_on_the_model_and_data_of_its_parent(name: str):
    parent, method = name.rsplit("-", 1)
    recipe, whole = load_recipe(name), load_recipe(parent)
    assert extended(SHIPPED[name]) == parent
    assert (recipe.method, recipe.baselines) == (method, [])
    own = {"name", "method", "baselines", *({"eval"} if name == DPO else ()), *({method} - {"sft"})}
    assert recipe.model_dump(exclude=own) == whole.model_dump(exclude=own)


@pytest.mark.parametrize("name", ALONE)
def test_a_method_recipe_writes_only_what_differs_from_its_parent(name: str):
    written = yaml.safe_load(SHIPPED[name].read_text(encoding="utf-8"))
    parent = dict(leaves(load_recipe(written.pop("extends")).model_dump(mode="json")))
    assert not [key for key, value in leaves(written) if value == parent[key]]


@pytest.mark.parametrize("name", ALONE)
def test_a_method_recipe_has_the_settings_of_the_paper(name: str):
    recipe, default = load_recipe(name), parse()
    parent, method = name.rsplit("-", 1)
    gemma, math = parent.startswith("gemma"), parent.endswith("math")
    assert (recipe.budget_epochs, recipe.neftune) == (2, default.neftune)
    assert recipe.undial.mode == ("paper_noise" if method == "undial" else "adjusted_logits")
    assert recipe.spin.rollouts.subsample == (20000 if math and method == "spin" else None)
    assert recipe.ssb.rollouts.subsample == (20000 if math and method == "ssb" else None)
    assert (recipe.ssb.start, recipe.ssb.epochs) == (("sft", 1) if gemma and method == "ssb" else ("base", 2))
    machine = {"micro_batch_size": 1}
    free = {"spin": {"rollouts"}, "ssb": {"rollouts", "start", "epochs"}}
    for block in ("spin", "ssb", "dpo"):
        ours = getattr(recipe, block).model_copy(update=machine).model_dump(exclude=free.get(block))
        assert ours == getattr(default, block).model_dump(exclude=free.get(block))
    assert method != "ssb" or recipe.ssb.micro_batch_size == recipe.sft.micro_batch_size  # a pair is two sequences


def quoted(name: str) -> tuple[list[str], dict[str, list[str]]]:
    """The paper's table in a header: its columns, and the cells of each method."""
    text = SHIPPED[name].read_text(encoding="utf-8")
    found = re.search(r"^# Paper, .*greedy pass@1 in percent:\n# {3,}(.*)\n((?:#   .*\n)+)", text, flags=re.MULTILINE)
    assert found
    rows = [line[1:].split() for line in found[2].splitlines()]
    return found[1].split(), {method: cells for method, *cells in rows}


@pytest.mark.parametrize("name", GREEDY)
def test_a_method_recipe_quotes_the_paper_for_the_benchmarks_of_its_parent(name: str):
    parent, method = name.rsplit("-", 1)
    text = SHIPPED[name].read_text(encoding="utf-8")
    columns, rows = quoted(name)
    beside_wmss = quoted(parent)
    assert columns == beside_wmss[0]
    assert [row.lower() for row in rows] == [method]
    if method == "sft":
        assert rows["SFT"] == beside_wmss[1]["SFT"]
    *cells, average = (float(cell) for row in rows.values() for cell in row)
    assert len(cells) + 1 == len(columns)
    assert (abs(average - sum(cells) / len(cells)) > 0.0501) == ("# The cells average " in text)
    assert "# Ours: " in text


def test_dpo_quotes_pass_at_k_and_asks_for_it():
    asked = load_recipe(DPO).eval
    text = SHIPPED[DPO].read_text(encoding="utf-8")
    assert (asked.benchmarks, asked.data_dir) == (["aime2025", "amc23", "math500"], "benchmarks")
    assert asked.asking() == {"samples": 64, "temperature": 0.7, "top_p": 0.95, "k": [1, 4, 8, 16, 32, 64]}
    rows = re.findall(r"^#   (?:DPO|WMSS) +(\w+) +([\d. ]+)$", text, flags=re.MULTILINE)
    assert [name.lower() for name, _ in rows] == [name for name in asked.benchmarks for _ in range(2)]
    for _, row in rows:
        numbers = list(map(float, row.split()))
        assert len(numbers) == 6 and numbers == sorted(numbers)
