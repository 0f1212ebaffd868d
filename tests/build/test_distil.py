"""`weakdriven data build --teacher`: completions are written, verified, asked for again, and kept if they are right."""

import json
import sys

import pytest
import torch

import chat_server
from chat_server import question, said
from helpers import build_settings, demo_examples, write_rows
from weakdriven.build import distil as distilling
from weakdriven.build.build import build
from weakdriven.commands.app import main
from weakdriven.data.prompts import SYSTEM_PROMPTS, Renderer
from weakdriven.data.rows.sources import load_examples
from weakdriven.data.tokenize import tokenize
from weakdriven.errors import UserError
from weakdriven.eval import grade
from weakdriven.models.folder import open_model
from weakdriven.models.load import load_tokenizer
from weakdriven.runs.files import read_json, read_jsonl

server = chat_server.server
TAGGED = "<think>{}</think>\n<answer>The answer is ({}).</answer>"


def logic(word, gold):
    """A row of LogiQA 2.0 as its authors publish it."""
    text = " ".join(f"{word}{k}" for k in "abcdefghij")
    return {"id": 1, "answer": gold, "text": text, "question": "So?", "options": [f"{word} {k}" for k in range(4)]}


SAYINGS = {
    "crow": [TAGGED.format("wise", "A")],
    "fox": [TAGGED.format("sly", "C"), "The answer is (B).", TAGGED.format("slyer", "B")],
    "hen": [TAGGED.format("no", "D")],
    "owl": [said("The answer is (D).", reasoning_content="I saw it.")],
    "pig": [said("", finish="content_filter"), said(TAGGED.format("long", "A"), finish="length")],
    "rat": [TAGGED.format("r", "B"), TAGGED.format("R!", "B"), TAGGED.format("again", "B")],
}
"""What the teacher says of each word, the last for all further tries; golds are A to D and again from A."""


@pytest.fixture
def teach(server, tmp_path):
    """Builds a set with the server as teacher."""

    def answer(body, asked):
        sayings = SAYINGS[next(word for word in SAYINGS if f"{word}a " in question(body))]
        text = sayings[min(asked, len(sayings)) - 1]
        return 200, text if isinstance(text, dict) else said(text)

    server.trouble = answer
    raw = write_rows(tmp_path / "train.txt", [logic(word, n % 4) for n, word in enumerate(SAYINGS)])

    def make(*, style="tagged", out="out", **asked):
        teacher = {"model": "teacher", "url": server.url} | asked
        return build(build_settings("logic", raw, style=style, teacher=teacher), tmp_path / out)

    return make


def test_wrong_answers_are_asked_for_again_and_every_completion_is_counted(teach, server, tmp_path):
    funnel = teach(samples=3)
    dropped = {reason: one["rows"] for reason, one in funnel["dropped"].items()}
    assert (funnel["in"], funnel["kept"], funnel["rows"], dropped) == (6, 4, 4, {"no right completion": 2})
    tried = funnel["completions"]
    counts = {reason: one["rows"] for reason, one in tried["dropped"].items()}
    assert counts == {"wrong answer": 4, "bad structure": 1, "refused": 1, "cut off": 2}
    assert tried["kept"] == 4 and tried["in"] == sum(server.asked.values()) == 12
    rows = {row["id"]: row for row in read_jsonl(tmp_path / "out" / "train.jsonl")}
    assert list(rows) == [f"logiqa2-train-{n:05d}" for n in (0, 1, 3, 5)]
    assert rows["logiqa2-train-00001"]["completion"] == TAGGED.format("slyer", "B")
    assert (
        rows["logiqa2-train-00001"]["meta"] | {"teacher": "teacher", "sample": 2} == rows["logiqa2-train-00001"]["meta"]
    )
    assert rows["logiqa2-train-00003"]["completion"] == "<think>I saw it.</think>\n<answer>The answer is (D).</answer>"
    assert (
        funnel["steps"]["distil"]["dropped"]["no right completion"]["first"][0]["detail"] == "3 samples: wrong answer 3"
    )
    assert len(load_examples(str(tmp_path / "out" / "train.jsonl"))) == 4


def test_the_teacher_is_asked_as_the_student_will_be(teach, server):
    teach(samples=1)
    system, asked = server.bodies[0]["messages"]
    assert system == {"role": "system", "content": SYSTEM_PROMPTS["logic", "tagged"]}
    assert asked["content"].endswith("(D) " + asked["content"].split("(D) ")[1]) and "(A) " in asked["content"]
    assert len({body["seed"] for body in server.bodies}) == len(server.bodies)


def test_several_different_completions_of_a_problem_are_kept(teach, server, tmp_path):
    funnel = teach(samples=3, keep=2)
    assert funnel["completions"]["dropped"]["repeated"]["rows"] == 5  # crow and owl say one thing, rat the same twice
    ids = [row["id"].removeprefix("logiqa2-train-") for row in read_jsonl(tmp_path / "out" / "train.jsonl")]
    assert ids == ["00000#s0", "00001#s2", "00003#s0", "00005#s0", "00005#s2"]


def test_more_samples_add_to_those_that_are_there(teach, server):
    teach(samples=2)
    before = sum(server.asked.values())
    funnel = teach(samples=3)
    assert sum(server.asked.values()) - before == 3  # fox, hen and pig once more each
    assert funnel["rows"] == 4
    assert teach(samples=3) == funnel and sum(server.asked.values()) == before + 3


def test_what_was_written_stays_good_when_only_the_verdicts_are_made_otherwise(teach, server, tmp_path):
    teach(samples=3)
    asked = sum(server.asked.values())
    write_rows(tmp_path / "train.txt", [logic(word, n % 4 if word != "hen" else 3) for n, word in enumerate(SAYINGS)])
    funnel = teach(samples=3)  # hen's answer is now the one that the teacher gives
    assert (funnel["kept"], sum(server.asked.values())) == (5, asked)


def test_completions_that_differ_in_their_reasoning_are_different(server, tmp_path):
    server.trouble = lambda body, asked: (200, said("The answer is (A).", reasoning=f"way {asked}"))
    raw = write_rows(tmp_path / "train.txt", [logic("crow", 0)])
    teacher = {"model": "teacher", "url": server.url, "samples": 3, "keep": 3}
    assert build(build_settings("logic", raw, teacher=teacher), tmp_path / "out")["rows"] == 3


def test_a_server_that_dies_costs_no_completion_that_came(teach, server, monkeypatch):
    monkeypatch.setattr(distilling, "BLOCK", 2)
    whole, answer = teach(samples=3, out="whole"), server.trouble
    server.asked.clear()
    server.trouble = lambda body, asked: (
        (401, {"error": {"message": "who?"}}) if "owla" in question(body) else answer(body, asked)
    )
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        teach(samples=3)
    server.trouble = answer
    before = dict(server.asked)
    assert [before[word] for word in sorted(before) if "crowa" in word or "foxa" in word] == [1, 3]
    funnel = teach(samples=3)
    assert {**funnel, "sources": 0, "settings": 0, "key": 0} == {**whole, "sources": 0, "settings": 0, "key": 0}
    assert all(server.asked[word] == times for word, times in before.items() if "crowa" in word or "foxa" in word)


def test_labels_that_a_kill_left_out_are_made_of_what_was_written(teach, server, tmp_path):
    funnel = teach(samples=3)
    asked = sum(server.asked.values())
    [labels] = (tmp_path / "out" / "rollouts").glob("*/00000/labels.jsonl")
    whole = labels.read_text().splitlines()
    labels.write_text("\n".join(whole[:3]) + '\n{"id": "logiqa2-tr')
    (tmp_path / "out" / "train.jsonl").unlink()
    assert teach(samples=3) == funnel and sum(server.asked.values()) == asked
    assert sorted(labels.read_text().splitlines()) == sorted(whole)


def test_a_verifier_that_cannot_work_ends_the_writing(teach, monkeypatch):
    def broken(*_, **__):
        raise UserError("No sandbox here.")

    monkeypatch.setattr(distilling.Judge, "faults", broken)
    with pytest.raises(UserError, match="No sandbox here"):
        teach(samples=3)


@pytest.mark.parametrize(
    "asked, message",
    [
        ({"samples": 2, "keep": 3}, "keep is 3, but samples is 2"),
        ({"samples": 2, "temperature": 0.0}, "all 2 samples would be the same"),
    ],
)
def test_what_a_teacher_cannot_do_raises_an_error(teach, asked, message):
    with pytest.raises(UserError, match=message):
        teach(**asked)


def test_math_and_code_are_distilled_too(server, tmp_path):
    replies = {
        "double": "```python\ndef double(x):\n    return 2 * x\n```",
        "value": "So \\boxed{0.5}",
        "letter": "\\boxed{B}",
    }
    server.trouble = lambda body, asked: (
        200,
        said(next(text for name, text in replies.items() if name in question(body))),
    )
    teacher = {"model": "teacher", "url": server.url, "samples": 1}
    code = {"question": "Write double.", "tests": ["assert double(3) == 6"], "entry_point": "double"}
    value = {"question": "Which value is half of one?", "answer": "\\frac{1}{2}", "solution": "not used \\boxed{7}"}
    letter = {"question": "Which letter is it?", "options": ["3", "4"], "answer": "B"}
    bad = {"question": "Which value is bad?", "answer": "\\frac{"}
    for domain, rows, kept in [("code", [code], 1), ("math", [value, letter, bad], 2)]:
        raw = write_rows(tmp_path / f"{domain}.jsonl", rows)
        settings = build_settings(domain, raw, style="tag-free", teacher=teacher)
        funnel = build(settings, tmp_path / domain)
        assert (funnel["kept"], funnel["in"]) == (kept, len(rows))
    assert funnel["dropped"]["bad gold"]["rows"] == 1
    rows = list(read_jsonl(tmp_path / "math" / "train.jsonl"))
    assert [row["completion"] for row in rows] == ["So \\boxed{0.5}", "\\boxed{B}"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The embedded model after some steps on six problems, which it then solves most of the time."""
    branch = open_model("embedded:base")
    tokenizer, learner = load_tokenizer(branch.model), branch.load("fp32").train()
    renderer = Renderer(tokenizer, "math", "plain")
    rows = [tokenize(example, renderer) for example in demo_examples(6)]
    width = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows])
    labels = torch.tensor([row["labels"] + [-100] * (width - len(row["labels"])) for row in rows])
    optimizer = torch.optim.AdamW(learner.parameters(), 3e-3)
    for _ in range(40):
        learner(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = tmp_path_factory.mktemp("models") / "teacher"
    learner.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_model_in_process_writes_a_set_for_questions_with_answers(model, tmp_path, monkeypatch, capsys):
    asked = [{"id": e.id, "question": e.prompt[0]["content"], "answer": e.gold} for e in demo_examples(10)]
    raw = write_rows(tmp_path / "asked.jsonl", asked)
    out = tmp_path / "out"
    command = ["data", "build", "math", raw, "--output", str(out), "--benchmarks", "none", "style=plain"]
    command += ["--teacher", str(model), "teacher.samples=4", "teacher.keep=2", "teacher.temperature=1.0"]
    command += ["teacher.max_new_tokens=64", "teacher.max_prompt_tokens=160", "teacher.precision=fp32"]
    monkeypatch.setattr(sys, "argv", ["weakdriven", *command])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "The teacher generated" in capsys.readouterr().out
    rows = list(read_jsonl(out / "train.jsonl"))
    funnel = read_json(out / "funnel.json")
    assert funnel["rows"] == len(rows) > 0 and funnel["kept"] >= 4
    assert all(grade("math", row["completion"], row["gold"]).correct for row in rows)
    of_problem: dict[str, set[str]] = {}
    for row in rows:
        of_problem.setdefault(row["id"].partition("#")[0], set()).add(row["completion"])
    assert all(len(texts) <= 2 for texts in of_problem.values()) and sum(map(len, of_problem.values())) == len(rows)
    assert "#s" in rows[0]["id"] and json.dumps(rows[0])


def test_prompts_and_completions_have_to_fit_the_model(model, tmp_path):
    raw = write_rows(tmp_path / "asked.jsonl", [{"question": "What is 1+1?", "answer": "2"}])

    def made(**limits):
        teacher = {"model": str(model), "precision": "fp32", "samples": 1} | limits
        return build(build_settings("math", raw, style="plain", teacher=teacher), tmp_path / "out")

    with pytest.raises(UserError, match="lower one of them"):
        made(max_new_tokens=10**6)
    with pytest.raises(UserError, match=r"prompt too long \(1\)"):
        made(max_new_tokens=8, max_prompt_tokens=3)
