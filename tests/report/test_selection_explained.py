"""The explanation of a selection and of one example, on four examples computed by hand."""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from run_files import put, put_active, put_scores, put_table
from weakdriven.errors import UserError
from weakdriven.report import write_report
from weakdriven.report.selection_explained import (
    describe_example,
    explain_example,
    explain_selection,
    find_round,
    load_selection,
    summarise,
)
from weakdriven.report.uniformity import uniformity, uniformity_words

IDS = ["a", "b", "c", "d"]
WEAK, STRONG = [1, 0.5, 0.8, 0], [0.4, 0.6, 0.8, 0]
PAPER = np.array([0.38, 0.49, 0.64, 0]) / 1.51
OFFICIAL = np.array([0.843478261, 0.12173913, 0.034782609, 0])
SETTINGS = {"consolidation": 0.1, "difficulty": 0.8, "repair": 0.1, "formula": "paper", "multiplier": 1.0}
SETTINGS |= {"dedup": True, "seed": [42, 1]}
COUNTERS = {
    "examples": 4,
    "active": 2,
    "formula": "paper",
    "term_shares": {"consolidation": 0.039735, "difficulty": 0.953642, "repair": 0.006623},
    "p_min": 0.0,
    "p_max": 0.423841,
    "p_cv": 0.626974,
    "effective_sample_size": 2.871302,
    "expected_unique": 0.591994,
    "realised_unique": 0.5,
    "falling": 1,
    "equal": 2,
    "rising": 1,
    "zero_weight": 1,
    "formula_rank_correlation": 0.2,
}


def write_run(run: Path, turn: int = 1, probability: Any = PAPER, **settings: Any) -> Path:
    """A run whose selection of a round is finished, with b and c in the active set."""
    put(run / "run.json", {"recipe": "demo"})
    put(run / "recipe.yaml", "method: wmss\nselection: {enabled: true}\n")
    rows = [{"id": name, "prompt": [{"role": "system", "content": "Add."}, question(name)]} for name in IDS]
    put(run / "data/examples.jsonl", [{**row, "completion": f"The sum\nis {row['id']}.", "meta": {}} for row in rows])
    put(run / "data/manifest.json", {"key": "k", "counters": {"examples": 4, "rows_read": 4}})
    models = ["base", "sft", "round-1", "round-2"][turn - 1 : turn + 1]
    put_scores(run, models[0], IDS, WEAK, truncated=[True, True, False, True])
    nll, target = [0.5, 0.7, 0.9, 0.0], [0.6, 0.55, 0.5, 1.0]
    put_scores(run, models[1], IDS, STRONG, truncated=[True, True, False, True], nll=nll, target_probability=target)
    put_active(run, turn, IDS, probability, [0, 1, 1, 0])
    manifest = {"key": f"active-{turn}", "settings": SETTINGS | settings, "counters": COUNTERS}
    put(run / f"round-{turn}/active/manifest.json", manifest)
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path)


def question(name: str) -> dict[str, str]:
    return {"role": "user", "content": f"What is {name}?"}


def printed(function: Any, *arguments: Any, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    function(*arguments, console=console, **options)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def described(run: Path, name: str) -> dict[str, Any]:
    return describe_example(load_selection(run), name)


def test_the_summary_holds_what_the_files_add_to_the_counters(tmp_path: Path) -> None:
    facts = summarise(load_selection(write_run(tmp_path)))
    assert facts["weak_entropy"] == pytest.approx(0.575) and facts["strong_entropy"] == pytest.approx(0.45)
    assert facts["change"] == pytest.approx(-0.125)
    assert (facts["active"], facts["truncated_active"]) == (2, 1)
    assert load_selection(tmp_path).draws == 4 and load_selection(tmp_path).note == ""


def test_hardest_and_most_regressed_come_largest_first(run: Path) -> None:
    facts = summarise(load_selection(run), top=3)
    assert [one["id"] for one in facts["hardest"]] == ["c", "b", "a"]
    assert [one["id"] for one in facts["regressed"]] == ["b"]
    assert facts["regressed"][0] == {
        "id": "b",
        "weak_entropy": 0.5,
        "strong_entropy": 0.6,
        "draws": 1,
        "prompt": "What is b?",
        "completion": "The sum is b.",
    }
    assert len(summarise(load_selection(run), top=99)["hardest"]) == 4
    assert summarise(load_selection(run), top=0)["hardest"] == []


def test_a_selection_is_printed_in_words(tmp_path: Path) -> None:
    text = printed(explain_selection, write_run(tmp_path), None, top=2)
    for words in (
        "alpha [-dH]+ + beta H_strong + gamma [dH]+",
        "consolidation (alpha)",
        "0.1 times the fall of the entropy from weak to strong: 4.0% of all weight",
        "0.8 times the entropy under the strong model: 95.4% of all weight",
        "0.1 times the rise of the entropy from weak to strong: 0.7% of all weight",
        "0 to 1.695, spread (CV) 0.627",
        "2.9 of 4 examples (71.8%)",
        "4 with replacement, duplicates dropped",
        "59.2% expected, 50.0% actual",
        "2 of 4 examples, 1 with a truncated completion",
        "fell in 1, stayed in 2, rose in 1",
        "weak 0.5750 (M0, base model), strong 0.4500 (M1, after phase-1 SFT), change -0.1250",
        "What is c?",
    ):
        assert words in text
    assert "What is a?" not in text


def test_the_explanation_begins_with_how_far_from_uniform_the_draw_is(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    text = printed(explain_selection, run, None)
    first = text[: text.index("formula")]
    # |0.2517 - 0.25| + |0.3245 - 0.25| + |0.4238 - 0.25| + |0 - 0.25|, halved; 2 of 4 left out, and (3/4)^4
    for words in ("far from uniform", "25.0%", "42.4%", "3 of 4 (71.8%)", "left out 50.0%", "31.6%"):
        assert words in first
    assert "far from uniform" in write_report(run).read_text(encoding="utf-8")
    put_active(run, 1, IDS, [0.26, 0.24, 0.25, 0.25], [1, 1, 1, 0])
    assert "draw is 1.0%" in printed(explain_selection, run, None)
    assert "somewhat uneven" in " ".join(uniformity_words(uniformity(np.array([0.4, 0.2, 0.2, 0.2]), np.ones(4), 4)))


def test_damaged_probabilities_are_not_called_even() -> None:
    assert uniformity(np.array([0.5, float("nan")]), np.ones(2), 2) is None
    assert uniformity(np.zeros(3), np.zeros(3), 3) is None and uniformity(np.array([]), np.array([]), 1) is None


def test_the_official_formula_is_printed_as_it_is_computed(tmp_path: Path) -> None:
    run = write_run(tmp_path, probability=OFFICIAL, formula="official")
    text = printed(explain_selection, run, None)
    assert "0.1 times the entropy under the weak model" in text and "each divided by its sum over the data" in text
    facts = described(run, "a")
    assert facts["terms"] == pytest.approx({"consolidation": 0.1 / 2.3, "difficulty": 0.8, "repair": 0})
    assert facts["probability"] == pytest.approx(0.843478, abs=1e-6)
    assert "94.8% of its weight comes from difficulty, the fall of the entropy" in facts["verdict"]


def test_one_example_by_hand(tmp_path: Path) -> None:
    facts = described(write_run(tmp_path), "b")
    assert facts["terms"] == pytest.approx({"consolidation": 0, "difficulty": 0.48, "repair": 0.01})
    assert facts["probability"] == pytest.approx(0.324503, abs=1e-6)
    assert facts["times_uniform"] == facts["expected_draws"] == pytest.approx(1.298013, abs=1e-6)
    assert facts["chance"] == pytest.approx(0.791794, abs=1e-6)
    assert facts["harder_than"] == facts["likelier_than"] == 0.5
    assert facts["strong"]["nll"] == 0.7 and facts["weak"]["target_probability"] == 0.7
    assert facts["strong"]["truncated"] and facts["draws"] == 1
    assert facts["verdict"] == (
        "Chosen, by chance: its chance in 4 draws was 79.2%; "
        "98.0% of its weight comes from difficulty, the entropy under the strong model."
    )


def test_an_example_is_printed_with_both_models_and_its_whole_text(tmp_path: Path) -> None:
    text = printed(explain_example, write_run(tmp_path), 1, "b")
    for words in (
        "Example b, round 1",
        "0.48 = 0.8 x entropy under the strong model: 98.0% of its weight",
        "0.3245, 1.3 times uniform, above 50.0% of the examples",
        "harder for the strong model than 50.0% of the examples",
        "1.298 in 4 draws",
        "20 supervised tokens, truncated at data.max_length",
        "weak: M0, base model",
        "+0.1000",
        "-0.1500",
        "Chosen, by chance",
        "system: Add.\nuser: What is b?",
        "The sum\nis b.",
    ):
        assert words in text


def test_an_example_left_out_by_chance_says_so(tmp_path: Path) -> None:
    words = described(write_run(tmp_path), "a")["verdict"]
    assert words.startswith("Not chosen, by chance") and "68.6%" in words


def test_an_example_without_entropy_could_never_be_chosen(tmp_path: Path) -> None:
    facts = described(write_run(tmp_path), "d")
    assert facts["chance"] == 0 and facts["harder_than"] == 0
    assert facts["verdict"] == "It could never be chosen: both entropies are zero, so its weight is zero."
    run = write_run(tmp_path / "weights", probability=[0, 1, 0, 0], consolidation=0, difficulty=0)
    assert "all terms of its weight are zero" in described(run, "a")["verdict"]
    assert described(run, "b")["chance"] == 1


def test_a_draw_without_any_weight_was_uniform(tmp_path: Path) -> None:
    run = write_run(tmp_path, probability=[0.25] * 4)
    for model in ("base", "sft"):
        put_scores(run, model, IDS, [0.0] * 4)
    facts = described(run, "a")
    assert "all examples were equally likely" in facts["verdict"]
    printed(explain_example, run, None, "a")


def test_tiny_chances_are_exact_and_never_printed_as_zero(tmp_path: Path) -> None:
    entropies = [1e-9, 1.0]
    run = write_run(tmp_path)
    put_active(run, 1, ["rare", "usual"], np.array(entropies) / sum(entropies), [0, 1])
    for model in ("base", "sft"):
        put_scores(run, model, ["rare", "usual"], entropies)
    facts = described(run, "rare")
    assert math.isclose(facts["chance"], 2e-9, rel_tol=1e-6)
    assert "was less than 0.1%" in facts["verdict"]
    assert "not found in data/examples.jsonl" in printed(explain_example, run, None, "rare")


def test_text_of_the_data_cannot_steer_the_terminal(run: Path) -> None:
    row = {"id": "a", "prompt": [{"role": "user", "content": "[bold]x[/nope] \x1b[31mred"}], "completion": "\x07[/]"}
    put(run / "data/examples.jsonl", [row])
    for text in (printed(explain_example, run, None, "a"), printed(explain_selection, run, None)):
        assert "[bold]x[/nope]" in text and "\x1b" not in text and "\x07" not in text


def test_only_the_lines_of_wanted_examples_are_parsed(run: Path) -> None:
    lines = (run / "data/examples.jsonl").read_text().splitlines()
    put(run / "data/examples.jsonl", "\n".join(["{torn", lines[1], "{torn", "{torn"]))
    assert described(run, "b")["completion"] == "The sum\nis b."
    assert described(run, "c")["completion"] == ""


def test_the_last_round_of_the_recipe_is_explained_unless_another_is_named(tmp_path: Path) -> None:
    run = write_run(write_run(tmp_path), turn=2)
    assert load_selection(run).round_number == 2 and load_selection(run).models == ("sft", "round-1")
    assert find_round(run, 1) == (1, False)
    put(run / "plan.json", {"round-1/active": "active-1"})
    assert find_round(run) == (1, False) and find_round(run, 2) == (2, True)
    assert "The recipe has changed since round-2/active was drawn" in load_selection(run, 2).note


def refused(run: Path, turn: int | None = None) -> str:
    with pytest.raises(UserError) as error:
        load_selection(run, turn)
    return str(error.value)


def test_a_folder_without_a_run_raises_an_error(tmp_path: Path) -> None:
    assert "is not a run directory: it has no run.json; give the folder" in refused(tmp_path)


@pytest.mark.parametrize(
    "recipe, words",
    [
        ("method: wmss\n", "has no finished selection yet; make one with `weakdriven select`"),
        ("[", "has no finished selection yet"),
        ("selection: {enabled: false}\n", "Only method: wmss with selection.enabled: true selects"),
        ("method: sft\n", "Only method: wmss with selection.enabled: true selects"),
    ],
)
def test_a_run_without_a_selection_says_why(tmp_path: Path, recipe: str, words: str) -> None:
    put(tmp_path / "run.json", {"recipe": "demo"})
    put(tmp_path / "recipe.yaml", recipe)
    assert words in refused(tmp_path)


def test_a_round_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    run = write_run(write_run(tmp_path), turn=2)
    assert "has no selection of round 3; give --round with one of 1, 2." in refused(run, 3)


def test_an_unknown_id_names_close_ones_and_how_ids_look(run: Path) -> None:
    ids = [f"train-{i}" for i in range(5000)]
    put_active(run, 1, ids, [1 / 5000] * 5000, [1] * 5000)
    for model in ("base", "sft"):
        put_scores(run, model, ids, [1.0] * 5000)
    with pytest.raises(UserError) as error:
        described(run, "train-4321x")
    assert str(error.value) == (
        "No example of round 1 has the id 'train-4321x'. Its 5,000 ids look like 'train-0', 'train-1', 'train-2'; "
        "dropped rows are counted in data/manifest.json."
    )


@pytest.mark.parametrize("file", ["round-1/active/active.parquet", "entropy/base/scores.parquet"])
def test_unreadable_files_name_the_folder_to_remove(run: Path, file: str) -> None:
    whole, remedy = (run / file).read_bytes(), f"remove the folder {file.rpartition('/')[0]} and run the recipe again."
    for torn in (whole[: len(whole) // 2], b""):
        (run / file).write_bytes(torn)
        assert f"{file} cannot be read as Parquet (" in (told := refused(run)) and told.endswith(remedy)
    put_table(run / file, id=IDS, other=[1, 2, 3, 4])
    assert f"{file} cannot be read as Parquet (" in (told := refused(run)) and told.endswith(remedy)
    (run / file).unlink()
    assert refused(run) == f"{file} is missing; {remedy}"


def test_a_column_of_another_kind_raises_an_error(run: Path) -> None:
    put_table(run / "round-1/active/active.parquet", id=IDS, probability=["x"] * 4, draws=[1] * 4)
    assert "round-1/active/active.parquet cannot be read as Parquet" in refused(run)


def test_scores_of_other_examples_raise_an_error(run: Path) -> None:
    put_scores(run, "sft", ["a", "c", "b", "d"], STRONG)
    told = "entropy/sft scores 4 examples and round-1/active draws from 4, and their ids differ"
    assert told in refused(run)
