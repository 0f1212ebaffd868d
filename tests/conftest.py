"""Runs that several tests look at; the embedded model and problems, cut down to seconds."""

import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from pathlib import Path

import pytest
import torch

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script, which tests' children inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported

from weakdriven.config.file import load_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.runs.directory import Progress
from weakdriven.runs.stage import Planned

SMALL = ["data.limit=96", "eval.limit=24", "eval.max_new_tokens=48", "sft.save_steps=2", "joint.save_steps=2"]


class Recorder(Progress):
    """Remembers which stages ran, why, which were skipped, and what was noted."""

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


def run_small(root: Path, *overrides: str) -> Recorder:
    from weakdriven.pipeline.run import run_recipe

    recorder = Recorder()
    run_recipe(small_recipe(*overrides), root, recorder)
    return recorder


@pytest.fixture(scope="session")
def two_round_run(tmp_path_factory) -> tuple[Path, Recorder]:
    """A finished run of two rounds and its recorder."""
    root = tmp_path_factory.mktemp("runs") / "two-rounds"
    return root, run_small(root, "joint.rounds=2")


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without CUDA, also where there is one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
