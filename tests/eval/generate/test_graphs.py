"""When a step is repeated from a graph: the bookkeeping with a graph that is none, and on a GPU the texts."""

import logging
from contextlib import nullcontext

import pytest
import torch
from test_decode import MODELS, complete

from helpers import tiny_model
from weakdriven.eval.generate import cache, graphs
from weakdriven.eval.generate.graphs import Repeated


class Recorded:
    """Replays by calling the step."""

    def __init__(self, step, before):
        self.step, self.before = step, before

    def replay(self):
        self.step()


@pytest.fixture
def pretended(monkeypatch):
    """Graphs on a CPU: what was done, as words."""
    done: list[str] = []

    def captured(step, device, stream, before):
        done.append("capture")
        graph = Recorded(lambda: done.append("replay") or step(), before)
        return (graph, "pool"), None

    def warm_up(self):
        done.append("warm")
        self.warm = True
        return self.step()

    monkeypatch.setattr(graphs, "captured", captured)
    monkeypatch.setattr(graphs, "has_graphs", lambda device: device is not None)
    monkeypatch.setattr(Repeated, "warm_up", warm_up)
    monkeypatch.setattr(graphs, "WORTH", 4)
    monkeypatch.setattr(graphs, "given_up", [])
    return done


def test_a_step_is_warmed_up_then_captured_then_replayed_until_tensors_move(pretended):
    steps: list[int] = []
    repeated = Repeated(lambda: steps.append(1), torch.device("cpu"))
    for left in (3, 9, 8, 7):
        repeated(left)
    assert pretended == ["warm", "capture", "replay", "replay"] and len(steps) == 4
    first = repeated.graph
    repeated.forget()
    repeated.forget()
    for left in (6, 5, 4):
        repeated(left)
    assert pretended[4:] == ["warm", "capture", "replay", "replay"] and len(steps) == 7
    assert repeated.graph[0].before is first and repeated.before is None


def test_few_steps_are_not_worth_a_graph(pretended):
    repeated = Repeated(lambda: None, torch.device("cpu"))
    for left in (3, 2, 1, 3):
        repeated(left)
    assert pretended == []


def test_where_a_capture_fails_steps_continue_and_the_reason_is_logged_once(pretended, monkeypatch, caplog):
    def fails(*_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(graphs, "captured", fails)
    steps: list[int] = []
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            repeated = Repeated(lambda: steps.append(1), torch.device("cpu"))
            for left in (9, 8, 7, 6):
                repeated(left)
    assert len(steps) == 8
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [
        "operation not permitted when stream is capturing"
    ]


@pytest.mark.parametrize("name", ["qwen2", "gemma3 past its window", "mistral past its window"])
def test_texts_are_the_same_through_growth_drops_and_recaptures(name, pretended, monkeypatch):
    monkeypatch.setattr(cache, "CHUNK", 8)
    model = MODELS[name]()
    sampled = {"temperature": 1.0, "stop": (5, 9, 11, 20, 30)}
    found = complete(model), complete(model, **sampled)
    assert pretended.count("capture") > 4 and pretended.count("replay") > 20
    monkeypatch.setattr(graphs, "has_graphs", lambda _: False)
    assert found == (complete(model), complete(model, **sampled))


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_graphs_give_the_texts_of_eager_steps(name, sampling, monkeypatch, caplog):
    monkeypatch.setattr(cache, "CHUNK", 16)
    monkeypatch.setattr(graphs, "WORTH", 4)
    monkeypatch.setattr(graphs, "given_up", [])
    monkeypatch.setattr("weakdriven.eval.generate.local.LOOK_EVERY", 4)
    captures: list[int] = []
    original = graphs.captured
    monkeypatch.setattr(graphs, "captured", lambda *args: captures.append(1) or original(*args))
    torch.backends.cuda.matmul.allow_tf32 = False
    model = MODELS[name]().cuda()
    with caplog.at_level(logging.WARNING):
        got = complete(model, **sampling)
    assert captures and not graphs.given_up, caplog.text
    monkeypatch.setattr(graphs, "WORTH", 10**9)
    assert got == complete(model, **sampling)
    if not sampling:
        assert got == complete(model.cpu())


@pytest.mark.gpu
def test_a_step_that_waits_for_the_device_runs_without_a_graph(monkeypatch, caplog):
    monkeypatch.setattr(graphs, "WORTH", 4)
    monkeypatch.setattr(graphs, "given_up", [])
    model = tiny_model("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}).cuda()
    with caplog.at_level(logging.WARNING):
        got = complete(model)
    assert "without CUDA graphs" in caplog.text and len(graphs.given_up) == 1
    monkeypatch.setattr(graphs, "WORTH", 10**9)
    assert got == complete(model)


@pytest.mark.gpu
def test_after_a_capture_that_fails_the_device_is_as_before(monkeypatch):
    monkeypatch.setattr(graphs, "WORTH", 4)
    monkeypatch.setattr(graphs, "given_up", [])
    monkeypatch.setattr(graphs, "waiting_forbidden", nullcontext)
    count, here = torch.zeros(1, device="cuda"), torch.cuda.current_stream()
    repeated = Repeated(lambda: count.add_(1).item(), count.device)
    for left in range(9, 0, -1):
        repeated(left)
    assert count.item() == 9 and len(graphs.given_up) == 1
    assert torch.cuda.current_stream() == here
    torch.cuda.empty_cache()
    assert torch.randn(4, device="cuda").isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_on_a_gpu_is_as_near_to_float32_as_sdpa_is(dtype):
    from torch.nn.functional import scaled_dot_product_attention

    from weakdriven.eval.generate.attention import grouped_attention

    torch.manual_seed(0)
    query = torch.randn(64, 14, 1, 64, device="cuda") * 4
    key, value = torch.randn(2, 64, 2, 256, 64, device="cuda")
    seen = (torch.arange(256, device="cuda") >= torch.arange(64, device="cuda")[:, None])[:, None, None]
    exact = grouped_attention(query.to(dtype).float(), key.to(dtype).float(), value.to(dtype).float(), seen, 0.125)
    half = [one.to(dtype) for one in (query, key, value)]
    ours = grouped_attention(*half, seen, 0.125)
    theirs = scaled_dot_product_attention(
        half[0], *(one.repeat_interleave(7, 1) for one in half[1:]), attn_mask=seen, scale=0.125
    )
    errors = [(one.float() - exact).abs().mean().item() for one in (ours, theirs)]
    assert errors[0] < 1.5 * errors[1]
