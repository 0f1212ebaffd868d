"""The HTTP engine against a real local server that speaks vLLM's API, and the start and stop of a server process."""

import asyncio
import os
import signal
import socket
import threading
from collections import Counter

import pytest

import chat_server
from chat_server import DROP
from weakdriven.errors import UserError
from weakdriven.eval.generate.endpoints import ids_body
from weakdriven.eval.generate.requests import Completion, Request, Sampling, generate
from weakdriven.eval.generate.server import Retries, ServerEngine

SAMPLING = Sampling(max_new_tokens=5, stop_ids=(2, 7), temperature=0.6, top_p=0.95)
QUICK = Retries(tries=4, first=0.001, longest=0.002)


class Server(chat_server.Server):
    """Says its prompt's sum, or what `trouble` gives for the n-th time this prompt is asked for."""

    def __init__(self):
        super().__init__()
        self.cards = [{"id": "tiny", "root": "/models/tiny", "max_model_len": 32}]

    def listing(self, path):
        listed = {"object": "list", "data": self.cards}
        return (200, listed) if path == "/v1/models" else (404, {"error": {"message": f"no {path}"}})

    def key(self, body):
        return tuple(body["prompt"])

    def reply(self, body):
        return answer_to(body)


def answer_to(body, *, finish="stop", tokens=3, **changes):
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": tokens}
    return {"choices": [{"text": f"{sum(body['prompt'])}", "finish_reason": finish}], "usage": usage} | changes


@pytest.fixture
def server():
    with chat_server.serving(Server) as running:
        yield running


def engine_for(server, **options) -> ServerEngine:
    return ServerEngine(server.url, **({"retries": QUICK} | options))


def requests(count: int) -> list[Request]:
    return [Request([i, 100], seed=1000 + i) for i in range(count)]


def completed(engine, asked, sampling=SAMPLING) -> dict[int, Completion]:
    done: dict[int, Completion] = {}
    generate(engine, asked, sampling, done.update)
    return done


def test_every_request_gets_its_own_completion(server):
    done = completed(engine_for(server, concurrency=7), requests(50))
    assert {i: one.text for i, one in done.items()} == {i: str(100 + i) for i in range(50)}
    assert set(done.values()) <= {Completion(str(100 + i), 3, "stop") for i in range(50)}


def test_a_request_says_all_that_decides_its_completion(server):
    completed(engine_for(server), requests(3))
    assert sorted(body["seed"] for body in server.bodies) == [1000, 1001, 1002]
    first = next(body for body in server.bodies if body["seed"] == 1000)
    assert first == {
        "model": "tiny",
        "prompt": [0, 100],
        "seed": 1000,
        "max_tokens": 5,
        "temperature": 0.6,
        "top_p": 0.95,
        "stop_token_ids": [2, 7],
        "skip_special_tokens": True,
        "n": 1,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_k": 0,
        "min_p": 0.0,
    }
    assert ids_body("tiny", requests(1)[0], Sampling(5, (2,), 0.8, top_k=50)) | {"top_k": 50} == ids_body(
        "tiny", requests(1)[0], Sampling(5, (2,), 0.8, top_k=50)
    )


def test_no_more_requests_are_in_flight_than_asked_for(server):
    flying, most, together = Counter(), [0], threading.Barrier(3)

    def trouble(body, asked):
        with server.lock:
            flying["now"] += 1
            most[0] = max(most[0], flying["now"])
        together.wait(timeout=120)  # passes only if three are in flight
        with server.lock:
            flying["now"] -= 1

    server.trouble = trouble
    assert len(completed(engine_for(server, concurrency=3), requests(12))) == 12
    assert most == [3]


def test_completions_are_reported_as_they_arrive_from_the_calling_thread(server):
    first_is_reported, threads = threading.Event(), set()

    def trouble(body, asked):
        if body["prompt"][0] == 1:
            assert first_is_reported.wait(timeout=120)

    def on_done(done):
        threads.add(threading.current_thread())
        if 0 in done:
            first_is_reported.set()

    server.trouble = trouble
    generate(engine_for(server), requests(2), SAMPLING, on_done)
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("trouble", [(503, b"loading"), (429, {"error": {"message": "slow down"}}), (500, b""), DROP])
def test_trouble_that_passes_is_waited_out(server, trouble):
    server.trouble = lambda body, asked: trouble if asked < 3 and body["prompt"][0] % 2 else None
    assert len(completed(engine_for(server), requests(6))) == 6
    assert sorted(server.asked.values()) == [1, 1, 1, 3, 3, 3]


def test_an_answer_that_does_not_come_in_time_is_asked_for_again(server):
    ended = threading.Event()
    server.trouble = lambda body, asked: ended.wait(timeout=120) and None if asked == 1 else None
    try:
        assert len(completed(engine_for(server, timeout=1.0), requests(1))) == 1
    finally:
        ended.set()


def test_waits_double_with_jitter_and_are_no_shorter_than_the_server_asks(server):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    asks = {1: (), 2: (("Retry-After", "17"),), 3: (("Retry-After", "Fri, 13 Nov 2026 08:00:00 GMT"),), 4: ()}
    server.trouble = lambda body, asked: (503, b"busy", asks[asked]) if asked < 5 else None
    completed(engine_for(server, retries=Retries(tries=5, first=2.0, longest=9.0, sleep=sleep)), requests(1))
    assert [1 <= waited[0] <= 2, waited[1] == 17, 4 <= waited[2] <= 8, 4.5 <= waited[3] <= 9] == [True] * 4
    assert Retries().seconds(1, asked=86400) == 600


def test_after_the_last_try_what_arrived_has_been_kept_and_the_rest_is_dropped_at_once(server):
    kept, ended, waited = {}, threading.Event(), []

    def trouble(body, asked):
        if body["prompt"][0] == 3:
            return 503, {"error": {"message": "the engine is dead."}}
        if body["prompt"][0] == 4:
            waited.append(ended.wait(timeout=120))
        return None

    server.trouble = trouble
    with pytest.raises(UserError) as failed:
        generate(engine_for(server, concurrency=2), requests(40), SAMPLING, kept.update)
    assert not waited, "the request that hangs is not waited for"
    ended.set()
    assert {0, 1, 2} <= set(kept) and not {3, 4} & set(kept)
    assert server.asked[3, 100] == QUICK.tries
    assert "failed 4 times in a row (last: HTTP 503: the engine is dead)" in str(failed.value)
    assert f"{len(kept)} of 40 completions are kept" in str(failed.value)
    assert "run the same command again to resume" in str(failed.value)


def test_an_error_while_keeping_a_completion_ends_the_call(server):
    ended = threading.Event()
    server.trouble = lambda body, asked: ended.wait(timeout=120) and None if body["prompt"][0] > 4 else None

    def full(done):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        generate(engine_for(server, concurrency=2), requests(100), SAMPLING, full)
    ended.set()
    assert len(server.bodies) <= 7
    assert not [thread for thread in threading.enumerate() if thread.name == "completions"]


def test_an_interrupt_ends_the_call_while_it_waits(server):
    ended = threading.Event()

    def trouble(body, asked):
        os.kill(os.getpid(), signal.SIGINT)
        ended.wait(timeout=120)

    server.trouble = trouble
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            completed(engine_for(server), requests(1))
    finally:
        signal.signal(signal.SIGINT, before)
        ended.set()
    assert not [thread for thread in threading.enumerate() if thread.name == "completions"]


def test_it_works_where_an_event_loop_is_running(server):
    async def cell_of_a_notebook():
        return completed(engine_for(server), requests(3))

    assert len(asyncio.run(cell_of_a_notebook())) == 3


def test_a_request_that_the_server_rejects_is_reported_in_its_words_and_not_repeated(server):
    server.trouble = lambda body, asked: (400, {"error": {"message": "Token id 9999 is out of vocabulary"}})
    with pytest.raises(UserError, match=r"HTTP 400: Token id 9999 is out of vocabulary\. 0 of 1 completions"):
        completed(engine_for(server), requests(1))
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    "change, words",
    [
        ({"finish": "abort"}, "ended a completion with 'abort'"),
        (
            {"finish": "length", "tokens": 4},
            "cut a completion after 4 of 5 tokens; start it with --generation-config vllm",
        ),
        ({"usage": {"prompt_tokens": 1, "completion_tokens": 3}}, "read 1 of 2 prompt tokens"),
        ({"usage": None}, "other than one completion with its usage"),
        ({"choices": []}, "other than one completion"),
    ],
)
def test_a_completion_that_differs_from_the_request_raises_an_error(server, change, words):
    server.trouble = lambda body, asked: (200, answer_to(body, **change))
    with pytest.raises(UserError, match=words):
        completed(engine_for(server), requests(1))


def test_a_reply_that_is_not_json_raises_an_error(server):
    server.trouble = lambda body, asked: (200, b"<html>hello</html>")
    with pytest.raises(UserError, match=r"4 times in a row .* not JSON: '<html>hello</html>'"):
        completed(engine_for(server), requests(1))


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
def test_the_address_may_end_with_v1(server, tail):
    engine = ServerEngine(server.url + tail, retries=QUICK)
    assert (engine.served().name, engine.served().folder, engine.served().max_length) == ("tiny", "/models/tiny", 32)
    assert ServerEngine(server.url.removeprefix("http://") + tail, retries=QUICK).url == server.url


def test_a_proxy_is_not_asked_for_a_server_on_this_machine(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert len(completed(engine_for(server), requests(1))) == 1


def test_a_key_is_sent_only_if_given(server):
    engine_for(server).served()
    engine_for(server, api_key="secret").served()
    assert [headers.get("Authorization") for headers in server.headers] == [None, "Bearer secret"]


def test_of_several_models_one_must_be_named(server):
    server.cards = [{"id": "base"}, {"id": "strong"}]
    with pytest.raises(UserError, match=r"serves several models \(base, strong\); name one"):
        completed(engine_for(server), requests(1))
    with pytest.raises(UserError, match="does not serve weak; it serves base, strong"):
        completed(engine_for(server, model="weak"), requests(1))
    completed(engine_for(server, model="strong"), requests(1))
    assert server.bodies[0]["model"] == "strong"
    server.cards = []
    with pytest.raises(UserError, match="serves no model"):
        completed(engine_for(server), requests(1))


def test_a_context_that_is_too_short_raises_an_error_before_anything_is_sent(server):
    asked = [Request([1] * 10), Request([1] * 28)]
    with pytest.raises(UserError) as short:
        completed(engine_for(server), asked)
    assert "(28 tokens) and max_new_tokens=5 need 33" in str(short.value)
    assert str(short.value).endswith("takes 32. Start it with --max-model-len 33, or set max_new_tokens to 4 or less.")
    with pytest.raises(UserError, match=r"Start it with --max-model-len 45\.$"):
        completed(engine_for(server), [Request([1] * 40)])
    assert server.bodies == []


def test_a_server_that_is_down_or_is_no_such_server_raises_an_error_at_once(server):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(UserError, match=f"No server can be reached at {url} .*ConnectError"):
            completed(ServerEngine(url, retries=QUICK), requests(1))
    with pytest.raises(UserError, match="does not list its models: rejected a request with HTTP 404: no /other/v1/mod"):
        completed(ServerEngine(server.url + "/other", retries=QUICK), requests(1))
    server.cards = None
    with pytest.raises(UserError, match="does not respond like an OpenAI-compatible server"):
        completed(engine_for(server), requests(1))
