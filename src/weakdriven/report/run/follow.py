"""`weakdriven report RUN --follow`: the page of a run, written again while the run goes on."""

import os
import time
from contextlib import suppress
from pathlib import Path

from weakdriven.report.html import render
from weakdriven.report.run.page import run_content
from weakdriven.report.run.progress import Progress, is_running
from weakdriven.runs.directory import REPORT, WORK
from weakdriven.runs.files import write_text
from weakdriven.runs.signals import stop_here

IDLE = 4
"""At least this many times as long as it took to write a page, we wait before the next: the run needs the processor."""


def follow_report(run: Path, *, every: float = 5.0) -> None:
    """Write `report.html` whenever files of the run have changed, until the run has ended or at Ctrl-C."""
    progress, seen = Progress(run), None
    try:
        while is_running(run):
            begun, files = time.monotonic(), file_stamps(run)
            if files != seen:
                with suppress(OSError):  # a stage was put in place while we read it; the next page has it
                    write_page(run, progress, reload_seconds=every)
                    seen = files
            stop_here()
            time.sleep(max(every, IDLE * (time.monotonic() - begun)))
    except KeyboardInterrupt:
        pass
    finally:
        write_page(run, progress)


def write_page(run: Path, progress: Progress, *, reload_seconds: float = 0.0) -> None:
    """The page by way of the work folder: the run itself may write its page at the same moment."""
    shown = run_content(run, progress) | {"reload_seconds": reload_seconds}
    folder = run / WORK if (run / WORK).is_dir() else run
    write_text(folder / REPORT, render("report.html.j2", shown))
    os.replace(folder / REPORT, run / REPORT)


def file_stamps(run: Path) -> set[tuple[str, int, int]]:
    """Name, time and size of every file of a run but its page."""
    found = set()
    for folder, _, names in os.walk(run):
        for name in names:
            with suppress(OSError):
                facts = os.stat(os.path.join(folder, name))
                found.add((os.path.join(folder, name), facts.st_mtime_ns, facts.st_size))
    return {one for one in found if os.path.basename(one[0]) != REPORT}
