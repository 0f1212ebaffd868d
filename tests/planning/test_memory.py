"""Memory and time by hand for small cases, and what must hold for all."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weakdriven.errors import UserError
from weakdriven.planning.costs import active_rows, micro_batch
from weakdriven.planning.devices import DEVICES, GIB, Machine, match_device, parse_machine
from weakdriven.planning.memory import Step, forward_memory, loss_memory, training_memory
from weakdriven.planning.model_shape import Adapter, Shape
from weakdriven.planning.speed import (
    PRODUCTS,
    communication_seconds,
    generation_seconds,
    micro_seconds,
    micro_work,
    scan_seconds,
    step_seconds,
    update_seconds,
)
from weakdriven.training.optimizer import state_bytes

ONE = Machine(DEVICES["H200-141G"])
SHAPE = Shape(
    layers=2,
    hidden=8,
    intermediate=16,
    heads=2,
    kv_heads=1,
    head_dim=4,
    vocabulary=100,
    parameters=2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16 + 2 * 8 + 2 * 4) + 8 + 800,
    linear=2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16),
    tied=True,
    tensors=24,
    query_norm=True,
)
QWEN3_4B = Shape(36, 2560, 9728, 32, 8, 128, 151936, 4022468096, 3633315840, True, 398, query_norm=True)
ADAPTER = Adapter(16, 33_030_144, 7, 26_624, 30_720)
ADAPTED = replace(QWEN3_4B, adapter=ADAPTER)


@pytest.mark.parametrize(
    "precision, weights, gradients, state",
    [("bf16", 2, 2, 4), ("bf16-mixed", 4, 4, 8), ("fp32", 4, 4, 8)],
)
def test_bytes_of_a_weight_by_precision(precision, weights, gradients, state):
    step = Step(QWEN3_4B, tokens=2, length=2, precision=precision, fast=True)
    memory = training_memory(step, ONE)
    copies = 2 * QWEN3_4B.linear if precision == "bf16-mixed" else 0
    assert memory.weights == pytest.approx(weights * QWEN3_4B.parameters + copies)
    assert memory.gradients == gradients * QWEN3_4B.parameters
    assert memory.optimizer == state * QWEN3_4B.parameters


def test_states_of_the_optimizers():
    found = {name: state_bytes(name, 4) for name in ("adamw", "adamw_8bit", "adamw_fp8", "rmsprop")}
    assert found == {"adamw": 8, "adamw_8bit": 2 + 2 * 4 / 256, "adamw_fp8": 2 + 2 * 4 / 256, "rmsprop": 4}
    assert state_bytes("adamw_bf16", 2) == 4


def test_a_pair_of_adapters_has_one_base():
    shape = ADAPTED
    alone, pair = (
        training_memory(Step(shape, 2, 2, models=n, trained=n, precision="bf16", fast=True), ONE) for n in (1, 2)
    )
    assert alone.weights == 2 * QWEN3_4B.parameters + 4 * ADAPTER.parameters
    assert pair.weights == alone.weights + 4 * ADAPTER.parameters
    assert pair.optimizer == 2 * 8 * ADAPTER.parameters
    four_bits = replace(QWEN3_4B, adapter=replace(ADAPTER, quantized=True))
    small = training_memory(Step(four_bits, 2, 2, precision="bf16", fast=True), ONE)
    embedding = QWEN3_4B.parameters - QWEN3_4B.linear
    assert small.weights == 0.5625 * QWEN3_4B.linear + 2 * embedding + 2 * ADAPTER.parameters


def test_the_loss_holds_a_tile_and_the_heads_gradients():
    step = Step(QWEN3_4B, 16384, 4096, models=2, trained=2, precision="bf16", fast=True)
    head = 151936 * 2560
    by_hand = 2 * 4 * head + 2 * 16384 * 2560 * 2 + 0.73 * GIB  # the tile is a little more than one rounded gradient
    assert loss_memory(step) == pytest.approx(by_hand)
    assert loss_memory(replace(step, shape=ADAPTED)) < 1 * GIB


def test_a_micro_step_counts_six_operations_per_weight_and_token():
    step = Step(SHAPE, tokens=10, length=10, checkpointing=False, fast=True)
    attention = 2 * 2 * 10 * 8  # per token: layers x two products, halved because it is causal, x length x width
    assert SHAPE.attention_flops(10) == attention
    assert micro_work(step).flops == 10 * 3 * (2 * (SHAPE.linear + 800) + attention)
    again = 10 * (2 * (SHAPE.linear - 2 * 8 * 16) + attention)
    assert micro_work(replace(step, checkpointing=True)).again == again
    assert micro_work(replace(step, checkpointing="keep_products")).again == 0


def test_time_is_work_over_the_rate_and_a_small_model_waits_for_python():
    step = Step(QWEN3_4B, 16384, 4096, precision="bf16", checkpointing=False, fast=True)
    work = micro_work(step)
    assert micro_seconds(step, ONE.device) == pytest.approx(work.flops / (989e12 * PRODUCTS))
    small = replace(step, shape=SHAPE)
    assert micro_seconds(small, ONE.device) > 100 * micro_work(small).flops / (989e12 * PRODUCTS)
    assert step_seconds(step, ONE, 8) == pytest.approx(8 * micro_seconds(step, ONE.device) + update_seconds(step, ONE))


def test_generation_takes_one_step_per_token():
    device = ONE.device
    one = generation_seconds(QWEN3_4B, device, answers=64, tokens=100, prompt=10, batch=64)
    assert generation_seconds(QWEN3_4B, device, answers=640, tokens=100, prompt=10, batch=64) == pytest.approx(10 * one)
    assert scan_seconds(Step(QWEN3_4B, 1, 10, trained=0, precision="bf16", fast=True), device, 1e6) > 0


def test_micro_batches_steps_and_active_rows_by_hand():
    assert micro_batch(100, 512, 8) == (4, 25)  # fewer rows than a batch are one batch, of which 8 is no divisor
    assert micro_batch(10_000, 512, 4, devices=64) == (4, 2)
    assert active_rows(10_000, 1.0, dedup=True) == 6321 and active_rows(10, 2.0, dedup=False) == 20


def test_a_device_may_be_named_without_its_memory():
    machine = parse_machine("8xh100-80g")
    assert (machine.count, machine.device.name, machine.sharding) == (8, "H100-80G", "fsdp")
    assert parse_machine("RTX 4090").device.name == "RTX4090-24G" and parse_machine("H100-94GB").count == 1
    assert match_device("NVIDIA H200").name == "H200-141G" and match_device("Some Card") is None
    assert match_device("NVIDIA A100-SXM4-40GB") is not None


@pytest.mark.parametrize("text", ["H300", "0xH100", "", "8x"])
def test_an_unknown_device_is_an_error_with_the_list(text):
    with pytest.raises(UserError, match="Known devices: H200-141G, H100-80G"):
        parse_machine(text)
    with pytest.raises(UserError, match="Did you mean H100-80G"):
        parse_machine("H100-81G")


steps = st.builds(
    Step,
    shape=st.sampled_from([SHAPE, QWEN3_4B, ADAPTED]),
    tokens=st.integers(1, 65536),
    length=st.integers(1, 8192),
    models=st.just(2),
    trained=st.integers(1, 2),
    precision=st.sampled_from(["bf16", "bf16-mixed", "fp32"]),
    optimizer=st.sampled_from(["adamw", "adamw_8bit", "rmsprop"]),
    checkpointing=st.sampled_from([True, False, "keep_attention", "keep_products"]),
    offloading=st.booleans(),
    fast=st.booleans(),
    masked=st.booleans(),
    accumulates=st.booleans(),
)


@settings(max_examples=50, deadline=None)
@given(steps, st.integers(2, 64))
def test_more_devices_never_take_more_memory_each(step, count):
    """Of several, where a layer and the embedding are put together on each in any case; and against one, from 8 on."""
    few, many = (training_memory(step, Machine(ONE.device, n, "fsdp")).allocated for n in (count, 2 * count))
    assert many <= few * (1 + 1e-9)
    ddp = training_memory(step, Machine(ONE.device, count, "ddp")).allocated
    buckets = step.trained * step.shape.trained * step.trained_bytes
    assert ddp == pytest.approx(training_memory(step, ONE).allocated + buckets)


@settings(max_examples=50, deadline=None)
@given(steps, st.integers(2, 8))
def test_a_larger_micro_batch_never_takes_less(step, times):
    larger = replace(step, tokens=times * step.tokens)
    assert training_memory(larger, ONE).total >= training_memory(step, ONE).total
    assert forward_memory(larger).total >= forward_memory(step).total
    assert micro_seconds(larger, ONE.device) >= micro_seconds(step, ONE.device)


@settings(max_examples=50, deadline=None)
@given(steps)
def test_the_parts_add_up_and_none_is_negative(step):
    memory = training_memory(step, ONE)
    assert all(size >= 0 for size in memory.parts().values())
    assert sum(memory.parts().values()) == pytest.approx(memory.total) and memory.moment
    assert memory.allocated >= memory.weights + memory.optimizer


@pytest.mark.parametrize("sharding, whole_step", [("ddp", True), ("fsdp", False)])
def test_more_than_eight_devices_send_through_the_network(sharding, whole_step):
    step = Step(QWEN3_4B, tokens=4096, length=4096)
    near, far = (Machine(DEVICES["H200-141G"], count, sharding) for count in (8, 16))
    assert (near.link, far.link) == (450, 40) and Machine(DEVICES["L40S-48G"], 16, sharding).link == 32
    times = [communication_seconds(step, machine, whole_step=whole_step) for machine in (near, far)]
    assert times[1] / times[0] == pytest.approx(450 / 40 * (15 / 16) / (7 / 8))
