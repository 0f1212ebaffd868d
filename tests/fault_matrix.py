"""Runs every fault test and writes the table of `docs/how-to/resume-and-faults.md` from the cases that pass.

python tests/fault_matrix.py
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fault_cases import CASES, Case

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "resume-and-faults.md"
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"


def table(rows: list[Case]) -> str:
    stages: dict[tuple[str, str], list[str]] = {}
    for case in rows:
        stages.setdefault((case.fault, case.outcome), []).append(case.stage)
    lines = [f"| {fault} | {', '.join(names)} | {outcome} |" for (fault, outcome), names in stages.items()]
    return "\n".join(["| fault | stages | result |", "|---|---|---|", *lines])


def written() -> str:
    """Return the table of the current page."""
    return PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-m", "slow or not slow", "tests/faults"]
        # the test that compares the page with the cases can pass only afterwards
        command += ["--deselect", "tests/faults/test_matrix_page.py::test_the_page_lists_exactly_the_cases_that_exist"]
        environment = {**os.environ, "FAULT_ROWS": str(rows)}
        code = subprocess.run(command, cwd=PAGE.parents[1], env=environment).returncode
        found = {Case(*json.loads(line)) for line in rows.read_text(encoding="utf-8").splitlines()}
    if missing := [case for case in CASES if case not in found]:
        print("Not shown, so not written:", *missing, sep="\n  ", file=sys.stderr)
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    rows_found = [case for case in CASES if case in found]
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows_found)}\n{END}{after}", encoding="utf-8")
    return code or len(missing)


if __name__ == "__main__":
    sys.exit(main())
