"""Packs the rows of a step into micro-batches without padding; each row attends only to itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from weakdriven.config.recipe import Recipe
from weakdriven.config.settings import SupervisedSettings, TrainSettings
from weakdriven.errors import UserError
from weakdriven.models.head import hidden_states
from weakdriven.models.row_attention import has_kernel, rows_apart


def packed_order(
    order: np.ndarray, length_N: np.ndarray, batch_size: int, *, processes: int, capacity: int
) -> tuple[np.ndarray, int]:
    """Return the training order in which consecutive rows form micro-batches, and the number of rows in each.

    Each step keeps its rows. All micro-batches of a phase hold the same number of rows: the largest for which none
    exceeds `capacity` tokens. Rows are spread so that micro-batches have about equal numbers of tokens.

    >>> packed_order(np.array([0, 1, 2, 3]), np.array([5, 2, 3, 4]), 4, processes=1, capacity=8)
    (array([0, 1, 3, 2]), 2)
    """
    rows_SB = order.reshape(-1, batch_size)
    rows_SB = np.take_along_axis(rows_SB, np.argsort(-length_N[rows_SB], axis=1, kind="stable"), axis=1)
    of_a_process = batch_size // processes
    for rows in (count for count in range(of_a_process, 0, -1) if of_a_process % count == 0):
        found_SGR, token_SG = _spread(rows_SB, length_N, rows)
        if rows == 1 or token_SG.max() <= capacity:
            return found_SGR.ravel(), rows
    raise AssertionError("one row is the last count")


def _spread(rows_SB: np.ndarray, length_N: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Group the rows of each step and count each group's tokens; the next longest rows go to the emptiest groups.

    S = steps, B = rows of a step, G = groups, R = rows of a group.
    """
    steps, batch = rows_SB.shape
    groups = batch // rows
    token_SG = np.zeros((steps, groups), np.int64)
    found_SGR = np.empty((steps, groups, rows), rows_SB.dtype)
    for number in range(rows):
        next_SG = rows_SB[:, number * groups : (number + 1) * groups]
        emptiest_SG = np.argsort(token_SG, axis=1, kind="stable")
        np.put_along_axis(found_SGR[:, :, number], emptiest_SG, next_SG, axis=1)
        added_SG = np.zeros_like(token_SG)
        np.put_along_axis(added_SG, emptiest_SG, length_N[next_SG].astype(np.int64), axis=1)
        token_SG += added_SG
    return found_SGR, token_SG


def packs(models: Sequence[nn.Module], settings: TrainSettings, recipe: Recipe) -> bool:
    """Return whether a phase packs its examples; raise an error if packing is required but a model mixes rows."""
    if not isinstance(settings, SupervisedSettings) or settings.packing is False:
        return False
    if settings.packing == "auto":
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = torch.float32 if recipe.precision == "fp32" else torch.bfloat16
        return has_kernel(device, dtype) and not any(map(mixes_rows, models))
    for model in filter(mixes_rows, models):
        network: Any = model
        block = "sft" if settings is recipe.sft else "joint"
        raise UserError(
            f"{block}.packing is true, but layers of this {network.config.model_type} model mix rows that are in one "
            f"sequence; set {block}.packing: false."
        )
    return True


@torch.no_grad()
def mixes_rows(model: nn.Module) -> bool:
    """Return whether an example's hidden states depend on the example before it in the same sequence.

    Restarting position ids separate the examples in attention; recurrent layers and convolutions may ignore them.
    """
    network: Any = model
    device = next(network.parameters()).device
    ids_L, training = torch.arange(1, 9, device=device) % 7, network.training
    network.eval()
    try:
        alone = hidden_states(network, {"input_ids": ids_L[None], "use_cache": False})[0].float()
        both = {"input_ids": torch.cat([ids_L.flip(0), ids_L])[None], "use_cache": False}
        position_1L = torch.arange(8, device=device).repeat(2)[None]
        with rows_apart(network):
            packed = hidden_states(network, {**both, "position_ids": position_1L})[0, 8:].float()
    finally:
        network.train(training)
    return not (packed - alone).abs().max() <= 0.1 * alone.std()
