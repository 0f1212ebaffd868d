"""`weakdriven report RUN --follow`: what the page of a run in progress says, and when it is written again."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright
from typer.testing import CliRunner

from chromium import CHROMIUM, needs_chromium
from report_runs import PLAN, finish, own_part, start
from run_files import put
from weakdriven.commands.app import app
from weakdriven.report.files import read_lines
from weakdriven.report.run import progress
from weakdriven.report.run.page import follow_report, render_report
from weakdriven.report.run.progress import Progress, is_running
from weakdriven.runs.directory import work_folder

STAGES = [{"name": name, "status": "not run yet"} for name in PLAN]


@contextmanager
def held(run: Path) -> Iterator[None]:
    """The run's lock, as a process that runs the recipe holds it."""
    (run / ".work").mkdir(parents=True, exist_ok=True)
    with (run / ".work/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def begin(run: Path, stage: str, begun: float, rows: list[dict] | None = None) -> None:
    folder = work_folder(run, stage)
    put(folder / "state.json", {"key": "k", "tries": 1, "seconds": 0.0, "begun": begun})
    if rows:
        put(folder / "work/metrics.jsonl", rows)


def shown(run: Path) -> dict:
    """What the line is made of, of a run in which no stage is finished."""
    logs = {name: read_lines(work_folder(run, name) / "work/metrics.jsonl", []) for name in PLAN}
    return {"stages": STAGES, "metrics": {name: rows for name, rows in logs.items() if rows}}


def wait_for(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def page_of(run: Path) -> str:
    path = run / "report.html"
    return own_part(path.read_text(encoding="utf-8")) if path.exists() else ""


@contextmanager
def followed(run: Path) -> Iterator[None]:
    with held(run):
        thread = threading.Thread(target=follow_report, args=[run], kwargs={"every": 0.1})
        thread.start()
        yield
    thread.join(30)
    assert not thread.is_alive()


def test_a_run_is_in_progress_while_a_process_holds_its_lock(tmp_path):
    assert not is_running(tmp_path)
    with held(tmp_path):
        assert is_running(tmp_path)
    assert not is_running(tmp_path)


def test_the_line_names_stage_step_loss_rate_and_time_left(tmp_path, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress.time, "time", lambda: 130.0)
    found = Progress(tmp_path)
    begin(tmp_path, "data", 5.0)
    begin(tmp_path, "sft", 100.0)
    assert found.line(shown(tmp_path)) == "", "no process works on it"
    with held(tmp_path):
        assert found.line(shown(tmp_path)) == "stage 2 of 11, sft, for 30.0 s"
        begin(tmp_path, "sft", 100.0, [{"step": 10, "epoch": 0.1, "loss": 2.0}])
        assert found.line(shown(tmp_path)) == "stage 2 of 11, sft, step 10 of 100, loss 2"
        begin(tmp_path, "sft", 100.0, [{"step": 30, "epoch": 0.3, "loss": float("nan")}])
        clock[0] += 10
        line = found.line(shown(tmp_path))
        assert "step 30 of 100" in line and "not a number" in line and "validation" not in line
        rows = [{"step": 20, "validation_loss": 1.5}, {"step": 30, "epoch": 0.3, "loss": 2.0}]
        begin(tmp_path, "sft", 100.0, [*rows, {"step": 30, "validation_loss": 1.25}])
        assert "step 30 of 100, loss 2, validation loss 1.25," in found.line(shown(tmp_path))
        assert "2 steps per second" in line and "35.0 s left" in line
        done = [one | {"status": "done"} for one in STAGES]
        assert found.line({"stages": done, "metrics": {}}) == ""


@pytest.mark.parametrize("text", ["", "[", "[1]"])
def test_a_state_that_is_no_state_says_nothing(tmp_path, text):
    put(work_folder(tmp_path, "sft") / "state.json", text)
    with held(tmp_path):
        assert Progress(tmp_path).line(shown(tmp_path)) == ""


def test_the_page_of_a_run_in_progress_says_so_without_following(tmp_path):
    start(tmp_path)
    begin(tmp_path, "entropy/base", time.time())
    with held(tmp_path):
        page = own_part(render_report(tmp_path)[0])
    assert "Running: stage 3 of 11, entropy/base, for" in page and 'id="reload"' not in page
    assert "Running:" not in own_part(render_report(tmp_path)[0])


def test_the_page_follows_the_run_and_the_last_one_does_not_reload(tmp_path):
    start(tmp_path)
    begin(tmp_path, "round-1/strong", time.time(), [{"step": 1, "epoch": 0.1, "loss": 2.5}])
    with followed(tmp_path):
        wait_for(lambda: "loss 2.5" in page_of(tmp_path))
        assert 'id="reload"' in page_of(tmp_path)
        written = (tmp_path / "report.html").stat().st_mtime_ns
        time.sleep(0.5)
        assert (tmp_path / "report.html").stat().st_mtime_ns == written, "nothing has changed"
        begin(tmp_path, "round-1/strong", time.time(), [{"step": 2, "epoch": 0.2, "loss": 1.25}])
        wait_for(lambda: "loss 1.25" in page_of(tmp_path))
        finish(tmp_path)
    assert 'id="reload"' not in page_of(tmp_path) and "WMSS (round 1) scores" in page_of(tmp_path)
    assert not list(tmp_path.glob("**/*.part")) and not (tmp_path / ".work/report.html").exists()


def test_a_finished_run_is_written_once(tmp_path):
    finish(tmp_path)
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--follow"])
    assert result.exit_code == 0 and result.output.count("report.html") == 1
    assert 'id="reload"' not in page_of(tmp_path) and not (tmp_path / "figures").exists()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_ctrl_c_and_sigterm_leave_an_ordinary_page(tmp_path, number):
    start(tmp_path)
    begin(tmp_path, "entropy/base", time.time())
    command = [sys.executable, "-m", "weakdriven", "report", str(tmp_path), "--follow"]
    with (
        held(tmp_path),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        wait_for(lambda: 'id="reload"' in page_of(tmp_path))
        os.kill(process.pid, number)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == (0 if number == signal.SIGINT else 143) and "Traceback" not in errors
    assert len(output.splitlines()) == 1 and str(tmp_path / "report.html") in output
    assert 'id="reload"' not in page_of(tmp_path) and "Running:" in page_of(tmp_path)


@pytest.mark.slow
@needs_chromium
def test_a_browser_reloads_the_page_and_comes_back_to_where_it_was(tmp_path):
    finish(tmp_path)
    (tmp_path / "baselines/sft/manifest.json").unlink()
    begin(tmp_path, "baselines/sft", time.time(), [{"step": 1, "epoch": 0.1, "loss": 2.5}])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with followed(tmp_path):
            wait_for(lambda: "loss 2.5" in page_of(tmp_path))
            # a reload every tenth of a second is too fast for a browser
            text = (tmp_path / "report.html").read_text(encoding="utf-8")
            slower = tmp_path / "slower.html"
            slower.write_text(re.sub(r'(id="reload" content=)"[0-9.]+"', r'\1"2"', text), encoding="utf-8")
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(slower.as_uri())
            page.wait_for_function("document.documentElement.dataset.figures === 'done'")
            page.locator("main > details > summary").first.click()
            page.evaluate("scrollTo(0, document.querySelector('#stages').offsetTop)")
            place = page.evaluate("scrollY")
            slower.write_text(slower.read_text(encoding="utf-8").replace("loss 2.5", "loss 1.25"), encoding="utf-8")
            page.wait_for_function("document.body.innerText.includes('loss 1.25')")
            page.wait_for_function("document.documentElement.dataset.figures === 'done'")
            assert abs(page.evaluate("scrollY") - place) < 20 and place > 1000
            assert page.locator("main > details").first.get_attribute("open") is not None
        page.close()
        browser.close()
