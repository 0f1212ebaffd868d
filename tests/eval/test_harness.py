"""The cross-check with lm-eval: its texts are those of greedy generation, its verdicts come from its own task files."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from weakdriven.data.demo import demo_rows
from weakdriven.data.prompts import Renderer
from weakdriven.errors import UserError
from weakdriven.eval import harness
from weakdriven.eval.harness import cross_check, load_harness_model, refuse_other_prompts, summary, write_task
from weakdriven.models.load import load_model, load_tokenizer, locate_model

MODEL = locate_model("embedded:base")
TOKENIZER = load_tokenizer(MODEL)
END_OF_TEXT = "<|endoftext|>"
needs_lm_eval = pytest.mark.harness


def prompt_rows(count: int) -> list[dict]:
    renderer = Renderer(TOKENIZER, "math", "plain")
    return [
        {
            "id": row["id"],
            "prompt": renderer.prompt([{"role": "user", "content": row["question"]}]),
            "gold": row["answer"],
        }
        for row in demo_rows("test")[:count]
    ]


def greedy_texts(model, rows: list[dict], stop: list[str], max_new_tokens: int) -> list[str]:
    """transformers' own generation, one prompt at a time."""
    ends, texts = TOKENIZER.convert_tokens_to_ids(stop), []
    for row in rows:
        ids = TOKENIZER(row["prompt"], add_special_tokens=False, return_tensors="pt")["input_ids"]
        new = model.generate(ids, max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=ends, pad_token_id=0)
        new = new[0, ids.shape[1] :].tolist()
        end = next((place for place, token in enumerate(new) if token in ends), None)
        texts.append(TOKENIZER.decode(new[:end], skip_special_tokens=True))
    return texts


def boxed(text: str) -> str:
    return text.rpartition("\\boxed{")[2].partition("}")[0]


def check(rows: list[dict], out: Path, model: Path = MODEL, benchmark: str = "gsm8k", **changes) -> dict:
    settings = {"max_new_tokens": 64, "stop": [END_OF_TEXT, "<|im_end|>"], "batch_size": 3, "dtype": torch.float32}
    return cross_check(model, benchmark, rows, out=out, **(settings | changes))


def test_without_lm_eval_the_error_says_what_to_install(tmp_path, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(harness, "version", missing)
    with pytest.raises(UserError, match=r'pip install "weakdriven\[harness\]"'):
        check(prompt_rows(1), tmp_path)


def test_another_version_of_lm_eval_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "version", lambda name: "0.3.0")
    with pytest.raises(UserError, match=r"lm-eval 0\.3\.0 is installed.*0\.4\.13"):
        check(prompt_rows(1), tmp_path)


def test_a_benchmark_that_lm_eval_scores_in_another_way_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"svamp cannot be cross-checked.*aime2025, gsm8k, math500"):
        check(prompt_rows(1), tmp_path, benchmark="svamp")


def test_a_summary_names_the_rows_where_texts_and_verdicts_differ():
    task = harness.HarnessTask("some.yaml", "exact_match,last")
    rows = [{"id": i, "text": f"text {i}", "correct": i == 1} for i in range(3)]
    samples = [
        {"doc": {"id": str(i)}, "filter": filter, "resps": [["text 1" if i == 2 else f"text {i}"]], "exact_match": 1.0}
        for filter in ("first", "last")
        for i in range(3)
    ]
    results = {"alias": "x", "exact_match,last": 1.0, "exact_match_stderr,last": "N/A"}
    found = summary(task, results, samples, rows)
    assert (found["items"], found["accuracy"], found["metrics"]) == (3, 1.0, {"exact_match,last": 1.0})
    assert found["other_text"] == ["2"] and found["other_verdict"] == ["0", "2"]
    with pytest.raises(UserError, match="scored 3 rows, but there are 4"):
        summary(task, results, samples, [*rows, rows[0]])


@needs_lm_eval
def test_texts_are_those_of_greedy_generation_and_every_row_is_scored(tmp_path):
    rows, stop = prompt_rows(8), [END_OF_TEXT, "<|im_end|>"]
    texts = greedy_texts(load_model(MODEL, precision="fp32"), rows, stop, 64)
    assert len({len(text) for text in texts}) > 3, "rows that end at different steps show that each ends on its own"
    rows = [{**row, "text": text, "correct": False} for row, text in zip(rows, texts, strict=True)]
    for row in rows[:3]:
        row["gold"] = boxed(row["text"])
    found = check(rows, tmp_path / "new")
    assert found["items"] == 8 and found["other_text"] == []
    assert found["other_verdict"] == [row["id"] for row in rows[:3]] and found["accuracy"] == 3 / 8
    assert found["metrics"].keys() == {"exact_match,strict-match", "exact_match,flexible-extract"}
    files = {path.name for path in (tmp_path / "new").iterdir()}
    assert files == {"results.json", "rows.jsonl", "samples.jsonl", "task.yaml"}
    samples = [json.loads(line) for line in (tmp_path / "new" / "samples.jsonl").read_text().splitlines()]
    assert [sample["arguments"][0][0] for sample in samples] == 2 * [row["prompt"] for row in rows]


@needs_lm_eval
def test_their_grader_is_tried_on_our_texts_too(tmp_path):
    rows = [row | {"text": f"So {row['gold']}.", "correct": True} for row in prompt_rows(3)]
    rows[1]["text"] = "None at all."
    found = check(rows, tmp_path)
    assert found["accuracy_of_our_texts"] == pytest.approx(2 / 3)


@needs_lm_eval
@pytest.mark.parametrize("benchmark", ["math500", "aime2025"])
def test_math_answers_are_read_from_the_last_box(tmp_path, benchmark):
    rows = prompt_rows(8)
    for row, text in zip(rows, greedy_texts(load_model(MODEL, precision="fp32"), rows, [END_OF_TEXT], 64), strict=True):
        row["gold"], row["correct"] = boxed(text), True
    rows[0] |= {"gold": "\\frac{1}{2}", "correct": False}
    found = check(rows, tmp_path, benchmark=benchmark, stop=[END_OF_TEXT])
    assert found["other_verdict"] == [] and found["accuracy"] == 7 / 8


@needs_lm_eval
def test_rows_of_an_earlier_try_are_not_used_again(tmp_path):
    check(prompt_rows(2), tmp_path, max_new_tokens=2)
    rows = prompt_rows(4)[2:]
    assert check(rows, tmp_path, max_new_tokens=2)["items"] == 2
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert {sample["doc"]["id"] for sample in samples} == {row["id"] for row in rows}


@needs_lm_eval
def test_settings_of_the_checkpoint_do_not_change_the_greedy_text(tmp_path):
    rows = prompt_rows(3)
    model = load_model(MODEL, precision="fp32")
    texts = greedy_texts(model, rows, [END_OF_TEXT], 32)
    model.generation_config.update(repetition_penalty=5.0, max_new_tokens=4)
    model.save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    rows = [{**row, "text": text} for row, text in zip(rows, texts, strict=True)]
    changes = {"stop": [END_OF_TEXT], "max_new_tokens": 32}
    assert check(rows, tmp_path / "out", tmp_path / "model", **changes)["other_text"] == []


@needs_lm_eval
def test_an_adapter_is_put_on(tmp_path):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    rows, config = prompt_rows(4), LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    plain = greedy_texts(load_model(MODEL, precision="fp32"), rows, [END_OF_TEXT], 32)
    adapted = get_peft_model(load_model(MODEL, precision="fp32"), config)
    adapted.save_pretrained(tmp_path / "adapter")
    rows = [
        {**row, "text": text} for row, text in zip(rows, greedy_texts(adapted, rows, [END_OF_TEXT], 32), strict=True)
    ]
    assert [row["text"] for row in rows] != plain
    changes = {"stop": [END_OF_TEXT], "max_new_tokens": 32, "adapter": tmp_path / "adapter"}
    assert check(rows, tmp_path / "out", **changes)["other_text"] == []


@needs_lm_eval
def test_a_prompt_that_lm_eval_would_cut_is_refused(tmp_path):
    with pytest.raises(UserError, match="more than the model's 512 positions"):
        check(prompt_rows(2), tmp_path, max_new_tokens=500)


@needs_lm_eval
def test_a_tokenizer_that_adds_a_token_to_the_prompt_adds_none_here(tmp_path):
    from tokenizers.processors import TemplateProcessing

    tokenizer = load_tokenizer(MODEL)
    token = TOKENIZER.convert_tokens_to_ids(END_OF_TEXT)
    tokenizer.bos_token = END_OF_TEXT
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, token)]
    )
    load_model(MODEL, precision="fp32").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    rows = prompt_rows(3)
    rows[1]["prompt"] = END_OF_TEXT + rows[1]["prompt"]
    model = load_harness_model(tmp_path, stop=[], batch_size=2, dtype=torch.float32)
    assert load_tokenizer(tmp_path)("a")["input_ids"][0] == token, "otherwise this test shows nothing"
    refuse_other_prompts(model, tmp_path, rows, 8, trust_remote_code=False)
    model.tokenizer, model.add_bos_token = load_tokenizer(tmp_path), True  # what lm-eval does where nobody says no
    with pytest.raises(UserError, match="cannot be cross-checked"):
        refuse_other_prompts(model, tmp_path, rows, 8, trust_remote_code=False)


@needs_lm_eval
@pytest.mark.parametrize("benchmark", harness.HARNESS_TASKS)
def test_lm_eval_still_has_the_task_and_the_metric(tmp_path, benchmark):
    from lm_eval.tasks import TaskManager

    task = harness.HARNESS_TASKS[benchmark]
    path = write_task(task, benchmark, prompt_rows(1), stop=["x"], max_new_tokens=5, out=tmp_path)
    (loaded,) = TaskManager(include_defaults=False).load([str(path)])["tasks"].values()
    name, chosen = task.metric.split(",")
    assert name in loaded.aggregation() and chosen in [one.name for one in loaded._filters]
