"""Collects the results of docs/evidence and writes its tables and figures. Run it from the repository's root.

    python -m research.evidence collect FOLDER --study core --student gemma-3-270m [--call wmss=wmss_annealed]
    python -m research.evidence diagnosed RUN --student gemma-3-270m
    python -m research.evidence also FILE mixture wmss 42=FOLDER
    python -m research.evidence write

`collect` turns a folder of `weakdriven compare` into a file in docs/evidence/results, or one of `weakdriven sweep`
into a file per point. `diagnosed` keeps what `weakdriven diagnose` measured in a run. `also` adds the answers of
`weakdriven eval run` to a result file. `write` computes the tables, quoted numbers and figures of the pages again, from
these files alone.
"""

import argparse
from pathlib import Path
from typing import Any

from research.evidence.collect import collect, with_answers
from research.evidence.diagnosed import diagnosed
from research.evidence.page import FOLDER, STUDIES, write
from research.evidence.results import VALIDATION
from weakdriven.runs.files import read_json, write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write", help="write tables, quoted numbers and figures from the results")
    adding = commands.add_parser("collect", help="make result files from a folder of `weakdriven compare` or `sweep`")
    adding.add_argument("folder", type=Path)
    adding.add_argument("--study", required=True, help=f"{', '.join([*VALIDATION, *STUDIES])}, or a new one")
    adding.add_argument("--student", required=True)
    adding.add_argument("--call", action="append", default=[], metavar="METHOD=NAME", help="another name for a method")
    adding.add_argument("--part", default="", help="suffix for more files of one student and study")
    adding.add_argument("--commit", default=None, help="commit of the code that ran")
    adding.add_argument("--results", type=Path, default=FOLDER / "results")
    more = commands.add_parser("also", help="add answers of `weakdriven eval run` to a result file as another method")
    more.add_argument("file", type=Path)
    more.add_argument("method", help="name of the new method")
    more.add_argument("like", help="method of the file that trained the model")
    more.add_argument("folders", nargs="+", metavar="SEED=FOLDER")
    looking = commands.add_parser("diagnosed", help="make a file from a run of `weakdriven diagnose`")
    looking.add_argument("run", type=Path)
    looking.add_argument("--student", required=True)
    looking.add_argument("--study", default="", help="study of the run, if a seed was diagnosed in several studies")
    looking.add_argument("--output", type=Path, default=FOLDER / "diagnosed")
    args = parser.parse_args()
    if args.command == "write":
        print(*write(FOLDER), sep="\n")
        return
    if args.command == "diagnosed":
        found = diagnosed(args.run, args.student) | {"study": args.study}
        args.output.mkdir(parents=True, exist_ok=True)
        parts = [args.student, f"s{found['seed']}", args.study, "held_out" * found["held_out"]]
        write_json(args.output / f"{'-'.join(filter(None, parts))}.json", found)
        return
    if args.command == "also":
        folders = {seed: Path(folder) for seed, folder in (pair.split("=", 1) for pair in args.folders)}
        write_json(args.file, with_answers(read_json(args.file), args.method, args.like, folders))
        return
    names = dict(pair.split("=", 1) for pair in args.call)
    args.results.mkdir(parents=True, exist_ok=True)
    for part, found in collect(args.folder, study=args.study, student=args.student, names=names).items():
        path = args.results / f"{'-'.join(filter(None, [args.student, args.study, part, args.part]))}.json"
        refuse_loss(path, found["methods"])
        write_json(path, found | {"commit": args.commit})
        print(path)


def refuse_loss(path: Path, found: dict[str, Any]) -> None:
    """Raise an error if a result file would lose or change answers; it may only grow."""
    for method, one in (read_json(path)["methods"] if path.exists() else {}).items():
        now = found.get(method, {"seeds": {}})["seeds"]
        if lost := [seed for seed, answers in one["seeds"].items() if now.get(seed) != answers]:
            raise SystemExit(
                f"{path} has answers of {method}, seed {lost[0]}, that these runs lack or contradict; collect them "
                "with another --part, or remove the file."
            )


if __name__ == "__main__":
    main()
