"""What the study trains on and chooses by: recipes, the split of its problems, the solutions that it keeps."""

import random
from pathlib import Path

import pytest

from research.evidence.data import as_item, asked, split
from weakdriven.config.file import load_recipe
from weakdriven.data.rows.files import read_rows

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/evidence"


def test_recipes_of_the_study_load_and_differ_in_the_model_alone():
    loaded = [load_recipe(str(path)) for path in sorted((FOLDER / "recipes").glob("*-*.yaml"))]
    assert [recipe.name for recipe in loaded] == ["gemma-3-270m", "qwen2.5-coder-0.5b", "smollm2-135m"]
    rest = [recipe.model_dump(exclude={"name", "model", "chat_template"}) for recipe in loaded]
    assert rest[0] == rest[1] == rest[2]


def test_validation_problems_are_not_trained_on_and_a_larger_set_holds_a_smaller_one():
    rows = [
        {"id": f"gsm8k-{i}#s{j}", "prompt": [{"content": f"question {i}"}], "completion": f"{j}", "gold": str(i)}
        | {"meta": {"teacher": "/models/teacher", "sample": j} | ({"options": ["1", "2"]} if i % 4 == 0 else {})}
        for i in range(900)
        for j in range(1 + i % 3)
    ]
    random.Random(1).shuffle(rows)
    small, held_out = split(rows, 100, 1, 0)
    large, same = split(rows, 300, 2, 0)
    validation = [as_item(row) for row in held_out]
    problems = [{row["id"].split("#")[0] for row in one} for one in (small, large)]
    assert held_out == same and len({row["id"] for row in validation}) == 500
    assert all(row["question"] == f"question {row['answer']}" for row in validation)
    assert len(problems[0]) == len(small) == 100 and problems[0] < problems[1] and len(problems[1]) == 300
    assert not problems[1] & {row["id"] for row in validation}
    assert all(int(row["answer"]) % 4 for row in validation)  # none with options
    assert all("teacher" not in row["meta"] for row in [*large, *held_out])
    with pytest.raises(SystemExit, match="900 problems are too few"):
        split(rows, 401, 1, 0)


def test_kept_solutions_get_their_questions_back():
    kept = list(read_rows(str(FOLDER / "solutions.jsonl.gz"), "train"))
    problems = [row["id"].split("#s")[0] for row in kept]
    assert len(set(problems)) == len(kept) == 7371 and all(set(row) == {"id", "completion"} for row in kept)
    questions = [
        {"id": name, "question": "How many?", "answer": "3"} | ({"options": ["2", "3"]} if "aqua" in name else {})
        for name in problems
    ]
    rows = asked(kept, questions)
    assert all(row["prompt"][0]["content"].startswith("How many?") and row["gold"] == "3" for row in rows)
    assert all(("(B) 3" in row["prompt"][0]["content"]) == ("aqua" in row["id"]) for row in rows)
    with pytest.raises(SystemExit, match=f"No question has the id {problems[0]}"):
        asked(kept, questions[1:])
