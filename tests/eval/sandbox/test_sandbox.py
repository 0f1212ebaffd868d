"""The sandbox from outside: how a program ends, without isolation, in other places, and other interpreters."""

import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sandbox_cases
from sandbox_cases import assert_no_new_processes, assert_passes, host_processes, own, refused, wait_until
from weakdriven.errors import UserError
from weakdriven.eval.graders.code import grade_code
from weakdriven.eval.sandbox import CodeResult, SandboxError, run_code
from weakdriven.eval.sandbox import run as sandbox
from weakdriven.eval.sandbox.run import MachineIsBusy, isolation, why_not

method, isolated = sandbox_cases.method, sandbox_cases.isolated

ENDINGS = [
    ("pass", "passed"),
    ("assert False", "failed"),
    ("import sys; sys.exit(0)", "exited_early"),
    ("while True: pass", "timeout"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed"),
    ("import os\nos.mkdir('locked', 0)\nos.write(3, b'?'); os.read(3, 1)", "forged"),
]
OVER_LIMITS = [
    ("x = 'a' * (256 * 2**30)", "memory"),
    ("while True: print('x' * 1000)", "output"),
    ("open('x', 'wb').write(bytes(2**27))", "disk"),
    ("import os, time\nfor _ in range(200): os.fork() or time.sleep(99)\ntime.sleep(99)", "processes"),
    ("import os, signal; os.kill(os.getppid(), signal.SIGKILL)\nwhile True: pass", "killed"),
]


def limits_for(status: str) -> dict[str, float]:
    return {"timeout": 0.5 if status == "timeout" else 30}


@pytest.mark.parametrize("program, status", ENDINGS)
def test_a_program_passes_only_if_its_last_statement_ran(isolated, program, status):
    assert run_code(program, **limits_for(status)).status == status


def test_a_program_cannot_reach_anything_of_the_caller(isolated, tmp_path, monkeypatch):
    monkeypatch.setenv("WEAKDRIVEN_TEST_SECRET", "hunter2")
    (mine := tmp_path / "mine.txt").write_text("keep")
    with socket.create_server(("127.0.0.1", 0)) as server:
        reach = f"socket.create_connection({server.getsockname()!r}, 2)"
        write = f"open({sandbox.__file__!r}, 'a')", "open('/new', 'w')"
        program = refused(f"open({str(mine)!r})", *write, reach, f"os.kill({os.getpid()}, 0)", "os.setuid(0)")
        assert_passes(run_code(program + "assert 'WEAKDRIVEN_TEST_SECRET' not in os.environ", timeout=30))
    assert mine.read_text() == "keep"


@pytest.fixture
def no_isolation(monkeypatch):
    monkeypatch.setattr(sandbox, "isolation", lambda: "none")


def test_without_isolation_an_error_says_what_to_do(no_isolation):
    with pytest.raises(UserError, match=r"Install bubblewrap.*unsafe"):
        run_code("pass")


@pytest.mark.parametrize(
    "program, status",
    [
        *ENDINGS,
        *(pytest.param(*case, marks=[pytest.mark.slow, pytest.mark.xdist_group("alone")]) for case in OVER_LIMITS),
    ],
)
def test_unsafe_keeps_the_limits_and_leaves_nothing_behind(no_isolation, tmp_path, monkeypatch, program, status):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = host_processes()
    assert run_code(program, **limits_for(status), unsafe=True).status == status
    assert list(tmp_path.iterdir()) == []
    assert_no_new_processes(before)


def test_isolation_is_the_first_method_that_works():
    works = [method for method in sandbox.METHODS if why_not(method) is None]
    assert isolation() == (works[0] if works else "none")


def test_a_sandbox_that_cannot_start_is_an_error_and_not_a_wrong_answer(isolated, monkeypatch):
    monkeypatch.setattr(sandbox, "ENVIRONMENT", {**sandbox.ENVIRONMENT, "PYTHONHOME": "/nowhere"})
    with pytest.raises(SandboxError, match="could not start"):
        run_code("pass")


def test_a_start_that_fails_because_the_machine_is_busy_is_tried_again(monkeypatch):
    outcomes = [MachineIsBusy("busy"), BlockingIOError("busy"), CodeResult("passed", "", 0.0)]

    def run_job(*_):
        if isinstance(outcome := outcomes.pop(0), Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(sandbox, "run_job", run_job)
    monkeypatch.setattr(sandbox.time, "sleep", lambda _: None)
    assert run_code("pass", method="unshare").passed and not outcomes


@pytest.mark.parametrize("limits", [{"timeout": 0}, {"memory_mb": 1}])
def test_limits_that_no_program_can_meet_are_errors(limits):
    with pytest.raises(UserError, match="needs time"):
        run_code("pass", **limits)


def test_a_program_reads_its_standard_input_and_its_output_can_be_kept(isolated):
    program = "import sys\nprint(sys.stdin.read()[::-1], end='')"
    text = "é\n" * 300_000
    result = run_code(program, stdin=text, keep_stdout=True, timeout=30)
    assert_passes(result)
    assert result.stdout == text[::-1]
    assert run_code(program, stdin="ab").stdout == ""
    assert run_code(program, stdin=text, output_limit=2**16).status == "output"


# Other callers


@pytest.mark.slow
def test_it_works_from_threads_and_from_a_spawned_worker(method):
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda _: run_code("pass", method=method).passed, range(4)))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(run_code, ("pass",), {"method": method}).passed


@pytest.mark.slow
def test_it_needs_no_folder_of_the_caller(method, tmp_path, monkeypatch):
    locked, gone = tmp_path / "locked", tmp_path / "gone"
    locked.mkdir(mode=0o500)
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for name in ("HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(locked))
    assert_passes(run_code("open('x', 'w').write('y')", method=method))
    assert list(locked.iterdir()) == []


@pytest.mark.slow
def test_killing_the_caller_kills_the_program(method):
    loop = f"run_code('while True: pass', timeout=300, method={method!r})"
    before = host_processes()
    command = [sys.executable, "-c", f"from weakdriven.eval.sandbox import run_code; {loop}"]
    caller = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    started = wait_until(lambda: len(own(host_processes() - before)) >= 2)
    os.kill(caller.pid, signal.SIGKILL)
    caller.wait()
    assert started
    assert_no_new_processes(before)


@pytest.mark.slow
def test_500_programs_keep_steady_memory_and_leave_no_process_or_file_behind(isolated):
    kinds = {
        "pass": "passed",
        "assert False": "failed",
        "import sys; sys.exit(0)": "exited_early",
        "import os; open('x', 'w').write('y'); os.fork()": "passed",
        "import tempfile; tempfile.mkdtemp(); tempfile.mkstemp()": "passed",
        "import os, time\nif os.fork() == 0:\n    os.setsid(); os.fork(); time.sleep(99)": "passed",
    }
    programs = (list(kinds) * 84)[:500]

    def temporary_files() -> set[str]:
        return {name for name in os.listdir("/tmp") if "weakdriven" in name or name in ("work", "program.py")}

    def handles() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before, files, known, memory = handles(), temporary_files(), host_processes(), []
    with ThreadPoolExecutor(2) as threads:
        for program, result in zip(programs, threads.map(lambda one: run_code(one, timeout=60), programs), strict=True):
            assert result.status == kinds[program]
            memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20)
    print(f"{isolated}: {memory[0]:.1f} to {max(memory):.1f} MiB, {memory[-1]:.1f} at the end")
    assert handles() == before
    assert wait_until(lambda: temporary_files() <= files), "those of other tests on this machine go away"
    assert_no_new_processes(known)
    assert memory[-1] - memory[100] < 8  # the allocator of a process that ran other tests moves by a few on its own


# Other interpreters


@pytest.fixture(scope="module")
def other_python(tmp_path_factory) -> str:
    """An environment with a package that ours does not have."""
    root = tmp_path_factory.mktemp("other") / "environment"
    venv.create(root, with_pip=False, symlinks=True)
    site = next(root.glob("lib/python*/site-packages"))
    (site / "only_there.py").write_text("VALUE = 7\n")
    return str(root / "bin" / "python")


def test_answers_are_graded_under_the_interpreter_that_is_named(isolated, other_python):
    text = "import only_there\ndef f(): return only_there.VALUE\n"
    asserts = {"test_style": "asserts", "entry_point": "f", "prompt": "", "test": "assert f() == 7"}
    pairs = {"test_style": "io", "entry_point": "f", "testtype": "functional", "tests": [{"input": "", "output": "7"}]}
    for item in (asserts, pairs):
        assert grade_code(text, item, python=other_python).correct
    assert "No module named 'only_there'" in grade_code(text, asserts).reason


@pytest.mark.slow
def test_a_program_sees_the_packages_of_its_interpreter_and_not_ours_and_cannot_write_to_them(method, other_python):
    ours = str(Path(sandbox.interpreter().sites[0]).resolve())
    program = (
        "import only_there, os, sys\n"
        "assert only_there.VALUE == 7 and sys.prefix.endswith('environment')\n"
        "try: open(only_there.__file__, 'w')\nexcept OSError: pass\nelse: raise AssertionError\n"
    )
    if not ours.startswith(str(Path(sys.base_prefix).resolve())):
        program += f"assert not os.path.exists({ours!r})\n"
    assert_passes(run_code(program, method=method, python=other_python))
    assert "No module named 'numpy'" in run_code("import numpy", method=method, python=other_python).stderr


@pytest.mark.slow
@pytest.mark.parametrize("program, status", [case for case in ENDINGS if case[1] in ("exited_early", "forged")])
def test_an_early_exit_and_a_forged_end_are_seen_under_another_interpreter(method, other_python, program, status):
    assert run_code(program, method=method, python=other_python).status == status


@pytest.mark.parametrize(
    "script, complaint",
    [
        (None, "not an executable"),
        ("echo hello", "Python 3.8 or newer"),
        ("echo 'it is Python 3.7' >&2; exit 1", "3.8 or newer: it is Python 3.7"),
    ],
)
def test_an_interpreter_that_is_no_recent_python_is_an_error(tmp_path, script, complaint):
    path = tmp_path / "python"
    if script is not None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    with pytest.raises(UserError, match=complaint):
        run_code("pass", python=str(path))
