"""Peak memory of one training step on one device: the maximum over a few moments of the step.

Gradients appear while activations are freed, so summing both would overestimate the peak. Instead memory is computed at
four moments: the end of the forward pass, the first and the last layer of the backward pass, and its end.
"""

from dataclasses import dataclass, replace
from typing import Literal

from weakdriven.losses.tile_bytes import CPU_TILE_BYTES, TILE_BYTES
from weakdriven.planning.activations import Checkpointing, Numbers, kept, working
from weakdriven.planning.devices import GIB, Machine
from weakdriven.planning.model_shape import Shape
from weakdriven.training.optimizer import state_bytes

Precision = Literal["bf16-mixed", "bf16", "fp32"]
RESERVE = 1.0 * GIB
"""Memory of the CUDA context and libraries; a guess."""
FRAGMENTS = 0.02
"""Share of memory that torch's allocator loses to fragmentation; a guess."""
CPU_RESERVE = 0.7 * GIB
"""Memory of Python and its libraries on a CPU; a guess."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one device at the peak."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    loss: float = 0.0
    reserve: float = 0.0
    moment: str = ""

    @property
    def allocated(self) -> float:
        """Peak as torch counts it, without the reserve."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.loss

    @property
    def total(self) -> float:
        return self.allocated + self.reserve

    def parts(self) -> dict[str, float]:
        names = ("weights", "gradients", "optimizer", "activations", "loss", "reserve")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Step:
    """One micro-batch of a training phase, with the settings that decide its memory and time."""

    shape: Shape
    """Shape of each model; if it has an adapter, only adapters are trained."""
    tokens: float
    """Tokens of the micro-batch, with padding."""
    length: float
    """Length of its longest row."""
    models: int = 1
    trained: int = 1
    """Number of models that learn; the others only run forward."""
    teacher: bool = False
    """Whether there is one more frozen model, in the precision of forward passes."""
    precision: Precision = "bf16-mixed"
    """`fp16-mixed` counts as `bf16-mixed`."""
    optimizer: str = "adamw"
    checkpointing: Checkpointing = True
    offloading: bool = False
    fast: bool = False
    masked: bool = False
    eager: bool = False
    accumulates: bool = True
    """Whether a step has several micro-batches, so that gradients exist during later forward passes."""
    on_cpu: bool = False

    @property
    def adapted(self) -> bool:
        return self.shape.adapter is not None

    @property
    def compute_bytes(self) -> int:
        """Bytes per element of the results of matrix products."""
        return 4 if self.precision == "fp32" else 2

    @property
    def weight_bytes(self) -> int:
        """Bytes per weight of the models (of the base, with adapters)."""
        if self.adapted:
            return self.compute_bytes
        return 2 if self.precision == "bf16" else 4

    @property
    def trained_bytes(self) -> int:
        """Bytes per trained weight, and per gradient."""
        adapter = self.shape.adapter
        if adapter is None:
            return self.weight_bytes
        return 2 if adapter.quantized else 4

    @property
    def numbers(self) -> Numbers:
        compute, adapter = self.compute_bytes, None
        if self.shape.adapter:
            adapter = 4 if self.precision != "bf16-mixed" and not self.shape.adapter.quantized else 2
        eager = int(self.length) if self.eager else 0
        residual = 4 if self.copies_weights else compute
        return Numbers(compute, residual, fast=self.fast, adapter=adapter, masked=self.masked, eager=eager)

    @property
    def copies_weights(self) -> bool:
        """Whether autocast keeps bf16 copies of fp32 weights."""
        return self.precision == "bf16-mixed" and not self.adapted

    @property
    def tile(self) -> float:
        """Bytes of a tile of logits."""
        return min(CPU_TILE_BYTES if self.on_cpu else TILE_BYTES, self.tokens * self.shape.vocabulary * 4 * 3)


def base_weights(step: Step) -> float:
    """Return the bytes of all models' weights without sharding; with adapters the models share one base."""
    shape, adapter = step.shape, step.shape.adapter
    teacher = shape.parameters * step.compute_bytes if step.teacher else 0
    if adapter is None:
        return step.models * shape.parameters * step.weight_bytes + teacher
    base = shape.parameters * step.weight_bytes
    if adapter.quantized:  # NF4, with one fp32 scale per 64 weights
        base = shape.linear * (0.5 + 4 / 64) + (shape.parameters - shape.linear) * 2
    return base + step.models * adapter.parameters * step.trained_bytes + teacher


def training_memory(step: Step, machine: Machine) -> Memory:
    """Return the memory at the moment of a step at which it is largest, by part."""
    shape, numbers = step.shape, step.numbers
    split = machine.split
    learns = step.trained * shape.trained
    weights = base_weights(step) / split
    gradients = learns * step.trained_bytes / split
    state = learns * state_bytes(step.optimizer, step.trained_bytes) / split
    if split > 1:  # one layer is gathered while it runs, and the next one prefetched; embedding and head stay gathered
        outer = shape.head * (1 if shape.tied else 2)
        weights += step.compute_bytes * (2 * shape.layer + step.models * outer)
    copies = 0.0
    if step.copies_weights:
        copies = 2.0 * step.models * shape.linear if split == 1 else 2.0 * shape.layer
    a_layer = step.tokens * kept(shape, numbers, step.checkpointing)
    saved = 2 * a_layer if step.offloading else step.trained * shape.layers * a_layer
    hidden = step.models * step.tokens * shape.hidden * numbers.compute
    in_layer = step.tokens * working(shape, numbers, step.checkpointing)
    loss = loss_memory(step)
    embedding = 0.0 if step.adapted else shape.head * step.trained_bytes
    there = gradients if step.accumulates else 0.0
    first_layers = 0.0 if step.adapted else shape.layer * step.trained_bytes / split
    if not step.adapted and not shape.tied:
        first_layers += shape.head * step.trained_bytes / split  # the embedding's gradient comes after all layers
    start_weights = weights + (copies if step.checkpointing is False else 0.0)
    start_saved = saved + hidden + in_layer
    start_gradients = max(there, min(step.trained * embedding, gradients))
    end_gradients = gradients if step.accumulates else gradients - first_layers
    moments = [
        Memory(weights + copies, there, state, saved + hidden, loss, moment="the end of the forward pass"),
        Memory(start_weights, start_gradients, state, start_saved, moment="the start of the backward pass"),
        Memory(weights, end_gradients, state, a_layer + in_layer, moment="the end of the backward pass"),
        Memory(weights, gradients, state, embedding, moment="the embedding's gradient"),
    ]
    peak = max(moments, key=lambda moment: moment.allocated)
    if machine.sharding == "ddp":  # its buckets are a second copy of all gradients, allocated from the start
        peak = replace(peak, gradients=peak.gradients + gradients)
    return with_reserve(peak, on_cpu=step.on_cpu)


def loss_memory(step: Step) -> float:
    """Return the bytes of the loss: a tile of logits, gradients of hidden states, and gradients of the output heads in
    fp32, one of them also rounded."""
    shape = step.shape
    hidden = step.trained * step.tokens * shape.hidden * step.compute_bytes
    if step.adapted:
        return step.tile + hidden
    return hidden + 4.0 * step.trained * shape.head + max(step.tile, shape.head * step.trained_bytes)


def forward_memory(step: Step, *, cache_tokens: float = 0.0) -> Memory:
    """Return the memory of a forward pass: weights, one layer, a tile of logits, and the cache of keys and values."""
    shape, size = step.shape, step.compute_bytes
    # the residual stream, a norm's result, and the wider of attention and MLP
    in_layer = step.tokens * size * (3 * shape.hidden + 2 * max(shape.intermediate, shape.query))
    cache = cache_tokens * 2 * shape.key * shape.layers * size
    found = Memory(base_weights(step), activations=in_layer + cache, loss=step.tile, moment="the forward pass")
    return with_reserve(found, on_cpu=step.on_cpu)


def with_reserve(memory: Memory, *, on_cpu: bool) -> Memory:
    reserve = CPU_RESERVE if on_cpu else RESERVE + FRAGMENTS * memory.allocated
    return replace(memory, reserve=reserve)
