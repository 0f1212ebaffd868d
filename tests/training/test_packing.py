"""Packing: which rows share a sequence, that training gives the losses of separate rows, and models that mix rows."""

from itertools import product

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Lfm2Config

from helpers import embedded_tokenizer, tiny_model, token_rows, weights
from weakdriven.config.recipe import DataSettings, JointSettings, Recipe, SftSettings
from weakdriven.errors import UserError
from weakdriven.runs.directory import METRICS, Progress
from weakdriven.runs.files import read_jsonl
from weakdriven.training.packing import mixes_rows, packed_order, packs
from weakdriven.training.phase import Phase
from weakdriven.training.sft import train_supervised
from weakdriven.wmss.trainer import train_joint

ROWS = token_rows(24)
SMALL = {"batch_size": 8, "micro_batch_size": 2, "learning_rate": 2e-3, "gradient_checkpointing": False}
RECIPE = Recipe(
    model="embedded:base", data=DataSettings(path="embedded:arithmetic", max_length=16), precision="fp32", sft=SMALL
)


@pytest.mark.parametrize("processes, capacity, seed", product([1, 2], [20, 45, 200], [0, 1]))
def test_steps_keep_their_rows_and_micro_batches_fit(processes, capacity, seed):
    draw = np.random.default_rng(seed)
    length_N, order = draw.integers(2, 20, 40), draw.permutation(40)
    found, rows = packed_order(order, length_N, 8, processes=processes, capacity=capacity)
    assert (np.sort(found.reshape(-1, 8)) == np.sort(order.reshape(-1, 8))).all()
    token_SG = length_N[found].reshape(5, -1, rows).sum(2)
    assert token_SG.max() <= capacity and 8 // processes % rows == 0
    assert capacity < 200 or rows == 8 // processes, "all rows of a process fit into one sequence"
    assert rows == 1 or (np.ptp(token_SG, axis=1) <= length_N.max()).all(), "as many tokens each, but for one row"


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")

    def make(name):
        folder = tmp_path / name / ".work" / "sft" / "work"
        folder.mkdir(parents=True)
        return folder

    return make


@pytest.mark.parametrize("family", [pytest.param("llama", marks=pytest.mark.slow), "gemma3"])
@pytest.mark.parametrize("joint", [False, True], ids=["sft", "joint"])
def test_losses_and_weights_are_those_of_separate_rows(family, joint, work):
    found = {}
    for packing in (False, True):
        model, folder = tiny_model(family), work(str(packing))
        phase, kind = Phase("sft", 0, 2, folder, Progress()), JointSettings if joint else SftSettings
        shared = embedded_tokenizer(), ROWS, kind(**SMALL, packing=packing), RECIPE, phase
        if joint:
            train_joint(model, tiny_model(family, seed=1), *shared)
        else:
            train_supervised(model, *shared)
        found[packing] = [line["loss"] for line in read_jsonl(folder / METRICS)], weights(model)
    separate, packed = found.values()
    assert len(packed[0]) == 6 and packed[0] == pytest.approx(separate[0], rel=1e-5)
    for name, weight in separate[1].items():
        torch.testing.assert_close(packed[1][name], weight, atol=2e-4, rtol=0)


def test_a_micro_batch_is_one_sequence_as_long_as_its_rows(work, monkeypatch):
    seen = []
    model = tiny_model("llama")
    model.register_forward_pre_hook(lambda _, __, inputs: seen.append(inputs["input_ids"].shape), with_kwargs=True)
    phase = Phase("sft", 0, 1, work("one"), Progress())
    train_supervised(model, embedded_tokenizer(), ROWS, SftSettings(**SMALL, packing=True), RECIPE, phase)
    assert all(count == 1 and length <= 32 for count, length in seen)
    assert sum(length for _, length in seen) == sum(len(row["input_ids"]) for row in ROWS)


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama", "gemma3"])
def test_models_with_attention_alone_keep_rows_apart(family):
    assert not mixes_rows(tiny_model(family))


def test_a_model_with_convolutions_raises_an_error():
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "layer_types": ["conv", "full_attention"]}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Lfm2Config(**sizes, **heads, initializer_range=0.3), dtype=torch.float32)
    with pytest.raises(UserError, match=r"lfm2 .*joint.packing: false"):
        packs([model], JointSettings(packing=True), RECIPE)
