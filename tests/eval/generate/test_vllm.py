"""A real vLLM server against the model in process; its environment's python is in WEAKDRIVEN_VLLM_PYTHON."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from weakdriven.commands.app import main
from weakdriven.data.demo import demo_rows
from weakdriven.data.prompts import Renderer
from weakdriven.errors import UserError
from weakdriven.eval.generate import Completion, Engine, Request, Sampling, generate, request_seed
from weakdriven.eval.generate.local import LocalEngine
from weakdriven.eval.generate.serve import serve
from weakdriven.eval.generate.server import ServerEngine
from weakdriven.models.load import EMBEDDED, load_model, load_tokenizer, locate_model
from weakdriven.runs.files import read_json, read_jsonl

pytestmark = pytest.mark.vllm

PROMPTS, NEW_TOKENS = 40, 64
ALIKE = 38
"""Of 40 float32 texts. All 40 were equal when this was written; two may meet a near-tie on another processor, whose
kernels add in another order. Wrong stops, prompts or penalties change nearly all of them."""
CONTRARY = {"repetition_penalty": 1.9, "temperature": 3.0, "top_k": 2, "top_p": 0.5, "min_p": 0.5, "max_new_tokens": 3}


@dataclass
class Both:
    """The same weights behind two engines, and what to ask them."""

    server: ServerEngine
    local: LocalEngine
    requests: list[Request]
    renderer: Renderer


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Iterator[Both]:
    python = os.environ.get("WEAKDRIVEN_VLLM_PYTHON")
    if not python:
        pytest.fail("Set WEAKDRIVEN_VLLM_PYTHON to the python of an environment with vLLM; `make test-vllm` does.")
    folder, log = tmp_path_factory.mktemp("vllm") / "contrary", tmp_path_factory.mktemp("logs") / "server.log"
    # a checkpoint whose own defaults would spoil every completion, and a server that is told to use them
    shutil.copytree(locate_model(EMBEDDED), folder)
    own = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(own | CONTRARY | {"do_sample": True}))
    extra = ("--generation-config", "auto", "--enforce-eager")  # compiling four small layers takes a minute
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"))
        with serve(python, folder, log=log, dtype="float32", max_model_len=384, extra=extra) as url:
            assert "overridden" in log.read_text() and "repetition_penalty" in log.read_text()
            yield ask_both(ServerEngine(url), locate_model(EMBEDDED))


def ask_both(server: ServerEngine, folder: Path) -> Both:
    tokenizer = load_tokenizer(folder)
    renderer = Renderer(tokenizer, "math", "none")
    prompts = [renderer.prompt([{"role": "user", "content": row["question"]}]) for row in demo_rows("test")[:PROMPTS]]
    ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    requests = [Request(prompt, request_seed(42, str(i), 0)) for i, prompt in enumerate(ids)]
    return Both(server, LocalEngine(load_model(folder, precision="fp32"), tokenizer), requests, renderer)


def completed(engine: Engine, requests: list[Request], sampling: Sampling) -> list[Completion]:
    done: dict[int, Completion] = {}
    generate(engine, requests, sampling, done.update)
    return [done[i] for i in range(len(requests))]


def alike(ours: list[Completion], theirs: list[Completion]) -> int:
    return sum(a == b for a, b in zip(ours, theirs, strict=True))


def test_greedy_completions_are_those_of_the_model_in_process(both):
    sampling = Sampling(NEW_TOKENS, tuple(both.renderer.stop_ids))
    served = completed(both.server, both.requests, sampling)
    assert alike(served, completed(both.local, both.requests, sampling)) >= ALIKE
    assert len({completion.text for completion in served}) > PROMPTS / 2


def test_a_stop_token_ends_a_completion_is_counted_and_leaves_no_text(both):
    (stop,) = both.renderer.tokenizer("}", add_special_tokens=False)["input_ids"]
    sampling = Sampling(NEW_TOKENS, (*both.renderer.stop_ids, stop))
    served = completed(both.server, both.requests, sampling)
    assert sum(completion.finish == "stop" for completion in served) > PROMPTS / 2
    assert not [completion for completion in served if "}" in completion.text]
    assert alike(served, completed(both.local, both.requests, sampling)) >= ALIKE


def test_samples_repeat_with_their_seeds_in_any_company(both):
    sampling = Sampling(NEW_TOKENS, tuple(both.renderer.stop_ids), temperature=1.0, top_p=0.95)
    first = completed(both.server, both.requests, sampling)
    few_at_a_time = ServerEngine(both.server.url, concurrency=3)
    assert alike(first, completed(few_at_a_time, both.requests[::-1], sampling)[::-1]) >= ALIKE
    others = [Request(request.prompt, request.seed + 1) for request in both.requests]
    assert alike(first, completed(both.server, others, sampling)) <= PROMPTS - ALIKE


def test_what_the_server_cannot_take_raises_an_error(both):
    with pytest.raises(UserError, match=r"takes 384\. Start it with --max-model-len 420"):
        completed(both.server, [Request([5] * 20)], Sampling(400, (2,)))
    with pytest.raises(UserError, match=r"HTTP 400: .*99999 is out of vocabulary"):
        completed(both.server, [Request([99999])], Sampling(4, (2,)))
    assert both.server.served().name == "contrary"


def test_chat_messages_give_the_text_that_their_rendered_ids_give(tmp_path, monkeypatch):
    """On a server without defaults of its own, because a chat cannot say what vLLM alone knows."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"))
    folder = locate_model(EMBEDDED)
    tokenizer = load_tokenizer(folder)
    renderer = Renderer(tokenizer, "math", "none")
    messages = [[{"role": "user", "content": row["question"]}] for row in demo_rows("test")[:PROMPTS]]
    ids = tokenizer([renderer.prompt(one) for one in messages], add_special_tokens=False)["input_ids"]
    python, log = os.environ["WEAKDRIVEN_VLLM_PYTHON"], tmp_path / "server.log"
    options = {"dtype": "float32", "max_model_len": 384, "extra": ("--enforce-eager",)}
    with serve(python, folder, log=log, **options) as url:
        sampling = Sampling(NEW_TOKENS, tuple(renderer.stop_ids))
        by_ids = completed(ServerEngine(url), [Request(prompt) for prompt in ids], sampling)
        chatted = completed(ServerEngine(url, model=folder.name), [Request(one) for one in messages], sampling)
        with pytest.raises(UserError, match=r"HTTP 404: .*nobody.*; correct the name of the model nobody"):
            completed(ServerEngine(url, model="nobody"), [Request(messages[0])], sampling)
    assert alike(by_ids, chatted) >= ALIKE
    assert len({completion.text for completion in chatted}) > PROMPTS / 2
    assert {completion.finish for completion in chatted} <= {"stop", "length"}


def test_an_evaluation_goes_through_a_server_that_it_starts_and_stops(tmp_path, monkeypatch):
    """The whole command; greedy texts are those of the engine in this process."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    words = ["eval", "--model", EMBEDDED, "--benchmarks", "arithmetic", "--limit", "24", "style=plain"]
    words += ["precision=fp32", "--quiet"]
    for name, engine in {"local": [], "served": [f"vllm_python={os.environ['WEAKDRIVEN_VLLM_PYTHON']}"]}.items():
        monkeypatch.setattr(sys, "argv", ["weakdriven", *words, *engine, "--output", str(tmp_path / name)])
        with suppress(SystemExit):
            main()
    local, served = (
        {row["id"]: row for row in read_jsonl(tmp_path / name / "arithmetic" / "samples.jsonl")}
        for name in ("local", "served")
    )
    assert local.keys() == served.keys() and len(local) == 24
    same = sum(local[item]["text"] == served[item]["text"] for item in local)
    assert same >= 23, f"{same} of 24 greedy texts are the same"
    assert read_json(tmp_path / "served" / "arithmetic" / "manifest.json")["settings"]["engine"] == "vllm"
