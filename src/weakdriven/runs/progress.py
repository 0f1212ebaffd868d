"""Progress displays: a line for each stage, and on a terminal a progress bar."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from weakdriven.runs.directory import Progress
from weakdriven.runs.signals import stop_here
from weakdriven.runs.stage import NOT_RUN, Planned


def choose_progress(console: Console, *, quiet: bool) -> Progress:
    if quiet:
        return Progress()
    return TerminalProgress(console) if console.is_terminal else PlainProgress(console)


def _facts(facts: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in facts.items())


class Pace:
    """Work per second since the first report, without the work of an earlier attempt."""

    def __init__(self):
        self.first: tuple[int, float] | None = None

    def rate(self, done: int) -> float:
        now = time.monotonic()
        self.first = self.first or (done, now)
        return (done - self.first[0]) / max(now - self.first[1], 1e-6)


class PlainProgress(Progress):
    """Prints a line when a stage starts, ends or is skipped, and every ten seconds in between."""

    def __init__(self, console: Console, every_seconds: float = 10.0):
        self.console, self.every = console, every_seconds
        self.count = self.place = 0
        self.printed_at = 0.0
        self.pace = Pace()

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def plan(self, planned: list[Planned]) -> None:
        self.count, self.place = len(planned), 0

    def begin(self, stage: str, reason: str) -> None:
        self.place += 1
        self.printed_at, self.pace = time.monotonic(), Pace()
        why = "" if reason == NOT_RUN else f": {reason}"
        self._print(f"[{self.place}/{max(self.place, self.count)}] {stage}{why}")

    def skip(self, stage: str) -> None:
        self.place += 1
        self._print(f"[{self.place}/{self.count}] {stage}: already done")

    def note(self, text: str) -> None:
        self._print(f"    {text}")

    def update(self, done: int, total: int, **facts: float) -> None:
        stop_here()
        rate = self.pace.rate(done)
        if time.monotonic() - self.printed_at < self.every or not rate:
            return
        self.printed_at = time.monotonic()
        self._print(f"    {done}/{total}  {rate:.1f}/s  {(total - done) / rate:.0f} s left  {_facts(facts)}")

    def end(self, stage: str, seconds: float) -> None:
        self._print(f"    done in {seconds:.1f} s")


class TerminalProgress(PlainProgress):
    """Prints the same lines, with a bar below them: rate, time left, loss and learning rate."""

    def __init__(self, console: Console):
        super().__init__(console)
        columns = (BarColumn(30), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
        self.bar = Bar(TextColumn("   "), *columns, TextColumn("{task.fields[facts]}"), console=console, transient=True)

    def begin(self, stage: str, reason: str) -> None:
        self.close()
        super().begin(stage, reason)
        self.task = self.bar.add_task("", total=None, rate="", facts="")
        self.bar.start()

    def update(self, done: int, total: int, **facts: float) -> None:
        stop_here()
        rate = f"{self.pace.rate(done):.1f}/s"
        self.bar.update(self.task, completed=done, total=total, rate=rate, facts=_facts(facts))

    def end(self, stage: str, seconds: float) -> None:
        self.close()
        super().end(stage, seconds)

    def close(self) -> None:
        self.bar.stop()
        for task in self.bar.task_ids:
            self.bar.remove_task(task)
