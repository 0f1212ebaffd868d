"""Which tokens are supervised, and what happens to rows that do not fit."""

from dataclasses import replace

import pytest
from tokenizers.processors import TemplateProcessing

from helpers import demo_examples, embedded_tokenizer
from weakdriven.config.evaluation import EvalSettings
from weakdriven.data.example import Example
from weakdriven.data.prompts import Renderer
from weakdriven.data.tokenize import IGNORE, load_tokens, tokenize, write_tokens
from weakdriven.errors import UserError
from weakdriven.eval import test_sets
from weakdriven.eval.benchmarks import Item
from weakdriven.eval.generate.local import LocalEngine
from weakdriven.eval.run import evaluate, prepare_task
from weakdriven.models.load import EMBEDDED, load_model, locate_model
from weakdriven.runs.directory import SAMPLES, Progress
from weakdriven.runs.files import read_jsonl

TOKENIZER = embedded_tokenizer()
RENDERER = Renderer(TOKENIZER, "math", "plain")
EXAMPLES = demo_examples(20)


def write(tmp_path, examples, *, max_length=512, long_prompts="error", **options):
    path = tmp_path / "tokens.arrow"
    counters = write_tokens(examples, RENDERER, path, max_length=max_length, long_prompts=long_prompts, **options)
    return counters, load_tokens(path)


def ids_of(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("style", ["plain", "tagged", "tag-free"])
@pytest.mark.parametrize("completion", [EXAMPLES[0].completion, " leading space", "<think>\na\n</think>\n\n\\boxed{1}"])
def test_supervised_are_the_completion_and_the_end_of_its_turn_and_nothing_else(style, completion):
    renderer = Renderer(TOKENIZER, "math", style)
    row = tokenize(Example("a", EXAMPLES[0].prompt, completion), renderer, 512)
    prompt = ids_of(renderer.prompt(EXAMPLES[0].prompt))
    assert row["labels"][: len(prompt)] == [IGNORE] * len(prompt)
    assert row["labels"][len(prompt) :] == row["input_ids"][len(prompt) :]
    assert TOKENIZER.decode(row["labels"][len(prompt) :]) == completion + "<|im_end|>"
    assert row["labels"][-1] == TOKENIZER.convert_tokens_to_ids("<|im_end|>")
    assert (row["id"], row["truncated"]) == ("a", False)


@pytest.mark.parametrize("style", ["plain", "tagged"])
def test_training_ids_begin_with_the_prompt_that_evaluation_gives_the_model(style, tmp_path, monkeypatch):
    renderer, example = Renderer(TOKENIZER, "math", style), EXAMPLES[0]
    item = Item("a", example.prompt[0]["content"], "1")
    monkeypatch.setattr(test_sets, "load_items", lambda name, data_dir: [item])
    task = prepare_task("arithmetic", renderer, EvalSettings(max_new_tokens=1), seed=0)
    model = load_model(locate_model(EMBEDDED), precision="fp32")
    evaluate(task, lambda: LocalEngine(model, TOKENIZER), work=tmp_path, out=tmp_path, progress=Progress())
    (sample,) = read_jsonl(tmp_path / SAMPLES)
    row = tokenize(example, renderer, 512)
    assert task.prompt_ids == [ids_of(sample["prompt"])]
    unsupervised = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label == IGNORE]
    assert sample["prompt"] == renderer.prompt(example.prompt)
    assert ids_of(sample["prompt"]) == unsupervised == row["input_ids"][: len(unsupervised)]


def with_a_beginning():
    """A tokenizer that, as Gemma's, puts a token before each text."""
    tokenizer, mark = embedded_tokenizer(), "<|im_start|>"
    special = [(mark, tokenizer.convert_tokens_to_ids(mark))]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{mark} $A", special_tokens=special)
    tokenizer.bos_token = mark
    return tokenizer


@pytest.mark.parametrize("make, beginning", [(embedded_tokenizer, ""), (with_a_beginning, "<|im_start|>")])
def test_plain_text_is_supervised_whole_without_template_or_system_prompt(make, beginning):
    tokenizer = make()
    row = tokenize(Example("a", [], "One day, a cat."), Renderer(tokenizer, "math", "tagged"), 512)
    assert tokenizer.decode(row["input_ids"]) == beginning + "One day, a cat." + tokenizer.eos_token
    assert row["labels"] == [IGNORE, *row["input_ids"][1:]]


def test_a_long_completion_is_cut_on_the_right():
    whole = tokenize(EXAMPLES[0], RENDERER, 512)
    length = len(whole["input_ids"])
    for cut in (1, 5):
        row = tokenize(EXAMPLES[0], RENDERER, length - cut)
        assert row["input_ids"] == whole["input_ids"][:-cut]
        assert row["labels"] == whole["labels"][:-cut]
        assert row["truncated"]
    assert not tokenize(EXAMPLES[0], RENDERER, length)["truncated"]


def test_written_rows_and_counters_agree(tmp_path):
    rows = [tokenize(example, RENDERER, 512) for example in EXAMPLES]
    assert {row.pop("unlearned") for row in rows} == {0}  # counted, not written
    seen = []
    counters, written = write(tmp_path, EXAMPLES, on_row=seen.append)
    assert written.to_list() == rows
    assert counters == {
        "examples": 20,
        "truncated": 0,
        "dropped_long_prompts": 0,
        "dropped_empty_completions": 0,
        "tokens": sum(len(row["input_ids"]) for row in rows),
        "supervised_tokens": sum(len(ids_of(example.completion)) + 1 for example in EXAMPLES),
    }
    assert seen == list(range(1, 21))


def test_more_rows_than_one_batch_are_all_written(tmp_path):
    examples = demo_examples(1001)
    assert write(tmp_path, examples)[1]["id"][:] == [example.id for example in examples]


def test_kept_examples_are_handed_over_as_they_are_written_and_in_their_order(tmp_path):
    examples, length = long_and_short()
    batches = []
    _, written = write(
        tmp_path,
        iter([*demo_examples(1001), *examples]),
        max_length=length,
        long_prompts="drop",
        on_kept=lambda kept: batches.append([example.id for example in kept]),
    )
    assert [len(batch) for batch in batches] == [1000, 3]
    assert [id for batch in batches for id in batch] == written["id"][:]


def test_truncated_rows_are_counted(tmp_path):
    lengths = sorted(len(tokenize(example, RENDERER, 512)["input_ids"]) for example in EXAMPLES)
    counters, written = write(tmp_path, EXAMPLES, max_length=lengths[-1] - 1)
    over = sum(length == lengths[-1] for length in lengths)
    assert counters["truncated"] == sum(written["truncated"]) == over > 0
    assert max(len(ids) for ids in written["input_ids"]) == lengths[-1] - 1


def long_and_short():
    """A row whose prompt alone fills the length, between two that fit."""
    short = [Example(i, [{"role": "user", "content": "1"}], "2") for i in ("a", "c")]
    long = Example("b", [{"role": "user", "content": "many words " * 20}], "2")
    return [short[0], long, short[1]], len(ids_of(RENDERER.prompt(long.prompt)))


def test_a_prompt_that_leaves_no_room_is_an_error_naming_the_row(tmp_path):
    examples, length = long_and_short()
    with pytest.raises(UserError, match=rf"1 rows .*max_length={length} .*first: id 'b'.*data.long_prompts=drop"):
        write(tmp_path, examples, max_length=length)


def test_a_prompt_that_leaves_room_for_one_token_is_kept(tmp_path):
    examples, length = long_and_short()
    counters, written = write(tmp_path, examples, max_length=length + 1)
    assert (counters["examples"], counters["truncated"]) == (3, 1)
    assert written["labels"][1][:-1] == [IGNORE] * length


def test_prompts_that_leave_no_room_can_be_dropped_and_are_counted(tmp_path):
    examples, length = long_and_short()
    counters, written = write(tmp_path, examples, max_length=length, long_prompts="drop")
    assert (counters["examples"], counters["dropped_long_prompts"], counters["truncated"]) == (2, 1, 0)
    assert written["id"][:] == ["a", "c"]


def test_empty_completions_are_left_out_and_counted(tmp_path):
    blank = [replace(EXAMPLES[i], completion=text) for i, text in ((0, ""), (3, " \n"))]
    counters, written = write(tmp_path, [blank[0], *EXAMPLES[1:3], blank[1], *EXAMPLES[4:]])
    assert (counters["examples"], counters["dropped_empty_completions"]) == (18, 2)
    assert written["id"][:] == [example.id for i, example in enumerate(EXAMPLES) if i not in (0, 3)]


def test_nothing_but_empty_completions_is_an_error_that_says_so(tmp_path):
    blank = [replace(example, completion="") for example in EXAMPLES]
    with pytest.raises(UserError, match=r"Nothing is left to train on: 0 prompts .* and 20 completions are empty"):
        write(tmp_path, blank)


def test_dropping_every_row_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"prompts are longer than data.max_length=8"):
        write(tmp_path, EXAMPLES, max_length=8, long_prompts="drop")
