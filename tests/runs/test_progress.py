"""What a person sees: plain lines in a log, a live list on a terminal, nothing if asked."""

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
    """A terminal of 24 lines with 31 stages planned."""
    progress = TerminalProgress(Console(force_terminal=True, width=100, height=24, file=StringIO()))
    progress.plan(PLAN)
    yield progress
    progress.close()


def plain(**options) -> tuple[PlainProgress, StringIO]:
    file = StringIO()
    progress = PlainProgress(Console(file=file), **options)
    progress.plan(PLAN[:3])
    return progress, file


def drawn(progress: TerminalProgress) -> list[str]:
    """Lines of the live display as the terminal shows them."""
    console = progress.console
    lines = console.render_lines(progress.live.get_renderable(), pad=False)
    assert len(lines) <= console.height, "rich would cut off the end"
    return ["".join(part.text for part in line) for line in lines]


def test_plain_lines_number_the_stages_and_say_why_they_run_or_not():
    progress, file = plain()
    reason = "a.b [1, 2] -> [bold]x[/bold], " + "input rows changed, " * 20 + "end"
    progress.begin("data", reason)
    progress.end("data", 1.25)
    progress.skip("sft")
    progress.begin("entropy/base", "not run yet")
    lines = [f"[1/3] data: {reason}", "    done in 1.2 s", "[2/3] sft: done before", "[3/3] entropy/base: not run yet"]
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


@pytest.mark.parametrize("place", [0, 1, 15, 29, 30])
def test_the_running_stage_and_its_bar_are_in_view_among_more_stages_than_lines(terminal, place):
    terminal.begin(STAGES[place], "a 1 -> 2")
    terminal.update(2, 10)
    terminal.update(3, 10, loss=0.5, lr=1e-3)
    lines = drawn(terminal)
    line = lines.index(f"  ▸ {STAGES[place]}  (a 1 -> 2)")
    assert "3/10" in lines[line + 1] and "━" in lines[line + 1] and "loss 0.5  lr 0.001" in lines[line + 1]
    hidden = sum(int(number) for number in re.findall(r"… (\d+) (?:above|below)", "\n".join(lines)))
    assert hidden + sum("stage-" in line for line in lines) == len(STAGES)


def test_a_long_reason_does_not_push_the_bar_out_of_view(terminal):
    terminal.begin(STAGES[-1], ", ".join(f"setting_{i} 0.001 -> 0.002" for i in range(20)))
    terminal.update(3, 10)
    assert "3/10" in drawn(terminal)[-1]


def test_a_reason_with_brackets_is_shown_as_it_is(terminal):
    terminal.begin(STAGES[0], "betas [0.9, 0.99] -> [bold]")
    assert "  ▸ stage-00  (betas [0.9, 0.99] -> [bold])" in drawn(terminal)


def test_finished_and_skipped_stages_get_ticks(terminal):
    terminal.skip(STAGES[0])
    terminal.begin(STAGES[1], "not run yet")
    terminal.end(STAGES[1], 1.25)
    terminal.begin(STAGES[2], "not run yet")
    assert drawn(terminal)[:3] == [
        "  ✓ stage-00  (done before)",
        "  ✓ stage-01  1.2 s",
        "  ▸ stage-02  (not run yet)",
    ]
    terminal.end(STAGES[2], 0)
    assert not any("▸" in line or "━" in line for line in drawn(terminal))


def test_a_new_stage_starts_with_an_empty_bar(terminal):
    terminal.begin(STAGES[0], "not run yet")
    terminal.update(9, 10)
    terminal.begin(STAGES[1], "not run yet")
    assert not any("9/10" in line for line in drawn(terminal)) and len(terminal.bar.tasks) == 1


def test_closing_stops_the_live_display_and_leaves_its_last_state(terminal):
    assert terminal.live.is_started
    terminal.begin(STAGES[0], "not run yet")
    terminal.end(STAGES[0], 2)
    terminal.close()
    assert not terminal.live.is_started
    shown = terminal.console.file.getvalue()
    assert "stage-30" in shown
    terminal.close()
    assert terminal.console.file.getvalue() == shown


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
