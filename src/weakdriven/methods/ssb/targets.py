"""The targets of SSB's student: for each token of a reply, the largest logits of the model that reads the hint.

T = tokens of a reply, D = width of the model, K = stored logits of a token.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from weakdriven.methods.ssb.loss import TopLogits, top_logits
from weakdriven.models.head import head, hidden_states
from weakdriven.stages.context import Context
from weakdriven.wmss.entropy import plan_batches

STORED = ("teacher_ids", "teacher_logits", "teacher_lse")
"""Columns of a row: ids (int32) and logits (bits of bfloat16) of all reply tokens in one list, and log-sum-exps."""
SCHEMA = pa.schema(
    {"id": pa.string(), "input_ids": pa.list_(pa.int32()), "labels": pa.list_(pa.int32())}
    | dict(zip(STORED, map(pa.list_, (pa.int32(), pa.uint16(), pa.float32())), strict=True))
    | {"coverage": pa.float32(), "coverage_at_temperature": pa.float32()}
)
Row = dict[str, Any]


@torch.no_grad()
def with_logits(network: Any, rows: list[Row], context: Context) -> list[Row]:
    """Add the largest logits of the model that reads the hint to the rows."""
    settings, done = context.recipe.ssb, dict[int, Row]()
    network.eval()
    lengths_N = np.array([len(row["hinted"]) for row in rows])
    for numbers in plan_batches(lengths_N, context.recipe.selection.batch_tokens):
        width = int(lengths_N[numbers].max())
        # padding on the right without a mask: causal attention never looks there
        ids = [rows[number]["hinted"] + [0] * (width - lengths_N[number]) for number in numbers]
        inputs = {"input_ids": torch.tensor(ids, device=network.device), "use_cache": False}
        for number, hidden_LD in zip(numbers.tolist(), hidden_states(network, inputs), strict=True):
            row, end = rows[number], int(lengths_N[number]) - 1  # position t - 1 predicts token t
            reply_TD = hidden_LD[end - row["reply"] : end]
            top = top_logits(reply_TD, head(network), k=settings.top_k, temperature=settings.temperature)
            tempered_T = ((top.logits_TK / settings.temperature).logsumexp(-1) - top.lse_T).exp()
            # mean probability of the stored tokens, at temperature 1 and at the temperature of the loss
            coverage = {"coverage": float(top.coverage_T.mean()), "coverage_at_temperature": float(tempered_T.mean())}
            done[number] = row | stored(top) | coverage
    return [done[number] for number in range(len(rows))]


def as_bits(logits: Tensor) -> np.ndarray:
    """Convert to bfloat16 and view it as uint16, because neither numpy nor Arrow has bfloat16."""
    return logits.to(torch.bfloat16).cpu().contiguous().view(torch.uint16).numpy()


def from_bits(bits: np.ndarray) -> Tensor:
    """View uint16 as bfloat16.

    >>> from_bits(as_bits(torch.tensor([1.5, -2.0]))).tolist()
    [1.5, -2.0]
    """
    return torch.from_numpy(np.array(bits, np.uint16)).view(torch.bfloat16)


def stored(top: TopLogits) -> dict[str, np.ndarray]:
    """Return one reply's logits as the columns of its row."""
    ids, logits = top.ids_TK.flatten().cpu().numpy().astype(np.int32), as_bits(top.logits_TK.flatten())
    return dict(zip(STORED, (ids, logits, top.lse_T.float().cpu().numpy()), strict=True))


def write_rows(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
