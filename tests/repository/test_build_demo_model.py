"""The script that built the embedded model, with two steps instead of thousands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, Qwen3ForCausalLM

from weakdriven.models.load import locate_model

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "scripts/build_demo_model.py"
EMBEDDED = locate_model("embedded:base")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "model"
    size = ["--steps", "2", "--documents", "1000", "--rows", "2", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), *size, "--output", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_folder_loads_as_a_qwen3_of_the_embedded_shape(built):
    model, embedded = (AutoModelForCausalLM.from_pretrained(folder) for folder in (built, EMBEDDED))
    assert isinstance(model, Qwen3ForCausalLM) and model.config.tie_word_embeddings
    shapes, expected = ({name: p.shape for name, p in m.named_parameters()} for m in (model, embedded))
    assert shapes == expected
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in model.parameters())


def test_tokenizer_and_chat_template_are_those_of_the_embedded_model(built):
    tokenizer, embedded = (AutoTokenizer.from_pretrained(folder) for folder in (built, EMBEDDED))
    assert tokenizer.get_vocab() == embedded.get_vocab()
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.chat_template == embedded.chat_template
    assert (built / "tokenizer.json").read_text() == (EMBEDDED / "tokenizer.json").read_text()


def test_the_generation_config_is_greedy_and_ends_at_the_end_of_a_turn(built):
    generation, tokenizer = GenerationConfig.from_pretrained(built), AutoTokenizer.from_pretrained(built)
    assert not generation.do_sample
    assert generation.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert generation.pad_token_id == tokenizer.convert_tokens_to_ids("<|endoftext|>")


def test_built_json_records_how_the_model_was_built(built):
    record, shipped = (json.loads((folder / "built.json").read_text()) for folder in (built, EMBEDDED))
    assert record.keys() == shipped.keys()
    assert (record["steps"], record["documents"], record["rows"], record["device"]) == (2, 1000, 2, "cpu")
    assert record["trained_tokens"] == 2 * 2 * 256 and 0 < record["final_loss"] < 10
