"""Attention in training: no kernel whose backward pass gives NaN, and no mask where padding is never seen."""

from contextlib import nullcontext

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import TrainerCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from helpers import embedded_tokenizer, tiny_model, token_rows
from joint_cases import arguments, make
from weakdriven.config.recipe import DataSettings, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.runs.directory import Progress
from weakdriven.training.attention import trained_attention, without_cudnn_attention, without_padding_masks
from weakdriven.training.phase import Phase, fit


class Look(TrainerCallback):
    """Records at each step whether cuDNN's attention may be used."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, *args, **kwargs):
        self.seen.append(torch.backends.cuda.cudnn_sdp_enabled())


@pytest.fixture(params=[True, False])
def before(request):
    found = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(request.param)
    yield request.param
    torch.backends.cuda.enable_cudnn_sdp(found)


def test_a_pair_trains_without_cudnn_attention(tmp_path):
    look, before = Look(), torch.backends.cuda.cudnn_sdp_enabled()
    make(tmp_path, trainer={"callbacks": [look]}).train()
    assert before and look.seen == [False, False]
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_a_single_model_trains_without_cudnn_attention(tmp_path):
    look, before = Look(), torch.backends.cuda.cudnn_sdp_enabled()
    recipe = Recipe(model="embedded:base", data=DataSettings(path="embedded:arithmetic"), precision="fp32")
    made = Phase("sft", 0, 1, tmp_path / "run/.work/sft", Progress()).prepare(
        token_rows(8), TrainSettings(batch_size=4, gradient_checkpointing=False), recipe
    )
    (tmp_path / "run/.work/sft").mkdir(parents=True)
    made["callbacks"].append(look)
    fit(SFTTrainer(tiny_model(seed=1), processing_class=embedded_tokenizer(), **made))
    assert before and look.seen == [False, False]
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_an_error_restores_the_setting(before):
    with pytest.raises(RuntimeError, match="stop"), without_cudnn_attention():
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        raise RuntimeError("stop")
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.gpu
def test_the_gradient_is_finite_if_every_score_is_low():
    length, width = 704, 64
    query, key, value = (torch.randn(1, 1, length, width, device="cuda", dtype=torch.bfloat16) * 0.1 for _ in range(3))
    query[..., 0], key[..., 0] = 1.0, -120 * width**0.5
    query.requires_grad_()
    mask = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()
    with without_cudnn_attention():
        scaled_dot_product_attention(query, key, value, attn_mask=mask).float().sum().backward()
    assert query.grad.isfinite().all()


@pytest.fixture
def masks(monkeypatch):
    """Whether each call of PyTorch's attention was given a mask."""
    seen = []

    def spy(*args, attn_mask=None, **kwargs):
        seen.append(attn_mask is not None)
        return scaled_dot_product_attention(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    return seen


def sft(folder, model, **options):
    common = {"processing_class": embedded_tokenizer(), "train_dataset": token_rows(8)}
    return SFTTrainer(model, arguments(folder, SFTConfig, **options), **common)


def pair(folder, model, **options):
    return make(folder, model=model, **options)


@pytest.mark.parametrize("trainer, checkpointing", [(sft, False), (pair, True)])
def test_training_needs_no_mask_for_padding_on_the_right(tmp_path, masks, trainer, checkpointing):
    weights = []
    for without in (False, True):
        made = trainer(tmp_path, tiny_model(seed=1), gradient_checkpointing=checkpointing)
        del masks[:]
        with without_padding_masks(made.model) if without else nullcontext():
            made.train()
        assert any(masks) != without
        weights.append([one.detach().clone() for one in made.model.parameters()])
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(*weights, strict=True))


def padded_rows(hidden):
    """Two rows, and a mask over some places of the second."""
    ids = torch.arange(3, 27).view(2, 12)
    mask = torch.ones_like(ids)
    mask[1, hidden] = 0
    return ids, mask


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_without_a_mask_the_logits_of_tokens_are_the_same(family):
    model = tiny_model(family, seed=1)
    ids, mask = padded_rows(slice(7, 12))
    with torch.no_grad():
        masked = model(input_ids=ids, attention_mask=mask).logits
        with without_padding_masks(model):
            found = model(input_ids=ids, attention_mask=mask).logits
    assert torch.allclose(masked[mask == 1], found[mask == 1], atol=1e-5)
    assert not torch.allclose(masked[mask == 0], found[mask == 0], atol=1e-3)  # it was left out


@pytest.mark.parametrize("gpu", [True, False])
def test_masks_are_left_out_only_on_a_gpu(masks, monkeypatch, gpu):
    model = tiny_model(seed=1)
    ids, mask = padded_rows(slice(7, 12))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    with torch.no_grad(), trained_attention(model):
        model(input_ids=ids, attention_mask=mask)
    assert masks == [not gpu] * 2, "one of each layer"


@pytest.mark.parametrize("case", ["left", "hole", "positions", "eager", "after"])
def test_a_mask_that_may_mean_more_is_kept(case):
    model = tiny_model(seed=1)
    hidden = {"left": slice(0, 3), "hole": slice(4, 6)}
    ids, mask = padded_rows(hidden.get(case, slice(7, 12)))
    more = {"position_ids": torch.arange(12).expand(2, 12)} if case == "positions" else {}
    if case == "eager":
        model.set_attn_implementation("eager")
    with torch.no_grad():
        masked = model(input_ids=ids, attention_mask=mask, **more).logits
        with without_padding_masks(model):
            if case != "after":
                assert torch.equal(model(input_ids=ids, attention_mask=mask, **more).logits, masked)
        assert torch.equal(model(input_ids=ids, attention_mask=mask, **more).logits, masked)
