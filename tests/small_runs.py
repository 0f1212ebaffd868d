"""Small runs of the demo recipe, with the embedded model and problems, that take seconds."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import weakdriven.planning.rehearsal  # noqa: F401 - a run imports it late, and would keep what a test has patched
from weakdriven.config.file import load_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.data.demo import demo_rows
from weakdriven.data.rows import files
from weakdriven.runs.directory import Progress
from weakdriven.runs.stage import Planned
from weakdriven.runs.take_over import Siblings

SMALL = [
    *("data.limit=48", "eval.limit=8", "eval.max_new_tokens=24", "sft.epochs=1", "baselines=[sft]"),
    *("sft.batch_size=16", "sft.micro_batch_size=16", "sft.learning_rate=2e-3", "sft.save_steps=2"),
    *("joint.batch_size=16", "joint.micro_batch_size=16", "joint.learning_rate=2e-3", "joint.save_steps=2"),
]

demo_rows_once = cache(demo_rows)
files.demo_rows = lambda split: [dict(row) for row in demo_rows_once(split)]  # a run loads them several times


class Recorder(Progress):
    """Records which stages ran and why, which were skipped, and all notes."""

    def __init__(self):
        self.ran: dict[str, str] = {}
        self.skipped: list[str] = []
        self.planned: list[Planned] = []
        self.notes: list[str] = []

    def plan(self, planned):
        self.planned = planned

    def begin(self, stage, reason):
        self.ran[stage] = reason

    def skip(self, stage):
        self.skipped.append(stage)

    def note(self, text):
        self.notes.append(text)


def small_recipe(*overrides: str) -> Recipe:
    return load_recipe("demo", [*SMALL, *overrides])


def run_small(root: Path, *overrides: str, siblings: Sequence[Path] = ()) -> Recorder:
    """Run the small recipe; reuse stages that a sibling has finished with the same key.

    Stages that an earlier call finished with other settings are replaced.
    """
    from weakdriven.pipeline.run import RunOptions, run_recipe

    recorder = Recorder()
    run_recipe(small_recipe(*overrides), root, recorder, RunOptions(Siblings(siblings), replace=True))
    return recorder
