"""The sandbox's walls: files, processes, network, environment and rights that a program cannot reach."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import sandbox_cases
from sandbox_cases import assert_passes, refused
from weakdriven.eval.sandbox import run as sandbox
from weakdriven.eval.sandbox.isolation import isolating_command
from weakdriven.eval.sandbox.run import why_not

method, run = sandbox_cases.method, sandbox_cases.run
pytestmark = pytest.mark.slow


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
    abstract = f"\0weakdriven-{os.getpid()}"  # tests run side by side
    for name in (str(tmp_path / "socket"), abstract):
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
    site = next((place for place in sandbox.interpreter().sites), "/usr/lib")
    places = [str(mine), str(source), "/etc/passwd", "/usr/bin/env", sys.executable, "/new", "/etc/new", "/usr/new"]
    places += [f"{site}/new.pth", "/dev/new", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"]
    calls = (
        "open({}, 'a').write('x')",
        "os.remove({})",
        "os.chmod({}, 0)",
        "os.rename({0}, {0} + '2')",
        "os.utime({})",
    )
    harms = [call.format(repr(place)) for place in [*places, "/proc/1/oom_score_adj"] for call in calls]
    result = run(
        refused(*harms) + "for folder in ('/etc', '/home', '/root', '/usr/bin', sys.prefix + '/bin'):\n"
        "    os.system(f'rm -rf {folder} 2>/dev/null')\n"
        "assert os.path.exists(sys.executable)\n",
        timeout=120,  # it tries every file that it sees
    )
    assert_passes(result)
    assert mine.read_text() == "keep" and (source.read_bytes(), Path("/etc/passwd").read_bytes()) == before


def test_what_the_host_has_mounted_below_a_shown_folder_is_read_only_too(method):
    if reason := why_not("unshare"):
        pytest.skip(f"the test mounts such a folder itself: {reason}")
    program = (
        "try: open('/usr/share/new', 'w')\nexcept OSError as error: assert error.errno == 30\nelse: raise Exception"
    )
    caller = f"from weakdriven.eval.sandbox import run_code\nprint(run_code({program!r}, method={method!r}))"
    mounted = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    mounted += ['mount -t tmpfs -o noexec,mode=777 below /usr/share; exec "$@"', "sh"]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([*mounted, sys.executable, "-c", caller], capture_output=True, text=True, env=environment)
    assert "status='passed'" in done.stdout, done


def test_only_the_system_and_the_interpreter_are_visible(run, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    places = ["/usr", sys.prefix, sys.base_prefix, *sandbox.interpreter().sites]
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
    kinds = [f"os.mknod('device', 0o600 | stat.{kind}, os.makedev(8, 0))" for kind in ("S_IFBLK", "S_IFCHR")]
    program = refused(*kinds) + (
        "for name in os.listdir('/dev'):\n"
        "    try: mode = os.stat('/dev/' + name).st_mode\n"
        "    except OSError: continue\n"
        "    assert not stat.S_ISBLK(mode), name\n"
    )
    assert_passes(run(program))


def test_other_processes_can_be_neither_seen_nor_signalled(run):
    victim = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(999)"])
    calls = ("os.kill({}, 9)", "os.killpg({}, 9)", "os.listdir('/proc/{}')")
    harms = [call.format(pid) for pid in (victim.pid, os.getpid()) for call in calls]
    program = refused(*harms) + (
        "for number in range(1, 65):\n"
        "    try: os.kill(1, number)\n"
        "    except OSError: pass\n"
        "assert sorted(int(p) for p in os.listdir('/proc') if p.isdigit()) == [1, os.getpid()]\n"
        "try: os.kill(-1, 9)\n"
        "except ProcessLookupError: pass\n"
    )
    try:
        assert_passes(run(program))
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_killing_the_parent_harms_nobody(run):
    program = (
        "import os, signal\n"
        "for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP):\n"
        "    os.kill(os.getppid(), number)\n"
        "while True: os.kill(os.getppid(), signal.SIGKILL)\n"
    )
    assert run("import os\nassert os.getppid() == 1").passed
    assert run(program, timeout=0.5).status == "timeout"


def test_the_watching_process_cannot_be_looked_into_or_traced(run):
    names = ("environ", "mem", "maps", "fd/0", "fd/1", "exe", "root/tmp/program.py", "syscall", "stack")
    attach = "check(libc.ptrace(16, 1, 0, 0))"
    assert_passes(run(refused(*(f"open('/proc/1/{name}', 'rb').read(1)" for name in names), attach)))


def test_no_rights_are_left_and_none_can_be_gained(run):
    calls = ["check(libc.mount(b'x', b'/tmp', b'tmpfs', 0, b''))", "check(libc.umount2(b'/tmp', 2))"]
    program = refused(*calls, "os.setuid(0)", "os.setgid(0)") + (
        "status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())\n"
        "assert all(int(status[name], 16) == 0 for name in ('CapPrm', 'CapEff', 'CapInh', 'CapAmb', 'CapBnd'))\n"
        "assert status['NoNewPrivs'] == '1' and os.getuid() != 0\n"
    )
    assert_passes(run(program))


def test_no_further_user_namespace_can_be_opened(run, method):
    if not run(refused("check(libc.unshare(0x10000000))")).passed:
        command = isolating_command(method, sandbox.interpreter())
        assert method == "bubblewrap" and "--disable-userns" not in command, "it could be forbidden, and was not"


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
