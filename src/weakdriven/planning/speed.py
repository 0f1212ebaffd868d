"""Time of a training step, a scan and a completion: counted work divided by rates that were measured on one H200.

Each constant is fitted to one or two rows of benchmarks/results.csv, which its docstring names; the rest is counted.
"""

from dataclasses import dataclass

from weakdriven.planning.activations import layer_saved
from weakdriven.planning.devices import Device, Machine
from weakdriven.planning.memory import Step
from weakdriven.planning.model_shape import Shape

PRODUCTS = 0.55
"""Share of a device's published bf16 rate that training reaches; fitted to joint_step "SFT, nothing recomputed"."""
TRAFFIC = 13.3
"""Memory passes per byte that stock layers save and Liger's do not; fitted to scan, stock against liger."""
HOST = 1.9e-3
"""Seconds of Python and kernel launches per layer and pass: a forward pass or a recomputation is one pass, a backward
pass two. This is between two machines whose steps wait for Python: 1.7 ms in methods "sft" with Qwen2.5-0.5B (second
run), and 2.0 ms in plan "pair, bf16" with Qwen3-0.6B. It is not scaled between devices."""
AUTOCAST = 1.3
"""Factor on HOST for bf16-mixed; fitted to plan "SFT, bf16-mixed" with Qwen3-0.6B."""
SELECTIVE = 1.5
"""Factor on HOST for selective recomputation; fitted to plan "pair", keep_attention, Qwen3-1.7B."""
CASTS = 60.0
"""Memory passes over a layer's fp32 input, per pass of the layer, for the casts and fp32 sums of bf16-mixed; fitted to
plan "SFT, bf16-mixed, 2 micro" with Qwen3-4B."""
ADAPTED = 1.6
"""Factor on HOST with adapters on every linear layer; a guess."""
DECODE = 0.24e-3
"""Seconds per layer of one decoding step with a CUDA graph; fitted to generate "ours, sorted batches", batch 256."""
STREAM = 0.51
"""Share of the published memory rate that fused AdamW reaches (docs/background/speed.md: 23 ms, Qwen3-4B in bf16)."""
PER_TENSOR = 0.45e-3
"""CPU seconds per tensor of torchao's 8-bit or fp8 AdamW, measured alone (docs/background/speed.md)."""
SPREAD = 0.25
"""Relative half-width of the reported time range of training; all errors over the measured rows are smaller."""
FP32 = 1 / 16
"""Rate of fp32 products without TF32 relative to bf16, from the published rates of an H200."""


@dataclass(frozen=True)
class Work:
    """The work of one micro-batch."""

    flops: float
    """FLOPs of the method: forward and backward passes, and forward passes of frozen models."""
    again: float
    """FLOPs of recomputation."""
    traffic: float
    """Bytes moved by elementwise operations beyond those that fused layers move."""
    passes: float
    """Number of layer passes: a forward pass and a recomputation count one, a backward pass two."""


def micro_work(step: Step) -> Work:
    """Return the work of one micro-batch in all models of a step."""
    shape, tokens = step.shape, step.tokens
    products, attention = 2.0 * shape.products, shape.attention_flops(step.length)
    forward = shape.forward_flops(step.length)
    # frozen weights need no gradient, so the backward pass has half the products
    backward = products + 2 * attention if step.adapted else 2 * forward
    runs = step.models + (1 if step.teacher else 0)
    flops = tokens * (runs * forward + step.trained * backward)
    again, passes = 0.0, runs + 2.0 * step.trained
    if step.checkpointing is not False:
        last = 0 if step.adapted else shape.layers * shape.intermediate * shape.hidden
        body = 2.0 * (shape.linear - last)
        if step.checkpointing == "keep_products":
            body = 0.0
        again = tokens * step.trained * (body + (attention if step.checkpointing is True else 0.0))
        passes += step.trained
    forwards = runs + step.trained * (2 + (step.checkpointing is not False))
    traffic = tokens * shape.layers * forwards * TRAFFIC * _stock_bytes(step)
    if step.precision == "bf16-mixed":
        traffic += tokens * shape.layers * forwards * CASTS * 4 * shape.hidden
    if adapter := shape.adapter:  # casts and sums around adapters, counted from PEFT's operations
        wide = step.numbers.adapter or 2
        around = (2 + 2 * wide) * adapter.inputs + (4 + 5 * wide) * adapter.outputs
        traffic += tokens * shape.layers * forwards * around
        flops += tokens * step.trained * 6.0 * adapter.parameters
    return Work(flops, again, traffic, shape.layers * passes)


def _stock_bytes(step: Step) -> float:
    """Return the bytes per token and layer that stock layers save beyond Liger's; their extra traffic is
    proportional."""
    if step.fast:
        return 0.0
    numbers = step.numbers
    plain = (type(numbers)(numbers.compute, numbers.residual, fast=fast) for fast in (False, True))
    stock, fused = (sum(layer_saved(step.shape, one).values()) for one in plain)
    return max(stock - fused, 0.0)


def product_rate(step: Step, device: Device) -> float:
    """Return the FLOPs per second of matrix products."""
    return device.tflops * 1e12 * PRODUCTS * (FP32 if step.precision == "fp32" and not device.is_cpu else 1)


def micro_seconds(step: Step, device: Device) -> float:
    """Return the time of one micro-batch: products and memory traffic, or Python if that is slower."""
    work, rate = micro_work(step), product_rate(step, device)
    busy = (work.flops + work.again) / rate + work.traffic / (device.bandwidth * 1e12)
    if device.is_cpu:
        return busy
    if (adapter := step.shape.adapter) and step.numbers.adapter == 4:
        forwards = 3 + (step.checkpointing is not False)
        busy += step.tokens * step.trained * 2.0 * forwards * adapter.parameters / (rate * FP32)
    slower = ADAPTED if step.adapted else 1.0
    slower *= AUTOCAST if step.precision == "bf16-mixed" else 1.0
    slower *= SELECTIVE if step.checkpointing in ("keep_attention", "keep_products") else 1.0
    return max(busy, HOST * work.passes * slower)


def update_seconds(step: Step, machine: Machine) -> float:
    """Return the time of gradient clipping and the optimizer in one step."""
    if step.optimizer in ("adamw_8bit", "adamw_fp8"):
        return PER_TENSOR * step.trained * step.shape.tensors
    weights, size = step.trained * step.shape.trained / machine.split, step.trained_bytes
    state = 4 if step.optimizer == "adamw_bf16" else 2 * size
    moved = weights * (2 * size + 2 * size + 2 * state)
    return moved / (STREAM * machine.device.bandwidth * 1e12)


def sharded_traffic(weights: float, size: int, gradient: int, devices: int) -> float:
    """Return the bytes that FSDP2 sends per device and micro-batch: weights are gathered twice, gradients reduced once.

    >>> sharded_traffic(10, 2, 2, devices=1), sharded_traffic(10, 2, 4, devices=4)
    (0.0, 60.0)
    """
    return (2 * size + gradient) * weights * (devices - 1) / devices


def communication_seconds(step: Step, machine: Machine, *, whole_step: bool) -> float:
    """Return the time of communication per micro-batch (FSDP2) or per step (DDP: gradients)."""
    if machine.count == 1:
        return 0.0
    weights = step.models * step.shape.parameters if not step.adapted else step.shape.parameters
    if machine.split > 1 and not whole_step:
        sent = sharded_traffic(weights, step.compute_bytes, step.trained_bytes, machine.count)
        return sent / (machine.link * 1e9)
    if machine.sharding == "ddp" and whole_step:
        gradients = step.trained * step.shape.trained * step.trained_bytes
        return 2 * gradients * (machine.count - 1) / machine.count / (machine.link * 1e9)
    return 0.0


def step_seconds(step: Step, machine: Machine, micro_steps: int) -> float:
    """Return the time of one optimizer step of `micro_steps` micro-batches; FSDP2 communicates during the
    computation."""
    micro = max(micro_seconds(step, machine.device), communication_seconds(step, machine, whole_step=False))
    return micro_steps * micro + update_seconds(step, machine) + communication_seconds(step, machine, whole_step=True)


def scan_seconds(step: Step, device: Device, tokens: float) -> float:
    """Return the time of forward passes over `tokens` tokens."""
    flops = tokens * step.shape.forward_flops(step.length)
    traffic = tokens * step.shape.layers * TRAFFIC * _stock_bytes(step)
    return flops / product_rate(step, device) + traffic / (device.bandwidth * 1e12)


def generation_seconds(
    shape: Shape, device: Device, *, answers: float, tokens: float, prompt: float, batch: int, size: int = 2
) -> float:
    """Return the time to generate `answers` completions of `tokens` tokens on average.

    Batches run one after the other, and each decoding step reads the weights and the cache once.
    """
    batches = max(answers / batch, 1.0)
    together = min(batch, answers)
    cache = together * (prompt + tokens / 2) * 2 * shape.key * shape.layers * size
    read = (shape.parameters * size + cache) / (device.bandwidth * 1e12)
    flops = together * 2.0 * shape.products / (device.tflops * 1e12 * PRODUCTS)
    host = 0.0 if device.is_cpu else DECODE * shape.layers
    reading = answers * prompt * 2.0 * shape.products / (device.tflops * 1e12 * PRODUCTS)
    return batches * tokens * (host + max(read, flops)) + reading
