"""Commands that isolate a program, with bubblewrap or util-linux, and what the program can see."""

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from weakdriven.errors import UserError
from weakdriven.eval.sandbox import watcher

METHODS = {"bubblewrap": ("bwrap",), "unshare": ("unshare", "setpriv")}
"""Programs that each method needs; the first method is preferred."""
WATCHER, PREPARATION = (str(Path(__file__).resolve().with_name(name)) for name in ("watcher.py", "new_root.py"))
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
ETC = (
    *("alternatives", "ca-certificates", "fonts", "group", "host.conf", "hosts", "ld.so.cache", "ld.so.conf"),
    *("ld.so.conf.d", "localtime", "magic", "mime.types", "nsswitch.conf", "passwd", "pki/tls/certs", "protocols"),
    *("services", "ssl/certs", "ssl/openssl.cnf", "timezone"),
)
DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))

# Asks an interpreter about itself.
QUERY = """
import json, sys
if sys.version_info < (3, 8):
    sys.exit("it is Python " + sys.version.split()[0])
print(json.dumps([sys.executable, [sys.prefix, sys.exec_prefix, sys.base_prefix], sys.path]))
"""

# Does with util-linux what bubblewrap does. `unshare` starts this as process 1 and as root of new namespaces. The new
# root is built in /sys, of which nothing is shown. Every mount in it becomes read-only, also mounts below the folders
# that are shown; /proc is last, because a namespace gets its user by a file in it. In the inner namespace the user is
# not root, so nobody may change any of this. Arguments: the options of a private folder, a Python, `new_root.py`,
# places and sources (one per line); then the command.
NEW_ROOT = """
PATH="$PATH:/usr/sbin:/sbin"
mount -t tmpfs -o nosuid,nodev,mode=755,size=4m root /sys
cd /sys
mkdir -p proc tmp dev/shm
mount -t tmpfs -o "$1" tmp /sys/tmp
mount -t tmpfs -o "$1" shm /sys/dev/shm
"$2" -I -S "$3" /sys "$4"
mount --all --fstab /sys/proc/table
pivot_root . .
umount --lazy .
cd /
mount --all --types noproc -o remount,bind,ro,nosuid,nodev
for folder in /tmp /dev/shm; do mount -o remount,bind,rw "$folder"; done
for device in null zero full random urandom; do mount -o remount,bind,rw,dev "/dev/$device"; done
echo 1 > /proc/sys/user/max_user_namespaces  # the inner one, so that the program can open no further one
shift 4
exec unshare --user --mount --map-user=1000 --map-group=1000 --keep-caps sh -ec '
mount -o remount,bind,ro,nosuid,nodev,noexec /proc
exec setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all --no-new-privs "$@"' sh "$@"
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python and where it finds its packages."""

    executable: str
    prefixes: tuple[str, ...]
    sites: tuple[str, ...]
    """Folders of its packages."""


@functools.cache
def interpreter(python: str | None = None) -> Interpreter:
    """Describe this process's interpreter, or another one, which is asked once."""
    executable, prefixes, path = sys.executable, [sys.prefix, sys.exec_prefix, sys.base_prefix], sys.path
    if python is not None:
        if (found := shutil.which(python)) is None:
            raise UserError(f"python={python} is not an executable program. Give the path of a Python interpreter.")
        # ignores our own settings for Python and the packages in the user's home
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [os.path.abspath(found), "-s", "-c", QUERY]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=kept, cwd="/")
            executable, prefixes, path = json.loads(answer.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            complaint = last_line(getattr(error, "stderr", None) or str(error))
            raise UserError(f"python={python} is not a working Python 3.8 or newer: {complaint}") from error
    names = ("site-packages", "dist-packages")
    sites = [os.path.abspath(entry) for entry in path if Path(entry).name in names and Path(entry).is_dir()]
    return Interpreter(executable, tuple(prefixes), tuple(sites))


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def view(python: Interpreter) -> dict[str, str]:
    """Map each place that a program can read to its source: system folders, interpreter, packages, the watcher."""
    hops, link = [], python.executable
    while os.path.islink(link):
        hops.append(link)
        link = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
    libraries = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    prefixes = [*python.prefixes, os.path.realpath(python.prefixes[-1])]
    wanted = [*SYSTEM, *(f"/etc/{name}" for name in ETC), *prefixes, *python.sites, *libraries, *hops, link]
    places = {"/sandbox.py": WATCHER}
    for place in map(os.path.normpath, wanted):
        covered = any(place == other or place.startswith(other + "/") for other in places)
        if place != "/" and not covered and os.path.exists(place):
            places[place] = os.path.realpath(place)
    return places


@functools.cache
def isolating_command(method: str, python: Interpreter) -> tuple[str, ...]:
    """Return the command prefix that runs a command isolated, as process 1 of its own namespaces."""
    commands = {"bubblewrap": bubblewrap, "unshare": unshare}
    return tuple(commands[method](python)) if method in commands else ()


def bubblewrap(python: Interpreter) -> list[str]:
    bwrap = shutil.which("bwrap") or "bwrap"
    known = subprocess.run([bwrap, "--help"], capture_output=True, text=True, check=False).stdout
    size = ["--size", str(watcher.DISK_LIMIT)] if "--size" in known else []
    command = [bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--as-pid-1"]
    command += ["--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--cap-drop", "ALL"]
    command += ["--disable-userns"] if "--disable-userns" in known else []
    command += ["--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/dev/shm", *size, "--tmpfs", "/tmp"]
    for place, source in view(python).items():
        command += ["--ro-bind", source, place]
    for place in ("/proc", "/dev", "/"):  # root without capabilities can still write to root's files in /proc/sys
        command += ["--remount-ro", place]
    return [*command, "--chdir", "/", "--"]


def unshare(python: Interpreter) -> list[str]:
    namespaces = ("--user", "--map-root-user", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
    private = f"nosuid,nodev,mode=700,size={watcher.DISK_LIMIT},nr_inodes={watcher.INODE_LIMIT}"
    shown = [path for pair in (view(python) | dict(zip(DEVICES, DEVICES, strict=True))).items() for path in pair]
    return [
        *(shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL"),
        *(shutil.which("unshare") or "unshare", *namespaces, "--fork", "--kill-child"),
        *("sh", "-ec", NEW_ROOT, "sh", private, python.executable, PREPARATION, "\n".join(shown)),
    ]
