"""Attention kernels that are not trained with."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Within it PyTorch's attention leaves cuDNN out, whatever it chose before.

    Its backward pass gives NaN where rows are padded to 64 more than a multiple of 128 tokens and a head's scores are
    all far below 0, as some of Qwen2.5's are (pytorch#196678, trl#7181).
    """
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)
