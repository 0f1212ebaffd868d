"""The reasons of verdicts, hostile texts, and the worker processes that compare answers."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from sandbox_cases import wait_until
from weakdriven.eval import Graded, check_golds, grade, grade_many
from weakdriven.eval.graders.answers import grade_math, last_boxed, listed_boxes
from weakdriven.eval.graders.judge import MEMORY_MB
from weakdriven.eval.graders.latex import as_words
from weakdriven.eval.graders.workers import Pool, shared_pool
from weakdriven.runs.machine import cores

HANGS = "9^{9^{9^9}}"


@pytest.mark.parametrize(
    "text, gold, graded",
    [
        ("It is 12.", "12", Graded(False, None, "no boxed answer")),
        (r"<think>It is \boxed{12}", "12", Graded(False, None, "unfinished thinking")),
        (r"\boxed{12}, or rather \boxed{13}.", "12", Graded(False, "13", "different value")),
        (r"\boxed{13}, or rather \boxed{12}.", "12", Graded(True, "12", "same text")),
        (r"\boxed{24/2}", "12", Graded(True, "24/2", "math-verify")),
        (r"\boxed{}", "12", Graded(False, "", "empty box")),
        (r"\boxed{\frac{}{}}", "12", Graded(False, r"\frac{}{}", "unreadable answer")),
        (rf"\boxed{{{'x+' * 900}1}}", "12", Graded(False, "x+" * 900 + "1", "unreadable answer")),
        (r"\boxed{12}", "", Graded(False, "12", "bad gold")),
        (r"\boxed{12}", r"\frac{1}{0}", Graded(False, "12", "bad gold")),
    ],
)
def test_a_math_verdict_has_the_answer_and_the_reason(text, gold, graded):
    assert grade("math", text, gold, timeout=60) == graded


@pytest.mark.parametrize(
    "text, gold, options, graded",
    [
        ("The answer is (B).", "B", None, Graded(True, "B", "letter")),
        ("The answer is (B).", "C", None, Graded(False, "B", "another letter")),
        ("The answer is (E).", "C", ["1", "2", "3"], Graded(False, "E", "no such option")),
        ("The answer is A or B.", "B", None, Graded(False, "A, B", "ambiguous")),
        ("I cannot say.", "B", None, Graded(False, None, "no choice")),
        ("<think>It is B", "B", None, Graded(False, None, "unfinished thinking")),
        ("The answer is (B).", "F", None, Graded(False, None, "bad gold")),
        (r"\boxed{none}", "B", ["1", "None"], Graded(True, "B", "option text")),
        (r"\boxed{0.5}", "B", ["1", "1/2"], Graded(True, "B", "option value")),
    ],
)
def test_a_choice_verdict_has_the_answer_and_the_reason(text, gold, options, graded):
    assert grade("choice", text, gold, options=options, timeout=60) == graded


@pytest.mark.parametrize(
    "reason, undecided",
    [("bad gold", True), ("timeout", True), ("verifier failed: MemoryError", True), ("different value", False)],
)
def test_a_verdict_that_is_the_graders_fault_is_undecided(reason, undecided):
    assert Graded(False, "1", reason).undecided is undecided


def test_degenerate_completions_take_little_time():
    began = time.process_time()
    assert last_boxed("\\boxed{" * 20_000 + "7}") == "7"
    for filling in ("\n", "*", "( ", "answer is ", "The answer is A. ", "so, ", "\\text{", "A, B, "):
        grade("choice", filling * (30_000 // len(filling)), "A", options=["3 cats", "4 cats"])
    assert time.process_time() - began < 30


def test_garbage_is_wrong_and_does_not_raise():
    garbage = [r"\sqrt[", r"\left( 1", r"\begin{matrix} 1 & 2 \\", r"^_^_^", "\\" * 51, "5\x00", "\U0001f600", "\ud800"]
    for text in garbage:
        assert not grade_math(rf"\boxed{{{text}}}", "7", timeout=60).correct
        assert not grade_math(r"\boxed{7}", text, timeout=60).correct


def test_golds_that_cannot_be_graded_against_are_named():
    golds = ["7", r"\frac{1}{2}", "", r"\frac{1}{0}", r"\text{Friday}", "$$$", r"(1, 2]", r"\sqrt["]
    assert check_golds("math", golds) == [2, 3, 5, 7]
    assert check_golds("choice", ["A", "D", "E"], options=[["x"] * 4] * 3) == [2]
    assert check_golds("code", ["anything"]) == []


def test_an_unknown_kind_and_a_missing_gold_are_errors():
    with pytest.raises(ValueError, match="no grader 'essay'"):
        grade("essay", "a", "b")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="2 texts, but 1 golds"):
        grade_many("math", ["a", "b"], ["1"])


def test_code_is_graded_with_the_options_given(monkeypatch):
    graded = lambda text, item, **options: Graded(True, text, f"{item} {options}")  # noqa: E731
    monkeypatch.setattr("weakdriven.eval.graders.grading.grade_code", graded)
    assert grade("code", "pass", {"id": 1}, timeout=3) == Graded(True, "pass", "{'id': 1} {'timeout': 3}")


def test_importing_the_graders_loads_no_heavy_library():
    program = "import sys, weakdriven.eval; print([m for m in ('torch', 'sympy', 'math_verify') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


# Workers


def test_a_sample_that_hangs_times_out_and_the_others_are_graded():
    texts = [rf"\boxed{{{i}/2}}" for i in range(8)]
    assert grade("math", texts[1], "2/4").correct  # a worker is running
    graded = grade_many("math", [*texts, rf"\boxed{{{HANGS}}}"], [f"{i}/4" for i in range(0, 18, 2)], timeout=4)
    assert graded.pop() == Graded(False, HANGS, "timeout")
    assert graded == [Graded(True, f"{i}/2", "math-verify") for i in range(8)]
    assert len(shared_pool().idle) <= cores()


def test_a_worker_has_a_memory_limit_and_a_session_of_its_own():
    assert grade("math", r"\boxed{2/4}", "1/2").correct
    pid = shared_pool().idle[0].process.pid
    with open(f"/proc/{pid}/limits") as limits:
        line = next(line for line in limits if line.startswith("Max address space"))
    assert int(line.split()[3]) == MEMORY_MB * 2**20
    assert os.getsid(pid) == pid


def test_a_forked_child_starts_workers_of_its_own():
    assert grade("math", r"\boxed{2/4}", "1/2").correct
    if (child := os.fork()) == 0:
        os._exit(1 if shared_pool().idle else 0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_many_threads_share_the_workers_and_get_their_own_verdicts():
    wrong = []

    def work(number):
        for value in range(8):
            if not grade("math", rf"\boxed{{\frac{{{2 * value}}}{{{2 * number}}}}}", f"{value}/{number}").correct:
                wrong.append((number, value))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(shared_pool().idle) <= cores()


def kill_when_busy(pool, process):
    wait_until(lambda: not pool.idle)
    time.sleep(0.3)
    process.kill()


@pytest.mark.slow
def test_a_worker_that_dies_is_a_failure_and_the_next_sample_gets_a_new_one():
    pool = Pool(1)
    try:
        assert pool.ask({"gold": "1/2", "answer": "2/4"}, 60) == "math-verify"
        threading.Thread(target=kill_when_busy, args=(pool, pool.idle[0].process)).start()
        assert pool.ask({"gold": "7", "answer": HANGS}, 60) == "verifier failed: the worker died"
        assert not pool.idle
        assert pool.ask({"gold": "1/2", "answer": "2/4"}, 60) == "math-verify"
        pool.idle[0].process.kill()
        pool.idle[0].process.wait()
        assert pool.ask({"gold": "1/2", "answer": "2/4"}, 60) == "math-verify"
    finally:
        pool.close()


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["2/4", HANGS], ids=["idle", "hanging"])
def test_workers_end_with_their_parent_however_it_ends(sample):
    program = f"""
        import os, threading, time
        from weakdriven.eval.graders.workers import Pool, Worker
        worker = Worker()
        print(worker.process.pid, flush=True)
        threading.Thread(target=worker.ask, args=({{"gold": "7", "answer": "{sample}"}}, 1), daemon=True).start()
        time.sleep(0.5)
        os.kill(os.getpid(), {int(signal.SIGKILL)})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert wait_until(lambda: not running(int(done.stdout)))


def running(pid: int) -> bool:
    """A dead process whose parent has died too may stay a zombie where nobody collects it."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "text, listed",
    [
        (r"\boxed{1}", None),
        (r"\boxed{1}, \boxed{2} and \boxed{3}", "1, 2, 3"),
        (r"First \boxed{1}. Then \boxed{2} or \boxed{3}", "2, 3"),
        (r"\boxed{1}, so it is \boxed{2}", None),
        ("nothing", None),
    ],
)
def test_only_the_last_boxes_with_separators_between_them_are_a_list(text, listed):
    assert listed_boxes(text) == listed


@pytest.mark.parametrize(
    "latex, words", [("the cat", "cat"), ("an ox", None), (r"\text{an ox}", "ox"), ("(cat)", "cat")]
)
def test_words_without_a_text_command_have_three_letters_each(latex, words):
    assert as_words(latex) == words
