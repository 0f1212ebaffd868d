"""Makes the training and validation sets of docs/evidence from verified rows.

    python -m research.evidence.data ROWS FOLDER [--problems 4096] [--solutions 1] [--seed 0]
    python -m research.evidence.data docs/evidence/solutions.jsonl.gz FOLDER \
        --questions gsm8k_train.jsonl.gz ...

ROWS is `train.jsonl` (or .gz) of `weakdriven data build`, or the part of it that the study keeps: one solution of each
problem by id, whose question is then read from the source files (`--questions`). FOLDER gets `train.jsonl`,
`counts.json` and `validation/math500.jsonl`: 500 problems that are not in `train.jsonl`. They have the file name and
number of rows of MATH-500, so that `eval.data_dir=FOLDER/validation eval.benchmarks=[math500]` evaluates on them with
the prompts and grader of the test sets. `validation/rows.jsonl` has them with a solution each, for `weakdriven diagnose
--rows`. A larger set contains every problem of a smaller one, and validation is the same for all. `--solutions` above 1
needs the rows themselves.
"""

import argparse
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from weakdriven.data.questions import user_message
from weakdriven.data.rows.files import read_rows
from weakdriven.runs.files import write_json, write_jsonl

HELD_OUT = 500
"""Number of validation problems, as in MATH-500."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--problems", type=int, default=4096, help="problems to train on")
    parser.add_argument("--solutions", type=int, default=1, help="maximum solutions of each problem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions", nargs="+", default=[], help="files with the questions that ROWS leaves out")
    args = parser.parse_args()
    rows = list(read_rows(str(args.rows), "train"))
    if args.questions:
        rows = asked(rows, [row for path in args.questions for row in read_rows(path, "train")])
    train, held_out = split(rows, args.problems, args.solutions, args.seed)
    validation = [as_item(row) for row in held_out]
    (args.folder / "validation").mkdir(parents=True, exist_ok=True)
    write_jsonl(args.folder / "train.jsonl", train)
    write_jsonl(args.folder / "validation/math500.jsonl", validation)
    write_jsonl(args.folder / "validation/rows.jsonl", held_out)
    counts = {
        "train": {"rows": len(train), "problems": dict(sources(row["id"].split("#")[0] for row in train))},
        "validation": {"problems": dict(sources(row["id"] for row in validation))},
        "seed": args.seed,
    }
    write_json(args.folder / "counts.json", counts)
    print(json.dumps(counts))


def asked(solutions: list[dict[str, Any]], questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join kept solutions with their questions, as `weakdriven data build` wrote them."""
    known = {row["id"]: row for row in questions}
    rows = []
    for solution in solutions:
        name, sample = solution["id"].split("#s")
        if name not in known:
            raise SystemExit(f"No question has the id {name}; name all files that the rows were built of.")
        row = known[name]
        options = {"options": row["options"]} if row.get("options") else {}
        prompt = [{"role": "user", "content": user_message(row, "math")}]
        about = {"gold": row["answer"], "domain": "math", "source": "", "meta": options | {"sample": int(sample)}}
        example = {"id": solution["id"], "prompt": prompt, "completion": solution["completion"]}
        rows.append(example | about | {"all_turns": False})
    return rows


def split(
    rows: list[dict[str, Any]], problems: int, solutions: int, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return training rows in random order, and one row of each held-out problem."""
    by_problem: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_problem.setdefault(row["id"].split("#")[0], []).append(row)
    order = sorted(by_problem)
    random.Random(seed).shuffle(order)
    # only numbers: models of this size choose letters at random, which would only add noise
    held_out = [name for name in order if not by_problem[name][0]["meta"].get("options")][:HELD_OUT]
    left = [name for name in order if name not in set(held_out)]
    if len(held_out) < HELD_OUT or len(left) < problems:
        raise SystemExit(
            f"{len(order)} problems are too few for {HELD_OUT} held-out ones with a number as their answer and "
            f"{problems} to train on; lower --problems, or build more rows."
        )
    train = []
    for name in left[:problems]:
        found = by_problem[name]
        train += random.Random(f"{seed} {name}").sample(found, min(solutions, len(found)))
    random.Random(seed).shuffle(train)
    return [without_paths(row) for row in train], [without_paths(by_problem[name][0]) for name in held_out]


def as_item(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row's problem as an item of a benchmark."""
    return {"id": row["id"].split("#")[0], "question": row["prompt"][-1]["content"], "answer": row["gold"]}


def without_paths(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row without the folder of its teacher."""
    return row | {"meta": {key: value for key, value in row["meta"].items() if key != "teacher"}}


def sources(names: Any) -> Counter[str]:
    return Counter(name.split("-")[0] for name in sorted(set(names)))


if __name__ == "__main__":
    main()
