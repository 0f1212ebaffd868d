"""What the backward pass keeps: bytes per token of one decoder layer, tensor by tensor, as autograd saves them.

The lists follow transformers' layers and Liger's, and are counted in
tests/planning/test_activations.py. Nothing is fitted.
"""

from dataclasses import dataclass
from typing import Literal

from weakdriven.planning.model_shape import Shape

Checkpointing = Literal[True, False, "keep_attention", "keep_products"]


@dataclass(frozen=True)
class Numbers:
    """In what a phase computes; sizes in bytes."""

    compute: int = 2
    """Results of matrix products."""
    residual: int = 2
    """What runs from layer to layer: fp32 where autocast works over fp32 weights."""
    fast: bool = False
    """Liger's norms, rotary embedding and MLP."""
    adapter: int | None = None
    """Inputs of the adapters' products, if adapters are what is trained."""
    masked: bool = False
    """Rows are padded: then transformers repeats keys and values for each query head."""
    eager: int = 0
    """Length of a row where attention keeps all its weights (`attention: eager`), else 0."""

    @property
    def mixed(self) -> bool:
        return self.residual != self.compute


def layer_saved(shape: Shape, numbers: Numbers) -> dict[str, float]:
    """Bytes per token that one layer saves when nothing is recomputed, by what they belong to."""
    c, r, h = numbers.compute, numbers.residual, shape.hidden
    trains = numbers.adapter is None
    around = 2 * _norm(h, r, shape, numbers)
    if shape.norm_after:
        around += 2 * _norm(h, c, shape, numbers)
    if shape.query_norm:
        around += _norm(shape.query, c, shape, numbers) + _norm(shape.key, c, shape, numbers)
    keys = shape.query if numbers.masked else shape.key
    attention = c * (2 * shape.query + 2 * keys) + 4 * shape.heads  # q, k, v, its result, log-sum-exp
    attention += numbers.eager * shape.heads * (4 + c)
    mlp = c * shape.intermediate * ((3 if numbers.fast else 4) if trains else (2 if numbers.fast else 3))
    # q, k, v and gate, up read the same tensor; under autocast each makes a copy of its own
    inputs = float(c * h * (5 if numbers.mixed else 2)) if trains else 0.0
    if numbers.adapter and (adapter := shape.adapter):
        inputs = numbers.adapter * (adapter.inputs + adapter.modules * adapter.rank)
    return {"norms": around, "attention": attention, "mlp": mlp, "inputs of products": inputs}


def _norm(width: int, size: int, shape: Shape, numbers: Numbers) -> float:
    """Liger keeps its input; transformers' an fp32 copy (or the input, if that is fp32) and the normalized one."""
    if numbers.fast:
        return size * width + 4
    normalized = 4 if shape.wide_norm else size
    return 4 * width + 4 + (normalized * width if numbers.adapter is None else 0)


def kept(shape: Shape, numbers: Numbers, checkpointing: Checkpointing) -> float:
    """Bytes per token and layer that wait for the backward pass."""
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
    if shape.norm_after or adapter:  # then the MLP's last product is kept too: models/recompute.py
        size += c * shape.hidden
    if adapter:
        size += (numbers.adapter or 0) * (adapter.outputs + adapter.modules * adapter.rank)
    return size


def working(shape: Shape, numbers: Numbers, checkpointing: Checkpointing) -> float:
    """Bytes per token that the backward pass of one layer needs on top of what was kept.

    That is the layer computed again, where it is, and the gradients on their way through its MLP.
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
    if checkpointing == "keep_products":  # what was kept is not there twice
        again = max(again - kept(shape, numbers, checkpointing), 0.0)
    return passing + again
