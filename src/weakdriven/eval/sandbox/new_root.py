"""Finish the new root of a sandbox without bubblewrap, where mount and unshare are not enough.

`NEW_ROOT` of `isolation.py` starts this file as a script with `python -I -S`. It imports nothing of ours and nothing
that is slow to import. Arguments: the new root; then, one per line, each place to show and what is mounted there.
"""

import _socket
import fcntl
import os
import sys


def escape(path: str) -> str:
    """Escape a path for a table of mounts.

    >>> escape("/home/a b")
    '/home/a\\\\040b'
    """
    return "".join(f"\\{ord(sign):03o}" if sign in "\\# \t\n" else sign for sign in path)


def main(root: str, view: "list[str]") -> None:
    table, paths = [], iter(view)
    for place in paths:
        target, source = root + place, next(paths)
        is_folder = os.path.isdir(source)
        os.makedirs(target if is_folder else os.path.dirname(target), exist_ok=True)
        if not is_folder:
            open(target, "w").close()
        table.append(f"{escape(source)} {escape(target)} none rbind\n")
    with open(f"{root}/proc/table", "w", errors="surrogateescape") as file:  # the mount of /proc will hide it
        file.writelines([*table, f"proc {root}/proc proc nosuid,nodev,noexec\n"])
    for name, number in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{number}", f"{root}/dev/{name}")
    _socket.sethostname("sandbox")
    inet = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(inet.fileno(), 0x8914, b"lo".ljust(16, b"\0") + (1).to_bytes(24, sys.byteorder))  # SIOCSIFFLAGS, IFF_UP


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split("\n"))
