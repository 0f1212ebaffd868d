"""generate -> samples.jsonl -> grade -> scores.json: each step alone, interrupted, and again with another grader."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from helpers import embedded_tokenizer
from weakdriven.config.evaluation import EvalSettings
from weakdriven.data.prompts import Renderer
from weakdriven.errors import UserError
from weakdriven.eval import run as run_module
from weakdriven.eval.benchmarks import BENCHMARKS, Item
from weakdriven.eval.generate import Completion
from weakdriven.eval.run import check_task, evaluate, prepare_task, refresh
from weakdriven.eval.settings import RegradeSettings
from weakdriven.eval.standalone import regrade_folder
from weakdriven.runs.directory import Progress
from weakdriven.runs.files import read_json, read_jsonl
from weakdriven.runs.progress import TerminalProgress
from weakdriven.runs.stage import Planned


class Scripted:
    """The first `right[p]` samples of item p are right; fails after `most` completions."""

    def __init__(self, task, right, most=10**9):
        self.task, self.right, self.most, self.asked = task, right, most, 0

    def complete(self, requests, sampling, on_done):
        by_prompt = {tuple(ids): place for place, ids in enumerate(self.task.prompt_ids)}
        seen: dict[int, int] = {}
        for row, request in enumerate(requests):
            if self.asked == self.most:
                raise UserError("The server is gone.")
            self.asked += 1
            place = by_prompt[tuple(request.prompt)]
            number = seen[place] = seen.get(place, -1) + 1
            gold = self.task.items[place].gold
            answer = gold if number < self.right[place] else str(int(gold) + 1)
            on_done({row: Completion(f"So \\boxed{{{answer}}}.", 7, "stop")})


def task_of(style="plain", **settings):
    given = EvalSettings(benchmarks=["arithmetic"], limit=4, **settings)
    return prepare_task("arithmetic", Renderer(embedded_tokenizer(), "math", style), given, seed=42)


def no_engine():
    pytest.fail("all completions were there")


def stop_grading(monkeypatch, after):
    """Samples are graded one at a time; Ctrl-C comes after this many. Returns a list with an entry for each."""
    graded, grade_many = [], run_module.grade_many

    def counted(kind, texts, golds, **options):
        if len(graded) == after:
            raise KeyboardInterrupt
        graded.append(len(texts))
        return grade_many(kind, texts, golds, **options)

    monkeypatch.setattr(run_module, "BLOCK", 1)
    monkeypatch.setattr(run_module, "grade_many", counted)
    return graded


@pytest.fixture
def folders(tmp_path):
    work, out = tmp_path / "work", tmp_path / "out" / "arithmetic"
    work.mkdir()
    out.mkdir(parents=True)
    return {"work": work, "out": out, "progress": Progress()}


def test_a_sample_keeps_its_prompt_its_text_and_its_verdict_with_the_reason(folders):
    task = task_of()
    evaluate(task, lambda: Scripted(task, [1, 1, 0, 1]), **folders)
    samples = list(read_jsonl(folders["out"] / "samples.jsonl"))
    assert [sample["id"] for sample in samples] == [item.id for item in task.items]
    assert samples[2] == {
        "id": task.items[2].id,
        "sample": 0,
        "prompt": task.prompts[2],
        "text": samples[2]["text"],
        "tokens": 7,
        "finish": "stop",
        "correct": False,
        "answer": str(int(task.items[2].gold) + 1),
        "reason": "different value",
        "undecided": False,
        "gold": task.items[2].gold,
        "level": task.items[2].level,
    }
    scores = read_json(folders["out"] / "scores.json")
    assert (scores["correct"], scores["items"], scores["accuracy"], scores["version"]) == (3, 4, 0.75, 2)
    assert scores["interval_method"] == "Wilson" and scores["interval"] == pytest.approx([0.3006, 0.9544], abs=1e-4)
    assert scores["whole"] is False and scores["protocol"]["temperature"] == 0.0


def test_pass_at_k_mean_at_n_and_the_first_sample_are_separate_numbers(folders):
    task = task_of(samples=64, temperature=0.7)
    assert task.k == [1, 4, 8, 16, 32, 64]
    evaluate(task, lambda: Scripted(task, [0, 1, 3, 64]), **folders)
    scores = read_json(folders["out"] / "scores.json")
    want = {"1": 0.265625, "8": 0.364919, "32": 0.595238, "64": 0.75}
    assert {k: scores["pass_at_k"][k] for k in want} == pytest.approx(want, abs=1e-6)
    assert scores["mean_at_n"] == scores["accuracy"] == 68 / 256
    assert (scores["observed_pass_at_n"], scores["first_sample"], scores["samples"]) == (0.75, 0.75, 64)
    low, high = scores["pass_at_k_intervals"]["8"]
    assert low < scores["pass_at_k"]["8"] < high
    assert len(list(read_jsonl(folders["out"] / "samples.jsonl"))) == 256


def test_an_interrupted_generation_resumes_where_it_stopped(folders):
    task = task_of()
    first = Scripted(task, [1, 1, 1, 1], most=3)
    with pytest.raises(UserError, match="gone"):
        evaluate(task, lambda: first, **folders)
    with (folders["work"] / "completions.jsonl").open("a") as file:
        file.write('{"id": "torn')  # a kill in the middle of a line
    second = Scripted(task, [1, 1, 1, 1])
    evaluate(task, lambda: second, **folders)
    assert (first.asked, second.asked) == (3, 1)
    assert read_json(folders["out"] / "scores.json")["correct"] == 4


def test_an_interrupted_grading_keeps_its_verdicts_and_needs_no_engine(folders, monkeypatch):
    task, graded = task_of(), stop_grading(monkeypatch, after=2)
    with pytest.raises(KeyboardInterrupt):
        evaluate(task, lambda: Scripted(task, [1, 0, 1, 1]), **folders)
    graded.append(0)  # the interrupt came, and comes no more
    evaluate(task, no_engine, **folders)
    assert sum(graded) == 4
    assert read_json(folders["out"] / "scores.json")["correct"] == 3


def test_verdicts_of_an_interrupted_grading_do_not_count_for_other_golds(folders, monkeypatch):
    task, graded = task_of(), stop_grading(monkeypatch, after=2)
    with pytest.raises(KeyboardInterrupt):
        evaluate(task, lambda: Scripted(task, [1, 1, 1, 1]), **folders)
    graded.append(0)
    other = replace(task, items=[replace(item, gold=str(int(item.gold) + 7)) for item in task.items])
    evaluate(other, no_engine, **folders)
    assert read_json(folders["out"] / "scores.json")["correct"] == 0


def test_a_folder_of_results_is_graded_again_without_the_data(folders, monkeypatch):
    task = task_of()
    evaluate(task, lambda: Scripted(task, [1, 0, 1, 1]), **folders)
    before = (folders["out"] / "samples.jsonl").read_text()
    monkeypatch.setattr("weakdriven.eval.benchmarks.read_rows", lambda *a: pytest.fail("read the data"))
    scores = regrade_folder(folders["out"].parent, RegradeSettings(), Progress())
    assert scores["arithmetic"]["correct"] == 3
    assert (folders["out"] / "samples.jsonl").read_text() == before
    rows = [json.loads(line) for line in before.splitlines()]
    rows[1]["text"] = rows[1]["text"].replace(rows[1]["answer"], rows[1]["gold"])
    (folders["out"] / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = regrade_folder(folders["out"].parent, RegradeSettings(), Progress())
    assert scores["arithmetic"]["correct"] == 4


def test_a_new_version_or_gold_is_graded_again_and_not_generated_again(folders):
    task = task_of()
    evaluate(task, lambda: Scripted(task, [1, 0, 1, 1]), **folders)
    wrong_before = next(read_jsonl(folders["out"] / "samples.jsonl"))
    mended = replace(task, items=[replace(task.items[0], gold="-1"), *task.items[1:]])
    assert mended.prompts_key() == task.prompts_key() and mended.golds_key() != task.golds_key()
    refresh(folders["out"], mended, Progress())
    assert read_json(folders["out"] / "scores.json")["correct"] == 2
    assert next(read_jsonl(folders["out"] / "samples.jsonl"))["text"] == wrong_before["text"]
    refresh(folders["out"], replace(task, entry=replace(task.entry, version=99)), Progress())
    scores = read_json(folders["out"] / "scores.json")
    assert (scores["version"], scores["correct"]) == (99, 3)


def test_other_k_are_computed_from_the_same_samples(folders):
    task = task_of(samples=8, temperature=0.7)
    evaluate(task, lambda: Scripted(task, [0, 1, 3, 8]), **folders)
    refresh(folders["out"], replace(task, k=[2]), Progress())
    assert list(read_json(folders["out"] / "scores.json")["pass_at_k"]) == ["2"]


def test_prompts_over_the_limit_are_an_error_that_names_them():
    with pytest.raises(UserError, match=r"4 prompts are longer than max_prompt_tokens=10: arithmetic-test-0 \(\d+ tok"):
        task_of(max_prompt_tokens=10)


def test_a_changed_prompt_changes_the_key():
    plain, tagged = task_of(), task_of(style="tagged")
    assert plain.prompts_key() != tagged.prompts_key()
    assert "\\boxed{}" in tagged.prompts[0]


def test_a_regrade_updates_k_and_the_manifest_and_other_grader_options_regrade(folders):
    task = task_of(samples=4, temperature=0.7)
    evaluate(task, lambda: Scripted(task, [0, 1, 3, 4]), model="m", **folders)
    (folders["out"] / "manifest.json").write_text(json.dumps({"key": "x", "counters": {"correct": 8}}))
    mended = replace(task, items=[replace(item, gold="-1") for item in task.items], k=[2])
    refresh(folders["out"], mended, Progress())
    scores, manifest = (read_json(folders["out"] / name) for name in ("scores.json", "manifest.json"))
    assert (list(scores["pass_at_k"]), scores["correct"], scores["model"]) == (["2"], 0, "m")
    assert (manifest["key"], manifest["counters"]["correct"]) == ("x", 0)
    refresh(folders["out"], replace(mended, grading={"unsafe": True}), Progress())
    assert read_json(folders["out"] / "scores.json")["grading"] == {"unsafe": True}


def test_a_finished_benchmark_is_graded_again_on_a_terminal_too(folders):
    task = task_of()
    evaluate(task, lambda: Scripted(task, [1, 1, 1, 1]), **folders)
    progress = TerminalProgress(Console(file=io.StringIO(), force_terminal=True))
    progress.plan([Planned("arithmetic", "", "")])
    progress.skip("arithmetic")
    refresh(folders["out"], replace(task, items=[replace(item, gold="-1") for item in task.items]), progress)
    progress.close()
    assert read_json(folders["out"] / "scores.json")["correct"] == 0


def test_too_few_positions_and_a_python_that_is_none_are_errors_before_generation():
    task = task_of()
    check_task(task, task.longest())
    with pytest.raises(UserError, match=f"the model has {task.longest() - 1}; lower max_new_tokens"):
        check_task(task, task.longest() - 1)
    item = Item("a", "?", {"prompt": "", "entry_point": "f", "test": "", "test_style": "check", "id": "a"})
    entry, grading = BENCHMARKS["humaneval_plus"], {"unsafe": True, "python": "/no/python"}
    code = replace(task, benchmark="humaneval_plus", entry=entry, items=[item], grading=grading)
    with pytest.raises(UserError, match="/no/python"):
        check_task(code)
