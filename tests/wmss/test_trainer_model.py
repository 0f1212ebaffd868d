"""What users and callbacks ask of `trainer.model`, and of the trainer after training: answered by the strong model."""

import pytest
import torch
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import BEMACallback, LogCompletionsCallback
from trl.trainer.sft_trainer import SFTTrainer

from helpers import embedded_tokenizer, tiny_model, token_rows, weights
from joint_cases import arguments, make, trained

ADAPTER = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
PROMPT = torch.tensor([[5, 6, 7]])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The pair of a finished training."""
    return trained(tmp_path_factory.mktemp("pair")).model


def test_callbacks_get_the_strong_model_and_trl_s_own_ones_work(tmp_path):
    rows = token_rows(4).add_column("prompt", ["1 + 1 =", "2 + 3 =", "4 =", "5 ="])
    seen = []

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            seen.append(model)

    average = BEMACallback(update_freq=1)
    large = {"vocab_size": 4096}
    trainer = make(
        tmp_path,
        model=tiny_model(seed=1, **large),
        weak_model=tiny_model(seed=2, **large),
        trainer={"eval_dataset": rows, "callbacks": [average, Look()]},
        gradient_checkpointing=True,
    )
    completions = LogCompletionsCallback(trainer, num_prompts=2, freq=1)
    trainer.add_callback(completions)
    trainer.train()
    assert seen == [trainer.pair.strong] * 2
    assert [row[:2] for row in completions.table[:2]] == [("1", "1 + 1 ="), ("1", "2 + 3 =")]
    assert len(completions.table) == 4 and trainer.model.is_gradient_checkpointing
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "bema")
    assert weights(loaded).keys() == weights(trainer.pair.strong).keys()
    assert average.param_names == [name for name, _ in trainer.pair.strong.named_parameters()]


def test_the_pair_generates_and_reports_as_the_strong_model(pair):
    strong = pair.strong.eval()
    assert torch.equal(
        pair.generate(PROMPT, max_new_tokens=4, do_sample=False),
        strong.generate(PROMPT, max_new_tokens=4, do_sample=False),
    )
    assert pair.device == strong.device and pair.dtype == strong.dtype == torch.float32
    assert pair.num_parameters() == strong.num_parameters() and pair.model_tags == strong.model_tags
    assert "weak-driven" in pair.model_tags
    assert not hasattr(pair, "print_trainable_parameters")  # a model without an adapter has none


def test_the_pair_saves_and_uploads_the_strong_model(pair, tmp_path, monkeypatch):
    pair.save_pretrained(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert all(torch.equal(value, weights(pair.strong)[name]) for name, value in weights(loaded).items())
    assert not (tmp_path / "model" / "weak").exists()
    uploaded = []
    monkeypatch.setattr(type(pair.strong), "push_to_hub", lambda self, name: uploaded.append((self, name)))
    pair.push_to_hub("someone/model")
    assert uploaded == [(pair.strong, "someone/model")]


def test_merging_gives_an_ordinary_model_and_leaves_the_pair_as_it_was(tmp_path):
    trainer = trained(tmp_path, trainer={"peft_config": ADAPTER}, learning_rate=0.1)
    before = weights(trainer.pair)
    model = trainer.model.merge_and_unload()
    assert not isinstance(model, PeftModel)
    torch.testing.assert_close(model(PROMPT).logits, trainer.pair.strong.eval()(PROMPT).logits)
    assert all(torch.equal(value, before[name]) for name, value in weights(trainer.pair).items())
    trainer.model.print_trainable_parameters()
    trainer.model.save_pretrained(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()


def test_total_flos_are_those_of_both_models(tmp_path):
    rows = {"train_dataset": token_rows(8), "processing_class": embedded_tokenizer()}
    alone = SFTTrainer(tiny_model(seed=1), args=arguments(tmp_path / "sft"), **rows)
    alone.train()
    one = alone.state.total_flos
    assert one > 0
    for options, share in (({}, 2), ({"weak_trainable": False}, 4 / 3), ({"strong_weight": 1.0}, 1)):
        assert trained(tmp_path, **options).state.total_flos == pytest.approx(share * one)
