"""Runs the comparisons of docs/evidence/protocol-2.md for one student: one command for screens, one for arms.

    python -m research.evidence.trial qwen2.5-coder-0.5b screens --seeds 3 --output runs/trial
    python -m research.evidence.trial qwen2.5-coder-0.5b rft weak_negatives sft_7 --seeds 5 --output runs/trial

Names are `screens`, `arms`, one of either, `sft_N` (N epochs of SFT) or a method of the package; `sft_restart` always
runs. `screens` and `--validation` use the validation problems. Each seed has a run directory in which shared stages are
computed once, so the same command resumes, and methods can be added later. The result file is written when a seed ends,
and by the same command with `--collect`.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from research.evidence.arms import ARMS, SCREENS, maker
from research.evidence.collect import VERSION, contents, hardware_of
from research.evidence.run import FOLDER, VALIDATION
from weakdriven.config.file import load_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.errors import explain
from weakdriven.methods.wmss import first_strong
from weakdriven.pipeline.compare import made_from
from weakdriven.pipeline.parallel import LOCKS, run_all
from weakdriven.pipeline.run import RunOptions, carry_out, evaluate_models
from weakdriven.report.compare.table import REFERENCE
from weakdriven.runs.directory import PLAN_FILE, Progress
from weakdriven.runs.executor import Listing
from weakdriven.runs.files import read_json, write_json
from weakdriven.runs.machine import library_versions
from weakdriven.runs.progress import PlainProgress
from weakdriven.runs.take_over import Siblings
from weakdriven.stages.context import Context
from weakdriven.stages.data import data_stage

FACTS = "trial.json"
"""File in a run: each method's model and stages, or why it has none."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("student", help="name of a recipe under docs/evidence/recipes/trial, or a recipe file")
    parser.add_argument("methods", nargs="+", metavar="METHOD")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the recipe")
    parser.add_argument("--validation", action="store_true", help="evaluate on the validation problems")
    parser.add_argument("--part", default="", help="suffix for more files of one student")
    parser.add_argument("--first", type=int, default=42, help="first seed")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--jobs", type=int, default=5, help="seeds at once")
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--results", type=Path, default=FOLDER / "trial")
    parser.add_argument("--commit", default="unknown", help="commit of the code that runs")
    parser.add_argument("--collect", action="store_true", help="run nothing, only collect what is finished")
    args = parser.parse_args()
    groups: dict[str, list[str]] = {"screens": [*SCREENS], "arms": [*ARMS]}
    methods = [name for word in args.methods for name in groups.get(word, [word])]
    methods = list(dict.fromkeys([REFERENCE, *methods]))
    for name in methods:
        maker(name)  # an unknown name raises an error before anything runs
    study = "screens" if args.validation or "screens" in args.methods else "trial"
    where = [VALIDATION, "eval.benchmarks=[math500]"] if study == "screens" else []
    own = FOLDER / f"recipes/trial/{args.student}.yaml"
    source = str(own) if own.is_file() else args.student
    runs = {
        f"seed-{seed}": load_recipe(source, [*where, *args.set, f"seed={seed}"])
        for seed in range(args.first, args.first + args.seeds)
    }
    student = Path(args.student).stem
    root = args.output / "-".join(filter(None, [student, study, args.part]))
    about = {"version": VERSION, "study": study, "student": student, "commit": args.commit}
    file = args.results / f"{root.name}-s{args.first}.json"

    broken: list[str] = []

    def record(name: str = "", _: Any = None, why: str = "") -> None:
        broken.extend([f"{name} has no result: {why}"] if why else [])
        if found := collected(root, runs, args.jobs):
            args.results.mkdir(parents=True, exist_ok=True)
            write_json(file, about | found)

    if not args.collect:
        others = [path.parent for path in sorted(args.output.glob(f"*/seed-*/{PLAN_FILE}"))]
        options = RunOptions(Siblings([*others, *(root / one for one in runs)], root / LOCKS), rehearsal=False)
        tasks = {one: partial(run_seed, root / one, runs[one], methods=methods, options=options) for one in runs}
        run_all(tasks, PlainProgress(Console()), record, root=root, jobs=args.jobs)
    record()
    if file.exists():
        print(json.dumps({method: one["epochs"] for method, one in read_json(file)["methods"].items()}))
        print(file)
    if broken:
        raise SystemExit("\n".join(broken))


def run_seed(root: Path, recipe: Recipe, progress: Progress, *, methods: list[str], options: RunOptions) -> None:
    """Run all methods with one seed; finished ones are recorded even if the rest is interrupted."""
    work = partial(one_by_one, methods=methods)
    carry_out(recipe, root, progress, work, evaluates=True, options=options)


def one_by_one(context: Context, *, methods: list[str]) -> None:
    data = data_stage(context)
    file = context.run.root / FACTS
    found: dict[str, Any] = read_json(file) if file.exists() else {"methods": {}, "failed": {}, "plan": {}}
    starts = [context.base, first_strong(context, data)]
    for name in methods:
        try:
            evaluate_models(context, [*starts, maker(name)(context, data)])
            listing = Listing(context.run.root)
            alone = context.with_run(listing)
            found["methods"][name] = made_from(maker(name)(alone, data_stage(alone)), listing.stages)
            found["failed"].pop(name, None)
        except Exception as error:
            if not context.run.computes or (sentence := explain(error)) is None:
                raise
            found["failed"][name] = sentence
        if context.run.computes:
            found["plan"] |= {stage: one.key for stage, one in context.run.stages.items()}
            write_json(file, found)
            write_json(context.run.root / PLAN_FILE, found["plan"])


def collected(root: Path, runs: dict[str, Recipe], jobs: int) -> dict[str, Any]:
    """Collect the seeds with results, and each method's compute in epochs of SFT."""
    known = {one: read_json(root / one / FACTS) for one in runs if (root / one / FACTS).is_file()}
    methods = {method: facts for one in known.values() for method, facts in one["methods"].items()}
    if not methods:
        return {}
    failed: dict[str, dict[str, str]] = {}
    for one, facts in known.items():
        for method, why in facts["failed"].items():
            failed.setdefault(method, {})[str(runs[one].seed)] = why
    facts = {"seeds": {str(runs[one].seed): one for one in known}, "methods": methods, "failed": failed}
    facts |= {"hardware": hardware_of(root / one for one in known), "jobs": jobs, "versions": library_versions()}
    found = contents(root, facts, {})
    for one in found["methods"].values():
        each = one["stages"].values()
        rows = [read_json(root / facts["seeds"][seed] / "data/manifest.json")["counters"] for seed in one["stages"]]
        spent = [operations(stages, data["tokens"]) for stages, data in zip(each, rows, strict=True)]
        one["epochs"] = round(sum(spent) / len(spent), 3)
    return found


def operations(stages: dict[str, Any], epoch: int) -> float:
    """Return the compute of a method's stages in epochs of SFT, at 6 operations per weight and trained token, else 2.

    Args:
        epoch: Number of tokens in the training data.

    >>> sampled = {"tokens": 300, "prompt_tokens": 300}
    >>> operations({"sft": {"counters": {"trained_tokens": 200}}, "rollouts/sft/rft": {"counters": sampled}}, 100)
    4.0
    """
    spent = 0.0
    for name, stage in stages.items():
        counters = stage["counters"]
        trained = counters.get("trained_tokens", 0)
        spent += 6 * trained
        if pairs := stages.get(f"pairs/{name.removeprefix('baselines/')}"):
            # the reference reads both sides of each pair once, for any number of epochs
            spent += 2 * trained * pairs["counters"]["pairs"] / counters["rows"]
        if name.startswith("rollouts/"):
            spent += 2 * (counters["tokens"] + counters["prompt_tokens"])
        if name.startswith("entropy/"):
            spent += 2 * counters["tokens_read"]
        if name == "baselines/wmss_frozen":  # the frozen weak model runs too
            spent += 2 * trained
    return spent / (6 * epoch)


if __name__ == "__main__":
    main()
