"""A pair on disk is loaded exactly as it was saved, or is an error."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPTNeoXConfig, Qwen3MoeConfig

from helpers import tiny_model, weights
from weakdriven.errors import UserError
from weakdriven.wmss.pair import PAIR_FILE, WEAK_FOLDER, WeakStrongPair, load_pair_weights, read_pair, save_pair

SIZES = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
EXPERTS = {"num_key_value_heads": 1, "head_dim": 8, "moe_intermediate_size": 8, "num_experts": 4}
RENAMED = {
    "experts": Qwen3MoeConfig(**SIZES, **EXPERTS, num_experts_per_tok=2),
    "neox": GPTNeoXConfig(**SIZES, max_position_embeddings=64),
}
"""Models that transformers saves under other names than those of their modules."""


def model(family, *, seed, tied):
    if family in RENAMED:
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(RENAMED[family], dtype=torch.float32)
    return tiny_model(family, seed=seed, tied=tied)


def make_pair(family="qwen3", *, tied=True, seeds=(1, 2), **options):
    strong, weak = (model(family, seed=seed, tied=tied) for seed in seeds)
    return WeakStrongPair(strong=strong, weak=weak, **options)


def shard(folder, size="5KB"):
    def save(pair):
        pair.strong.save_pretrained(folder, max_shard_size=size)
        pair.weak.save_pretrained(folder / WEAK_FOLDER, max_shard_size=size)

    return save


@pytest.mark.parametrize(
    "family, tied, sharded",
    [
        ("qwen3", True, False),
        ("qwen3", True, True),
        ("gemma3", False, True),
        ("llama", False, False),
        ("experts", False, False),
        ("neox", False, True),
    ],
)
def test_a_saved_pair_is_loaded_exactly(family, tied, sharded, tmp_path):
    saved = make_pair(family, tied=tied)
    (shard(tmp_path) if sharded else lambda pair: save_pair(pair, tmp_path))(saved)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == sharded
    if family in RENAMED and not sharded:
        assert load_file(tmp_path / "model.safetensors").keys() != weights(saved.strong).keys()
    other = make_pair(family, tied=tied, seeds=(8, 9))
    load_pair_weights(other, tmp_path)
    for branch in ("strong", "weak"):
        mine, theirs = weights(getattr(other, branch)), weights(getattr(saved, branch))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    if tied:
        assert other.strong.get_output_embeddings().weight is other.strong.get_input_embeddings().weight


def test_a_saved_pair_records_how_it_was_mixed(tmp_path):
    save_pair(make_pair(strong_weight=0.42, strong_anchor=0.1), tmp_path, num_tokens=7)
    assert read_pair(tmp_path) == {"strong_weight": 0.42, "strong_anchor": 0.1, "num_tokens": 7}
    (tmp_path / PAIR_FILE).unlink()
    assert read_pair(tmp_path) == {}


def test_weights_keep_their_precisions(tmp_path):
    saved, other = make_pair(), make_pair()
    for pair in (saved, other):
        pair.strong.to(torch.bfloat16)
        pair.strong.model.norm.float()
    save_pair(saved, tmp_path)
    other.strong.model.norm.weight.data.fill_(7)
    load_pair_weights(other, tmp_path)
    assert torch.equal(other.strong.model.norm.weight, saved.strong.model.norm.weight)
    assert {w.dtype for w in other.strong.parameters()} == {torch.bfloat16, torch.float32}


@pytest.mark.parametrize("lost", [".", WEAK_FOLDER])
def test_a_saved_pair_without_a_weights_file_is_an_error(lost, tmp_path):
    pair = make_pair()
    save_pair(pair, tmp_path)
    (tmp_path / lost / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"cannot be read \(Error no file named model.safetensors"):
        load_pair_weights(pair, tmp_path)


@pytest.mark.parametrize("change", ["missing", "left over"])
@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "shards"])
def test_a_saved_pair_with_a_weight_missing_or_left_over_is_an_error(change, sharded, tmp_path):
    pair = make_pair()
    (shard(tmp_path) if sharded else lambda pair: save_pair(pair, tmp_path))(pair)
    file = sorted(tmp_path.glob("*.safetensors"))[0]
    tensors = load_file(file)
    if change == "missing":
        tensors.popitem()
    else:
        tensors["model.layers.7.mlp.up_proj.weight"] = torch.zeros(2)
    save_file(tensors, file)
    with pytest.raises((UserError, RuntimeError)):
        load_pair_weights(pair, tmp_path)
