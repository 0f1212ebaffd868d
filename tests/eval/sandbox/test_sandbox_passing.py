"""What counts as passed in the sandbox: a program whose last statement ran, and no other."""

import pytest

import sandbox_cases
from sandbox_cases import assert_passes
from weakdriven.eval.sandbox import run_code

method, run, isolated = sandbox_cases.method, sandbox_cases.run, sandbox_cases.isolated


@pytest.mark.parametrize(
    "program, status, said",
    [
        ("import sys\nprint('to stderr', file=sys.stderr)", "passed", "to stderr"),
        ("assert 1 == 2, 'not equal'", "failed", "AssertionError: not equal"),
        ("def f(:", "failed", "SyntaxError"),
        ("x = 'a\0b'", "failed", "null byte"),
        ("raise KeyboardInterrupt", "failed", "KeyboardInterrupt"),
        ("input()", "failed", "EOFError"),
    ],
)
def test_the_exception_of_a_program_is_reported(isolated, program, status, said):
    result = run_code(program, timeout=30)
    assert result.status == status and said in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit",
        "import os; os._exit(0)",
        "import os; os._exit(1)",
        "import os; os.execv('/bin/true', ['true'])",
        "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'pass'])",
        "import atexit, os, sys; atexit.register(os._exit, 0); sys.exit(0)",
        "print('passed'); print('{\"ending\": \"passed\"}'); import sys; sys.exit(0)",
        "import threading, os; threading.Thread(target=os._exit, args=(0,)).start()\nwhile True: pass",
        "import os\nif os.fork(): os._exit(0)",
    ],
)
def test_an_early_exit_is_no_pass(run, program):
    assert run(program).status == "exited_early"


@pytest.mark.slow
@pytest.mark.parametrize("name, status", [("SIGKILL", "killed"), ("SIGABRT", "killed"), ("SIGXCPU", "timeout")])
def test_a_program_that_ends_by_a_signal_is_no_pass(run, name, status):
    result = run(f"import os, signal; os.kill(os.getpid(), signal.{name})")
    assert result.status == status and name in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending", ["os.read(3, 1)", "os._exit(0)", "sys.exit(0)", "time.sleep(9)", "[os.read(3, 1) for _ in '1']"]
)
def test_the_mark_of_the_end_cannot_be_sent_from_inside_the_program(run, ending):
    result = run(f"import os, sys, time\nos.write(3, b'?')\n{ending}", timeout=1)
    assert not result.passed and result.status in ("forged", "exited_early", "timeout")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["sys.exit(0)", "raise Loud"])
@pytest.mark.parametrize("depth", range(4))
def test_no_code_of_the_program_runs_after_its_early_end(run, ending, depth):
    program = (
        "import atexit, os, sys\n"
        "def forge(*_):\n    os.write(3, b'?'); os.read(3, 1)\n"
        f"for _ in range({depth}):\n    forge = (lambda inner: lambda *_: list(map(inner, [0])))(forge)\n"
        "class Loud(Exception):\n    def __str__(self): forge()\n    def __del__(self): forge()\n"
        "atexit.register(forge); sys.excepthook = forge\n"
    )
    assert run(program + ending).status in ("exited_early", "failed", "forged")


@pytest.mark.slow
def test_the_mark_cannot_be_sent_by_a_child_for_a_program_that_ended(run):
    assert not run("import os\nif os.fork():\n    os._exit(0)\nos.write(3, b'?'); os.read(3, 1)").passed


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\nlen('')",
        "import threading, time\nfor _ in range(40): threading.Thread(target=time.sleep, args=(60,)).start()",
        "import sys\nsys.setrecursionlimit(10**5)\ndef f(n): return n and f(n - 1)\nf(5000)",
        "import gc, sys\ngc.disable(); sys.stdout.close(); sys.stderr.close()",
        "import atexit, os\natexit.register(os._exit, 1)",
        "import os\nif os.fork() == 0: os._exit(1)",
        "__name__ = 'other'; assert __file__",
    ],
)
def test_unusual_but_honest_programs_pass(run, program):
    assert_passes(run(program))


@pytest.mark.slow
def test_numpy_processes_threads_files_and_loopback_work_as_usual(run):
    assert_passes(
        run(
            "import numpy as np, subprocess, tempfile, socket, threading, sys, pickle\n"
            "from multiprocessing import Pool\n"
            "assert (np.ones((64, 64)) @ np.ones((64, 64))).sum() == 64**3\n"
            "assert subprocess.run(['echo', 'hi'], capture_output=True).stdout == b'hi\\n'\n"
            "with tempfile.TemporaryDirectory() as folder: open(folder + '/a', 'w').write('x' * 10**6)\n"
            "open('b', 'w').write('here')\n"
            "def double(x): return 2 * x\n"
            "with Pool(2) as pool: assert pool.map(double, [1, 2]) == [2, 4]\n"
            "class Thing: pass\n"
            "assert type(pickle.loads(pickle.dumps(Thing()))) is Thing\n"
            "server = socket.create_server(('127.0.0.1', 0))\n"
            "socket.create_connection(server.getsockname()).close()\n",
            timeout=60,
        )
    )


@pytest.mark.slow
def test_the_order_of_a_set_is_the_same_each_time(run):
    program = "import sys; print(list({'a', 'b', 'c', 'd', 'e'}), file=sys.stderr)"
    assert run(program).stderr == run(program).stderr
