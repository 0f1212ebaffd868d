"""Generate completions with a teacher for problems with known answers: sample, verify, and keep several of each.

This adds reasoning to logic sets, and to any set of questions and answers without solutions. The teacher may be the
model that is trained later (self-distillation).
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from weakdriven.build.settings import TeacherSettings
from weakdriven.data.example import Example
from weakdriven.data.funnel import Funnel
from weakdriven.data.overlap.fingerprint import fingerprint as text_fingerprint
from weakdriven.data.prompts import Renderer, with_system_prompt
from weakdriven.data.structure import with_reasoning
from weakdriven.errors import UserError
from weakdriven.eval.engine_pool import Engines
from weakdriven.eval.generate import Engine, Sampling
from weakdriven.eval.generate.samples import Ask, Row
from weakdriven.eval.generate.server import ServerEngine
from weakdriven.eval.graders.candidates import Candidate, Fault, Verify
from weakdriven.eval.rollouts import Rollout, Rollouts
from weakdriven.runs.directory import Progress
from weakdriven.runs.files import digest

BLOCK = 4096
"""Problems sampled together: enough to fill a GPU's batches, and few enough to hold their completions in memory."""
API_KEY = "OPENAI_API_KEY"
UNIT_TESTS = "unit_tests"
"""Key in a problem's meta for the tests of a program."""


class OpenTeacher(NamedTuple):
    """A teacher that is ready to generate."""

    settings: TeacherSettings
    style: str
    prompt: Callable[[Example], tuple[Any, Any]]
    """Returns the engine's input for a problem, and the same as text."""
    start: Callable[[Path], AbstractContextManager[Engine]]
    """Takes the path of a server's log."""
    sampling: Sampling
    facts: dict[str, Any]
    """What decides its completions besides the problems."""


def open_teacher(teacher: TeacherSettings, domain: str, style: str) -> OpenTeacher:
    """Check that the teacher can generate; its weights are loaded only for the first completion."""
    from weakdriven.eval.engines import check_engine, find_renderer, open_engine
    from weakdriven.models.folder import open_model
    from weakdriven.models.load import fingerprint, positions

    sampling = Sampling(teacher.max_new_tokens, (), teacher.temperature, teacher.top_p)
    facts = teacher.model_dump(include={"temperature", "top_p", "max_new_tokens", "seed"}) | {"style": style}
    if teacher.url is not None:
        server = ServerEngine(teacher.url, model=teacher.model, api_key=os.environ.get(API_KEY), key_variable=API_KEY)

        def messages(example: Example) -> tuple[Any, Any]:
            said = with_system_prompt(example.prompt, example.domain or domain, style)
            return said, said

        facts["model"] = [teacher.model, teacher.url]
        return OpenTeacher(teacher, style, messages, lambda log: nullcontext(server), sampling, facts)
    branch = open_model(teacher.model)
    renderer = find_renderer(teacher, style, branch)
    check_engine(teacher, branch)
    longest = teacher.max_prompt_tokens + teacher.max_new_tokens
    room = positions(branch.model, trust_remote_code=teacher.trust_remote_code)
    if room is not None and longest > room:
        raise UserError(
            f"max_prompt_tokens={teacher.max_prompt_tokens} and max_new_tokens={teacher.max_new_tokens} need {longest} "
            f"positions, but {teacher.model} has {room}; lower one of them."
        )
    shown = renderer.prompt([{"role": "user", "content": "?"}], domain)  # the template is part of the request
    facts |= {"model": digest([fingerprint(branch.folder), fingerprint(branch.model)]), "prompt": shown}
    facts |= teacher.model_dump(include={"precision", "attention", "engine"})
    return OpenTeacher(
        teacher,
        style,
        partial(rendered, renderer, domain),
        lambda log: open_engine(teacher, branch, renderer, longest=longest, log=log),
        replace(sampling, stop_ids=tuple(renderer.stop_ids)),
        facts,
    )


def rendered(renderer: Renderer, domain: str, example: Example) -> tuple[list[int], str]:
    text = renderer.prompt(example.prompt, example.domain or domain)
    return renderer.tokenizer(text, add_special_tokens=False)["input_ids"], text  # pyright: ignore


@dataclass(frozen=True)
class Judge:
    """Decides whether completions are right."""

    form: Callable[[Example], Example | Fault]
    """Returns a row in the form to be trained on, or the fault of its form."""
    verify: Verify
    terms: Any = None
    """What decides the verdict besides the problem; completions judged on other terms are judged again."""

    def faults(self, problems: Mapping[str, Example], rows: list[Row], *, style: str) -> list[Fault | None]:
        """Return the fault of each completion: cut off, wrong form, or wrong answer."""
        found: list[Fault | None] = [None] * len(rows)
        candidates: dict[int, Candidate] = {}
        for place, row in enumerate(rows):
            problem = problems[row["id"]]
            learned = self.form(replace(problem, completion=written(row, style)))
            if row["finish"] == "length":
                found[place] = Fault("cut off", f"after {row['tokens']} tokens")
            elif row["finish"] != "stop":
                found[place] = Fault("refused", row["finish"])
            elif isinstance(learned, Fault):
                found[place] = learned
            else:
                candidates[place] = Candidate(learned, problem.meta.get(UNIT_TESTS, {}))
        for place, fault in zip(candidates, self.verify(list(candidates.values())), strict=True):
            found[place] = fault
        return found


def distil(
    examples: Iterable[Example],
    teacher: OpenTeacher,
    judge: Judge,
    folder: Path,
    *,
    total: int,
    counts: tuple[Funnel, Funnel],
    progress: Progress,
) -> Iterator[Example]:
    """Yield the problems with right completions, in order.

    Args:
        counts: Counts of the problems and of their completions; final once the iterator is exhausted.
        folder: Keeps all completions and verdicts, in a folder for each block of problems.
        total: Number of problems.
    """
    engines, examples, settings = Engines(), iter(examples), teacher.settings
    start = partial(engines.of, "teacher", lambda: teacher.start(folder / "server.log"))
    try:
        for number in range(-(-total // BLOCK)):
            problems = list(islice(examples, BLOCK))
            faults = partial(judge.faults, {problem.id: problem for problem in problems}, style=teacher.style)
            terms = {problem.id: digest([judge.terms, problem.gold, problem.meta]) for problem in problems}
            home, sampling = folder / f"{number:05d}", teacher.sampling
            rollouts = Rollouts(home, start, sampling, faults, terms=terms.__getitem__, seed=settings.seed)
            before = number * BLOCK * settings.samples
            on_done = partial(lambda before, new: progress.update(before + new, total * settings.samples), before)
            found = sample_until_kept(problems, teacher, rollouts, counts, on_done)
            for problem in problems:
                yield from completed(problem, found.get(problem.id, []), teacher, judge)
    finally:
        engines.close()


def sample_until_kept(
    problems: list[Example],
    teacher: OpenTeacher,
    rollouts: Rollouts,
    counts: tuple[Funnel, Funnel],
    on_done: Callable[[int], None],
) -> dict[str, list[Rollout]]:
    """Collect up to `keep` right and different rollouts of each problem; sample again for problems that lack some.

    `on_done` receives how many of all possible samples are written or no longer needed.
    """
    settings, (of_problems, of_completions) = teacher.settings, counts
    prompts = {problem.id: teacher.prompt(problem) for problem in problems}
    tries: dict[str, list[Rollout]] = {}
    for id, (prompt, _) in prompts.items():
        if teacher.sampling.stop_ids and len(prompt) > settings.max_prompt_tokens:
            of_problems.drop("prompt too long", id, f"{len(prompt)} tokens")
        else:
            tries[id] = []
    found: dict[str, list[Rollout]] = {id: [] for id in tries}
    total = len(problems) * settings.samples
    while asks := [
        Ask(id, len(tries[id]) + more, *prompts[id])
        for id in tries
        for more in range(min(settings.keep - len(found[id]), settings.samples - len(tries[id])))
    ]:
        left = sum(settings.samples - len(tries[id]) for id in tries if len(found[id]) < settings.keep)
        for rollout in rollouts.ask(asks, lambda new, before=total - left: on_done(before + new)):
            id = rollout.row["id"]
            tries[id].append(rollout)
            if is_right_and_new(rollout, found[id], of_completions, teacher.style):
                found[id].append(rollout)
    on_done(total)
    for id, rollouts_of in tries.items():
        if found[id]:
            of_problems.keep()
        else:
            reasons = Counter(rollout.fault.reason for rollout in rollouts_of if rollout.fault)
            detail = ", ".join(f"{reason} {times}" for reason, times in reasons.most_common())
            of_problems.drop("no right completion", id, f"{len(rollouts_of)} samples: {detail}")
    return found


def is_right_and_new(rollout: Rollout, found: list[Rollout], funnel: Funnel, style: str) -> bool:
    """Return whether a rollout is right and differs from those found; count it in the funnel."""
    row, fault = rollout
    # compare letters and digits: completions that differ only in spaces or punctuation are the same
    own, *others = (text_fingerprint(written(one.row, style)).exact for one in (rollout, *found))
    if fault is None and own in others:
        fault = Fault("repeated", f"same as sample {found[others.index(own)].row['sample']}")
    if fault is not None:
        funnel.drop(fault.reason, f"{row['id']}#s{row['sample']}", fault.detail)
        return False
    funnel.keep()
    return True


def written(row: Row, style: str) -> str:
    """Return a completion as one text; some servers return the reasoning in a separate field."""
    return with_reasoning(row.get("reasoning", ""), row["text"].strip(), style)


def completed(problem: Example, found: list[Rollout], teacher: OpenTeacher, judge: Judge) -> Iterator[Example]:
    """Yield the problem with each of its completions."""
    for row, _ in found:
        learned = judge.form(replace(problem, completion=written(row, teacher.style)))
        assert isinstance(learned, Example)  # the judge accepted its form
        id = problem.id if teacher.settings.keep == 1 else f"{problem.id}#s{row['sample']}"
        meta = {name: value for name, value in problem.meta.items() if name != UNIT_TESTS}
        yield replace(learned, id=id, meta=meta | {"teacher": teacher.settings.model, "sample": row["sample"]})
