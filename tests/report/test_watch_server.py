"""The watch server, asked over real connections: who gets an answer, with what headers, and when the page changes."""

import fcntl
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import expect, sync_playwright
from typer.testing import CliRunner

from chromium import CHROMIUM, needs_chromium
from run_files import put
from weakdriven.commands.app import app
from weakdriven.errors import UserError
from weakdriven.report.run.page import render_report
from weakdriven.report.under_way import UnderWay, is_held, last_row
from weakdriven.report.watch import Page, Server, changes, check_run
from weakdriven.runs.directory import work_folder

KEY = "ab12"


def begin_run(run: Path) -> Path:
    put(run / "run.json", {"recipe": "demo", "weakdriven": "0.1.0", "created": "2026-11-15T03:00:00+00:00"})
    put(run / "recipe.yaml", "name: demo\nmethod: wmss\n")
    put(run / "plan.json", {"data": KEY, "sft": KEY, "round-1/strong": KEY})
    put(run / "data/manifest.json", {"stage": "data", "key": KEY, "counters": {"examples": 60}, "finished": "2026"})
    return run


def begin_stage(run: Path, stage: str, rows: list[dict]) -> None:
    home = run / ".work" / stage.replace("/", "--")
    put(home / "state.json", {"key": KEY, "tries": 1, "seconds": 0.0, "begun": time.time()})
    if rows:
        put(home / "work/metrics.jsonl", rows)


def snapshot(run: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*")}


@pytest.fixture
def server(tmp_path):
    run = begin_run(tmp_path / "run")
    with Server(Page(run, render_report, interval=0.05)) as server:
        yield server


def ask(server: Server, path: str, method: str = "GET", host: str | None = None, body: bytes | None = None):
    """Status, headers and text of one request, with its path sent as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.putrequest(method, path, skip_host=True)
    if host != "":
        connection.putheader("Host", host or f"127.0.0.1:{server.server_address[1]}")
    if body:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), text


def wait_for(condition, seconds: float = 20.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return found


def test_the_page_is_the_report_with_a_script_that_asks_for_a_newer_one(server):
    status, headers, text = ask(server, f"/{server.token}/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    report = render_report(server.page.run)
    head, body = report.split("</head>")[0], report.split("</head>")[1].rpartition("</body>")[0]
    assert head in text and body in text and "watch-bar" in text and "watch-bar" not in report
    version = json.loads(ask(server, f"/{server.token}/version")[2])
    assert f'"version": "{version["version"]}"' in text


def test_only_the_two_addresses_with_the_token_are_answered(server):
    token = server.token
    assert len(token) >= 20 and server.url.endswith(f"/{token}/")
    wrong = "x" * len(token)
    for path in (
        *("/", "//", f"/{token}", f"/{wrong}/", f"/{token[:-1]}/", f"/{token}x/", f"/{wrong}/version", "/version"),
        *(f"/{token}/run.json", f"/{token}/../run.json", f"/{token}//", f"/{token}/version/", f"/{token}/%2e%2e/"),
        *("/../../etc/passwd", f"/{token}/..%2f..%2fetc/passwd", f"/{token}/report.html", "*", "x"),
        f"/{token.swapcase()}/",
        f"http://127.0.0.1/{token}/",
    ):
        status, _, text = ask(server, path)
        assert status == 404 and text == "There is nothing here.", path
    assert ask(server, f"/{token}/?a=1")[0] == 200 and ask(server, f"/{token}/version?a=/b")[0] == 200
    assert Server(server.page).token != token


def test_a_name_that_was_pointed_here_by_someone_else_is_refused(server):
    path = f"/{server.token}/"
    for host in (
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "",
        "[::2]:80",
        "localhost.x",
    ):
        status, _, text = ask(server, path, host=host)
        assert status == 403 and server.token not in text, host
    for host in ("127.0.0.1", "localhost:9000", "LOCALHOST", "[::1]:80", "127.0.0.2"):
        assert ask(server, path, host=host)[0] == 200, host


def test_a_server_for_others_answers_to_its_numbers_and_the_name_of_the_machine(tmp_path):
    with Server(Page(begin_run(tmp_path), render_report), host="0.0.0.0") as server:
        for host in ("10.0.0.1:80", socket.gethostname(), "127.0.0.1"):
            assert ask(server, f"/{server.token}/", host=host)[0] == 200, host
        assert ask(server, f"/{server.token}/", host="evil.example")[0] == 403
        assert "0.0.0.0" not in server.url


def test_only_get_and_head_are_answered(server):
    path = f"/{server.token}/"
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        status, headers, _ = ask(server, path, method, body=b"x" * 10)
        assert status == 405 and headers["Allow"] == "GET, HEAD", method
    assert ask(server, path, "BREW")[0] == 501
    length = ask(server, path)[1]["Content-Length"]
    status, headers, text = ask(server, path, "HEAD")
    assert status == 200 and headers["Content-Length"] == length and text == ""


def test_every_answer_forbids_other_sources_caches_and_referrers(server):
    answers = [ask(server, path)[1] for path in (f"/{server.token}/", f"/{server.token}/version", "/")]
    answers += [ask(server, "/", method)[1] for method in ("POST", "BREW")]
    for headers in answers:
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
        assert policy["script-src"] == policy["style-src"] == "'unsafe-inline'" and policy["img-src"] == "data:"
        assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff" and "Python" not in headers["Server"]


def test_the_page_changes_when_a_file_of_the_run_does_and_the_run_directory_is_left_alone(server):
    run, token = server.page.run, server.token
    before = json.loads(ask(server, f"/{token}/version")[2])["version"] or wait_for(lambda: server.page.version)
    put(run / "eval/base/arithmetic/scores.json", {"items": 8, "correct": 5, "accuracy": 0.625, "interval": [0.3, 0.9]})
    put(run / "plan.json", {"data": KEY, "eval/base/arithmetic": KEY})
    put(run / "eval/base/arithmetic/manifest.json", {"stage": "eval/base/arithmetic", "key": KEY, "finished": "2026"})
    there = snapshot(run)
    wait_for(lambda: json.loads(ask(server, f"/{token}/version")[2])["version"] != before)
    wait_for(lambda: "62.5%" in ask(server, f"/{token}/")[2])
    assert snapshot(run) == there


def test_what_a_report_is_not_made_from_draws_no_new_page(tmp_path):
    run = begin_run(tmp_path)
    begin_stage(run, "sft", [{"step": 1, "loss": 2.0}])
    page = Page(run, render_report)
    assert page.refresh() and not page.refresh()
    kept = work_folder(run, "sft") / "work"
    for path in (run / "report.html", run / "plan.json.part", run / ".work/lock", kept / "samples.jsonl"):
        put(path, "x")
    put(kept / "checkpoints/checkpoint-1/state.json", "x")
    assert not page.refresh()
    mark = changes(run)
    put(kept / "metrics.jsonl", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}])
    assert changes(run) != mark and page.refresh()
    mark = changes(run)
    put(run / "diagnostics/summary.json", {})
    assert changes(run) != mark


def test_a_reader_gets_the_last_page_while_the_next_is_drawn_or_cannot_be(tmp_path):
    going, free = threading.Event(), threading.Event()
    pages = iter(["<body>one</body>", "two", OSError("half a file"), "<body>three</body>"])

    def render(run: Path) -> str:
        page = next(pages)
        if page == "two":
            going.set()
            assert free.wait(20)
        if isinstance(page, Exception):
            raise page
        return page

    with Server(Page(begin_run(tmp_path), render, interval=0.05)) as server:
        path = f"/{server.token}/"
        assert "one" in ask(server, path)[2]
        put(tmp_path / "plan.json", {"a": KEY})
        assert going.wait(20)
        assert "one" in ask(server, path)[2], "it did not wait for the second page"
        free.set()
        wait_for(lambda: "two" in ask(server, path)[2])
        put(tmp_path / "plan.json", {"b": KEY, "c": KEY})
        wait_for(lambda: "three" in ask(server, path)[2])  # what failed is tried again


@needs_chromium
def test_a_browser_reloads_the_page_and_comes_back_to_where_it_was(tmp_path):
    run, extra = begin_run(tmp_path / "run"), ["first"]

    def render(_: Path) -> str:
        tall = "<p style='height:900px'></p>" * 3
        words = f"<p id=word>{extra[0]}</p><details><p>in</p></details>{tall}"
        return f"<html><head></head><body><main>{words}</main></body></html>"

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        server = Server(Page(run, render, interval=0.05, poll=0.1), status=lambda: "step 7/9")
        with server:
            page, errors = browser.new_page(), []
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(server.url)
            expect(page.locator("#watch-bar")).to_have_text("step 7/9")
            page.evaluate("document.querySelector('details').open = true; scrollTo(0, 500)")
            extra[0] = "second"
            put(run / "plan.json", {"a": KEY})
            expect(page.locator("#word")).to_have_text("second")
            wait_for(lambda: page.evaluate("scrollY === 500 && document.querySelector('details').open"))
            assert not errors
        expect(page.locator("#watch-bar")).to_contain_text("Run ended or server stopped")
        assert page.text_content("#word") == "second"
        browser.close()


def test_what_cannot_be_watched_is_told_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"There is no .*gone; start weakdriven run"):
        check_run(tmp_path / "gone")
    with pytest.raises(UserError, match=r"is not a run directory: it has no run\.json"):
        check_run(tmp_path)
    page = Page(begin_run(tmp_path), render_report)
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(UserError, match=r"Cannot listen on 127\.0\.0\.1, port \d+ \(Address already in use\)"):
        Server(page, port=taken.getsockname()[1])
    with pytest.raises(UserError, match="Cannot listen on 192"):
        Server(page, host="192.0.2.1")
    assert "Port" in CliRunner().invoke(app, ["watch", "--help"]).output
    assert CliRunner().invoke(app, ["watch", str(tmp_path), "--port", "70000"]).exit_code == 2


def test_the_command_serves_until_it_is_interrupted(tmp_path):
    begin_run(tmp_path)
    there = snapshot(tmp_path)
    command = [sys.executable, "-m", "weakdriven", "watch", str(tmp_path), "--no-open", "--host", "0.0.0.0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    url = process.stdout.readline()
    found = re.fullmatch(r"http://[^/]+:(\d+)/([\w-]{20,})/\n", url)
    assert found, url
    connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
    connection.request("GET", f"/{found[2]}/")
    answer = connection.getresponse()
    assert answer.status == 200 and b"weakdriven report" in answer.read()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readlines() == ["Ctrl-C ends it.\n", "1 of 3 stages are done; no process works on them.\n"]
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors == "Warning: anyone who has this address and can reach 0.0.0.0 can read the run.\n"
    assert snapshot(tmp_path) == there


def test_the_command_ends_at_once_when_it_is_told_to(tmp_path):
    begin_run(tmp_path)
    command = [sys.executable, "-m", "weakdriven", "watch", str(tmp_path), "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        while "stages are done" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 143
    assert errors.startswith("Stopped on SIGTERM") and errors.count("\n") == 1


@pytest.mark.parametrize("display", [":0", ""])
def test_the_browser_is_given_a_private_file_and_none_is_opened_without_a_display(tmp_path, display):
    run, browser, seen = begin_run(tmp_path / "run"), tmp_path / "browser", tmp_path / "seen"
    put(browser, f'#!/bin/sh\nprintf %s "$*" > {seen}\n')
    browser.chmod(0o755)
    environment = os.environ | {"BROWSER": str(browser), "DISPLAY": display, "WAYLAND_DISPLAY": ""}
    command = [sys.executable, "-m", "weakdriven", "watch", str(run)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    url = process.stdout.readline().strip()
    assert process.stdout.readline() == "Ctrl-C ends it.\n"
    assert "stages are done" in process.stdout.readline(), "it comes after the browser"
    page = Path(unquote(urlsplit(seen.read_text()).path)) if seen.exists() else None
    told, mode = (page.read_text(), page.stat().st_mode & 0o777) if page else ("", None)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0
    if display:
        assert page and seen.read_text().startswith("file:///") and url.split("/")[3] not in seen.read_text()
        assert url in told and mode == 0o600 and not page.parent.exists()
    else:
        assert page is None


def test_the_line_tells_stage_step_loss_rate_and_time_left(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("weakdriven.runs.progress.time.monotonic", lambda: clock[0])
    run = begin_run(tmp_path)
    under_way = UnderWay(run)
    assert under_way.line() == "1 of 3 stages are done; no process works on them."
    begin_stage(run, "sft", [{"step": 10, "loss": 2.5, "epoch": 0.1}])
    assert under_way.line() == "[2/3] sft: begun and stopped; run the same recipe again to go on."
    with (run / ".work/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_held(run / ".work/lock") is True
        assert under_way.line() == "[2/3] sft  step 10/100  loss 2.5"
        clock[0] += 10
        row = {"step": 30, "loss": 1.25, "epoch": 0.3}
        put(work_folder(run, "sft") / "work" / "metrics.jsonl", json.dumps(row) + '\n{"step": 31, "lo')
        assert under_way.line() == "[2/3] sft  step 30/100  loss 1.25  2/s  35.0 s left"
        begin_stage(run, "round-1/strong", [])
        assert under_way.line().startswith("[3/3] round-1/strong  for ")
        rows = [{"step": 1, "loss": float("nan"), "epoch": 0.5}]
        put(work_folder(run, "round-1/strong") / "work" / "metrics.jsonl", rows)
        assert under_way.line() == "[3/3] round-1/strong  step 1/2  loss is not a number"
    assert is_held(run / ".work/lock") is False
    for stage in ("sft", "round-1/strong"):
        put(run / stage / "manifest.json", {"key": KEY})
    assert under_way.line() == "All 3 stages are done."


def test_the_last_row_of_a_long_file_is_found_at_its_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_row(path) == {}
    put(path, [{"step": step, "loss": 1.0} for step in range(20_000)])
    assert last_row(path) == {"step": 19_999, "loss": 1.0}
    os.truncate(path, path.stat().st_size - 3)
    assert last_row(path) == {"step": 19_998, "loss": 1.0}
