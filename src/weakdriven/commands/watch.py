"""`weakdriven watch`: the report of a run in the browser, and one line about it on the terminal."""

import html
import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from weakdriven.commands.common import Debug, here


def watch(
    run: Annotated[Path, typer.Argument(help="A run directory, finished or not.", callback=here)],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on; other machines cannot reach the usual one.")] = (
        "127.0.0.1"
    ),
    interval: Annotated[float, typer.Option(min=0.5, help="Least seconds between two drawings of the report.")] = 5.0,
    open: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    debug: Debug = False,
) -> None:
    """Serve the report of a run on this machine and draw it again while the run goes on; Ctrl-C ends it."""
    from weakdriven.report.run.page import render_report
    from weakdriven.report.under_way import UnderWay
    from weakdriven.report.watch import Page, Server, check_run, is_local, wait_until_stopped

    check_run(run)
    under_way, console = UnderWay(run), Console()
    last = [under_way.line()]
    served = Server(Page(run, render_report, interval=interval), host, port, status=lambda: last[0])
    with served as server, suppress(KeyboardInterrupt):  # also one that comes before the waiting begins
        if not is_local(host):
            print(f"Warning: anyone who has this address and can reach {host} can read the run.", file=sys.stderr)
        print(f"{server.url}\nCtrl-C ends it.", flush=True)
        with opened(server.url) if open and has_display() else nullcontext():
            if console.is_terminal:
                with console.status(Text(last[0]), spinner="line") as shown:

                    def tell() -> None:
                        last[0] = under_way.line()
                        shown.update(Text(last[0]))

                    wait_until_stopped(tell)
            else:
                print(last[0], flush=True)

                def say_changes() -> None:
                    before, last[0] = last[0], under_way.line()
                    if before.split("  ")[0] != last[0].split("  ")[0]:  # another stage
                        print(last[0], flush=True)

                wait_until_stopped(say_changes)


@contextmanager
def opened(url: str) -> Iterator[None]:
    """Open a page in the browser by way of a file that only its owner can read: all users see a process's arguments."""
    with tempfile.TemporaryDirectory(prefix="weakdriven-") as folder:
        page, address = Path(folder) / "watch.html", html.escape(url)
        page.touch(mode=0o600)
        page.write_text(f'<meta http-equiv="refresh" content="0;url={address}"><a href="{address}">The run</a>\n')
        webbrowser.open(page.as_uri())
        yield


def has_display() -> bool:
    """Whether a browser would open a window, and not take over the terminal as a text browser does."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
