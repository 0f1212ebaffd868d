"""Runs the study of docs/evidence, one part at a time, with the commands that protocol.md specifies.

    python -m research.evidence.run smollm2-135m rate core --output runs/evidence
    python -m research.evidence.run qwen2.5-coder-0.5b core --first 45 --seeds 2 --output runs/evidence
    python -m research.evidence.run smollm2-135m controls --only sft_compute \
        --first 45 --seeds 2 --output runs/evidence

A study is `weakdriven sweep` or `compare` with the methods and settings of the protocol. Its results are collected as
soon as it ends, so that the next part can use them: the student's `rate` results choose the learning rate, its `epochs`
results the epochs of `saturated`. Relative paths in recipes (models, data) start at the working directory;
`--set model=...` applies to every command.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from research.evidence.results import REFERENCE, SEEDS, STUDENTS, read_results, trained_methods
from weakdriven.eval.statistics import score_of
from weakdriven.runs.files import write_json
from weakdriven.runs.yaml import read_yaml

FOLDER = Path(__file__).parents[2] / "docs/evidence"
ONE_MORE = {1e-5: 3e-6, 3e-4: 1e-3}
"""Rates that are also tried if the best rate is at an end of the grid."""
ENOUGH = 0.005
"""Minimum gain on validation for which SFT is made longer."""
VALIDATION = "eval.data_dir=data/validation"
COMPARED = {
    "core": [REFERENCE, "sft", "wmss", "wdjt_only", "sft_active", "wmss_frozen"],
    "alone": [REFERENCE, "sft", "wmss"],
}
"""Methods of the studies that are comparisons; `alone` measures costs on a GPU without other processes."""
TABLES = ("core", "variants", "controls", "saturated", "published", "exploratory", "sampled", "sizes", "alone")
"""Studies on test items, with several seeds; the others are on validation, with one."""
STUDIES = ("rate", "wmss_rate", "epochs", *TABLES)
FIRST = 42
"""The recipes' seed, and the only one of studies on validation."""
POINTED = ("epochs", *TABLES)
"""Studies whose points may run separately; the others choose among all their points."""
FEWER_SEEDS = {"exploratory": 3, "published": 3, "sampled": 3, "sizes": 3, "alone": 1}
"""Number of seeds of studies that test no hypothesis."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("student", choices=STUDENTS)
    parser.add_argument("studies", nargs="+", choices=STUDIES, metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every command")
    parser.add_argument("--rate", type=float, help="learning rate (default: chosen by the student's `rate` results)")
    parser.add_argument("--first", type=int, default=FIRST, help="first seed")
    parser.add_argument("--seeds", type=int, help="number of seeds (default: the protocol's)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these points or methods of a study")
    parser.add_argument("--jobs", type=int, default=5, help="runs at once")
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--take-from", type=Path, help="reuse identical M1 and baselines from these runs")
    parser.add_argument("--no-rehearsal", action="store_true", help="skip the rehearsal of memory")
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    parser.add_argument("--commit", default="", help="commit of the code that runs")
    args = parser.parse_args()
    if args.only and (whole := [study for study in args.studies if study not in POINTED]):
        parser.error(f"--only is for {', '.join(POINTED)}; {whole[0]} cannot run in part.")
    for study in args.studies if args.only else ():
        names_in(study, args.only)
    if args.take_from and "alone" in args.studies:
        parser.error("alone measures the cost of every stage, so it cannot reuse any; remove --take-from.")
    for study in args.studies:
        for number, (command, folder) in enumerate(commands(study, args)):
            if number == 0:
                refuse_known(study, args, folder)
            options = ["--take-from", str(args.take_from)] if args.take_from else []
            options += ["--no-rehearsal"] if args.no_rehearsal else []
            run(["-m", "weakdriven", *command, *options, "--output", str(folder)])
            run(["-m", "research.evidence", "collect", str(folder), *collected_as(study, args)])


def run(arguments: list[str]) -> None:
    print("$ python", *arguments, flush=True)
    if subprocess.run([sys.executable, *arguments]).returncode not in (0, 2):  # 2: a method has no result
        raise SystemExit(f"It failed: python {' '.join(arguments)}")


def refuse_known(study: str, args: Any, folder: Path) -> None:
    """Raise an error if results of these runs exist, unless the runs are resumed: no table can take both."""
    if folder.exists():
        return
    first = args.first if study in TABLES else FIRST
    seeds = {str(first + number) for number in range(seeds_of(study, args))}
    for one in read_results(args.results):
        if (one["student"], one["study"]) != (args.student, table_of(study)):
            continue
        again = {method: seeds & one["methods"][method]["seeds"].keys() for method in methods_of(study, args, one)}
        if known := [f"{method} of seed {min(each)}" for method, each in again.items() if each]:
            raise SystemExit(
                f"{args.results / one['file']} has {known[0]} already; give other seeds (--first, --seeds), other "
                "points (--only) or another --results, or resume in the --output that holds its runs."
            )


def methods_of(study: str, args: Any, result: dict[str, Any]) -> list[str]:
    """List a result's methods that the study would train again; on validation, each point has its own file."""
    if study not in TABLES:
        again = not args.only or any(result["file"].endswith(f"-{name}.json") for name in args.only)
        return [REFERENCE] if again else []
    asked = names_in(study, args.only)
    return [name for name in asked if name != REFERENCE and name in result["methods"]]


def names_in(study: str, only: list[str]) -> list[str]:
    """Return the requested methods or points of a study (default: all)."""
    known = list(COMPARED.get(study) or read_yaml(sweep_of(study))["points"])
    if unknown := [name for name in only if name not in known]:
        raise SystemExit(f"--only: {study} has no {unknown[0]}; it has {', '.join(known)}.")
    return only or known


def seeds_of(study: str, args: Any) -> int:
    return (args.seeds or FEWER_SEEDS.get(study, SEEDS)) if study in TABLES else 1


def table_of(study: str) -> str:
    return "variants" if study == "controls" else study


def sweep_of(study: str) -> Path:
    return FOLDER / f"recipes/{ {'rate': 'rates'}.get(study, study) }.yaml"


def collected_as(study: str, args: Any) -> list[str]:
    options = ["--study", table_of(study), "--student", args.student]
    options += ["--results", str(args.results), "--commit", args.commit or "unknown"]
    part = "-".join([f"s{args.first}", *(args.only if study in COMPARED else [])])  # a sweep's are named after points
    return [*options, "--part", part] if study in TABLES else options


def commands(study: str, args: Any) -> Iterator[tuple[list[str], Path]]:
    """Yield arguments of `weakdriven` and the output folder; later commands may depend on results collected before."""
    recipe, folder = str(FOLDER / f"recipes/{args.student}.yaml"), args.output / f"{args.student}-{study}"
    jobs = ["--jobs", str(1 if study == "alone" else args.jobs)]
    grid = ["--grid", str(sweep_of(study))]
    if study == "rate":
        one_seed = [*args.set, VALIDATION, "--seeds", "1"]
        yield ["sweep", recipe, *one_seed, *grid, *jobs], folder
        if more := ONE_MORE.get(best_rate(args.results, args.student)):
            settings = [
                f"sft.learning_rate={more:g}",
                "method=sft_restart",
                "baselines=[]",
                "eval.benchmarks=[math500]",
            ]
            yield (
                ["sweep", recipe, *settings, *one_seed, "--grid", f"joint.learning_rate={more:g}"],
                folder.with_name(f"{folder.name}-more"),
            )
        return
    rate = args.rate or best_rate(args.results, args.student)
    settings = [*args.set, *rate_settings(rate)]
    if study == "wmss_rate":  # M1 keeps its rate
        settings = [word for word in settings if not word.startswith("joint.learning_rate=")]
        settings += ["baselines=[sft_restart]", "eval.benchmarks=[math500]", VALIDATION, "--seeds", "1"]
        rates = ",".join(f"{rate * factor:g}" for factor in (0.1, 0.3, 1, 3))
        yield ["sweep", recipe, *settings, "--grid", f"joint.learning_rate={rates}", *jobs], folder
        return
    if study == "epochs":
        settings.append(VALIDATION)
    if study == "saturated":
        settings.append(f"sft.epochs={enough_epochs(args.results, args.student, rate)}")
    if study == "alone":
        settings.append("eval.benchmarks=[mawps]")  # the smallest; its scores are not used
    if study in TABLES:
        settings.append(f"seed={args.first}")
        folder = folder.with_name(f"{folder.name}-s{args.first}")
    settings += ["--seeds", str(seeds_of(study, args)), *jobs]
    folder = folder.with_name("-".join([folder.name, *args.only]))
    asked = names_in(study, args.only)
    if known := COMPARED.get(study):
        methods = [name for name in known if name == REFERENCE or name in asked]
        yield ["compare", recipe, *settings, "--methods", ",".join(methods)], folder
        return
    if args.only:
        grid[1] = str(some_points(Path(grid[1]), asked, folder.with_name(f"{folder.name}.yaml")))
    yield ["sweep", recipe, *settings, *grid], folder


def some_points(sweep: Path, names: list[str], target: Path) -> Path:
    """Write the sweep with only these points."""
    whole = read_yaml(sweep)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_json(target, whole | {"points": {name: whole["points"][name] for name in names}})
    return target


def rate_settings(rate: float) -> list[str]:
    """Return settings with the student's rate for every method; SPIN, DPO and SSB use the paper's ratios to it.

    >>> rate_settings(1e-4)[2:]
    ['spin.learning_rate=5e-06', 'dpo.learning_rate=5e-06', 'ssb.learning_rate=0.001']
    """
    rates = {"sft": rate, "joint": rate, "spin": rate / 20, "dpo": rate / 20, "ssb": 10 * rate}
    return [f"{phase}.learning_rate={value:g}" for phase, value in rates.items()]


def best_rate(results: Path, student: str) -> float:
    """Return the learning rate with the highest validation accuracy (in a tie, the smaller one)."""
    found = [(validated(one), -one["recipe"]["sft"]["learning_rate"]) for one in of_study(results, student, "rate")]
    return -max(found)[1]


def enough_epochs(results: Path, student: str, rate: float) -> int:
    """Return the first number of epochs that the next one does not beat by half a point on validation."""
    tried = [(one["recipe"]["sft"], validated(one)) for one in of_study(results, student, "epochs")]
    if other := [sft["learning_rate"] for sft, _ in tried if sft["learning_rate"] != rate]:
        raise SystemExit(f"Epochs of {student} were tried at a rate of {other[0]:g}, not {rate:g}; run `epochs` again.")
    scores = {sft["epochs"]: score for sft, score in tried}
    points = read_yaml(sweep_of("epochs"))["points"]
    counts = {point["sft.epochs"]: name for name, point in points.items()}
    for count, more in pairwise(sorted(counts)):
        if missing := [counts[one] for one in (count, more) if one not in scores]:
            raise SystemExit(f"Epochs of {student}: {missing[0]} was not tried; run `epochs --only {missing[0]}`.")
        if scores[more] < scores[count] + ENOUGH:
            return count
    return max(counts)


def validated(result: dict[str, Any]) -> float:
    """Return the accuracy for a choice: M1's for its epochs, the reference's for its rate."""
    wanted = "m1" if result["study"] == "epochs" else REFERENCE
    return next(score_of(one.scores) for one in trained_methods([result]) if one.method == wanted)


def of_study(results: Path, student: str, study: str) -> list[dict[str, Any]]:
    read = read_results(results)
    found = [one for one in read if (one["student"], one["study"]) == (student, study) and one["methods"]]
    if not found:
        raise SystemExit(f"{results} holds no results of the study {study} on {student}; run that first.")
    return found


if __name__ == "__main__":
    main()
