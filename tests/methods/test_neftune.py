"""Noise on embeddings: its size, where it is added and where it is not, and training with it."""

from contextlib import contextmanager

import pytest
import torch
from datasets import Dataset
from transformers import TrainerControl, TrainerState, TrainingArguments

from helpers import embedded_tokenizer, padded_batch, tiny_model, token_rows, weights
from weakdriven.config.recipe import DataSettings, LoraSettings, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.data.prompts import Renderer
from weakdriven.data.rows.sources import load_examples
from weakdriven.data.tokenize import tokenize
from weakdriven.errors import UserError
from weakdriven.methods.neftune import EmbeddingNoise, NoisyEmbeddings
from weakdriven.models.adapters import add_adapter
from weakdriven.models.load import EMBEDDED, load_model, locate_model
from weakdriven.runs.directory import METRICS, Progress
from weakdriven.runs.files import read_jsonl
from weakdriven.training.checkpoints import last_complete_checkpoint
from weakdriven.training.lora import lora_config
from weakdriven.training.phase import Phase
from weakdriven.training.sft import train_supervised
from weakdriven.training.variant import PLAIN
from weakdriven.wmss.entropy import score_dataset

RECIPE = Recipe(model="embedded:base", data=DataSettings(path="embedded:arithmetic"), precision="fp32")
SMALL = {"batch_size": 4, "micro_batch_size": 2, "learning_rate": 2e-3, "gradient_checkpointing": False}
ALPHA = EmbeddingNoise(5.0)


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")
    folder = tmp_path / "run" / ".work" / "sft" / "work"
    folder.mkdir(parents=True)
    return folder


def train(model, rows, work, noise=None, **changes):
    work.mkdir(exist_ok=True)
    settings = TrainSettings(**(SMALL | changes))
    variant = PLAIN if noise is None else NoisyEmbeddings(noise=noise)
    phase = Phase("sft", 0, 2, work, Progress())
    train_supervised(model, embedded_tokenizer(), rows, settings, RECIPE, phase, variant)
    return weights(model)


def same(left, right):
    return all(torch.equal(value, right[name]) for name, value in left.items())


@contextmanager
def seen(model, noise):
    """What the first layer is given, at the first step of a training."""
    given = []
    hook = model.model.layers[0].register_forward_pre_hook(
        lambda module, args, kwargs: given.append(args[0].detach()), with_kwargs=True
    )
    with NoisyEmbeddings(noise=noise).training(model, seed=[0]) as callbacks:
        for callback in callbacks:
            callback.on_step_begin(TrainingArguments("none"), TrainerState(), TrainerControl())
        yield given
    hook.remove()


def noise_of(model, noise, **inputs):
    model.train()
    with seen(model, noise) as given:
        model(**inputs, use_cache=False)
    return given[0] - model.get_input_embeddings()(inputs["input_ids"]).detach()


@pytest.mark.parametrize(
    "length, width, bound, deviation", [(4, 4, 1.25, 0.721688), (2048, 2560, 0.00218366, 0.00126074)]
)
def test_uniform_noise_has_the_bound_and_deviation_of_neftune(length, width, bound, deviation):
    draws = 20_000 if length == 4 else 1
    noise = ALPHA.draw(length, (draws, length, width), torch.Generator().manual_seed(0))
    assert noise.abs().max() <= bound * (1 + 1e-6)
    assert noise.abs().max() == pytest.approx(bound, rel=1e-3)
    assert noise.std().item() == pytest.approx(deviation, rel=5e-3)
    assert noise.square().sum((1, 2)).mean().sqrt().item() == pytest.approx(2.886751, rel=5e-3)


def test_gaussian_noise_is_not_divided_by_the_width():
    noise = EmbeddingNoise(1.0, "gaussian").draw(16, (16, 4096), torch.Generator().manual_seed(0))
    assert noise.std().item() == pytest.approx(0.25, rel=0.02)
    assert noise.std().item() / (5 / (3 * 16 * 4096) ** 0.5) == pytest.approx((3 * 4096) ** 0.5 / 5, rel=0.02)
    noise = EmbeddingNoise(1.0, "gaussian").draw(64, (64, 2560), torch.Generator().manual_seed(0))
    assert noise.std().item() / (5 / (3 * 64 * 2560) ** 0.5) == pytest.approx(17.5, rel=0.02), "times that of NEFTune"


def test_each_row_has_noise_of_its_own_length_and_none_on_its_padding():
    model, batch = tiny_model(width=16), padded_batch(token_rows(8))
    noise = noise_of(model, ALPHA, input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        assert noise[row, length:].abs().sum() == 0
        bound = 5 / (length * 16) ** 0.5
        assert 0.8 * bound < noise[row, :length].abs().max() <= bound * (1 + 1e-3)


def test_padded_noise_is_that_of_transformers():
    model, batch = tiny_model(width=16), padded_batch(token_rows(8))
    noise = noise_of(model, EmbeddingNoise(5.0, padded=True), input_ids=batch["input_ids"])
    bound = 5 / (batch["input_ids"].shape[1] * 16) ** 0.5
    assert (noise.abs().amax((1, 2)) > 0.8 * bound).all() and noise.abs().max() <= bound * (1 + 1e-3)
    assert noise[batch["attention_mask"] == 0].abs().min() > 0


def test_the_embedding_of_gemma_is_scaled_before_noise_is_added():
    model, ids = tiny_model("gemma3", width=16), torch.arange(1, 33)[None]
    scaled = model.get_input_embeddings()(ids)
    torch.testing.assert_close(scaled, 4 * model.get_input_embeddings().weight[ids])  # sqrt(16)
    noise = noise_of(model, ALPHA, input_ids=ids, attention_mask=torch.ones_like(ids))
    assert noise.square().sum().sqrt().item() == pytest.approx(2.886751, rel=0.1)  # not 4 times that


def test_a_model_that_scales_embeddings_later_is_an_error():
    model = tiny_model("granite", embedding_multiplier=12.0)
    variant = NoisyEmbeddings(noise=ALPHA)
    with pytest.raises(UserError, match="multiplies its embeddings by 12"), variant.training(model, seed=[0]):
        pass


def test_an_adapter_trains_with_noise_on_the_embeddings_of_its_base(work):
    trained = []
    for number, noise in enumerate([None, ALPHA, ALPHA]):
        model = add_adapter(tiny_model(), lora_config(LoraSettings(rank=2)), seed=0)
        checkpointing = {"gradient_checkpointing": number == 2}
        trained.append(train(model, token_rows(8), work.with_name(str(number)), noise, **checkpointing))
    assert not same(trained[0], trained[1]) and same(trained[1], trained[2])


def test_noise_is_a_constant_to_the_gradient():
    model, ids = tiny_model(tied=False), torch.arange(1, 9)[None]
    model.train()
    gradients = []
    for variant in (PLAIN, NoisyEmbeddings(noise=ALPHA)):
        model.zero_grad()
        with variant.training(model, seed=[0]):
            hook = model.model.layers[0].register_forward_pre_hook(
                lambda module, args, kwargs: args[0].sum().backward(retain_graph=True), with_kwargs=True
            )
            model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
            hook.remove()
        gradients.append(model.get_input_embeddings().weight.grad.clone())
    assert torch.equal(*gradients)


def test_nothing_but_training_sees_noise():
    model, rows = tiny_model(), token_rows(4)
    batch = padded_batch(rows)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "use_cache": False}
    clean, scores = model.eval()(**inputs).logits, score_dataset(model, rows)
    written = model.generate(batch["input_ids"][:1], max_new_tokens=4, do_sample=False)
    with NoisyEmbeddings(noise=ALPHA).training(model, seed=[0]):
        assert torch.equal(model.eval()(**inputs).logits, clean)
        assert torch.equal(model.generate(batch["input_ids"][:1], max_new_tokens=4, do_sample=False), written)
        assert not torch.equal(model.train()(**inputs).logits, clean)
        with torch.no_grad():
            assert torch.equal(model(**inputs).logits, clean)
        assert score_dataset(model, rows).equals(scores)
    assert torch.equal(model.train()(**inputs).logits, clean)


def test_no_noise_is_plain_sft_to_the_last_bit_on_the_demo_model(work):
    folder = locate_model(EMBEDDED)
    renderer = Renderer(embedded_tokenizer(), "math", "plain")
    examples = load_examples("embedded:arithmetic", limit=8)
    rows = Dataset.from_list([tokenize(example, renderer) for example in examples])
    trained = [
        train(load_model(folder, precision="fp32"), rows, work.with_name(str(number)), noise)
        for number, noise in enumerate([None, EmbeddingNoise(0.0), ALPHA])
    ]
    assert same(trained[0], trained[1]) and not same(trained[0], trained[2])


def test_noise_is_the_same_in_micro_batches_of_any_size(work):
    noise, rows = EmbeddingNoise(2.0), token_rows(8)
    first = train(tiny_model(), rows, work.with_name("first"), noise)
    assert not same(first, train(tiny_model(), rows, work.with_name("none")))
    assert same(first, train(tiny_model(), rows, work.with_name("checkpointed"), noise, gradient_checkpointing=True))
    one_by_one = train(tiny_model(), rows, work.with_name("one"), noise, micro_batch_size=1)
    for name, value in first.items():
        torch.testing.assert_close(one_by_one[name], value, rtol=1e-4, atol=1e-5)


def test_a_resumed_training_has_the_noise_of_an_uninterrupted_one(work, monkeypatch):
    rows = token_rows(16)
    whole = train(tiny_model(), rows, work.with_name("whole"), ALPHA, save_steps=3)
    killed = Phase("sft", 0, 2, work, Progress())

    def kill(done, total, **values):
        if done == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(killed.progress, "update", kill)
    settings = TrainSettings(**SMALL, save_steps=3)
    with pytest.raises(KeyboardInterrupt):
        variant = NoisyEmbeddings(noise=ALPHA)
        train_supervised(tiny_model(), embedded_tokenizer(), rows, settings, RECIPE, killed, variant)
    assert last_complete_checkpoint(work / "checkpoints").name == "checkpoint-3"
    assert same(whole, train(tiny_model(), rows, work, ALPHA, save_steps=3))
    losses = [[row["loss"] for row in read_jsonl(one / METRICS)] for one in (work, work.with_name("whole"))]
    assert losses[0] == losses[1] and len(losses[0]) == 8


def test_the_log_has_the_size_of_noise_and_embeddings(work):
    model = tiny_model()
    size = model.get_input_embeddings().weight.square().mean().sqrt().item()
    train(model, token_rows(8), work, ALPHA, learning_rate=1e-9)
    for row in read_jsonl(work / METRICS):
        assert row["embedding_rms"] == pytest.approx(size, rel=0.2)
        assert 5 / (3 * 14 * 16) ** 0.5 < row["noise_rms"] < 5 / (3 * 4 * 16) ** 0.5
