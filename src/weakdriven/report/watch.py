"""A run's report on a local address, drawn again while the run goes on; reads the run directory and writes nothing."""

import hashlib
import ipaddress
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from weakdriven.errors import UserError
from weakdriven.runs.directory import METRICS, REPORT, RUN_FILE, WORK
from weakdriven.runs.files import PART
from weakdriven.runs.redact import redact as masked
from weakdriven.runs.signals import stop_here

STATE = "state.json"
FIRST_PAGE_SECONDS = 60.0
"""How long a request waits for the first page; later ones are answered with the last page at once."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",  # no thread waits for a page that nobody looks at, and none outlives the server
}
SCRIPT = (Path(__file__).parent / "templates" / "watch.html").read_text(encoding="utf-8")


def check_run(run: Path) -> None:
    """Refuse what cannot be watched."""
    if not run.exists():
        raise UserError(f"There is no {run}; start weakdriven run first, or give the folder that it writes to.")
    if not (run / RUN_FILE).is_file():
        raise UserError(f"{run} is not a run directory: it has no {RUN_FILE}; give the folder that a run writes to.")


def changes(run: Path) -> str:
    """A mark of the files that a report is made from; another mark, another report."""
    found: list[tuple[str, int, int]] = []
    for folder, folders, names in os.walk(run):
        here = Path(folder).relative_to(run)
        folders[:] = [name for name in folders if name != "checkpoints"]
        under_way = here.parts[:1] == (WORK,)
        for name in names:
            if under_way and name not in (METRICS, STATE):
                continue
            if name in (REPORT, "README.md") or name.endswith((PART, ".safetensors")):
                continue
            try:
                facts = os.stat(os.path.join(folder, name))
            except OSError:  # a stage was put in its place in between
                continue
            found.append((str(here / name), facts.st_mtime_ns, facts.st_size))
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()


class Page:
    """The report as it was last drawn; a thread of its own draws it again when the run's files have changed."""

    def __init__(self, run: Path, render: Callable[[Path], str], *, interval: float = 3.0, poll: float = 3.0):
        """
        Args:
            render: Draws the report of a run directory.
            interval: Least seconds from the end of one drawing to the begin of the next.
            poll: Seconds between two questions of an open page.
        """
        self.run, self.render, self.interval, self.poll = run, render, interval, poll
        self.content, self.version, self.problem = b"", "", ""
        self.ready, self.stop = threading.Event(), threading.Event()
        self.seen: str | None = None
        self.thread = threading.Thread(target=self._draw_on, name="report", daemon=True)

    def _draw_on(self) -> None:
        while not self.stop.is_set():
            self.refresh()
            self.stop.wait(self.interval)

    def refresh(self) -> bool:
        """Draw the page if the run's files have changed since it was drawn; says whether it did."""
        mark = changes(self.run)
        if mark == self.seen:
            return False
        try:
            text = masked(self.render(self.run))
            self.problem = ""
        except Exception as error:  # a file that is half there; the last page stays until it is whole
            self.problem = masked(f"The report could not be drawn: {type(error).__name__}: {error}")
            return False
        self.seen = mark
        self.version = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.content = live(text, self.version, self.poll).encode()
        self.ready.set()
        return True

    def close(self) -> None:
        self.stop.set()


def live(text: str, version: str, poll: float) -> str:
    """The page with the script that asks for a newer one."""
    facts = json.dumps({"version": version, "poll": 1000 * poll})
    script = SCRIPT.replace("FACTS", facts)
    head, mark, rest = text.partition("</head>")
    # without an icon of its own a browser asks for one at an address that is not ours
    text = f'{head}<link rel="icon" href="data:,">{mark}{rest}' if mark else text
    body, mark, rest = text.rpartition("</body>")
    return f"{body}{script}{mark}{rest}" if mark else text + script


class Handler(BaseHTTPRequestHandler):
    """Answers two addresses, the page and its version; nothing in a request ever becomes the name of a file."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    server: "Server"  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        if not self.server.welcomes(self.headers.get("Host", "")):
            return self._say(HTTPStatus.FORBIDDEN, "This server answers to its own address only.")
        parts = self.path.partition("?")[0].split("/")
        token = parts[1] if len(parts) == 3 and not parts[0] else ""
        right, page = secrets.compare_digest(token.encode(), self.server.token.encode()), self.server.page
        if right and parts[2] == "version":
            return self._say(HTTPStatus.OK, json.dumps(self.server.state()), "application/json")
        if not right or parts[2]:
            return self._say(HTTPStatus.NOT_FOUND, "There is nothing here.")
        if not page.ready.wait(FIRST_PAGE_SECONDS):
            why = page.problem or "The first page is still being drawn; load it again in a moment."
            return self._say(HTTPStatus.SERVICE_UNAVAILABLE, why)
        self._send(HTTPStatus.OK, page.content, "text/html")

    do_HEAD = do_GET

    def _refuse(self) -> None:
        self.close_connection = True  # what the request carries is not read
        self._say(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD are answered.", Allow="GET, HEAD")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _say(self, status: HTTPStatus, text: str, kind: str = "text/plain", **headers: str) -> None:
        self._send(status, text.encode(), kind, **headers)

    def _send(self, status: HTTPStatus, content: bytes, kind: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():  # also with the errors that http.server itself sends
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        return "weakdriven"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: addresses hold the token."""


class Server(ThreadingHTTPServer):
    """Serves one page under a secret address."""

    daemon_threads = True

    def __init__(self, page: Page, host: str = "127.0.0.1", port: int = 0, status: Callable[[], str] = lambda: ""):
        self.page, self.status, self.host = page, status, host
        self.token = secrets.token_urlsafe(16)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            why = error.strerror or str(error)
            raise UserError(
                f"Cannot listen on {host}, port {port} ({why}); give another --port, or none for a free one."
            ) from error

    @property
    def url(self) -> str:
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_address[1]}/{self.token}/"

    def welcomes(self, header: str) -> bool:
        """Whether a request names this server: a page elsewhere whose name was pointed here does not.

        Where the server listens on all addresses, any number is one of its own; a name other than the machine's is not.
        """
        name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
        name = name.strip("[]").lower()
        if name in ("localhost", self.host.lower()) or _loopback(name):
            return True
        if self.host not in ("0.0.0.0", "::"):
            return False
        return _is_number(name) or name in (socket.gethostname().lower(), socket.getfqdn().lower())

    def state(self) -> dict[str, str]:
        return {"version": self.page.version, "status": self.page.problem or self.status()}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who left in the middle of an answer is no concern of the one who watches."""

    def __enter__(self) -> "Server":
        self.page.thread.start()
        threading.Thread(target=self.serve_forever, args=(0.2,), name="watch", daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.page.close()
        self.shutdown()
        self.server_close()


def is_local(host: str) -> bool:
    return host == "localhost" or _loopback(host)


def _loopback(name: str) -> bool:
    return _is_number(name) and ipaddress.ip_address(name).is_loopback


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def wait_until_stopped(tell: Callable[[], None], every: float = 1.0) -> None:
    """Until Ctrl-C, or a signal that ends us."""
    try:
        while True:
            tell()
            stop_here()
            time.sleep(every)
    except KeyboardInterrupt:
        pass
