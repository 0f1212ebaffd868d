"""What a person sees while a run goes on: a live list with a bar on a terminal, plain lines elsewhere."""

import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from weakdriven.runs.directory import Progress
from weakdriven.runs.signals import stop_here
from weakdriven.runs.stage import Planned


def choose_progress(console: Console, *, quiet: bool) -> Progress:
    if quiet:
        return Progress()
    return TerminalProgress(console) if console.is_terminal else PlainProgress(console)


def _facts(facts: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in facts.items())


class Pace:
    """Work per second since the first report, so that what an earlier try did does not count as speed."""

    def __init__(self):
        self.first: tuple[int, float] | None = None

    def rate(self, done: int) -> float:
        now = time.monotonic()
        self.first = self.first or (done, now)
        return (done - self.first[0]) / max(now - self.first[1], 1e-6)


class PlainProgress(Progress):
    """One line when a stage starts, ends or is skipped, and one every ten seconds in between."""

    def __init__(self, console: Console, every_seconds: float = 10.0):
        self.console, self.every = console, every_seconds
        self.count = self.place = 0
        self.told = 0.0
        self.pace = Pace()

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def plan(self, planned: list[Planned]) -> None:
        self.count, self.place = len(planned), 0

    def begin(self, stage: str, reason: str) -> None:
        self.place += 1
        self.told, self.pace = time.monotonic(), Pace()
        self._say(f"[{self.place}/{max(self.place, self.count)}] {stage}: {reason}")

    def skip(self, stage: str) -> None:
        self.place += 1
        self._say(f"[{self.place}/{self.count}] {stage}: done before")

    def note(self, text: str) -> None:
        self._say(f"    {text}")

    def update(self, done: int, total: int, **facts: float) -> None:
        stop_here()
        rate = self.pace.rate(done)
        if time.monotonic() - self.told < self.every or not rate:
            return
        self.told = time.monotonic()
        self._say(f"    {done}/{total}  {rate:.1f}/s  {(total - done) / rate:.0f} s left  {_facts(facts)}")

    def end(self, stage: str, seconds: float) -> None:
        self._say(f"    done in {seconds:.1f} s")


class TerminalProgress(Progress):
    """All stages with ticks; a bar with rate, time left, loss and learning rate under the one that runs."""

    def __init__(self, console: Console):
        self.console = console
        self.lines: dict[str, str] = {}
        columns = (BarColumn(30), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
        self.bar = Bar(TextColumn("     "), *columns, TextColumn("{task.fields[facts]}"))
        self.live = Live(console=console, refresh_per_second=5)
        self.running = ""

    def plan(self, planned: list[Planned]) -> None:
        self.lines = {entry.name: f"  · {entry.name}" for entry in planned}
        self.live.start()
        self._draw()

    def begin(self, stage: str, reason: str) -> None:
        self.running, self.pace = stage, Pace()
        self.lines[stage] = f"  ▸ {stage}  ({reason})"
        for task in self.bar.task_ids:
            self.bar.remove_task(task)
        self.task = self.bar.add_task("", total=None, rate="", facts="")
        self._draw()

    def skip(self, stage: str) -> None:
        self.lines[stage] = f"  ✓ {stage}  (done before)"
        self._draw()

    def note(self, text: str) -> None:
        self.console.print(f"  {text}", markup=False, highlight=False)  # above the list

    def update(self, done: int, total: int, **facts: float) -> None:
        stop_here()
        rate = f"{self.pace.rate(done):.1f}/s"
        self.bar.update(self.task, completed=done, total=total, rate=rate, facts=_facts(facts))
        self._draw()

    def end(self, stage: str, seconds: float) -> None:
        self.lines[stage] = f"  ✓ {stage}  {seconds:.1f} s"
        self.running = ""
        self._draw()

    def close(self) -> None:
        self.live.stop()

    def _draw(self) -> None:
        """As many lines as the terminal has room for, with the running stage always among them."""
        names, room = list(self.lines), max(self.console.height - 4, 3)
        middle = names.index(self.running) if self.running else len(names) - 1
        first = max(0, min(middle - room // 2, len(names) - room))
        parts: list[Text | Bar] = [Text(f"  … {first} above", style="dim")] if first else []
        for name in names[first : first + room]:
            style = "bold" if name == self.running else ""
            parts.append(Text(self.lines[name], style=style, no_wrap=True, overflow="ellipsis"))
            if name == self.running:
                parts.append(self.bar)
        if (below := len(names) - first - room) > 0:
            parts.append(Text(f"  … {below} below", style="dim"))
        self.live.update(Group(*parts))
