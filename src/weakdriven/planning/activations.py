"""Activation memory: bytes per token that autograd saves in one decoder layer, counted tensor by tensor.

The lists follow the layers of transformers and Liger, and tests/planning/test_activations.py counts the real tensors.
Nothing is fitted.
"""

from dataclasses import dataclass
from typing import Literal

from weakdriven.planning.model_shape import Shape

Checkpointing = Literal[True, False, "keep_attention", "keep_products"]


@dataclass(frozen=True)
class Numbers:
    """Number formats of a training phase, as bytes per element, and what else decides which tensors are saved."""

    compute: int = 2
    """Bytes per element of the results of matrix products."""
    residual: int = 2
    """Bytes per element of the residual stream: 4 if autocast runs over fp32 weights."""
    fast: bool = False
    """Whether Liger's norms, rotary embedding and MLP are used."""
    adapter: int | None = None
    """Bytes per element of the inputs of the adapters' products, if adapters are trained."""
    masked: bool = False
    """Whether rows are padded: then transformers repeats keys and values for each query head."""
    eager: int = 0
    """Length of a row if attention saves all its weights (`attention: eager`), else 0."""

    @property
    def mixed(self) -> bool:
        return self.residual != self.compute


def layer_saved(shape: Shape, numbers: Numbers) -> dict[str, float]:
    """Return the bytes per token that one layer saves if nothing is recomputed, by kind of tensor."""
    c, r, h = numbers.compute, numbers.residual, shape.hidden
    trains = numbers.adapter is None
    around = 2 * _norm(h, r, shape, numbers)
    if shape.norm_after:
        around += 2 * _norm(h, c, shape, numbers)
    if shape.query_norm:
        around += _norm(shape.query, c, shape, numbers) + _norm(shape.key, c, shape, numbers)
    keys = shape.query if numbers.masked else shape.key
    attention = c * (2 * shape.query + 2 * keys) + 4 * shape.heads  # q, k, v, the result, log-sum-exp
    attention += numbers.eager * shape.heads * (4 + c)
    mlp = c * shape.intermediate * ((3 if numbers.fast else 4) if trains else (2 if numbers.fast else 3))
    # q, k, v share one input, and gate, up another; under autocast each of the five makes its own copy
    inputs = float(c * h * (5 if numbers.mixed else 2)) if trains else 0.0
    if numbers.adapter and (adapter := shape.adapter):
        inputs = numbers.adapter * (adapter.inputs + adapter.modules * adapter.rank)
    return {"norms": around, "attention": attention, "mlp": mlp, "inputs of products": inputs}


def _norm(width: int, size: int, shape: Shape, numbers: Numbers) -> float:
    """Return the bytes per token that a norm saves.

    Liger's norm saves its input. That of transformers saves an fp32 copy (or the input, if that is fp32) and the
    normalized input.
    """
    if numbers.fast:
        return size * width + 4
    normalized = 4 if shape.wide_norm else size
    return 4 * width + 4 + (normalized * width if numbers.adapter is None else 0)


def kept(shape: Shape, numbers: Numbers, checkpointing: Checkpointing) -> float:
    """Return the bytes per token and layer that are kept for the backward pass."""
    if checkpointing is False:
        return sum(layer_saved(shape, numbers).values())
    size = float(numbers.residual * shape.hidden)
    if checkpointing is True:
        return size
    c = numbers.compute
    size += c * shape.query + 4 * shape.heads
    if checkpointing == "keep_attention":
        return size
    size += c * (shape.query + 2 * shape.key + shape.hidden + 2 * shape.intermediate)
    adapter = shape.adapter if numbers.adapter is not None else None
    if shape.norm_after or adapter:  # then models/recompute.py also keeps the MLP's last product
        size += c * shape.hidden
    if adapter:
        size += (numbers.adapter or 0) * (adapter.outputs + adapter.modules * adapter.rank)
    return size


def working(shape: Shape, numbers: Numbers, checkpointing: Checkpointing) -> float:
    """Return the bytes per token that the backward pass of one layer needs on top of what was kept.

    These are the recomputed activations of the layer, if any, and the gradients inside its MLP.
    """
    c, wide = numbers.compute, shape.intermediate
    passing = c * (shape.hidden + wide) + (0 if numbers.fast else c * wide)
    if numbers.adapter is not None:
        passing += 2 * numbers.adapter * wide
    if checkpointing is False:
        return passing
    again = sum(layer_saved(shape, numbers).values())
    if checkpointing == "keep_attention":
        again -= c * shape.query
    if checkpointing == "keep_products":  # do not count kept activations twice
        again = max(again - kept(shape, numbers, checkpointing), 0.0)
    return passing + again
