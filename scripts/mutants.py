"""Mutation test of the core: change one operator or constant at a time and see whether a test notices.

    pytest --cov=weakdriven --cov-branch --cov-context=test --junitxml=junit.xml -m "not gpu and not vllm"
    python scripts/mutants.py --coverage .coverage --junit junit.xml --out mutants.json
    python scripts/mutants.py --compare before.json after.json

The same source gives the same mutants, so that two versions of the tests can be compared. `--common-with` keeps only
mutants that another checkout also has. Each mutant is run against the quickest tests that execute its line.
"""

import argparse
import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/weakdriven"
AREAS = {
    "selection": ["wmss/selection.py"],
    "losses": ["losses/mixed_ce.py", "losses/mix_rows.py", "losses/entropy.py", "losses/branch.py"],
    "pair": ["wmss/pair.py"],
    "trainer": ["wmss/trainer.py"],
    "entropy scan": ["wmss/entropy.py", "wmss/score_files.py"],
    "stage keys": ["runs/stage.py", "runs/executor.py", "stages/context.py"],
    "resume": ["training/checkpoints.py", "training/phase.py", "runs/directory.py"],
    "graders": ["eval/graders/choices.py", "eval/graders/answers.py", "eval/graders/latex.py"],
    "statistics": ["eval/statistics.py"],
}
SWAPS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
    ast.And: "or", ast.Or: "and",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    area: str
    file: str
    line: int
    where: str
    """The function that contains it."""
    before: str
    after: str
    source: str
    """The whole mutated file."""

    @property
    def name(self) -> str:
        return f"{self.file} {self.where}: {self.before} -> {self.after}"


def changes(node: ast.AST, text: str) -> str | None:
    """Return the mutated source of an expression, or None if we do not mutate it."""

    def part(child: ast.AST) -> str:
        return ast.get_source_segment(text, child) or ""

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return f"({part(node.left)} {SWAPS[type(node.ops[0])]} {part(node.comparators[0])})"
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS and not is_path(node):
        return f"(({part(node.left)}) {SWAPS[type(node.op)]} ({part(node.right)}))"
    if isinstance(node, ast.BoolOp):
        return "(" + f" {SWAPS[type(node.op)]} ".join(f"({part(value)})" for value in node.values) + ")"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"bool({part(node.operand)})"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return str(not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return repr(node.value + 1)
    return None


def is_path(node: ast.BinOp) -> bool:
    """Return whether it joins a path; a change of that fails at once and says nothing about the tests."""
    name = node.right
    text = isinstance(name, ast.JoinedStr) or (isinstance(name, ast.Constant) and isinstance(name.value, str))
    return isinstance(node.op, ast.Div) and (text or (isinstance(name, ast.Name) and name.id.isupper()))


def expressions(node: ast.AST, where: str = "module") -> Iterator[tuple[str, ast.AST]]:
    """Yield expressions with the function that contains them; no annotations, messages or f-strings."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or field in ("annotation", "returns", "decorator_list", "bases"):
                continue
            if isinstance(child, ast.Raise | ast.JoinedStr | ast.Assert):
                continue
            inside = child.name if isinstance(child, ast.FunctionDef | ast.ClassDef) else where
            yield inside, child
            yield from expressions(child, inside)


def mutants_of(area: str, file: str, package: Path = PACKAGE) -> Iterator[Mutant]:
    text = (package / file).read_text(encoding="utf-8")
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for where, node in expressions(ast.parse(text)):
        after = changes(node, text)
        if after is None or where == "module" or not isinstance(node, ast.expr):
            continue
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        raw = text.encode()
        source = (raw[:begin] + after.encode() + raw[end:]).decode()
        before = " ".join(raw[begin:end].decode().split())
        try:
            compile(source, file, "exec")
        except SyntaxError:
            continue
        yield Mutant(area, file, node.lineno, where, before, " ".join(after.split()), source)


def choose(count: int, other: Path | None = None) -> list[Mutant]:
    """Choose `count` mutants of each area, the same for the same source, at most three of one function.

    Args:
        other: Another checkout, which must have the same mutants.
    """
    chosen = []
    for area, files in AREAS.items():
        found = {mutant.name: mutant for file in files for mutant in mutants_of(area, file)}
        names = set(found)
        if other:
            names &= {mutant.name for file in files for mutant in mutants_of(area, file, other / "src/weakdriven")}
        taken = Counter[str]()
        for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest()):
            if sum(taken.values()) < count and taken[found[name].where] < 3:
                taken[found[name].where] += 1
                chosen.append(found[name])
    return chosen


def without_group(test: str) -> str:
    """Return a node id without the group that pytest-xdist appends."""
    return test.rpartition("@")[0] if test.rfind("@") > test.rfind("]") else test


def tests_by_line(coverage: Path) -> dict[tuple[str, int], set[str]]:
    """Return the node ids of the tests that execute each line of the package."""
    data = CoverageData(str(coverage))
    data.read()
    tests = defaultdict(set)
    for name in data.measured_files():
        file = name.partition("src/weakdriven/")[2]
        for line, contexts in data.contexts_by_lineno(name).items():
            tests[file, line].update(without_group(one.rpartition("|")[0]) for one in contexts if "::" in one)
    return tests


def durations(junit: Path) -> dict[str, float]:
    """Return the seconds of each test, by `tests/x/test_y.py::test_z[case]`."""
    found = {}
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        if module := case.get("classname"):
            test = without_group(f"{module.replace('.', '/')}.py::{case.get('name')}")
            found[test] = float(case.get("time", 0))
    return found


def pick(tests: set[str], seconds: dict[str, float], budget: float) -> list[str]:
    """Pick the quickest tests, at least one, that together fit the budget."""
    picked, spent = [], 0.0
    for test in sorted(tests, key=lambda test: (seconds.get(test, 1.0), test)):
        if not test.startswith("tests/") or (picked and spent + seconds.get(test, 1.0) > budget):
            continue
        picked.append(test)
        spent += seconds.get(test, 1.0)
    return picked[:200]


def run(mutant: Mutant, tests: list[str]) -> str:
    """Return `killed`, or why it was not."""
    if not tests:
        return "no test executes it"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        subprocess.run(["cp", "-r", ROOT / "src", copy], check=True)
        (copy / "weakdriven" / mutant.file).write_text(mutant.source, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not gpu and not vllm"]
        options += ["--no-cov", "--basetemp", f"{folder}/pytest"]
        try:
            command = [sys.executable, "-m", "pytest", *options, *tests]
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)
        except subprocess.TimeoutExpired:
            return "killed"
    return "survived" if done.returncode == 0 else "killed"


def compare(before: Path, after: Path) -> int:
    """Count the mutants that the earlier tests killed and the later tests miss."""
    old, new = ({row["name"]: row for row in json.loads(path.read_text())} for path in (before, after))
    if old.keys() != new.keys():
        sys.exit("The two files hold different mutants: their sources differ.")
    for area in AREAS:
        rows = [name for name, row in old.items() if row["area"] == area]
        killed = [sum(found[name]["outcome"] == "killed" for name in rows) for found in (old, new)]
        print(f"{area:14} {len(rows):3} mutants, killed before {killed[0]}, after {killed[1]}")
    lost = [name for name in old if old[name]["outcome"] == "killed" != new[name]["outcome"]]
    print(*(f"lost: {name}" for name in lost), sep="\n")
    return len(lost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coverage", type=Path, help="data file of coverage, with --cov-context=test")
    parser.add_argument("--junit", type=Path, help="durations of the same tests")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    parser.add_argument("--common-with", type=Path, metavar="CHECKOUT", help="only mutants that this checkout has too")
    parser.add_argument("--count", type=int, default=8, help="mutants of each of the nine areas")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests per mutant")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    options = parser.parse_args()
    if options.compare:
        sys.exit(bool(compare(*options.compare)))
    mutants = choose(options.count, options.common_with)
    tests, seconds = tests_by_line(options.coverage), durations(options.junit)
    picked = [pick(tests[mutant.file, mutant.line], seconds, options.budget) for mutant in mutants]
    rows = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, outcome in zip(mutants, pool.map(run, mutants, picked), strict=True):
            row = {name: value for name, value in asdict(mutant).items() if name != "source"}
            rows.append({"name": mutant.name, **row, "outcome": outcome})
            print(f"{outcome:20} {mutant.area}: {mutant.name}", flush=True)
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{sum(row['outcome'] == 'killed' for row in rows)} of {len(rows)} mutants killed")


if __name__ == "__main__":
    main()
