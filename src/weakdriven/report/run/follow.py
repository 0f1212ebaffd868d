"""`weakdriven report RUN --follow`: the page of a run, written again while the run goes on."""

import os
import time
from contextlib import suppress
from pathlib import Path

from weakdriven.report.run.page import render_report
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
            begun = time.monotonic()
            with suppress(OSError):  # a stage was put in place while we read it; the next page has it
                if (files := file_stamps(run)) != seen:
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
    page, _ = render_report(run, progress, reload_seconds=reload_seconds)
    folder = run / WORK if (run / WORK).is_dir() else run
    write_text(folder / REPORT, page)
    os.replace(folder / REPORT, run / REPORT)


def file_stamps(run: Path) -> set[tuple[Path, int, int]]:
    """Name, time and size of every file of a run but its page."""
    paths = [path for path in run.rglob("*") if path.name != REPORT and path.is_file()]
    return {(path, facts.st_mtime_ns, facts.st_size) for path in paths for facts in [path.stat()]}
