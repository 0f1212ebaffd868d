"""Starting a server and stopping it for certain; the servers here are small stand-ins for vLLM's module."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weakdriven.errors import UserError
from weakdriven.eval.generate.serve import serve

READY = """
import http.server, json, os, pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"])
pathlib.Path(os.environ["TOLD"]).write_text(json.dumps([os.getpid(), child.pid, sys.argv[1:], dict(os.environ)]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
arguments = dict(zip(sys.argv[1::1], sys.argv[2::1]))
http.server.HTTPServer((arguments["--host"], int(arguments["--port"])), Handler).serve_forever()
"""
DYING = """
import sys
print("ValueError: too little memory", flush=True)
print("line\\n" * 50 + "RuntimeError: see root cause above")
sys.exit(4)
"""


@pytest.fixture
def fake_vllm(tmp_path, monkeypatch):
    """Puts a module in the place of vLLM's server, and gives the file in which it tells what it was started with."""

    def install(source: str) -> Path:
        folder = tmp_path / "site" / "vllm" / "entrypoints" / "openai"
        folder.mkdir(parents=True)
        (folder / "api_server.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
        monkeypatch.setenv("TOLD", str(tmp_path / "told.json"))
        return tmp_path / "told.json"

    return install


def is_running(pid: int) -> bool:
    """Also false for a process that has ended and that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_a_server_and_its_children_are_gone_afterwards(fake_vllm, tmp_path, monkeypatch, error):
    told = fake_vllm(READY)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    folder, log = tmp_path / "model", tmp_path / "logs" / "server.log"
    options = {"dtype": "float32", "max_model_len": 99, "extra": ("--enforce-eager", "--dtype", "auto")}
    try:
        with serve(sys.executable, folder, log=log, **options) as url:
            pid, child, arguments, environment = json.loads(told.read_text())
            assert is_running(pid) and is_running(child)
            assert url.startswith("http://127.0.0.1:")
            if error:
                raise error
    except (RuntimeError, KeyboardInterrupt) as raised:
        assert type(raised) is error
    wait_for(lambda: not is_running(pid) and not is_running(child))
    assert " ".join(arguments) == (
        f"--model {folder} --host 127.0.0.1 --port {url.rpartition(':')[2]} --served-model-name model "
        "--generation-config vllm --disable-uvicorn-access-log --dtype float32 --max-model-len 99 "
        "--enforce-eager --dtype auto"
    )
    assert "TRITON_INTERPRET" not in environment and environment["VLLM_NO_USAGE_STATS"] == "1"
    assert log.is_file()


def test_a_server_does_not_outlive_a_process_that_is_killed(fake_vllm, tmp_path):
    told = fake_vllm(READY)
    program = (
        "import pathlib, signal, sys; from weakdriven.eval.generate.serve import serve\n"
        f"with serve(sys.executable, 'model', log=pathlib.Path({str(tmp_path / 'log')!r})):\n"
        "    print('ready', flush=True); signal.pause()"
    )
    ours = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert ours.stdout is not None and ours.stdout.readline() == "ready\n"
    pid, child, *_ = json.loads(told.read_text())
    ours.kill()
    ours.communicate()
    try:
        wait_for(lambda: not is_running(pid))
    finally:
        os.kill(child, signal.SIGKILL)  # it ignores SIGTERM, so the guard would take a few seconds more


def test_a_server_that_dies_shows_the_first_error_and_the_last_lines_of_its_log(fake_vllm, tmp_path):
    fake_vllm(DYING)
    with (
        pytest.raises(UserError) as died,
        serve(sys.executable, tmp_path, log=tmp_path / "server.log"),
    ):
        pytest.fail("not ready")
    said = str(died.value)
    assert "ended with code 4 before it was ready" in said and str(tmp_path / "server.log") in said
    assert said.index("ValueError: too little memory") < said.index("RuntimeError: see root cause above")
    assert said.count("\n") < 15


def test_a_server_that_is_never_ready_is_stopped(fake_vllm, tmp_path):
    told = fake_vllm(READY.replace("send_response(200)", "send_response(503)"))
    with (
        pytest.raises(UserError, match="not ready after 1 seconds"),
        serve(sys.executable, tmp_path, log=tmp_path / "server.log", start_seconds=1),
    ):
        pytest.fail("not ready")
    assert not told.exists() or not is_running(json.loads(told.read_text())[0])


def test_a_python_without_vllm_raises_an_error_at_once(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for python, words in [
        (tmp_path / "none", "none cannot be run"),
        (tmp_path, "cannot be run"),
        ("/bin/false", "ends with code 1"),
        (sys.executable, "has no vLLM; give the python"),
    ]:
        with pytest.raises(UserError, match=words), serve(python, tmp_path, log=tmp_path / "log"):
            pytest.fail("not served")
    assert not (tmp_path / "log").exists()
