"""The sandbox from outside: where it runs, many programs, other interpreters, and no isolation."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sandbox_cases
from sandbox_cases import assert_no_new_processes, assert_passes, host_processes, own
from weakdriven.errors import UserError
from weakdriven.eval.graders.code import grade_code
from weakdriven.eval.sandbox import CodeResult, SandboxError, run_code
from weakdriven.eval.sandbox import run as sandbox
from weakdriven.eval.sandbox.run import isolation, why_not

method, run = sandbox_cases.method, sandbox_cases.run


def test_it_works_from_threads_and_from_a_spawned_worker(method):
    results: list[CodeResult] = []
    threads = [threading.Thread(target=lambda: results.append(run_code("pass", method=method))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.status for result in results] == ["passed"] * 4
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(run_code, ("pass",), {"method": method}).passed


def test_it_needs_no_writable_folder_outside(method, tmp_path, monkeypatch):
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    monkeypatch.chdir(locked)
    for name in ("HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(locked))
    assert_passes(run_code("open('x', 'w').write('y')", method=method))
    assert list(locked.iterdir()) == []


def test_it_works_after_the_current_folder_is_gone(method, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert_passes(run_code("pass", method=method))


def test_killing_the_caller_kills_the_program(method):
    program = (
        f"from weakdriven.eval.sandbox.run import run_code\nrun_code('while True: pass', timeout=60, method={method!r})"
    )
    before = host_processes()
    caller = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    for _ in range(200):
        if len(own(host_processes() - before)) >= 2:
            break
        time.sleep(0.05)
    os.kill(caller.pid, signal.SIGKILL)
    caller.wait()
    assert_no_new_processes(before)


@pytest.mark.slow
def test_2000_programs_keep_steady_memory_and_leave_no_process_or_file_behind():
    if (method := isolation()) == "none":
        pytest.skip(sandbox.no_isolation())
    kinds = [
        "pass",
        "assert False",
        "import sys; sys.exit(0)",
        "import os; open('x', 'w').write('y'); os.fork()",
        "import tempfile; tempfile.mkdtemp(); tempfile.mkstemp()",
        "import os, time\nif os.fork() == 0:\n    os.setsid(); os.fork(); time.sleep(99)",
    ]
    programs = (kinds[index % len(kinds)] for index in range(2000))

    def left_behind() -> tuple[list[str], int, int]:
        temporary = [name for name in os.listdir("/tmp") if "weakdriven" in name or name in ("work", "program.py")]
        return temporary, len(os.listdir("/proc/self/fd")), threading.active_count()

    before, known, begun = left_behind(), host_processes(), time.monotonic()
    memory = []
    with ThreadPoolExecutor(2) as threads:
        results = threads.map(lambda program: run_code(program, method=method), programs)
    for index, result in enumerate(results):
        assert result.status == ("passed", "failed", "exited_early", "passed", "passed", "passed")[index % len(kinds)]
        memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20)
    seconds = time.monotonic() - begun
    print(f"{method}: {seconds:.0f} s, {memory[0]:.1f} to {max(memory):.1f} MiB, {memory[-1]:.1f} at the end")
    assert len(memory) == 2000
    assert left_behind() == before
    assert_no_new_processes(known)
    assert memory[-1] - memory[200] < 16  # the allocator of a process that ran other tests moves by a few on its own


@pytest.fixture
def no_isolation(monkeypatch):
    monkeypatch.setattr(sandbox, "isolation", lambda: "none")


def test_without_isolation_it_refuses_and_says_what_to_do(no_isolation):
    with pytest.raises(UserError, match=r"Install bubblewrap.*unsafe"):
        run_code("pass")


@pytest.mark.parametrize(
    "program, status",
    [
        ("pass", "passed"),
        ("assert False", "failed"),
        ("import sys; sys.exit(0)", "exited_early"),
        ("while True: pass", "timeout"),
        ("x = 'a' * (256 * 2**30)", "memory"),
        ("while True: print('x' * 1000)", "output"),
        ("open('x', 'wb').write(bytes(2**27))", "disk"),
        ("import os, time\nfor _ in range(200): os.fork() or time.sleep(99)\ntime.sleep(99)", "processes"),
        ("import os\nos.mkdir('locked', 0)\nos.write(3, b'?'); os.read(3, 1)", "forged"),
        ("import os, signal; os.kill(os.getppid(), signal.SIGKILL)\nwhile True: pass", "killed"),
    ],
)
def test_unsafe_keeps_the_limits_and_cleans_up(no_isolation, tmp_path, monkeypatch, program, status):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = host_processes()
    assert run_code(program, timeout=1, unsafe=True).status == status
    assert list(tmp_path.iterdir()) == []
    assert_no_new_processes(before)


def test_isolation_is_found_by_trying():
    works = [method for method in sandbox.METHODS if why_not(method) is None]
    assert isolation() == (works[0] if works else "none")


def test_a_sandbox_that_cannot_start_is_an_error_and_not_a_wrong_answer(method, monkeypatch):
    monkeypatch.setattr(sandbox, "ENVIRONMENT", {**sandbox.ENVIRONMENT, "PYTHONHOME": "/nowhere"})
    with pytest.raises(SandboxError, match="could not start"):
        run_code("pass", method=method)


def test_limits_that_no_program_can_meet_are_refused():
    for limits in ({"timeout": 0}, {"memory_mb": 1}):
        with pytest.raises(UserError, match="needs time"):
            run_code("pass", **limits)


def test_a_program_reads_what_it_is_given_and_what_it_prints_can_be_kept(method):
    program = "import sys\nprint(sys.stdin.read()[::-1], end='')"
    text = "é\n" * 300_000
    result = run_code(program, method=method, stdin=text, keep_stdout=True, timeout=20)
    assert_passes(result)
    assert result.stdout == text[::-1]
    assert run_code(program, method=method, stdin="ab", keep_stdout=True).stdout == "ba"
    assert run_code(program, method=method, stdin="ab").stdout == ""
    assert run_code(program, method=method, stdin=text, output_limit=2**16).status == "output"


# Another interpreter


@pytest.fixture(scope="module")
def other_python(tmp_path_factory) -> str:
    """An environment with a package that ours does not have."""
    root = tmp_path_factory.mktemp("other") / "environment"
    venv.create(root, with_pip=False, symlinks=True)
    site = next(root.glob("lib/python*/site-packages"))
    (site / "only_there.py").write_text("VALUE = 7\n")
    return str(root / "bin" / "python")


def test_a_program_sees_the_packages_of_the_interpreter_it_is_given(method, other_python):
    program = "import only_there, sys\nassert only_there.VALUE == 7\nassert sys.prefix.endswith('environment')"
    assert_passes(run_code(program, method=method, python=other_python))
    assert "No module named 'only_there'" in run_code(program, method=method).stderr
    assert "No module named 'numpy'" in run_code("import numpy", method=method, python=other_python).stderr


def test_answers_are_graded_under_the_interpreter_that_is_named(method, other_python, monkeypatch):
    monkeypatch.setattr(sandbox, "isolation", lambda: method)
    asserts = {"test_style": "asserts", "entry_point": "f", "prompt": "", "test": "assert f() == 7"}
    pairs = {"test_style": "io", "entry_point": "f", "testtype": "functional", "tests": [{"input": "", "output": "7"}]}
    for item in (asserts, pairs):
        text = "import only_there\ndef f(): return only_there.VALUE\n"
        assert grade_code(text, item, python=other_python).correct
        assert "No module named 'only_there'" in grade_code(text, item).reason


def test_the_packages_of_another_interpreter_cannot_be_written_and_ours_are_hidden(method, other_python):
    ours = str(Path(sandbox.interpreter().sites[0]).resolve())
    program = (
        "import only_there, os\ntry: open(only_there.__file__, 'w')\nexcept OSError: pass\nelse: raise AssertionError\n"
    )
    if not ours.startswith(str(Path(sys.base_prefix).resolve())):
        program += f"assert not os.path.exists({ours!r})\n"
    assert_passes(run_code(program, method=method, python=other_python))


def test_an_early_exit_and_a_forged_end_are_seen_under_another_interpreter(method, other_python):
    for program, status in (("exit()", "exited_early"), ("import os\nos.write(3, b'?')\nos.read(3, 1)", "forged")):
        assert run_code(program, method=method, python=other_python).status == status


@pytest.mark.parametrize(
    "script, complaint",
    [
        (None, "is not an executable program"),
        ("echo hello", "does not answer as Python 3.8 or newer"),
        ("echo 'it is Python 3.7' >&2; exit 1", "3.8 or newer: it is Python 3.7"),
    ],
)
def test_what_is_no_recent_python_is_refused(tmp_path, script, complaint):
    path = tmp_path / "python"
    if script is not None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    with pytest.raises(UserError, match=complaint):
        run_code("pass", python=str(path))
