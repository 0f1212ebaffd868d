"""Generated code in the sandbox: what counts as passed, and what hostile programs can and cannot do."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from weakdriven.errors import UserError
from weakdriven.eval import sandbox
from weakdriven.eval.sandbox import CodeResult, SandboxError, isolation, run_code, run_many, why_not


@pytest.fixture(params=["bubblewrap", "namespaces"])
def method(request) -> str:
    if reason := why_not(request.param):
        pytest.skip(f"{request.param} does not work here: {reason}")
    return request.param


@pytest.fixture
def run(method):
    """Runs a program and asserts that it reached its end if it was to; short limits."""

    def run_here(program: str, **limits) -> CodeResult:
        return run_code(program, **{"method": method, "timeout": 5, **limits})

    return run_here


def assert_passes(result: CodeResult) -> None:
    assert result.passed, (result.status, result.stderr)


# What counts as passed


@pytest.mark.parametrize(
    "program, status, said",
    [
        ("x = 1", "passed", ""),
        ("", "passed", ""),
        ("import sys\nprint('to stderr', file=sys.stderr)", "passed", "to stderr"),
        ("assert 1 == 2, 'not equal'", "failed", "AssertionError: not equal"),
        ("1 / 0", "failed", "ZeroDivisionError"),
        ("def f(:", "failed", "SyntaxError"),
        ("x = 'a\0b'", "failed", "null byte"),
        ("raise BaseException('odd')", "failed", "odd"),
        ("raise KeyboardInterrupt", "failed", "KeyboardInterrupt"),
        ("input()", "failed", "EOFError"),
        ("x = [0] * (256 * 2**30)", "memory", "MemoryError"),
        ("import missing_module", "failed", "ModuleNotFoundError"),
        ("def f(n): return f(n + 1)\nf(0)", "failed", "RecursionError"),
    ],
)
def test_a_program_passes_if_and_only_if_its_last_statement_ran(run, program, status, said):
    result = run(program)
    assert (result.status, result.passed) == (status, status == "passed")
    assert said in result.stderr


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(0)",
        "import sys; sys.exit(1)",
        "raise SystemExit",
        "exit()",
        "import os; os._exit(0)",
        "import os; os._exit(1)",
        "import os; os.execv('/bin/true', ['true'])",
        "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'pass'])",
        "import atexit, os, sys; atexit.register(os._exit, 0); sys.exit(0)",
        "import atexit; atexit.register(print, 'passed'); raise SystemExit(0)",
        "print('passed'); print('{\"ending\": \"passed\"}'); import sys; sys.exit(0)",
        "import threading, os; threading.Thread(target=os._exit, args=(0,)).start()\nwhile True: pass",
        "import os\nif os.fork(): os._exit(0)",
    ],
)
def test_an_early_exit_is_no_pass(run, program):
    assert run(program).status == "exited_early"


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT"])
def test_a_program_that_kills_itself_is_no_pass(run, name):
    result = run(f"import os, signal; os.kill(os.getpid(), signal.{name})")
    assert result.status == "killed" and name in result.stderr


@pytest.mark.parametrize(
    "ending", ["os.read(3, 1)", "os._exit(0)", "sys.exit(0)", "time.sleep(2)", "[os.read(3, 1) for _ in '1']"]
)
def test_the_mark_of_the_end_cannot_be_sent_from_inside_the_program(run, ending):
    result = run(f"import os, sys, time\nos.write(3, b'?')\n{ending}", timeout=1)
    assert not result.passed and result.status in ("forged", "exited_early", "timeout")


@pytest.mark.parametrize("ending", ["sys.exit(0)", "raise ValueError", "raise Loud"])
@pytest.mark.parametrize("depth", range(4))
def test_no_code_of_the_program_runs_after_it_was_left_early(run, ending, depth):
    program = (
        "import atexit, os, sys\n"
        "def forge(*_):\n    os.write(3, b'?'); os.read(3, 1)\n"
        f"for _ in range({depth}):\n    forge = (lambda inner: lambda *_: list(map(inner, [0])))(forge)\n"
        "class Loud(Exception):\n    def __str__(self): forge()\n    def __del__(self): forge()\n"
        "atexit.register(forge); sys.excepthook = forge\n"
    )
    assert run(program + ending).status in ("exited_early", "failed", "forged")


def test_the_mark_cannot_be_sent_by_a_child_for_a_program_that_ended(run):
    assert not run("import os\nif os.fork():\n    os._exit(0)\nos.write(3, b'?'); os.read(3, 1)").passed


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
            timeout=30,
        )
    )


def test_the_order_of_a_set_is_the_same_each_time(run):
    program = "import sys; print(list({'a', 'b', 'c', 'd', 'e'}), file=sys.stderr)"
    assert run(program).stderr == run(program).stderr


# Hostile programs: each is contained and reported


def test_an_endless_loop_ends_at_the_timeout(run):
    result = run("while True: pass", timeout=0.5)
    assert result.status == "timeout" and 0.5 <= result.seconds < 3


def test_sleeping_and_ignoring_signals_ends_at_the_timeout_too(run):
    program = "import signal, time\nfor s in (1, 2, 3, 15, 24): signal.signal(s, signal.SIG_IGN)\ntime.sleep(99)"
    assert run(program, timeout=0.5).status == "timeout"


@pytest.mark.parametrize("waits", [False, True])
def test_a_fork_bomb_is_stopped(run, waits):
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    before = host_processes()
    result = run(bomb if not waits else "import os, time\nfor _ in range(10**6): os.fork() or time.sleep(99)\n")
    assert not result.passed and result.status in ("processes", "timeout", "failed")
    assert_no_new_processes(before)


def test_too_many_threads_are_stopped(run):
    program = (
        "import threading, time\nthreading.stack_size(65536)\n"
        "for _ in range(10**5): threading.Thread(target=time.sleep, args=(99,), daemon=True).start()"
    )
    assert run(program, memory_mb=4096).status in ("processes", "failed")


@pytest.mark.parametrize("program", ["x = 'a' * (256 * 2**30)", "x = []\nwhile True: x.append(bytearray(2**24))"])
def test_too_much_memory_fails_fast(run, program):
    result = run(program, memory_mb=256)
    assert result.status == "memory" and result.seconds < 3


def test_memory_is_limited_over_all_processes_together(run):
    program = (
        "import os, time\nfor _ in range(5):\n    if os.fork() == 0: x = bytearray(b'1') * 2**27; time.sleep(99)\n"
    )
    assert run(program + "time.sleep(99)", memory_mb=400).status == "memory"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_is_cut(run, stream):
    result = run(f"import sys\nwhile True: print('x' * 1000, file=sys.{stream})")
    assert result.status == "output" and len(result.stderr) <= 4096


@pytest.mark.parametrize(
    "program",
    [
        "open('big', 'wb').write(bytes(2**27))",
        "for i in range(10**4): open(str(i), 'wb').write(bytes(2**24))",
        "for i in range(10**6): open(str(i), 'w').close()",
        "for i in range(10**4): open('/dev/shm/' + str(i), 'wb').write(bytes(2**24))",
    ],
)
def test_the_disk_cannot_be_filled(run, program):
    assert run(program, timeout=20).status == "disk"


def test_open_files_are_limited(run):
    result = run("files = [open('/dev/null') for _ in range(10**4)]")
    assert result.status == "failed" and "Too many open files" in result.stderr


def test_the_network_is_out_of_reach(run):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        result = run(f"import socket\nsocket.create_connection({server.getsockname()!r}, 2)")
        assert result.status == "failed" and "refused" in result.stderr
        with pytest.raises(TimeoutError):
            server.accept()
    assert "gaierror" in run("import socket\nsocket.getaddrinfo('example.com', 80)").stderr
    assert "unreachable" in run("import socket\nsocket.create_connection(('192.0.2.1', 80), 2)").stderr


def test_unix_sockets_of_the_host_are_out_of_reach(run, tmp_path):
    names = [str(tmp_path / "socket"), "\0weakdriven-test"]
    for name in names:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
            server.listen()
            result = run(f"import socket\nsocket.socket(socket.AF_UNIX).connect({name!r})")
            assert result.status == "failed" and "Error" in result.stderr
    assert_passes(run("import os\nassert not os.path.exists('/run') and not os.path.exists('/var')"))


def test_files_outside_cannot_be_written_changed_or_deleted(run, tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("keep")
    source = Path(sandbox.__file__)
    before = source.read_bytes(), Path("/etc/passwd").read_bytes()
    site = next((place for place in sandbox.site_folders()), "/usr/lib")
    result = run(
        "import os, shutil, sys\n"
        f"places = [{str(mine)!r}, {str(source)!r}, '/etc/passwd', '/usr/bin/env', sys.executable, '/new',\n"
        f"          '/etc/new', '/usr/new', {site + '/new.pth'!r}, '/dev/new', '/proc/sys/kernel/core_pattern',\n"
        "          '/proc/sysrq-trigger', '/proc/1/oom_score_adj']\n"
        "for place in places:\n"
        "    for harm in (lambda: open(place, 'a').write('x'), lambda: os.remove(place), lambda: os.chmod(place, 0),\n"
        "                 lambda: os.rename(place, place + '2'), lambda: os.utime(place)):\n"
        "        try: harm()\n"
        "        except OSError: continue\n"
        "        raise AssertionError(place)\n"
        "for folder in ('/etc', '/home', '/root', '/usr/bin', sys.prefix + '/bin'):\n"
        "    shutil.rmtree(folder, ignore_errors=True)\n"
        "    os.system(f'rm -rf {folder} 2>/dev/null')\n"
        "assert os.path.exists(sys.executable)\n"
    )
    assert_passes(result)
    assert mine.read_text() == "keep" and (source.read_bytes(), Path("/etc/passwd").read_bytes()) == before


def test_only_the_system_and_the_interpreter_are_visible(run, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    places = ["/usr", sys.prefix, sys.base_prefix, *sandbox.site_folders()]
    shown = {Path(place).parts[1] for place in places}
    program = (
        "import os\n"
        f"assert not os.path.exists({str(tmp_path / 'secret.txt')!r})\n"
        f"known = {shown!r} | set('bin sbin lib lib32 lib64 libx32 etc proc dev tmp nix gnu sandbox.py'.split())\n"
        "assert set(os.listdir('/')) <= known, os.listdir('/')\n"
        "assert not os.path.exists('/etc/shadow') and not os.path.exists('/sys')\n"
        "assert not os.path.exists(os.path.expanduser('~root/.ssh'))\n"
        "assert os.listdir('.') == [] and os.environ['HOME'] == os.getcwd()\n"
    )
    assert_passes(run(program))


def test_devices_of_the_host_are_out_of_reach(run):
    assert_passes(
        run(
            "import os, stat\n"
            "for name in os.listdir('/dev'):\n"
            "    try: mode = os.stat('/dev/' + name).st_mode\n"
            "    except OSError: continue\n"
            "    assert not stat.S_ISBLK(mode), name\n"
            "for kind in (stat.S_IFBLK, stat.S_IFCHR):\n"
            "    try: os.mknod('device', 0o600 | kind, os.makedev(8, 0))\n"
            "    except OSError: continue\n"
            "    raise AssertionError\n"
        )
    )


def test_other_processes_can_be_neither_seen_nor_signalled(run):
    victim = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(99)"])
    try:
        program = (
            "import os, signal\n"
            "for number in range(1, 65):\n"
            "    try: os.kill(1, number)\n"
            "    except OSError: pass\n"
            f"for pid in ({victim.pid}, {os.getpid()}):\n"
            "    look = lambda: os.listdir(f'/proc/{pid}')\n"
            "    for harm in (lambda: os.kill(pid, 9), lambda: os.killpg(pid, 9), look):\n"
            "        try: harm()\n"
            "        except OSError: continue\n"
            "        raise AssertionError(pid)\n"
            "assert sorted(int(p) for p in os.listdir('/proc') if p.isdigit()) == [1, os.getpid()]\n"
            "try: os.kill(-1, 9)\n"
            "except ProcessLookupError: pass\n"
        )
        assert_passes(run(program))
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_the_watching_process_cannot_be_looked_into_or_traced(run):
    program = (
        "import ctypes, os\n"
        "for name in ('environ', 'mem', 'maps', 'fd/0', 'fd/1', 'exe', 'root/tmp/program.py', 'syscall', 'stack'):\n"
        "    try: open('/proc/1/' + name, 'rb').read(1)\n"
        "    except OSError: continue\n"
        "    raise AssertionError(name)\n"
        "assert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == -1\n"  # PTRACE_ATTACH
    )
    assert_passes(run(program))


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


def test_no_rights_are_left_and_none_can_be_gained(run):
    assert_passes(
        run(
            "import ctypes, os\n"
            "status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())\n"
            "assert all(int(status[name], 16) == 0 for name in ('CapPrm', 'CapEff', 'CapInh', 'CapAmb', 'CapBnd'))\n"
            "assert status['NoNewPrivs'] == '1' and os.getuid() != 0\n"
            "libc = ctypes.CDLL(None)\n"
            "assert libc.mount(b'x', b'/tmp', b'tmpfs', 0, b'') == -1\n"
            "assert libc.umount2(b'/tmp', 2) == -1\n"
            "for right in (os.setuid, os.setgid):\n"
            "    try: right(0)\n"
            "    except OSError: continue\n"
            "    raise AssertionError\n"
        )
    )


def test_no_further_user_namespace_can_be_opened(run):
    program = "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == -1"
    if run(program).status != "passed":
        assert "--disable-userns" not in " ".join(sandbox.bubblewrap()), "bwrap can forbid it, and did not"


def test_the_environment_is_not_inherited(run, monkeypatch):
    monkeypatch.setenv("WEAKDRIVEN_TEST_SECRET", "hunter2")
    result = run(
        "import os, sys\n"
        "text = repr(os.environ) + open('/proc/self/environ').read()\n"
        "assert 'hunter2' not in text and 'SECRET' not in text\n"
        "print(sorted(os.environ), file=sys.stderr)\n"
    )
    assert_passes(result)
    assert {"HOME", "PATH", "TMPDIR"} <= set(eval(result.stderr))


def test_open_files_of_the_caller_are_not_inherited(run, tmp_path):
    with open(tmp_path / "open.txt", "w") as file:
        os.set_inheritable(file.fileno(), True)
        assert_passes(run("import os\nassert set(os.listdir('/proc/self/fd')) <= set('0123') | {'4'}"))


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


def host_processes() -> set[int]:
    """Python and bwrap processes of the machine, by number."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"sandbox" in command or b"/tmp/program.py" in command:
                found.add(int(entry.name))
    return found


def assert_no_new_processes(before: set[int]) -> None:
    """The kernel may take a moment to collect the dead; sandboxes of other sessions on this machine do not count."""
    for _ in range(100):
        if not (left := own(host_processes() - before)):
            return
        time.sleep(0.05)
    raise AssertionError(left)


def own(pids: set[int]) -> set[int]:
    """Those of the sandbox processes that this process started, or that have lost who started them."""
    kept = set()
    for pid in pids:
        ancestor = pid
        while ancestor in pids:
            try:
                ancestor = int(Path(f"/proc/{ancestor}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                break
        if ancestor in (1, os.getpid()):
            kept.add(pid)
    return kept


# Around the program


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
        f"from weakdriven.eval.sandbox import run_code\nrun_code('while True: pass', timeout=60, method={method!r})"
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


def test_many_programs_run_side_by_side_and_keep_their_index(method):
    programs = ["pass" if index % 2 else "assert False" for index in range(12)]
    results = dict(run_many(iter(programs), workers=2, timeout=5, method=method))
    assert [results[index].status for index in range(12)] == ["failed", "passed"] * 6


def test_many_programs_can_be_stopped_in_the_middle(method):
    before = host_processes()
    results = run_many(("pass" for _ in iter(int, 1)), workers=2, timeout=5, method=method)
    assert next(results)[1].passed
    results.close()
    assert_no_new_processes(before)


@pytest.mark.slow
def test_hundreds_of_programs_leave_no_process_and_no_file_behind(method):
    kinds = [
        "pass",
        "assert False",
        "import os; open('x', 'w').write('y'); os.fork()",
        "import tempfile; tempfile.mkdtemp(); tempfile.mkstemp()",
        "import os, time\nif os.fork() == 0:\n    os.setsid(); os.fork(); time.sleep(99)",
    ]
    programs = [kinds[index % len(kinds)] for index in range(400)]

    def left_behind() -> tuple[list[str], int, int]:
        temporary = [name for name in os.listdir("/tmp") if "weakdriven" in name or name in ("work", "program.py")]
        return temporary, len(os.listdir("/proc/self/fd")), threading.active_count()

    before, known = left_behind(), host_processes()
    memory = []
    for _, result in run_many(programs, workers=2, timeout=10, method=method):
        assert result.status in ("passed", "failed")
        memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
    assert left_behind() == before
    assert_no_new_processes(known)
    assert memory[-1] - memory[len(memory) // 4] < 16 * 2**20


# Where there is no isolation


@pytest.fixture
def no_isolation(monkeypatch):
    monkeypatch.setattr(sandbox, "isolation", lambda: "none")


def test_without_isolation_it_refuses_and_says_what_to_do(no_isolation):
    with pytest.raises(UserError, match=r"Install bubblewrap.*unsafe"):
        run_code("pass")
    with pytest.raises(UserError, match="Install bubblewrap"):
        list(run_many(["pass"], workers=1))


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
