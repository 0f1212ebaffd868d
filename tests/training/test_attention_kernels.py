"""Training leaves out the attention kernel whose backward pass gives NaN, and puts back what it found."""

import pytest
import torch
from joint_cases import arguments, make
from torch.nn.functional import scaled_dot_product_attention
from transformers import TrainerCallback
from trl.trainer.sft_trainer import SFTTrainer

from helpers import embedded_tokenizer, tiny_model, token_rows
from weakdriven.training.attention import without_cudnn_attention
from weakdriven.training.supervised import fit


class Look(TrainerCallback):
    """Writes down at each step whether cuDNN's attention may be used."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, *args, **kwargs):
        self.seen.append(torch.backends.cuda.cudnn_sdp_enabled())


@pytest.fixture(autouse=True, params=[True, False])
def before(request):
    found = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(request.param)
    yield request.param
    torch.backends.cuda.enable_cudnn_sdp(found)


def test_a_pair_trains_without_it(tmp_path, before):
    look = Look()
    make(tmp_path, trainer={"callbacks": [look]}).train()
    assert look.seen == [False, False]
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_a_single_model_trains_without_it(tmp_path, before):
    look = Look()
    common = {"processing_class": embedded_tokenizer(), "train_dataset": token_rows(8), "callbacks": [look]}
    fit(SFTTrainer(tiny_model(seed=1), arguments(tmp_path), **common))
    assert look.seen == [False, False]
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_an_error_puts_it_back_too(before):
    with pytest.raises(RuntimeError, match="stop"), without_cudnn_attention():
        raise RuntimeError("stop")
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.gpu
def test_the_gradient_is_finite_where_every_score_is_low():
    length, width = 704, 64
    query, key, value = (torch.randn(1, 1, length, width, device="cuda", dtype=torch.bfloat16) * 0.1 for _ in range(3))
    query[..., 0], key[..., 0] = 1.0, -120 * width**0.5
    query.requires_grad_()
    mask = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()
    with without_cudnn_attention():
        scaled_dot_product_attention(query, key, value, attn_mask=mask).float().sum().backward()
    assert query.grad.isfinite().all()
