"""Fuzzes what models and runs produce: answers for graders, run directories for reports. Nothing here may raise."""

import json
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_inputs import place
from fuzz_values import JSON, NASTY, NUMBERS, TEXT, changed_tree, cut_and_mended, dumped
from hypothesis import strategies as st

from weakdriven.eval.graders.answers import grade_math
from weakdriven.eval.graders.choices import grade_choice
from weakdriven.eval.graders.code import (
    assemble,
    code_for,
    extract_code,
    read_report,
    same_output,
    same_value,
    value_of,
)
from weakdriven.eval.sandbox.run import CodeResult
from weakdriven.report.card import write_cards
from weakdriven.report.run.page import render_report
from weakdriven.runs.directory import DIAGNOSIS_VERSION

LATEX = [
    "\\frac{1}{2}",
    "x^{2}+1",
    "\\sqrt{3}",
    "(1,2)",
    "\\{1,2\\}",
    "[0,\\infty)",
    "\\pi",
    "10^{9^9}",
    "9!!!!!",
    "\\pm",
]
LATEX += [
    "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
    "50\\%",
    "1,000",
    "x=3",
    "\\text{B}",
    "\\int_0^1 x",
    "1/0",
    "2^{2^{2^{99}}}",
]
ANSWER = st.one_of(
    cut_and_mended(st.sampled_from(LATEX)), st.lists(st.sampled_from(LATEX), min_size=1, max_size=3).map("".join), TEXT
)
MATH = st.tuples(
    st.tuples(TEXT, ANSWER, TEXT).map(lambda part: f"{part[0]}\\boxed{{{part[1]}}}{part[2]}") | TEXT, ANSWER
)


def math(case: tuple[str, str]) -> None:
    """Grade answers; a worker that dies or takes over four seconds is a verdict, not a defect."""
    graded = grade_math(*case, timeout=2.0)
    assert isinstance(graded.correct, bool) and graded.reason


SAID = [
    "The answer is B.",
    "So (C)",
    "\\boxed{A}",
    "Option D is correct",
    "A is wrong, so",
    "not B",
    "Wait, no:",
    "12 km",
]
SPOKEN = st.lists(st.sampled_from(SAID) | TEXT, max_size=5).map(" ".join)


def choice(case: tuple[str, str, list[str] | None]) -> None:
    text, gold, options = case
    graded = grade_choice(text, gold, options=options, timeout=2.0)
    assert isinstance(graded.correct, bool) and graded.reason


CODES = ["def f(x):\n    return x\n", "    return x\n", "class Solution:\n    def f(self): pass\n", "print(input())\n"]
CODES += [
    "```python\ndef f(x): return x\n```",
    "~~~\nf = 1\n~~~",
    "<answer>",
    "</answer>",
    "from __future__ import x\n",
]
CODES += ["(" * 300, "-" * 3000 + "1", "f(" * 90 + ")" * 90, "if x:\n" * 30, "\x0c", "lambda: " * 200]
WRITTEN = st.lists(cut_and_mended(st.sampled_from(CODES)) | st.sampled_from(NASTY), max_size=4).map("\n".join)
ITEM = {"entry_point": "f", "test_style": "check", "prompt": "def f(x):\n", "test": "def check(f): pass\n"}


def code(text: str) -> None:
    """Look for code in any text of a model; nothing is run here."""
    for entry_point in ("f", ""):
        extract_code(text, entry_point)
    found = code_for(ITEM, text)
    if found is not None:
        assemble(ITEM, found)
    code_for({"entry_point": "f", "test_style": "io", "starter_code": "def f(x):"}, text)


PRINTED = st.lists(
    st.sampled_from(["1", "1.0", "1e5", "1e999999", "nan", "sNaN", "[1, 2]", '"a"', "\n", " "]) | TEXT
).map("".join)


def printed(case: tuple[str, str]) -> None:
    """Compare a program's output with the expected one."""
    got, want = case
    assert isinstance(same_output(got, want), bool)
    for row in read_report(CodeResult("passed", "", 0.0, stdout=got)):
        assert all(isinstance(part, str) for part in row)
    try:
        value = value_of(want)
    except (ValueError, RecursionError):  # `run_tests` raises an error for an expected value that is not JSON
        return
    assert isinstance(same_value(got, value), bool)


STAGE_NAMES = ["data", "sft", "entropy/base", "entropy/sft", "round-1/active", "round-1/strong", "baselines/sft"]
STAGE_NAMES += ["eval/base/arithmetic", "eval/round-1/arithmetic", "round-2/strong", "eval/<b>/\"x'"]
MANIFEST = {"stage": "sft", "key": "k", "counters": {"rows": 3, "term_shares": {"repair": 0.1}}, "wall_seconds": 1.5}
MANIFEST |= {"finished": "2026-11-15T03:00:00+00:00", "versions": {"torch": "2"}, "peak_memory_bytes": 1, "resumed": 0}
SAMPLE = {
    "id": "a",
    "prompt": [{"role": "user", "content": "q"}],
    "text": "t",
    "gold": "2",
    "correct": True,
    "sample": 0,
}
SAMPLE |= {"answer": "2", "reason": "other", "tokens": 3}
SCORES = {
    "items": 3,
    "correct": 2,
    "accuracy": 0.66,
    "interval": [0.1, 0.9],
    "levels": {"1": {"items": 1, "correct": 1}},
}
SCORES |= {"pass_at_k": {"1": 0.5, "8": 0.9}, "samples": 1, "version": 1}
METRIC = {"step": 1, "loss": 0.5, "strong_loss": 0.4, "weak_loss": 0.6, "learning_rate": 1e-3, "margin_share": 0.1}
EXAMPLE = {"id": "a", "prompt": [{"role": "user", "content": "q"}], "completion": "c", "meta": {}}
FUNNEL = {"sources": ["x"], "domain": "math", "rows": 3, "tables": {"rows": {"in": 3, "kept": 1}}}
INFO = {"recipe": "demo", "weakdriven": "0", "created": "2026-11-15T03:00:00+00:00", "hub_models": ["a/b"]}


def like(value: Any) -> st.SearchStrategy[Any]:
    return changed_tree(st.just(value), sorted({*value, "counters", "levels"}))


def lines(rows: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    return st.lists(rows, max_size=4).map(lambda found: "\n".join(map(dumped, found)))


LINES = lines(like(SAMPLE) | like(SAMPLE) | JSON)
FILES: dict[str, st.SearchStrategy[str]] = {
    "run.json": like(INFO).map(dumped),
    "plan.json": st.dictionaries(st.sampled_from(STAGE_NAMES) | TEXT, st.just("k") | JSON, max_size=6).map(dumped),
    "recipe.yaml": cut_and_mended(st.just("name: demo\nmodel: a/b\ndata: {path: x}\n")),
    "data/funnel.json": like(FUNNEL).map(dumped),
    "data/examples.jsonl": lines(like(EXAMPLE)),
    "sft/metrics.jsonl": lines(like(METRIC)),
    "round-1/strong/metrics.jsonl": lines(like(METRIC)),
    "eval/base/arithmetic/scores.json": like(SCORES).map(dumped),
    "eval/round-1/arithmetic/scores.json": like(SCORES).map(dumped),
    "eval/base/arithmetic/samples.jsonl": LINES,
    "eval/round-1/arithmetic/samples.jsonl": LINES,
    "diagnostics/logits.json": like({"facts": {"version": DIAGNOSIS_VERSION, "models": {}}, "models": {}}).map(dumped),
    "diagnostics/gradients.json": like({"pairs": {}}).map(dumped),
    "diagnostics/drift.json": like({"models": {}}).map(dumped),
}
TABLES = {
    "entropy/base/scores.parquet": "entropy",
    "entropy/sft/scores.parquet": "entropy",
    "round-1/active/active.parquet": "probability",
}


@st.composite
def run_directories(draw: st.DrawFn) -> dict[str, Any]:
    files: dict[str, Any] = {}
    for name, strategy in FILES.items():
        if draw(st.integers(0, 3)):
            files[name] = draw(strategy)
    for stage in STAGE_NAMES[:9]:
        if draw(st.booleans()):
            files[f"{stage}/manifest.json"] = dumped(draw(like(MANIFEST)))
    rows = draw(st.integers(0, 3))
    for name, column in TABLES.items():
        if draw(st.booleans()):
            values = draw(st.lists(NUMBERS.map(float) | st.none(), min_size=rows, max_size=rows))
            ids = draw(st.lists(st.sampled_from(["a", "b", "<b>", None]), min_size=rows, max_size=rows))
            files[name] = {"id": ids, column: values, "draws": [1] * rows}
    return files


class Alive(HTMLParser):
    """Counts what a browser would run."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts, self.live = 0, list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        for name, value in attrs:
            runs = name.startswith("on") or (value or "").strip().lower().startswith("javascript:")
            if runs or tag in ("iframe", "object", "embed", "img", "base", "form", "link"):
                self.live.append(f"<{tag} {name}={value!r}>")


def report(files: dict[str, Any]) -> None:
    """Write the page and the model card of any run directory; none of its texts may become markup."""
    run = place("run")
    shutil.rmtree(run, ignore_errors=True)
    for name, content in files.items():
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            pq.write_table(pa.table(content), path)
        else:
            path.write_text(content, encoding="utf-8", errors="surrogatepass")
    run.mkdir(exist_ok=True)
    page, _ = render_report(run)
    own, _, _ = page.partition("<script>/* Vega")
    alive = Alive()
    alive.feed(own)
    assert alive.scripts <= 2 and not alive.live, f"{alive.scripts} scripts, {alive.live}"
    _, _, figures = own.partition('id="figures">')
    json.loads(figures.partition("</script>")[0])
    write_cards(run)


OPTIONS = st.none() | st.lists(TEXT | st.sampled_from(SAID) | ANSWER, max_size=5)
TARGETS: dict[str, tuple[Callable[[Any], None], st.SearchStrategy[Any]]] = {
    "math": (math, MATH),
    "choice": (choice, st.tuples(SPOKEN, st.sampled_from(list("ABCDEF")) | TEXT, OPTIONS)),
    "code": (code, WRITTEN),
    "printed": (printed, st.tuples(PRINTED, PRINTED)),
    "report": (report, run_directories()),
}
