"""Training that fails on the way, a wrong clock, a data file that is gone, two processes, a server that dies."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

import chat_server
from chat_server import DROP
from fault_cases import (
    FORKED,
    STAGES,
    TINY,
    Case,
    cases,
    damaged,
    one_sentence,
    params,
    record,
    results,
    resumes,
    struck_runs,
    without,
)
from helpers import embedded_tokenizer, write_rows
from weakdriven.config.file import load_recipe
from weakdriven.data.prompts import Renderer
from weakdriven.errors import UserError
from weakdriven.eval.generate.server import Retries, ServerEngine
from weakdriven.eval.run import evaluate, prepare_task
from weakdriven.pipeline.run import run_recipe
from weakdriven.runs.directory import Progress, work_folder
from weakdriven.runs.files import read_json
from weakdriven.training.checkpoints import last_complete_checkpoint

pytestmark = FORKED


def fails(tmp_path, case: Case, kind: str) -> tuple[Path, str]:
    """A run that fails in its last step of a stage; returns its checkpoints and its sentence."""
    forks, calm = struck_runs()
    last = 3 if case.stage == "sft" else 1
    root = without(calm, tmp_path / "run", case.stage)
    code, output = forks.run(root, {"kind": kind, "stage": STAGES[case.stage], "at": last})
    assert code == 2, output
    checkpoints = work_folder(root, STAGES[case.stage]) / "work/checkpoints"
    kept = last_complete_checkpoint(checkpoints)
    assert kept is not None and kept.name == f"checkpoint-{last}" and damaged(root) == []
    return checkpoints, one_sentence(output)


@pytest.mark.parametrize("case", params("NaN loss"))
def test_a_loss_that_is_not_a_number_names_its_step_and_leaves_the_checkpoint_before_it(case, tmp_path):
    _, sentence = fails(tmp_path, case, "nan")
    assert "diverged" in sentence and f"step {4 if case.stage == 'sft' else 2}" in sentence
    resumes(tmp_path / "run")
    record(case)


@pytest.mark.parametrize("case", params("out of memory", quick=("sft",)))
def test_out_of_memory_names_three_remedies_and_a_clock_that_was_set_back_changes_nothing_on_resume(case, tmp_path):
    checkpoints, sentence = fails(tmp_path, case, "memory")
    assert f"{STAGES[case.stage]} ran out of memory (DefaultCPUAllocator: can't allocate memory" in sentence
    frees = r" frees \d+\.\d MiB"
    assert re.search(rf"\(1\) {case.stage}\.micro_batch_size=8{frees} \(same result\)", sentence)
    assert re.search(rf"\(2\) {case.stage}\.gradient_checkpointing=keep_products{frees}, takes 1\.\d\d", sentence)
    assert re.search(rf"\(3\) precision=bf16 {case.stage}\.optimizer=adamw_bf16{frees} \(other result\)", sentence)
    now = time.time()
    for age, path in enumerate(sorted(checkpoints.glob("checkpoint-*"), reverse=True)):
        os.utime(path, (now - 1000 * (9 - age), now - 1000 * (9 - age)))  # the newest looks oldest
    resumes(tmp_path / "run", {"kind": "clock"})
    assert read_json(tmp_path / "run" / STAGES[case.stage] / "manifest.json")["wall_seconds"] >= 0
    record(case)
    record(*(other for other in cases("clock set back") if other.stage == case.stage))


def test_a_data_file_that_is_gone_is_named_before_the_older_run_is_touched(tmp_path):
    row = {"question": "What is 1 + 1?", "solution": "1 + 1 = 2. The answer is \\boxed{2}.", "answer": "2"}
    path = tmp_path / "rows.jsonl"
    write_rows(path, ({"id": str(number), **row} for number in range(4)))
    recipe = load_recipe("demo", [*TINY, f"data.path={path}", "method=sft", "eval.benchmarks=[]"])
    run_recipe(recipe, tmp_path / "run", Progress())
    before = results(tmp_path / "run")
    path.unlink()
    with pytest.raises(UserError, match=r"rows\.jsonl"):
        run_recipe(recipe, tmp_path / "run", Progress())
    assert results(tmp_path / "run") == before
    record(*cases("vanished data file"))


@pytest.mark.slow
def test_of_two_processes_the_second_raises_an_error_and_a_killed_one_leaves_the_lock_free(tmp_path):
    forks, calm = struck_runs()
    root = without(calm, tmp_path / "run", "sft")
    process = forks.start(root)
    while not work_folder(root, "sft").exists():
        time.sleep(0.01)
    with pytest.raises(UserError, match="Another process is running in"):
        run_recipe(load_recipe("demo", TINY), root, Progress())
    os.kill(process, signal.SIGKILL)
    assert forks.finish()[0] == -9
    resumes(root)
    record(*cases("two processes"))


server = chat_server.server


def test_completions_from_before_a_server_died_are_kept_and_only_the_rest_is_requested(server, tmp_path):
    task = prepare_task(
        "arithmetic", Renderer(embedded_tokenizer(), "math", "plain"), load_recipe("demo", TINY).eval, seed=42
    )
    folders = {"work": tmp_path / "work", "out": tmp_path / "out"}
    for folder in folders.values():
        folder.mkdir()
    server.models = [{"id": "m1"}]
    answered = []

    def alive(body, asked):
        answered.append(body["prompt"])
        facts = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1}
        return 200, {"choices": [{"text": "7", "finish_reason": "stop"}], "usage": facts}

    server.trouble = lambda body, asked: DROP if len(answered) == 3 else alive(body, asked)
    engine = ServerEngine(server.url, concurrency=1, retries=Retries(tries=2, first=0.001, longest=0.002))
    with pytest.raises(UserError, match=r"3 of 8 completions are kept"):
        evaluate(task, lambda: engine, **folders, progress=Progress())
    server.trouble = alive
    evaluate(task, lambda: engine, **folders, progress=Progress())
    assert len(answered) == len({tuple(prompt) for prompt in answered}) == 8
    record(*cases("dead server"))
