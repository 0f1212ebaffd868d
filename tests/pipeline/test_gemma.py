"""A multimodal Gemma-3 through the whole pipeline: its language model is trained, saved alone, and put back."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3ForConditionalGeneration

from multimodal_cases import IDS, write_multimodal
from small_runs import run_small
from weakdriven.models.gemma3.wrap import wrap_text_model


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_the_language_model_of_a_multimodal_checkpoint_goes_through_a_run(lora, tmp_path):
    base, root = tmp_path / "base", tmp_path / "run"
    whole = write_multimodal(base, max_position_embeddings=512)
    adapters = ["lora.rank=2", "lora.output=merged"] if lora else []
    run_small(
        root,
        f"model={base}",
        "chat_template=gemma",
        "data.style=tag-free",
        "data.limit=8",
        "sft={batch_size: 4, micro_batch_size: 4}",
        "joint={batch_size: 4, micro_batch_size: 4}",
        "baselines=[]",
        "eval.benchmarks=[]",
        *adapters,
    )
    trained = root / ("merged" if lora else "round-1/strong")
    model, info = AutoModelForCausalLM.from_pretrained(trained, output_loading_info=True)
    assert type(model) is Gemma3ForCausalLM and not any(info.values())
    before = whole.model.language_model.state_dict()["layers.0.mlp.up_proj.weight"]
    change = (model.state_dict()["model.layers.0.mlp.up_proj.weight"] - before).abs().max()
    assert 0 < change < 0.1, "it did not start from the checkpoint, or learned nothing"
    wrapped = tmp_path / "out"
    wrap_text_model(str(trained), str(base), str(wrapped))
    served = Gemma3ForConditionalGeneration.from_pretrained(wrapped)
    with torch.no_grad():
        assert torch.equal(served.eval()(input_ids=IDS).logits, model.eval()(input_ids=IDS).logits)
    stop = json.loads((wrapped / "generation_config.json").read_text())["eos_token_id"]
    assert served.config.text_config.vocab_size == 512 and 449 in stop
    assert not any("vision" in name for name in load_file(trained / "model.safetensors"))
