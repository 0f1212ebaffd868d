"""A whole run on rows whose ids, texts and answers mean harm: no stray file, no live markup, no secret written down."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from report_runs import EVIL, finish, manifest, own_part
from run_files import put
from small_runs import Recorder, small_recipe
from weakdriven.config.sweep import axes_of, points_of
from weakdriven.pipeline.run import run_recipe
from weakdriven.report import write_report
from weakdriven.report.read import load_run
from weakdriven.report.selection_explained import explain_example
from weakdriven.runs.directory import EXAMPLES, ITEMS, SAMPLES
from weakdriven.runs.files import read_jsonl

IDS = [
    "../../outside",
    "../../../../../../../../outside",
    "/outside",
    "~/outside",
    "a/b/c",
    "nul\0byte",
    "x" * 10_000,
    "🦆🦆",
    "..",
    ".",
    "CON",
    "line\nbreak",
    "\u202etxt.exe",
    "$(touch outside)",
    "`touch outside`",
    EVIL,
]
SECRET = "hf_" + "Zy9xW8vU7tS6rQ5pO4nM3lK2" + "jJ1hH0"
PLAIN_NAME = re.compile(r"\.?[A-Za-z0-9][A-Za-z0-9_.-]*")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """The folder that a run and nothing else was put into."""
    home = tmp_path_factory.mktemp("hostile")
    names = [*IDS, *(f"{EVIL}{i}" for i in range(30 - len(IDS)))]  # as many items as that benchmark has
    question = f"What is 1 + 1? {EVIL} </script><img src=x onerror=alert(1)>"
    rows = [{"id": one, "question": f"{question} {i}", "solution": f"{EVIL} \\boxed{{2}}"} for i, one in enumerate(IDS)]
    put(home / "in/rows.jsonl", rows)
    items = [{"id": one, "question": f"What is 2 + 2? {EVIL} case {i}", "answer": "4"} for i, one in enumerate(names)]
    put(home / "in/aime2025.jsonl", items)
    recipe = small_recipe(
        f"data.path={home / 'in/rows.jsonl'}",
        "data.limit=null",
        "data.held_out=allow",
        "eval.benchmarks=[aime2025]",
        f"eval.data_dir={home / 'in'}",
        "eval.limit=16",
        "eval.max_new_tokens=8",
        "sft.batch_size=8",
        "sft.micro_batch_size=8",
        "sft.snapshots=[0.5]",
        "baselines=[]",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", SECRET)
        patch.setenv("SERVICE_API_KEY", "q8Zt-41xx-Kp02")
        patch.chdir(home)
        run_recipe(recipe, home / "out/run", Recorder())
    return home


def test_ids_never_become_names_of_files(hostile):
    assert sorted(path.name for path in hostile.iterdir()) == ["in", "out"]
    assert [path.name for path in (hostile / "out").iterdir()] == ["run"]
    assert not Path("/outside").exists() and not (Path.home() / "outside").exists()
    for path in (hostile / "out").rglob("*"):
        assert PLAIN_NAME.fullmatch(path.name), path


def test_ids_come_through_unchanged(hostile):
    run = hostile / "out/run"
    assert [row["id"] for row in read_jsonl(run / "data" / EXAMPLES)] == IDS
    for name in (ITEMS, SAMPLES):
        for file in run.glob(f"eval/*/aime2025/{name}"):
            assert {row["id"] for row in read_jsonl(file)} == set(IDS)


def test_an_example_is_explained_by_any_id(hostile):
    from rich.console import Console

    for one in IDS:
        explain_example(hostile / "out/run", 1, one, Console(quiet=True))


def test_no_secret_of_the_environment_is_written_down(hostile):
    for path in (hostile / "out").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert SECRET.encode() not in content and b"q8Zt-41xx-Kp02" not in content, path


class Live(HTMLParser):
    """Everything in a page that a browser would run or fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("iframe", "object", "embed", "img", "base", "form", "link", "svg", "video", "audio"):
            self.found.append(tag)
        if tag == "script" and values.get("type") != "application/json":
            self.found.append("script")
        self.found += [name for name in values if name.startswith("on")]
        self.found += [value for value in values.values() if value and "javascript:" in value.lower()]


def live_parts(page: str) -> list[str]:
    parser = Live()
    parser.feed(own_part(page))
    return parser.found


def test_the_report_of_it_holds_no_live_markup(hostile):
    page = (hostile / "out/run/report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in page, "the texts are not there at all"
    assert live_parts(page) == []


def test_the_parser_of_these_tests_sees_live_markup():
    marked = "<script>x</script><b onclick=y></b><a href=javascript:z></a><script>/* Vega"
    assert live_parts(marked) == ["script", "onclick", "javascript:z"]


@pytest.mark.parametrize("evil", [EVIL, '"><img src=x onerror=alert(1)>', "' onmouseover='alert(1)"])
def test_markup_in_any_field_of_a_run_is_text_in_its_report(tmp_path, evil):
    finish(tmp_path, recipe=evil)
    put(tmp_path / "recipe.yaml", f"name: {json.dumps(evil)}\n")
    put(
        tmp_path / "data/funnel.json",
        {"in": 4, "kept": 3, "sources": [evil], "dropped": {evil: {"rows": 1, "first": [{"id": evil}]}}},
    )
    manifest(tmp_path, "data", 1, **{evil: evil, "more": {evil: [evil]}})
    (tmp_path / "plan.json").unlink()
    sample = {"id": evil, "prompt": evil, "gold": evil, "correct": False, "text": evil, "answer": evil, "reason": evil}
    for model in ("base", "round-1", "baseline-sft"):
        put(tmp_path / f"eval/{model}/arithmetic/samples.jsonl", [sample])
    scored = {"version": 1, "items": 1, "correct": 0, "accuracy": 0.0, "levels": {evil: {"items": 1, "correct": 0}}}
    put(tmp_path / "eval/base/arithmetic/scores.json", scored)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert live_parts(page) == [] and evil not in own_part(page).replace("\\u003c", "<")


@pytest.mark.parametrize("name", ["../../elsewhere", "/elsewhere", "a/../../b", "x" * 4000, ""])
def test_a_plan_from_somebody_else_cannot_name_files_outside_the_run(tmp_path, name):
    run = tmp_path / "deep/run"
    put(tmp_path / "elsewhere/metrics.jsonl", [{"step": 1, "loss": 0.123456}])
    put(run / "run.json", {"recipe": "demo"})
    put(run / "plan.json", {name: "k", "sft": "k"})
    data = load_run(run)
    assert data["stages"] == [] and data["metrics"] == {}
    assert any("names something that is not a stage" in problem for problem in data["problems"])


@pytest.mark.parametrize("value", ["../../x", "/x", "..", "nul\\0", "🦆", "x" * 500])
def test_no_value_of_a_sweep_leads_out_of_its_folder(value):
    for point in points_of(axes_of([f'model="{value}",b'.replace("nul\\0", "nul"), "joint.strong_weight=0.1,0.2"])):
        assert PLAIN_NAME.fullmatch(point.name) and len(point.name) < 100
