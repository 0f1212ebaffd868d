"""The sandbox's limits: time, processes, memory, output and files, and nothing is left behind."""

import platform

import pytest

import sandbox_cases
from sandbox_cases import assert_no_new_processes, assert_passes, host_processes, refused
from weakdriven.eval.sandbox import watcher

method, run = sandbox_cases.method, sandbox_cases.run
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("alone")]


def test_a_program_that_sleeps_and_ignores_signals_ends_at_the_timeout(run):
    program = "import signal, time\nfor s in (1, 2, 3, 15, 24): signal.signal(s, signal.SIG_IGN)\ntime.sleep(999)"
    result = run(program, timeout=0.5)
    assert result.status == "timeout" and result.seconds >= 0.5


@pytest.mark.parametrize("waits", [False, True])
def test_a_fork_bomb_is_stopped(run, waits):
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    before = host_processes()
    sleepers = "import os, time\nfor _ in range(10**6): os.fork() or time.sleep(99)\n"
    result = run(sleepers if waits else bomb, timeout=2)
    assert not result.passed and result.status in ("processes", "timeout", "failed")
    assert_no_new_processes(before)


def test_too_many_threads_are_stopped(run):
    program = (
        "import threading, time\nthreading.stack_size(65536)\n"
        "for _ in range(10**5): threading.Thread(target=time.sleep, args=(99,), daemon=True).start()"
    )
    assert run(program, memory_mb=4096).status in ("processes", "failed")


GRAB = """
import os, time
for _ in range(5):
    if os.fork() == 0: x = bytearray(b'1') * 2**27; time.sleep(99)
time.sleep(99)
"""


@pytest.mark.parametrize("program", ["x = 'a' * (256 * 2**30)", "x = []\nwhile True: x.append(bytearray(2**24))"])
def test_too_much_memory_ends_a_program(run, program):
    assert run(program, memory_mb=256).status == "memory"


def test_memory_is_limited_over_all_processes_together(run):
    assert run(GRAB, memory_mb=400).status == "memory"


@pytest.mark.parametrize("call", ["os.memfd_create('x')", "check(libc.shmget(0, ctypes.c_size_t(2**20), 0o1600))"])
def test_memory_that_belongs_to_no_process_cannot_be_had(run, call):
    if platform.machine() not in watcher.UNCOUNTED:
        pytest.skip("the calls of this architecture are not known")
    assert_passes(run(refused(call)))


def test_a_false_mark_of_the_end_lifts_no_limit(run):
    claim = "import os\nif os.fork() == 0:\n    os.write(3, b'?'); os._exit(0)\nos.wait()\n"
    assert run(claim + GRAB, memory_mb=400).status == "memory"
    assert run(claim + "while True: print('x' * 1000)").status == "output"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_is_cut(run, stream):
    result = run(f"import sys\nwhile True: print('x' * 1000, file=sys.{stream})")
    assert result.status == "output" and len(result.stderr) <= 4096


@pytest.mark.parametrize(
    "program",
    [
        "for i in range(10**4): open(str(i), 'wb').write(bytes(2**24))",
        "for i in range(10**6): open(str(i), 'w').close()",
        "for i in range(10**4): open('/dev/shm/' + str(i), 'wb').write(bytes(2**24))",
    ],
)
def test_the_disk_cannot_be_filled(run, program):
    assert run(program, timeout=60).status == "disk"


def test_open_files_are_limited(run):
    result = run("files = [open('/dev/null') for _ in range(10**4)]")
    assert result.status == "failed" and "Too many open files" in result.stderr


def test_starving_the_watching_process_ends_the_program_and_is_reported(run):
    program = (
        "import resource, time\n"
        "for name in ('NOFILE', 'AS', 'CPU', 'DATA'):\n"
        "    try: resource.prlimit(1, getattr(resource, 'RLIMIT_' + name), (0, 0))\n"
        "    except OSError: pass\n"
        "time.sleep(0.5)\n"
    )
    before = host_processes()
    assert run(program).status in ("killed", "passed", "timeout")
    assert_no_new_processes(before)


def test_a_daemonised_grandchild_does_not_survive(run):
    before = host_processes()
    program = (
        "import os, signal, time\n"
        "for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        for fd in range(10):\n"
        "            try: os.close(fd)\n"
        "            except OSError: pass\n"
        "        time.sleep(99)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    result = run(program)
    assert_passes(result)
    assert_no_new_processes(before)
