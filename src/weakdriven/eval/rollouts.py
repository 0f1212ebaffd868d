"""Rollouts: several completions of each training prompt, verified while others are still being generated.

`rollouts.jsonl` holds the completions, `labels.jsonl` the verdict on each. Lines are only appended, so a killed run
resumes where it stopped, and asking for more samples keeps the existing ones. A completion is valid for the prompt it
was generated from, a label for the terms it was given under.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from weakdriven.eval.generate import Engine, Sampling
from weakdriven.eval.generate.samples import Ask, Key, Row, by_key, collect
from weakdriven.eval.graders.answers import BAD_GOLD
from weakdriven.eval.graders.candidates import BAD_TESTS, VERIFIER_TIMEOUT, Fault
from weakdriven.eval.graders.workers import FAILED
from weakdriven.runs.files import append_jsonl, salvage_jsonl
from weakdriven.runs.processes import agree, index, is_main

ROLLOUTS, LABELS = "rollouts.jsonl", "labels.jsonl"
NOT_VERIFIED, RIGHT_BUT_CUT, REFUSED = "not verified", "right but cut off", "refused"
UNDECIDED = (BAD_GOLD, BAD_TESTS, FAILED, VERIFIER_TIMEOUT, NOT_VERIFIED, RIGHT_BUT_CUT, REFUSED)
"""Reasons that mean neither right nor wrong: fault of verifier, row, token limit or server, or not verified."""


class Rollout(NamedTuple):
    """A completion and its verdict."""

    row: Row
    fault: Fault | None

    @property
    def undecided(self) -> bool:
        return self.fault is not None and self.fault.reason in UNDECIDED


class Rollouts:
    """The rollouts in one folder; `ask` adds missing ones. All processes of a run create it together.

    Args:
        engine: Called only if a completion is missing, because it may load a model or start a server.
        judge: Returns the fault of each completion, None for a right one.
        terms: Maps an item to what decides its labels: the gold answer and how it is compared.
    """

    def __init__(
        self,
        folder: Path,
        engine: Callable[[], Engine],
        sampling: Sampling,
        judge: Callable[[list[Row]], list[Fault | None]],
        *,
        terms: Callable[[str], str],
        seed: int,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.engine, self.sampling, self.judge = folder, engine, sampling, judge
        self.seed, self.terms = seed, terms
        # each process writes its own files and knows what all of them have written before
        own = f"-{index()}.jsonl" if index() else ".jsonl"
        self.files = {name: folder / name.replace(".jsonl", own) for name in (ROLLOUTS, LABELS)}
        self.rows, self.labels = agree([self._read(name) for name in (ROLLOUTS, LABELS)] if is_main() else [{}, {}])

    def ask(self, asks: Sequence[Ask], on_done: Callable[[int], None] = lambda done: None) -> list[Rollout]:
        """Return the rollout of every ask, in order; another thread judges completions while more are generated.

        Args:
            on_done: Called with the number of completions written so far.
        """
        shown = {(ask.id, ask.sample): ask.shown for ask in asks}
        judged: list[Future[None]] = []
        with ThreadPoolExecutor(1) as thread:

            def on_rows(rows: list[Row]) -> None:
                self.rows.update(by_key(rows))
                judged.append(thread.submit(self._label, rows))
                for verdict in judged:
                    if verdict.done():
                        verdict.result()  # an error of the verifier stops generation too
                on_done(sum(key in self.rows for key in shown))

            known = ((key, self.rows.get(key)) for key in shown)
            done = {key: row for key, row in known if row and row["prompt"] == shown[key]}
            left = [ask for ask in asks if (ask.id, ask.sample) not in done]
            judged_on = {key: label["terms"] for key, label in self.labels.items()}
            if unlabelled := [row for key, row in done.items() if judged_on.get(key) != self.terms(row["id"])]:
                on_rows(unlabelled)
            collect(left, self.engine, self.sampling, self.files[ROLLOUTS], seed=self.seed, on_rows=on_rows)
        for verdict in judged:
            verdict.result()
        return [Rollout(self.rows[key], as_fault(self.labels[key])) for key in shown]

    def _read(self, name: str) -> dict[Key, Row]:
        files = sorted(self.folder.glob(name.replace(".jsonl", "*.jsonl")))
        return by_key([row for file in files for row in salvage_jsonl(file)])

    def _label(self, rows: list[Row]) -> None:
        faults = zip(rows, self.judge(rows), strict=True)
        labels = [as_label(row, fault, self.terms(row["id"])) for row, fault in faults]
        append_jsonl(self.files[LABELS], labels, sealed=True)
        self.labels.update(by_key(labels))


def as_label(row: Row, fault: Fault | None, terms: str = "") -> Row:
    label = {"id": row["id"], "sample": row["sample"], "correct": fault is None, "terms": terms}
    return label if fault is None else label | fault._asdict()


def as_fault(label: Row) -> Fault | None:
    return None if label["correct"] else Fault(label["reason"], label["detail"], label.get("answer"))
