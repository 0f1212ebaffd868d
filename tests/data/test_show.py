"""`weakdriven data show`: what a person reads about a source before training on it."""

import io
import json
import sys

import pytest
from rich.console import Console

from helpers import embedded_tokenizer, write_rows
from weakdriven.commands.app import main
from weakdriven.data.example import Example
from weakdriven.data.prompts import Renderer
from weakdriven.data.show import LONGEST, Look, look, print_look

ASK = [{"role": "user", "content": "1+1?"}]
RENDERER = Renderer(embedded_tokenizer(), "math", "plain")
GOOD = {"question": "1+1?", "solution": "2"}


@pytest.fixture
def show(monkeypatch, capsys, tmp_path):
    """Runs `data show` on rows or on a source; returns exit code, standard output and standard error."""

    def run(source, *words):
        if not isinstance(source, str):
            source = write_rows(tmp_path / "rows.jsonl", source)
        monkeypatch.setattr(sys, "argv", ["weakdriven", "data", "show", source, *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_the_embedded_set_is_shown_with_its_layout_and_what_is_learned(show):
    code, out, _ = show("embedded:arithmetic", "--rows", 2)
    assert code == 0
    assert "layout question/solution (fields question, solution, id, answer), 3,200 rows" in out
    assert out.count("\nrow arithmetic-train-") == 2 and out.count("[[") == 2
    assert "<|im_start|>assistant\n[[2 * 2 = 4." in out and "<|im_end|>]]" in out
    assert "Of the first 1,000 rows" in out and "1,000 learned whole" in out


def test_the_style_and_the_domain_choose_the_system_prompt(show):
    assert "End your response with" in show([GOOD], "--style", "tag-free", "--domain", "logic")[1]
    assert "<think>" in show([GOOD], "--style", "tagged")[1]
    assert "system" not in show([GOOD])[1]
    assert "system\nBe kind." in show([GOOD], "--system-prompt", "Be kind.")[1]
    code, _, errors = show([GOOD], "--system-prompt", "Be kind.", "--style", "tagged")
    assert code == 2 and "system_prompt is set, and style tagged brings its own" in errors


def test_settings_of_the_data_are_given_as_for_a_run(show, tmp_path):
    rows = [{"input": f"{number} + 0?", "target": str(number)} for number in range(5)]
    assert "found the fields input, target" in show(rows)[2]
    words = ["data.fields={prompt: input, completion: target}", "data.limit=2", "data.system_prompt=Be kind."]
    code, out, _ = show(rows, *words)
    assert code == 0 and ", 2 rows" in out and "2 learned whole" in out
    assert "system\nBe kind." in out and "[[0<|im_end|>]]" in out
    for word, expected in (
        ("data.feilds={}", "Did you mean data.fields?"),
        ("seed=3", "seed=3: expected a setting of data"),
        ("data.path=other.jsonl", "rows.jsonl is the source to show"),
    ):
        code, _, errors = show(rows, word)
        assert code == 2 and expected in errors


def test_completions_in_another_style_stop_training(show):
    tagged = GOOD | {"solution": "<think>1 and 1</think><answer>\\boxed{2}</answer>"}
    for rows, expected in (([GOOD, GOOD, tagged], "1 of 3 (33%)"), ([GOOD], "0 of 1 (0%)")):
        code, out, _ = show(rows, "--style", "tagged")
        assert code == 2 and expected in out and "data.style is tagged" in out
    assert show([GOOD, tagged], "--style", "tagged")[0] == 0


def test_what_would_be_cut_or_left_out_is_said_with_its_reason(show):
    rows = [GOOD, GOOD | {"solution": "2 " * 60}, GOOD | {"question": "why " * 60}, GOOD | {"solution": ""}]
    code, out, _ = show(rows, "--max-length", 60, "--rows", 4)
    assert code == 2 and "1 learned whole" in out
    assert "1 longer than max_length=60: truncated on the right" in out
    assert "1 the prompt fills max_length=60: an error, or dropped with data.long_prompts=drop" in out
    assert "1 no completion: an error, or dropped with data.empty_completions=drop" in out
    assert "{{" in out
    drop = ("--long-prompts", "drop", "--empty-completions", "drop")
    for words, code in ((drop[:2], 2), (drop[2:], 2), (drop, 0)):
        assert show(rows, "--max-length", 60, *words)[0] == code
    assert show(rows[2:], "--max-length", 60, *drop)[0] == 2, "nothing is left"


@pytest.mark.parametrize("last", [{"solution": ""}, {"question": "why " * 60}, {"solution": "2 " * 600}])
def test_a_row_that_is_an_error_is_found_after_those_that_are_counted(show, monkeypatch, last):
    monkeypatch.setattr("weakdriven.data.show.LOOKED_AT", 2)
    rows = [GOOD | {"id": str(number)} for number in range(5)]
    words = ("--model", "embedded:base", "--max-length", 60 if "question" in last else 4096)
    assert show(rows, *words)[0] == 0
    code, out, _ = show([*rows, GOOD | last], *words)
    assert code == 2 and "Of the first 2 rows" in out and "1 of all rows" in out


def test_a_row_longer_than_the_models_positions_is_not_counted_as_learned(show):
    rows = [GOOD, GOOD | {"solution": "2 " * 600}]
    code, out, _ = show(rows, "--model", "embedded:base")
    assert code == 2 and "1 learned whole" in out and "1 longer than the model's 512 positions: an error" in out
    assert "positions" not in show(rows, "--model", "embedded:base", "--max-length", 512)[1]
    assert "positions" not in show(rows)[1]


def test_a_row_that_would_stop_training_is_reported_after_the_rows_before_it(show):
    code, out, _ = show([*[GOOD] * 30, {"messages": []}])
    assert code == 2 and "row 1:" in out and "Of the first 30 rows" in out
    assert "Training would stop" in out and "row 31 has another layout" in out


def test_a_template_without_end_of_turn_is_warned_of(show, tmp_path):
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    assert "Warning: The chat template writes no special" in show([GOOD], "--chat-template", tmp_path / "chat.jinja")[1]


@pytest.mark.parametrize(
    "source, words",
    [
        ([{"body": "a"}], "found the fields body; expected messages"),
        ([], "there are no rows to train on"),
        ("missing.jsonl", "there is no such data file"),
    ],
)
def test_a_source_that_cannot_be_shown_is_one_sentence(show, source, words):
    code, _, errors = show(source)
    assert code == 2 and words in errors and "Traceback" not in errors


def test_lengths_add_up():
    one = look(Example("a", ASK, "2"), RENDERER, 512)
    assert one.tokens == one.prompt_tokens + one.learned_tokens and one.fate == ""
    assert [kind for _, kind in one.runs] == ["prompt", "learned"]
    assert "".join(text for text, _ in one.runs) == RENDERER.prompt(ASK) + "2<|im_end|>"
    cut = look(Example("a", ASK, "2"), RENDERER, one.tokens - 1)
    assert (cut.tokens, cut.learned_tokens, cut.runs[-1]) == (one.tokens, one.learned_tokens - 1, ("<|im_end|>", "cut"))


def printed(one, **options):
    file = io.StringIO()
    print_look(one, Console(file=file, width=80, **options))
    return file.getvalue()


def test_learned_text_is_in_colour_on_a_terminal_and_in_marks_elsewhere():
    one = look(Example("a", ASK, "2"), RENDERER, 512)
    assert "[[2<|im_end|>]]" in printed(one)
    coloured = printed(one, force_terminal=True, color_system="standard")
    assert "\x1b[" in coloured and "[[" not in coloured


def test_text_of_the_data_neither_steers_the_terminal_nor_floods_it():
    one = Look("\x1b[2J", [("\x1b]0;evil\x07", "prompt"), ("[bold]x" * LONGEST, "learned")], 1, 1, 2, "")
    text = printed(one)
    assert "\x1b" not in text and "\x07" not in text and "[bold]x" in text
    assert len(text) < 2 * LONGEST and "characters …" in text


def test_a_json_file_is_counted_too(show, tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps([GOOD] * 7))
    assert ", 7 rows" in show(str(tmp_path / "rows.json"))[1]
