"""Fuzz the package with inputs that nobody would write; any result but success or one of our errors is a defect.

    python scripts/fuzz.py all --examples 200
    python scripts/fuzz.py recipe-tree report --examples 100000 --seed 7

An input that takes more than five seconds or two gigabytes is a defect too. Inputs come in lots with a seed each, so
that a defect does not end the campaign; to reproduce it, use `--examples 250 --seed` with the printed seed.
"""

import argparse
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fuzz_inputs
import fuzz_outputs
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from weakdriven.errors import UserError

TARGETS = fuzz_inputs.TARGETS | fuzz_outputs.TARGETS
LIMIT, MEMORY = 5.0, 2 * 2**30
LOT = 250


class TooSlow(Exception):
    """An input took longer than `LIMIT`."""


@dataclass
class Tally:
    """The results of a campaign against one target."""

    inputs: int = 0
    refused: int = 0
    """Inputs that raised one of our errors."""
    slowest: float = 0.0
    seconds: float = 0.0
    defects: dict[str, str] = field(default_factory=dict)
    """Input and traceback of each defect, by the line that raised it."""


def fuzz(name: str, examples: int, *, first_seed: int = 0, shrink: bool = True, until: float = float("inf")) -> Tally:
    """Try a target on `examples` inputs.

    Args:
        until: Start no further lot after this time (`time.monotonic`).
    """
    function, strategy = TARGETS[name]
    tally, begin = Tally(), time.monotonic()
    before = signal.signal(signal.SIGALRM, too_slow)
    for lot in range(first_seed, first_seed + -(-examples // LOT)):
        if time.monotonic() > until:
            break
        try:
            _lot(function, strategy, tally, min(LOT, examples - tally.inputs), lot, shrink)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in where if "weakdriven" in frame.filename] or list(where)
            place = f"{type(error).__name__} in {Path(ours[-1].filename).name}:{ours[-1].lineno}"
            tally.defects.setdefault(place, f"seed {lot}\n{''.join(traceback.format_exception(error)[-12:])}")
        gc.collect()
    signal.signal(signal.SIGALRM, before)
    tally.seconds = time.monotonic() - begin
    return tally


def _lot(
    function: Callable[[Any], None], strategy: st.SearchStrategy[Any], tally: Tally, count: int, lot: int, shrink: bool
) -> None:
    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]

    @seed(lot)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(strategy)
    def one(value: Any) -> None:
        tally.inputs += 1
        begin = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        try:
            function(value)
        except UserError as error:
            tally.refused += 1
            assert str(error).strip(), "an error without a message"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            tally.slowest = max(tally.slowest, time.monotonic() - begin)

    one()


def too_slow(*_: Any) -> None:
    raise TooSlow(f"an input took more than {LIMIT:g} s")


def limit_memory() -> None:
    """Limit memory to what is in use now plus `MEMORY`; beyond that an allocation fails, which is a defect."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", choices=[*TARGETS, "all"])
    parser.add_argument("--examples", type=int, default=1000, help="inputs for each target")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first lot")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no further lot after these minutes")
    parser.add_argument("--no-shrink", action="store_true")
    args = parser.parse_args()
    os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="fuzz-")  # inputs are written there
    tempfile.tempdir = None
    limit_memory()
    found = 0
    for name in TARGETS if "all" in args.targets else args.targets:
        until = time.monotonic() + 60 * args.minutes
        tally = fuzz(name, args.examples, first_seed=args.seed, shrink=not args.no_shrink, until=until)
        found += len(tally.defects)
        print(
            f"{name:12} {tally.inputs:8,} inputs  {tally.refused:8,} refused  {len(tally.defects)} defects  "
            f"slowest {tally.slowest:.2f} s  {tally.seconds:7.1f} s",
            flush=True,
        )
        for where, told in tally.defects.items():
            print(f"--- {where}\n{told}", flush=True)
    shutil.rmtree(os.environ["TMPDIR"])
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
