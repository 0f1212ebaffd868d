"""`weakdriven data build math`: every kind of bad row is dropped under its reason, and a killed build goes on."""

import json
import sys

import pytest

from helpers import build_settings, write_rows
from small_runs import run_small
from weakdriven.build import build as building
from weakdriven.build import overlaps
from weakdriven.build import rows as verifying
from weakdriven.build.build import build
from weakdriven.build.settings import PUBLISHED
from weakdriven.commands.app import main
from weakdriven.commands.data import asked_benchmarks
from weakdriven.data.demo import demo_rows
from weakdriven.data.rows.sources import load_examples
from weakdriven.errors import UserError
from weakdriven.eval.graders import answers
from weakdriven.eval.graders.workers import TIMEOUT

HELD = "A baker fills 7 trays with 12 rolls each and then sells 30 of all those rolls before noon; how many are left?"
GOOD = "Ann has 3 red pens and buys 1 more pen at the shop. How many pens does she have?"


def am(question, answer="\\boxed{4}", gold="4", *, completion=None):
    """A row as AM-DeepSeek-R1-Distilled-1.4M has them."""
    said = f"<think>Let me see.</think>\n<answer>So it is {answer}.</answer>" if completion is None else completion
    asked = {"source": "openr1_math", "reference_answer": gold, "test_case": None}
    return {
        "messages": [
            {"role": "user", "content": question, "info": asked},
            {"role": "assistant", "content": said, "info": {"source": "r1", "think_content": "Let me see."}},
        ]
    }


ROWS = {
    "good": am(GOOD),
    "same value": am("How much is a half of one, as a fraction in lowest terms?", "\\boxed{0.5}", "\\frac{1}{2}"),
    "bad structure": am("What is 1+3?", completion="It is \\boxed{4}."),
    "bad structure, twice": am(
        "What is 2+2?", completion="<think>a</think><think>b</think><answer>\\boxed{4}</answer>"
    ),
    "no answer": am("What is 8/2?", completion="<think>\\boxed{4}</think><answer>4</answer>"),
    "wrong answer": am("What is 9-5?", "\\boxed{5}"),
    "bad gold": am("Which sign is it?", gold="\\frac{"),
    "no gold": am("What is 7-3?", gold=""),
    "malformed row": {"text": "no layout has this"},
    "too long": am("What is 6-2? " * 100),
    "verifier timeout": am("What is slow?", "\\boxed{x+1}", "y+2"),
    "duplicate exact": am(GOOD.upper()),
    "duplicate near": am("How many pens does she have? Ann has 3 red pens and buys 1 more pen at the shop."),
    "overlap exact with aime2025": am(HELD.replace(";", ",").upper()),
    "overlap near with aime2025": am(HELD.replace("A baker", "One baker")),
    "overlap ngram with aime2025": am("Note 99 things. " + HELD[: HELD.index(" before")] + " to her 5 friends. Why?"),
}
DROPPED = {name: 1 for name in ROWS if name not in ("good", "same value", "bad structure, twice")}
DROPPED |= {"bad structure": 2, "malformed row": 2}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A source with a broken line in its midst, a folder with a benchmark, and a verifier that is slow once."""
    path = write_rows(tmp_path / "raw.jsonl", ROWS.values())
    lines = (tmp_path / "raw.jsonl").read_text().splitlines()
    (tmp_path / "raw.jsonl").write_text("\n".join([*lines[:3], '{"messages": [', *lines[3:]]) + "\n")
    (tmp_path / "held").mkdir()
    others = [{"id": f"a{n}", "question": f"Find the integer number {n} in a list.", "answer": "1"} for n in range(29)]
    write_rows(tmp_path / "held" / "aime2025.jsonl", [{"id": "baker", "question": HELD, "answer": "54"}, *others])
    ask = answers.ask
    monkeypatch.setattr(answers, "ask", lambda gold, *more, **k: TIMEOUT if gold == "y+2" else ask(gold, *more, **k))
    return path


def settings(corpus, tmp_path, **changes):
    given = {"benchmarks": ["aime2025"], "data_dir": str(tmp_path / "held"), "max_characters": 500, "block": 4}
    return build_settings("math", corpus, **{**given, **changes})


def counts(funnel):
    return {reason: one["rows"] for reason, one in funnel["dropped"].items()}


def test_every_bad_row_is_dropped_under_its_reason_and_the_good_ones_can_be_trained_on(corpus, tmp_path):
    funnel = build(settings(corpus, tmp_path), tmp_path / "out")
    assert funnel == json.loads((tmp_path / "out" / "funnel.json").read_text())
    assert (funnel["in"], funnel["kept"], counts(funnel)) == (len(ROWS) + 1, 2, DROPPED)
    assert funnel["held_out"] == {"aime2025": 30}
    assert funnel["dropped"]["wrong answer"]["first"][0]["detail"].startswith("found '5', expected '4'")
    assert funnel["dropped"]["malformed row"]["first"][0]["id"] == "4"
    first, second = load_examples(str(tmp_path / "out" / "train.jsonl"))
    assert (first.id, first.gold, first.domain, first.source) == ("1", "4", "math", "openr1_math")
    assert first.prompt == [{"role": "user", "content": GOOD}]
    assert first.completion == ROWS["good"]["messages"][1]["content"] and second.gold == "\\frac{1}{2}"


def test_tag_free_completions_lose_their_tags_and_need_none(corpus, tmp_path):
    funnel = build(settings(corpus, tmp_path, style="tag-free"), tmp_path / "out")
    assert funnel["kept"] == 4 and "bad structure" not in counts(funnel)
    assert load_examples(str(tmp_path / "out" / "train.jsonl"))[0].completion == "Let me see.\n\nSo it is \\boxed{4}."


def test_earlier_replies_of_a_tag_free_conversation_lose_their_tags_too(tmp_path):
    first, last = am("What is 1+1?", "\\boxed{2}"), am("And 2+2? Mind <think>.")
    path = write_rows(tmp_path / "raw.jsonl", [{"messages": first["messages"] + last["messages"], "answer": "4"}])
    build(build_settings("math", path, style="tag-free"), tmp_path / "out")
    [example] = load_examples(str(tmp_path / "out" / "train.jsonl"))
    said = "Let me see.\n\nSo it is \\boxed{2}."
    assert [turn["content"] for turn in example.prompt] == ["What is 1+1?", said, "And 2+2? Mind <think>."]
    assert [turn["content"] for turn in example.prompt if turn["role"] == "assistant"]


@pytest.mark.parametrize("block", [1, 3])
def test_a_killed_build_resumes_at_the_next_block_and_ends_the_same(corpus, tmp_path, monkeypatch, block):
    asked = settings(corpus, tmp_path, block=block)
    whole = build(asked, tmp_path / "whole")
    seen, verify_block = [], verifying.verify_block

    def killed(settings, path, first, rows, verify):
        if len(seen) == 2:
            with (tmp_path / "out" / ".work" / "kept.jsonl").open("a") as file:
                file.write('{"id": "torn')  # written after the last note of what is done
            raise KeyboardInterrupt
        seen.append(first)
        return verify_block(settings, path, first, rows, verify)

    monkeypatch.setattr(verifying, "verify_block", killed)
    with pytest.raises(KeyboardInterrupt):
        build(asked, tmp_path / "out")
    monkeypatch.setattr(verifying, "verify_block", lambda *given: (seen.append(given[2]), verify_block(*given))[1])
    assert build(asked, tmp_path / "out") == whole
    assert seen == list(range(1, len(ROWS) + 2, block))
    assert (tmp_path / "out" / "train.jsonl").read_text() == (tmp_path / "whole" / "train.jsonl").read_text()
    assert build(asked, tmp_path / "out") == whole and len(seen) == len(range(1, len(ROWS) + 2, block))


def test_a_build_killed_while_cleaning_compares_with_the_benchmarks_once(corpus, tmp_path, monkeypatch):
    whole = build(settings(corpus, tmp_path), tmp_path / "whole")

    def killed(examples, overlaps, *more):
        list(overlaps)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(building, "clean", killed)
        build(settings(corpus, tmp_path), tmp_path / "out")
    monkeypatch.setattr(overlaps, "worst_overlap", None)
    assert build(settings(corpus, tmp_path), tmp_path / "out") == whole


@pytest.mark.parametrize("killed_in", ["verify_block", "append_jsonl", "write_json"])
def test_other_settings_that_were_killed_leave_nothing_in_a_set_of_the_old_ones(
    corpus, tmp_path, monkeypatch, killed_in
):
    first, other = settings(corpus, tmp_path), settings(corpus, tmp_path, style="tag-free")
    whole, text = build(first, tmp_path / "out"), (tmp_path / "out" / "train.jsonl").read_text()
    calls, real = [], getattr(verifying, killed_in)

    def killed(*given, **more):
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*given, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(verifying, killed_in, killed)
        build(other, tmp_path / "out")
    assert build(first, tmp_path / "out") == whole
    assert (tmp_path / "out" / "train.jsonl").read_text() == text


def test_a_source_that_changes_while_it_is_read_is_an_error_and_then_read_anew(corpus, tmp_path, monkeypatch):
    verify_block, raw = verifying.verify_block, tmp_path / "raw.jsonl"
    text = raw.read_text()

    def changing(settings, path, first, *more):
        if first > 8:
            raw.write_text(text + text)
        return verify_block(settings, path, first, *more)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="changed while it was read"):
        patch.setattr(verifying, "verify_block", changing)
        build(settings(corpus, tmp_path), tmp_path / "out")
    raw.write_text(text)
    assert build(settings(corpus, tmp_path), tmp_path / "out")["in"] == len(ROWS) + 1


def test_only_the_reply_that_was_verified_is_learned(tmp_path):
    row = am(GOOD)
    row["messages"] = [row["messages"][0], {"role": "assistant", "content": "3, wrong"}, *row["messages"]]
    build(build_settings("math", write_rows(tmp_path / "raw.jsonl", [row])), tmp_path / "out")
    [example] = load_examples(str(tmp_path / "out" / "train.jsonl"))
    assert not example.all_turns and len(example.prompt) == 3


def test_rows_of_another_domain_are_dropped_and_an_empty_answer_hides_no_gold(tmp_path):
    rows = [am(GOOD) | {"answer": ""}, am("What is 1+3?") | {"domain": "code"}, am("Deep") | {"deep": nested(900)}]
    funnel = build(build_settings("math", write_rows(tmp_path / "raw.jsonl", rows)), tmp_path / "out")
    assert (funnel["kept"], counts(funnel)) == (2, {"another domain": 1})


def nested(depth):
    return [nested(depth - 1)] if depth else []


def test_other_benchmarks_need_no_new_verification(corpus, tmp_path, monkeypatch):
    build(settings(corpus, tmp_path), tmp_path / "out")
    monkeypatch.setattr(verifying, "verify_block", None)
    assert build(settings(corpus, tmp_path, benchmarks=[]), tmp_path / "out")["kept"] == 4


def test_a_changed_source_is_verified_anew(corpus, tmp_path):
    build(settings(corpus, tmp_path), tmp_path / "out")
    write_rows(tmp_path / "raw.jsonl", [ROWS["good"]])
    assert build(settings(corpus, tmp_path), tmp_path / "out")["in"] == 1


def test_a_source_of_which_nothing_is_kept_is_an_error_with_its_reasons(tmp_path):
    path = write_rows(tmp_path / "raw.jsonl", [{"a": 1}, {"b": 1}, ROWS["wrong answer"]])
    with pytest.raises(UserError, match=r"all 3 rows were dropped: malformed row \(2\), wrong answer \(1\)"):
        build(build_settings("math", path), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "funnel.json").read_text())["in"] == 3
    assert not (tmp_path / "out" / "train.jsonl").exists()


def test_a_benchmark_that_is_not_there_is_an_error_before_any_work(corpus, tmp_path):
    with pytest.raises(UserError, match=r"Benchmark gsm8k: .* no gsm8k"):
        build(settings(corpus, tmp_path, benchmarks=["gsm8k"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ids_that_stand_twice_become_unique(tmp_path):
    rows = [am(question) | {"id": "x"} for question in (GOOD, "What is the square root of sixteen?")]
    build(build_settings("math", write_rows(tmp_path / "raw.jsonl", rows)), tmp_path / "out")
    assert [example.id for example in load_examples(str(tmp_path / "out" / "train.jsonl"))] == ["x", "x#2"]


def test_the_command_prints_the_funnel(corpus, tmp_path, monkeypatch, capsys):
    words = ["--output", str(tmp_path / "out"), "--data-dir", str(tmp_path / "held"), "--benchmarks", "aime2025"]
    monkeypatch.setattr(sys, "argv", ["weakdriven", "data", "build", "math", corpus, *words])
    with pytest.raises(SystemExit) as end:
        main()
    out = capsys.readouterr().out
    assert "raw.jsonl: layout AM-DeepSeek-R1-Distilled" in out
    assert end.value.code in (0, None) and "- wrong answer" in out and "kept" in out


@pytest.mark.parametrize("names, found", [("none", []), ("gsm8k, gsm8k,aqua", ["gsm8k", "aqua"]), ("all", None)])
def test_benchmarks_are_named_with_commas_between(names, found):
    assert asked_benchmarks(names) == found and len(PUBLISHED) == 13


@pytest.mark.parametrize("names, message", [(" , ", "is empty"), ("gsm9k", "Did you mean gsm8k")])
def test_wrong_names_of_benchmarks_are_errors(names, message):
    with pytest.raises(UserError, match=message):
        asked_benchmarks(names)


def test_a_run_on_a_built_set_shows_its_funnel(tmp_path):
    rows = [
        *demo_rows("train")[:8],
        {"question": "What is bad?", "solution": "<b>\\boxed{3}", "answer": "4", "id": "<b>"},
    ]
    raw = write_rows(tmp_path / "raw.jsonl", rows)
    build(build_settings("math", raw, style="plain"), tmp_path / "set")
    overrides = ["method=sft", "baselines=[]", "eval.benchmarks=[]", f"data.path={tmp_path / 'set' / 'train.jsonl'}"]
    run_small(tmp_path / "run", *overrides)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Training set" in page and "8 rows to train on" in page
    assert (
        "<td>wrong answer</td><td>1</td><td>11.1%</td>" in page
        and "&lt;b&gt;: found &#39;3&#39;, expected &#39;4&#39;" in page
    )


def test_questions_of_ones_own_test_set_are_held_out_too(tmp_path):
    path = write_rows(tmp_path / "own.jsonl", [{"question": "What is 3 + 4?", "answer": 7}])
    items = building.held_items(build_settings("math", "rows.jsonl", benchmarks=asked_benchmarks(path)))
    assert items == {"math": [("own", "1", "What is 3 + 4?")]}
