"""What a person sees: plain lines in a log, a bar under them on a terminal, nothing if asked."""

import re
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from weakdriven.runs.directory import Progress
from weakdriven.runs.progress import Pace, PlainProgress, TerminalProgress, choose_progress
from weakdriven.runs.stage import Planned

STAGES = [f"stage-{i:02}" for i in range(31)]
PLAN = [Planned(name, "key", "not run yet") for name in STAGES]


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when a test says so."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("weakdriven.runs.progress.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def terminal():
    progress = TerminalProgress(Console(force_terminal=True, width=100, height=24, file=StringIO()))
    progress.plan(PLAN)
    yield progress
    progress.close()


def plain(**options) -> tuple[PlainProgress, StringIO]:
    file = StringIO()
    progress = PlainProgress(Console(file=file), **options)
    progress.plan(PLAN[:3])
    return progress, file


def drawn(progress: TerminalProgress) -> str:
    """The bar as the terminal shows it."""
    console = progress.console
    return "\n".join("".join(part.text for part in line) for line in console.render_lines(progress.bar, pad=False))


def test_plain_lines_number_the_stages_and_say_why_they_run_or_not():
    progress, file = plain()
    reason = "a.b [1, 2] -> [bold]x[/bold], " + "input rows changed, " * 20 + "end"
    progress.begin("data", reason)
    progress.end("data", 1.25)
    progress.skip("sft")
    progress.begin("entropy/base", "not run yet")
    lines = [f"[1/3] data: {reason}", "    done in 1.2 s", "[2/3] sft: already done", "[3/3] entropy/base"]
    assert file.getvalue().splitlines() == lines


def test_plain_updates_come_once_in_an_interval_with_rate_and_time_left(clock):
    progress, file = plain()
    progress.begin("sft", "not run yet")
    for clock.now in (1, 5, 9.9, 12, 20, 22):
        progress.update(int(100 + 2 * clock.now), 200, loss=0.51234, lr=1e-5)
    updates = [
        "    124/200  2.0/s  38 s left  loss 0.5123  lr 1e-05",
        "    144/200  2.0/s  28 s left  loss 0.5123  lr 1e-05",
    ]
    assert file.getvalue().splitlines()[1:] == updates


def test_plain_updates_come_each_time_if_the_interval_is_nothing():
    progress, file = plain(every_seconds=0)
    progress.begin("sft", "not run yet")
    for done in (5, 6, 7):
        progress.update(done, 10, loss=0.5)
    lines = file.getvalue().splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["6/10", "7/10"]  # the first report has no rate yet
    assert all(re.fullmatch(r"    \d+/10  [\d.]+/s  \d+ s left  loss 0\.5", line) for line in lines)


def test_pace_ignores_what_was_done_before_the_first_report(clock):
    pace = Pace()
    assert pace.rate(1000) == 0
    clock.now = 10
    assert pace.rate(1000) == 0 and pace.rate(1050) == 5


def test_a_terminal_shows_the_same_lines_and_a_bar_of_the_running_stage(terminal):
    terminal.skip(STAGES[0])
    terminal.begin(STAGES[1], "betas [0.9, 0.99] -> [bold]")
    terminal.update(2, 10)
    terminal.update(3, 10, loss=0.5, lr=1e-3)
    assert "3/10" in drawn(terminal) and "━" in drawn(terminal) and "loss 0.5  lr 0.001" in drawn(terminal)
    terminal.end(STAGES[1], 1.25)
    shown = terminal.console.file.getvalue()
    lines = ["[1/31] stage-00: already done", "[2/31] stage-01: betas [0.9, 0.99] -> [bold]", "    done in 1.2 s"]
    assert all(line in shown for line in lines) and "━" not in drawn(terminal)


def test_a_new_stage_starts_with_an_empty_bar(terminal):
    terminal.begin(STAGES[0], "not run yet")
    terminal.update(9, 10)
    terminal.begin(STAGES[1], "not run yet")
    assert "9/10" not in drawn(terminal) and len(terminal.bar.tasks) == 1


def test_closing_ends_the_bar_of_a_stage_that_failed(terminal):
    terminal.begin(STAGES[0], "not run yet")
    assert terminal.bar.live.is_started
    for _ in range(2):
        terminal.close()
        assert not terminal.bar.live.is_started and not terminal.bar.tasks


def test_the_kind_of_progress_follows_the_console_and_the_wish_for_quiet():
    screen, log = Console(force_terminal=True, file=StringIO()), Console(file=StringIO())
    assert type(choose_progress(screen, quiet=True)) is type(choose_progress(log, quiet=True)) is Progress
    assert isinstance(choose_progress(screen, quiet=False), TerminalProgress)
    assert isinstance(choose_progress(log, quiet=False), PlainProgress)


def test_a_note_is_a_line_of_its_own(terminal):
    progress, file = plain()
    for one in (progress, terminal):
        one.begin("stage-00", "not run yet")
        one.note("layout [messages], 3 rows")
    assert "    layout [messages], 3 rows\n" in file.getvalue()
    assert "layout [messages], 3 rows" in terminal.console.file.getvalue()
