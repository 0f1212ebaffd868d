"""Finding answers, the reasons of verdicts, and the worker processes behind them."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from weakdriven.eval import Graded, check_golds, grade, grade_many
from weakdriven.eval.graders.answers import after_thinking, grade_math, last_boxed
from weakdriven.eval.graders.judge import MEMORY_MB
from weakdriven.eval.graders.workers import Pool, Worker, shared_pool
from weakdriven.runs.machine import cores

HANGS = r"\boxed{9^{9^{9^9}}}"


@pytest.mark.parametrize(
    "text, found",
    [
        (r"so \boxed{12}.", "12"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\sqrt{\frac{a_{1}}{b}}} and more {}", r"\sqrt{\frac{a_{1}}{b}}"),
        (r"\boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{1}, then \boxed{2", "1"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{5\\}", r"5\\"),
        (r"\boxed 7.", "7"),
        (r"\(\boxed 7\)", "7"),
        (r"\fbox{a}", "a"),
        (r"\boxed{}", ""),
        (r"\boxed{a" + "\n" + "b}", "a\nb"),
        (r"\boxed{1", None),
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed", None),
        ("} } the answer is 12", None),
        ("", None),
    ],
)
def test_the_last_complete_box_is_found(text, found):
    assert last_boxed(text) == found


def test_a_loop_of_open_boxes_is_read_in_no_time():
    began = time.monotonic()
    assert last_boxed("\\boxed{" * 20_000 + "7}") == "7"
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "text, rest",
    [("a", "a"), ("<think>a</think>b", "b"), ("a</think>b", "b"), ("<think>a", ""), ("b<think>a", "b"), ("", "")],
)
def test_only_what_follows_the_thinking_block_is_left(text, rest):
    assert after_thinking(text) == rest


@pytest.mark.parametrize("unit", [r"\text{ m}", r"\text{ kg}"])
def test_units_that_differ_are_ignored_because_math_verify_drops_them(unit):
    """A known leniency of the verifier, written down so that a change of it is noticed."""
    assert grade_math(r"\boxed{5\text{ cm}}", "5" + unit) == Graded(True, r"5\text{ cm}", "math-verify")


@pytest.mark.parametrize(
    "text, gold, graded",
    [
        ("It is 12.", "12", Graded(False, None, "no boxed answer")),
        (r"It is \boxed{12", "12", Graded(False, None, "no boxed answer")),
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
def test_a_math_verdict_says_what_was_graded_and_why(text, gold, graded):
    assert grade("math", text, gold) == graded


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
def test_a_choice_verdict_says_what_was_graded_and_why(text, gold, options, graded):
    assert grade("choice", text, gold, options=options) == graded


@pytest.mark.parametrize("filling", ["\n", "*", "( ", "answer is ", "The answer is A. ", "so, ", "\\text{", "A, B, "])
def test_a_degenerate_completion_is_read_in_seconds(filling):
    began = time.monotonic()
    grade("choice", filling * (30_000 // len(filling)), "A", options=["3 cats", "4 cats"])
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "reason, undecided",
    [("bad gold", True), ("timeout", True), ("verifier failed: MemoryError", True), ("different value", False)],
)
def test_a_verdict_that_is_the_graders_fault_is_undecided(reason, undecided):
    assert Graded(False, "1", reason).undecided is undecided


@pytest.mark.parametrize(
    "garbage",
    [
        r"\frac{}{}",
        r"\frac{1}{0}",
        r"\sqrt[",
        r"\left( 1",
        r"\begin{matrix} 1 & 2 \\",
        r"^_^_^",
        "$$$",
        "\\" * 51,
        "5\x00",
        "\U0001f600",
        "\ud800",
        "9" * 400,
        "x" * 100,
    ],
)
def test_garbage_is_wrong_and_does_not_raise(garbage):
    assert not grade_math(rf"\boxed{{{garbage}}}", "7").correct
    assert not grade_math(r"\boxed{7}", garbage).correct


def test_golds_that_cannot_be_graded_against_are_named():
    golds = ["7", r"\frac{1}{2}", "", r"\frac{1}{0}", r"\text{Friday}", "$$$", r"(1, 2]", r"\sqrt["]
    assert check_golds("math", golds) == [2, 3, 5, 7]
    assert check_golds("choice", ["A", "D", "E"], options=[["x"] * 4] * 3) == [2]
    assert check_golds("code", ["anything"]) == []


def test_an_unknown_kind_is_an_error():
    with pytest.raises(ValueError, match="no grader 'essay'; use math, choice or code"):
        grade("essay", "a", "b")  # pyright: ignore[reportArgumentType]


def test_code_is_left_to_its_own_grader(monkeypatch):
    graded = lambda text, item, **options: Graded(True, text, f"{item} {options}")  # noqa: E731
    monkeypatch.setattr("weakdriven.eval.graders.grading.grade_code", graded)
    assert grade("code", "pass", {"id": 1}, timeout=3) == Graded(True, "pass", "{'id': 1} {'timeout': 3}")


def test_importing_the_graders_loads_no_heavy_library():
    program = "import sys, weakdriven.eval; print([m for m in ('torch', 'sympy', 'math_verify') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_a_sample_that_hangs_is_cut_off_and_its_neighbours_are_graded():
    texts = [rf"\boxed{{{i}/2}}" for i in range(20)]
    texts[3] = HANGS
    began = time.monotonic()
    graded = grade_many("math", texts, [f"{i}/4" for i in range(0, 40, 2)], workers=4, timeout=2)
    assert graded[3].reason == "timeout" and not graded[3].correct
    assert [one.answer for one in graded[:3]] == ["0/2", "1/2", "2/2"]
    assert all(one.correct for row, one in enumerate(graded) if row != 3)
    assert time.monotonic() - began < 20


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


def test_texts_and_golds_must_be_as_many():
    with pytest.raises(ValueError, match="2 texts need as many golds"):
        grade_many("math", ["a", "b"], ["1"])


def test_a_worker_has_a_memory_limit_and_a_session_of_its_own():
    worker = Worker()
    try:
        with open(f"/proc/{worker.process.pid}/limits") as limits:
            line = next(line for line in limits if line.startswith("Max address space"))
        assert int(line.split()[3]) == MEMORY_MB * 2**20
        assert os.getsid(worker.process.pid) == worker.process.pid
    finally:
        worker.kill()


def test_a_worker_that_dies_is_a_failure_and_the_next_sample_gets_a_new_one():
    pool = Pool(1)
    try:
        assert pool.ask({"gold": "1/2", "answer": "2/4"}, 10) == "math-verify"
        process = pool.idle[0].process
        threading.Timer(0.5, process.kill).start()
        assert pool.ask({"gold": "7", "answer": "9^{9^{9^9}}"}, 10) == "verifier failed: the worker died"
        assert not pool.idle
        assert pool.ask({"gold": "1/2", "answer": "2/4"}, 10) == "math-verify"
        pool.idle[0].process.kill()
        pool.idle[0].process.wait()
        assert pool.ask({"gold": "1/2", "answer": "2/4"}, 10) == "math-verify"
    finally:
        pool.close()


def test_a_forked_child_starts_workers_of_its_own():
    assert grade("math", r"\boxed{2/4}", "1/2").correct
    if (child := os.fork()) == 0:
        os._exit(1 if shared_pool().idle else 0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("sample", ["2/4", "9^{9^{9^9}}"], ids=["idle", "hanging"])
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
    worker = int(done.stdout)
    deadline = time.monotonic() + 20
    while running(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not running(worker)


def running(pid: int) -> bool:
    """A dead process whose parent has died too may stay a zombie where nobody collects it."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
