"""Runs TRL's own tests of SFTTrainer with SFTTrainer, and with WDJTTrainer in its place.

    python scripts/trl_suite.py test_sft_trainer.py [-k EXPRESSION] [--verbose]

The file is `tests/test_sft_trainer.py` of TRL's repository at the installed version; the package on PyPI does not have
it. `trl_stand_ins.py` makes the models and datasets that it would load from the Hub. Each test runs with

- `sft`: SFTTrainer; a test that fails here fails because of the stand-ins and is dropped;
- `joint`: WDJTTrainer with a weak model of the same kind and other weights;
- `strong`: the same with `trainer.model` being the strong model, if `joint` failed;
- `alone`: `strong_weight=1`, where losses and weights must equal those of `sft`.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TRANSFORMERS_VERBOSITY": "error"}
os.environ |= {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="trl-suite-")

import pytest
import torch
import trl_stand_ins as stand_ins
from transformers import AutoModelForCausalLM, PrinterCallback
from trl import SFTConfig, SFTTrainer

from weakdriven import WDJTConfig, WDJTTrainer
from weakdriven.errors import UserError

MODES = ("sft", "joint", "strong", "alone")


@dataclass
class Training:
    losses: list[float] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class Outcome:
    outcome: str = "not run"
    why: str = ""
    refusal: bool = False
    trainings: list[Training] = field(default_factory=list)


RESULTS: dict[str, dict[str, Outcome]] = {}
"""Outcomes by test and mode."""


def weak_of(model: Any) -> Any:
    """Return another model of the same kind, as a path if the strong one is a path."""
    if isinstance(model, str):
        return f"weak/{model}"
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    return AutoModelForCausalLM.from_pretrained(f"weak/{base.config._name_or_path}", dtype=base.dtype)


class Recorded:
    """Keeps the loss of each micro-batch."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)  # pyright: ignore
        self.losses = [*getattr(self, "losses", []), loss.item()]
        return loss


class RecordedSFT(Recorded, SFTTrainer): ...


class RecordedWDJT(Recorded, WDJTTrainer): ...


class StrongView:
    """A trainer whose `model` is the strong model."""

    def __init__(self, trainer: WDJTTrainer):
        self.trainer = trainer

    def __getattr__(self, name: str) -> Any:
        return self.trainer.pair.strong if name == "model" else getattr(self.trainer, name)


def build(mode: str, made: list[Any], model: Any, args: Any = None, *more: Any, **kwargs: Any) -> Any:
    """Build the trainer that the tests get as SFTTrainer."""
    args = args or SFTConfig("out", bf16=False)  # the default precision is for GPUs
    if mode == "sft":
        trainer: Any = RecordedSFT(model, args, *more, **kwargs)
    else:
        if mode == "alone":
            args = WDJTConfig.of(args, strong_weight=1.0)
        trainer = RecordedWDJT(model, args, *more, weak_model=weak_of(model), **kwargs)
    trainer.remove_callback(PrinterCallback)
    made.append(trainer)
    return trainer if mode in ("sft", "joint") else StrongView(trainer)


def name_of(test: Any) -> str:
    others = [str(value) for name, value in test.callspec.params.items() if name != "mode"]
    return f"{test.originalname}[{', '.join(others)}]" if others else test.originalname


@pytest.fixture(autouse=True, params=MODES)
def mode(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    results, made = RESULTS.setdefault(name_of(request.node), {}), []
    if request.param != "sft" and results["sft"].outcome != "passed":
        pytest.skip("TRL's test fails with SFTTrainer itself in this environment, so there is nothing to match")
    if request.param == "strong" and results["joint"].outcome == "passed":
        pytest.skip("the test passes with the pair as it is; the view of the strong model is for those that fail")
    monkeypatch.setattr(request.module, "SFTTrainer", partial(build, request.param, made))
    monkeypatch.setattr(request.module, "SFTConfig", partial(SFTConfig, bf16=False))
    torch.manual_seed(0)  # so that a test's own adapters are equal in all modes
    yield
    trainings = results.setdefault(request.param, Outcome()).trainings
    for trainer in made:
        model = trainer.model if request.param == "sft" else trainer.pair.strong
        weights = {name: value.detach().float() for name, value in model.state_dict().items()}
        trainings.append(Training(getattr(trainer, "losses", []), weights))


@pytest.fixture
def lazy_shared_datadir() -> Path:
    return Path.cwd()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    report = yield
    if report.when == "call" or report.outcome != "passed":
        found = RESULTS.setdefault(name_of(item), {}).setdefault(item.callspec.params["mode"], Outcome())
        found.outcome = report.outcome
        if call.excinfo is not None:
            error = call.excinfo.value
            found.why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            found.refusal = isinstance(error, UserError)
    return report


def difference(one: Outcome, other: Outcome) -> tuple[float, float] | str | None:
    """Return the largest differences of losses and weights, or why there are none, or None if nothing was trained."""
    pairs = [pair for pair in zip(one.trainings, other.trainings, strict=False) if pair[0].losses]
    losses, weights = 0.0, 0.0
    for mine, theirs in pairs:
        if len(mine.losses) != len(theirs.losses):
            return f"{len(theirs.losses)} of {len(mine.losses)} steps"
        losses = max([losses, *(abs(a - b) for a, b in zip(mine.losses, theirs.losses, strict=True))])
        moved = [(value - theirs.weights[name]).abs().max().item() for name, value in mine.weights.items()]
        weights = max([weights, *moved])
    return (losses, weights) if pairs else None


def print_report() -> None:
    passed = {name: modes for name, modes in RESULTS.items() if modes["sft"].outcome == "passed"}
    nothing = Outcome()
    print("\n| test | unchanged | with model = strong model | strong_weight=1: loss, weights |\n|---|---|---|---|")
    compared = []
    for name, modes in passed.items():
        gap = difference(modes["sft"], modes.get("alone", nothing))
        compared += [gap] if isinstance(gap, tuple) else []
        shown = f"{gap[0]:.0e}, {gap[1]:.0e}" if isinstance(gap, tuple) else gap or ""
        print(f"| {name} | {modes['joint'].outcome} | {modes.get('strong', nothing).outcome} | {shown} |")
    print("\nNot supported, or failed:")
    for name, modes in passed.items():
        last = modes["joint"] if modes["joint"].outcome == "passed" else modes["strong"]
        if last.outcome != "passed":
            print(f"- {name}: {'not supported: ' if last.refusal else ''}{last.why[:400]}")
        elif modes["joint"].outcome != "passed":
            print(f"- {name}: only with model = strong model: {modes['joint'].why[:200]}")
    print("\nNot comparable here, because SFTTrainer fails:")
    for name in RESULTS.keys() - passed.keys():
        print(f"- {name}: {RESULTS[name]['sft'].why[:200]}")
    unchanged = sum(modes["joint"].outcome == "passed" for modes in passed.values())
    viewed = sum(modes.get("strong", nothing).outcome == "passed" for modes in passed.values())
    print(f"\n{len(passed)} pass with SFTTrainer; {unchanged} unchanged, {unchanged + viewed} with the strong model")
    worst = [max(column) for column in zip(*compared, strict=True)] or [0.0, 0.0]
    print(f"{len(compared)} trainings compared: losses within {worst[0]:.1e}, weights within {worst[1]:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=Path)
    parser.add_argument("-k", default="", help="run only tests that match, as in pytest")
    parser.add_argument("--verbose", action="store_true", help="show pytest's output")
    given = parser.parse_args()
    source = given.tests.read_text(encoding="utf-8")
    root = Path(os.environ["HF_HOME"])
    try:
        stand_ins.write_datasets(root)
        for name, why in stand_ins.write_models(root, {found[0] for found in stand_ins.MODEL.finditer(source)}).items():
            print(f"no stand-in for {name}: {why[:300]}")
        (root / "suite").mkdir()
        (root / "suite" / "__init__.py").touch()
        (root / "suite" / "test_sft_trainer.py").write_text(source, encoding="utf-8")
        shutil.copy(str(stand_ins.__file__), root / "suite" / "testing_utils.py")
        os.chdir(root)
        options = ["suite", "-p", "no:cacheprovider", "-m", "not slow", "-k", given.k, "--rootdir", str(root), "-q"]
        options += ["--tb=short"] if given.verbose else ["--tb=no", "--no-summary", "--disable-warnings"]
        pytest.main(options, plugins=[sys.modules[__name__]])
    finally:
        os.chdir("/")
        shutil.rmtree(root)
    print_report()


if __name__ == "__main__":
    main()
