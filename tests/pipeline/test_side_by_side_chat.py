"""`weakdriven chat`: what each model reads, what is printed, and what cannot be talked to."""

import io
import shutil
import sys

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from command_line import assert_user_error, weakdriven
from helpers import embedded_tokenizer
from weakdriven.data.prompts import Renderer
from weakdriven.eval.generate import Completion
from weakdriven.models.load import EMBEDDED, load_model, locate_model
from weakdriven.pipeline.chat import Speaker, open_speakers, print_answers, talk
from weakdriven.runs.directory import RUN_FILE

ASK = "Mia has 3 apples. Mia buys 4 more. How many apples does Mia have now?"
NAMES = ["M0, base model", "M1, after phase-1 SFT", "WMSS, round 2"]


class Scripted:
    """An engine that keeps the text of its prompts and answers with a number."""

    def __init__(self, finish="stop"):
        self.model, self.finish = load_model(locate_model(EMBEDDED), precision="fp32"), finish
        self.prompts, self.budgets, self.seeds = [], [], []

    def complete(self, requests, sampling, on_done):
        (request,) = requests
        self.prompts.append(embedded_tokenizer().decode(request.ids))
        self.budgets.append(sampling.max_new_tokens)
        self.seeds.append(request.seed)
        on_done({0: Completion(f"reply {len(self.prompts)}", 3, self.finish)})


def scripted(**options):
    return Speaker("one", Scripted(**options), Renderer(embedded_tokenizer(), "math", "plain", "Be kind."))


def said_by(speakers, *lines, **options):
    shown = []
    talk(speakers, lines, shown.append, **({"temperature": 0.0, "max_new_tokens": 32, "seed": 1} | options))
    return shown


def typed(monkeypatch, *lines):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_a_model_reads_all_turns_before_and_its_system_prompt():
    speaker = scripted()
    shown = said_by([speaker], "hello", "", " and then?\n", "/exit", "never asked")
    assert shown == [[("one", "reply 1")], [("one", "reply 2")]]
    start = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    later = "reply 1<|im_end|>\n<|im_start|>user\nand then?<|im_end|>\n<|im_start|>assistant\n"
    assert speaker.engine.prompts == [start, start + later]


def test_the_oldest_turns_are_forgotten_where_the_positions_end():
    speaker = scripted(finish="length")
    shown = said_by([speaker], *[f"question {number} " + "why " * 60 for number in range(5)], "why " * 600)
    *_, last = speaker.engine.prompts
    assert "question 4" in last and "question 0" not in last and "Be kind." in last
    assert all(0 < budget <= 32 for budget in speaker.engine.budgets) and len(speaker.engine.prompts) == 5
    assert "cut off after 32 tokens" in shown[0][0][1] and "no reply" in shown[5][0][1]


def test_each_turn_is_drawn_with_a_seed_of_its_own_and_the_same_for_all_models():
    speakers = [scripted(), scripted()]
    said_by(speakers, "a", "b", temperature=1.0)
    first, second = (speaker.engine.seeds for speaker in speakers)
    assert first == second and len(set(first)) == 2
    said_by([again := scripted()], "a", "b", temperature=1.0, seed=2)
    assert not set(again.engine.seeds) & set(first)


def test_the_models_of_a_run_answer_next_to_each_other(two_round_run, monkeypatch):
    typed(monkeypatch, ASK)
    done = weakdriven("chat", two_round_run[0], "--max-new-tokens", 24)
    assert done.code == 0 and [line for line in done.out.splitlines() if line in NAMES] == NAMES
    answers = dict(zip(NAMES, done.out.split("\n")[1::2], strict=False))
    tokenizer = embedded_tokenizer()
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": ASK}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    for name, folder in ((NAMES[1], "sft"), (NAMES[2], "round-2/strong")):
        model = AutoModelForCausalLM.from_pretrained(two_round_run[0] / folder, dtype=torch.float32)
        new = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        assert answers[name].removesuffix(" [cut off after 24 tokens]") == tokenizer.decode(
            new, skip_special_tokens=True
        )
    assert answers[NAMES[1]] != answers[NAMES[2]]


def test_an_unfinished_run_has_the_models_that_are_there(two_round_run, tmp_path):
    root = tmp_path / "run"
    shutil.copytree(two_round_run[0], root)
    shutil.rmtree(root / "round-2")
    assert [speaker.name for speaker in open_speakers(str(root))] == [*NAMES[:2], "WMSS, round 1"]
    shutil.rmtree(root / "round-1")
    shutil.rmtree(root / "sft")
    assert_user_error(weakdriven("chat", root), "no trained model yet", "sft")


def test_a_model_alone_answers_without_its_name(monkeypatch):
    typed(monkeypatch, ASK, "/exit", ASK)
    done = weakdriven("chat", EMBEDDED, "--max-new-tokens", 4)
    assert done.code == 0 and done.out.count("\n") == 1 and done.out.endswith("[cut off after 4 tokens]\n")


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_what_is_neither_a_run_nor_a_model_is_one_sentence(tmp_path, name):
    (tmp_path / "empty").mkdir()
    assert_user_error(weakdriven("chat", tmp_path / name), RUN_FILE if name == "empty" else "no model folder")


@pytest.mark.parametrize("width, lines", [(120, 5), (60, 4)])
def test_answers_are_side_by_side_where_the_terminal_is_wide_enough(width, lines):
    file = io.StringIO()
    print_answers(
        [("weak", "\x1b[2Jno"), ("strong", "[bold]yes")], Console(file=file, width=width, force_terminal=True)
    )
    text = file.getvalue()
    assert len(text.splitlines()) == lines and "[bold]yes" in text and "\x1b[2J" not in text
    assert any("weak" in line and "strong" in line for line in text.splitlines()) == (width == 120)
