"""Chat messages to a real local server that answers, and refuses, as hosted ones do."""

import logging
import threading

import pytest

import chat_server
from chat_server import DROP, question, refusal, said
from helpers import embedded_tokenizer, tiny_model
from weakdriven.errors import UserError
from weakdriven.eval.generate import Completion, Request, Sampling, generate
from weakdriven.eval.generate.local import LocalEngine
from weakdriven.eval.generate.server import Retries, ServerEngine

SAMPLING = Sampling(max_new_tokens=50, stop_ids=(), temperature=0.6, top_p=0.95)
PLAIN = Sampling(max_new_tokens=50, stop_ids=(), temperature=1.0)
QUICK = Retries(tries=4, first=0.001, longest=0.002)
server = chat_server.server


def engine_for(server, **options) -> ServerEngine:
    return ServerEngine(server.url, **({"retries": QUICK, "model": "teacher"} | options))


def chats(count: int) -> list[Request]:
    system = {"role": "system", "content": "Be brief."}
    return [Request([system, {"role": "user", "content": f"q{i}"}], seed=1000 + i) for i in range(count)]


def completed(engine, asked, sampling=SAMPLING) -> dict[int, Completion]:
    done: dict[int, Completion] = {}
    generate(engine, asked, sampling, done.update)
    return done


def test_every_chat_gets_its_own_completion(server):
    done = completed(engine_for(server, concurrency=5), chats(20))
    assert done == {i: Completion(f"Q{i}", 9, "stop") for i in range(20)}
    assert set(server.paths) == {"/v1/chat/completions"}  # nobody asked which models there are


def test_a_chat_says_what_every_server_understands_and_no_more(server):
    completed(engine_for(server, api_key="secret"), chats(1))
    assert server.bodies == [
        {
            "model": "teacher",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q0"}],
            "max_tokens": 50,
            "temperature": 0.6,
            "top_p": 0.95,
            "seed": 1000,
            "stream": False,
        }
    ]
    assert server.keys == ["Bearer secret"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_apart_from_the_text(server, field):
    server.trouble = lambda body, asked: (200, said("4", **{field: "2 + 2\n"}))
    (one,) = completed(engine_for(server), chats(1)).values()
    assert one == Completion("4", 9, "stop", reasoning="2 + 2\n")
    assert one.row() == {"text": "4", "tokens": 9, "finish": "stop", "reasoning": "2 + 2\n"}


def test_a_server_need_not_count_tokens_and_may_cut_where_it_likes(server):
    server.trouble = lambda body, asked: (200, said("and then", finish="length", usage=None, reasoning=None))
    assert completed(engine_for(server), chats(1)) == {0: Completion("and then", 0, "length")}


def test_a_server_that_wants_another_name_for_the_budget_gets_it(server, caplog):
    def trouble(body, asked):
        if "max_tokens" in body:
            words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'"
            return refusal(words, param="max_tokens", code="unsupported_parameter")

    server.trouble = trouble
    engine = engine_for(server, concurrency=1)
    assert len(completed(engine, chats(5))) == 5
    assert [body.get("max_completion_tokens") for body in server.bodies] == [None, 50, 50, 50, 50, 50]
    completed(engine, chats(1))
    assert "max_tokens" not in server.bodies[-1] and caplog.text == ""


def test_a_budget_that_is_too_large_raises_an_error_and_is_not_renamed(server):
    server.trouble = lambda body, asked: refusal("max_tokens is too large: 50. At most 16 are left", param="max_tokens")
    with pytest.raises(UserError, match="HTTP 400: max_tokens is too large: 50"):
        completed(engine_for(server), chats(1))
    assert len(server.bodies) == 1


MISTRAL = {"message": {"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "input": 1}]}}


@pytest.mark.parametrize(
    "answer",
    [refusal("Unrecognized request argument supplied: seed"), (422, MISTRAL), (400, {"detail": "unknown: seed"})],
)
def test_a_seed_that_is_rejected_is_left_out_with_one_warning(server, caplog, answer):
    server.trouble = lambda body, asked: answer if "seed" in body else None
    assert len(completed(engine_for(server, concurrency=4), chats(12))) == 12
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage().endswith("does not take seed; it is omitted from now on.") for record in warnings] == [
        True
    ]
    assert {body["temperature"] for body in server.bodies} == {0.6}


def test_no_sample_is_drawn_at_another_temperature_than_asked_for(server):
    words = "Unsupported value: 'temperature' does not support 0.6 with this model. Only the default (1) is supported."
    server.trouble = lambda body, asked: refusal(words, param="temperature") if body["temperature"] != 1 else None
    with pytest.raises(
        UserError, match=r"does not take temperature=0.6 \(Unsupported .*\); set it to 1.0, or use anoth"
    ):
        completed(engine_for(server), chats(3))
    assert len(completed(engine_for(server), chats(3), PLAIN)) == 3


def test_a_setting_that_changes_nothing_is_left_out_where_it_is_rejected(server, caplog):
    words = "Unsupported parameter: 'top_p' is not supported with this model."
    server.trouble = lambda body, asked: refusal(words, param="top_p") if "top_p" in body else None
    with pytest.raises(UserError, match=r"does not take top_p=0.95 \(Unsupported"):
        completed(engine_for(server), chats(1))
    engine = engine_for(server)
    assert len(completed(engine, chats(1), PLAIN)) == 1
    assert "does not take top_p" in caplog.text
    with pytest.raises(UserError, match=r"does not take top_p=0.95"):  # what was left out once is not lost later
        completed(engine, chats(1))


def test_several_parameters_may_be_rejected_one_after_the_other(server):
    def trouble(body, asked):
        for name in ("max_tokens", "seed", "top_p"):
            if name in body:
                return refusal(f"Unsupported parameter: {name!r} is not supported", param=name)

    server.trouble = trouble
    assert len(completed(engine_for(server), chats(3), PLAIN)) == 3
    assert set(server.bodies[-1]) == {"model", "messages", "max_completion_tokens", "temperature", "stream"}


FILTERS = [
    (200, said(None, finish="content_filter", usage=None)),
    (200, {"choices": [{"index": 0, "finish_reason": "content_filter"}]}),
    refusal(
        "The response was filtered due to the prompt triggering our content management policy", code="content_filter"
    ),
    refusal("Content Exists Risk", code="invalid_request_error"),
    refusal("this model requires moderation and your input was flagged", 403, code=403),
    (200, {"error": {"message": "your input was flagged", "code": 403}}),
]


TOO_LONG = [
    refusal("This model's maximum context length is 4096 tokens. However, you requested 9000 tokens", code=400),
    refusal("Your input exceeds the window of this model.", code="context_length_exceeded"),
    refusal("the request exceeds the available context size, try increasing it", type="exceed_context_size_error"),
    refusal("prompt is too long: 210000 tokens > 200000 maximum"),
    refusal("Range of input length should be [1, 30720]", 413),
    (200, {"error": {"message": "This endpoint's maximum context length is 4096 tokens.", "code": 400}}),
]


ENDS = [("content_filter", answer) for answer in FILTERS] + [("context_length", answer) for answer in TOO_LONG]


@pytest.mark.parametrize("finish, answer", ENDS)
def test_a_question_that_a_server_does_not_complete_ends_no_run(server, caplog, finish, answer):
    server.trouble = lambda body, asked: answer if question(body) in ("q3", "q5") else None
    done = completed(engine_for(server), chats(8))
    assert done.pop(3) == done.pop(5) == Completion("", 0, finish)
    assert {one.finish for one in done.values()} == {"stop"} and len(done) == 6
    [record] = caplog.records
    assert f"ended a completion with {finish}, not with stop or length" in record.getMessage()
    assert server.asked["q3"] == 1


def test_a_budget_that_fits_no_question_raises_an_error(server):
    words = "'max_tokens' is too large: 50. This model's maximum context length is 40 tokens"
    server.trouble = lambda body, asked: refusal(words)
    with pytest.raises(UserError, match="HTTP 400: 'max_tokens' is too large: 50"):
        completed(engine_for(server), chats(3))


def test_token_ids_that_are_too_long_end_a_run(server):
    server.models = [{"id": "teacher"}]
    server.trouble = lambda body, asked: TOO_LONG[0]
    with pytest.raises(UserError, match="HTTP 400: This model's maximum context length is 4096"):
        completed(engine_for(server), [Request([5, 6])])


WORDS = {"stop": ["eos", "eos_token", "end_turn", "stop_sequence", "STOP"], "length": ["max_tokens", "MAX_TOKENS"]}


@pytest.mark.parametrize("finish, word", [(finish, word) for finish, words in WORDS.items() for word in words])
def test_other_words_for_the_end_of_a_turn_or_of_the_budget(server, caplog, finish, word):
    server.trouble = lambda body, asked: (200, said("4", finish=word))
    assert completed(engine_for(server), chats(1)) == {0: Completion("4", 9, finish)} and caplog.text == ""


def test_any_other_end_keeps_the_text_and_the_servers_word_and_is_reported_once(server, caplog):
    ends = {
        "q0": said("half", finish="content_filter"),
        "q1": said(None, finish="tool_calls", tool_calls=[]),
        "q2": said("whole", finish=None),
        "q3": said(None, refusal="I will not."),
    }
    server.trouble = lambda body, asked: (200, ends[question(body)])
    done = completed(engine_for(server), [*chats(4), *chats(4)])
    assert len(caplog.records) == 4
    assert [(done[i].text, done[i].finish) for i in range(4)] == [
        ("half", "content_filter"),
        ("", "tool_calls"),
        ("whole", "unknown"),
        ("I will not.", "refusal"),
    ]


@pytest.mark.parametrize("status, options", [(401, {}), (403, {"api_key": "wrong", "key_variable": "TEACHER_KEY"})])
def test_a_key_that_is_missing_or_wrong_names_the_variable_for_it(server, status, options):
    server.trouble = lambda body, asked: refusal("Incorrect API key provided.", status)
    name = options.get("key_variable", "VLLM_API_KEY")
    with pytest.raises(UserError) as failed:
        completed(engine_for(server, concurrency=1, **options), chats(3))
    assert (
        f"HTTP {status}: Incorrect API key provided; give a key that it accepts in the environment variable {name}."
        in (str(failed.value))
    )
    assert len(server.bodies) == 1


def test_a_model_that_is_not_there_is_named(server):
    server.trouble = lambda body, asked: refusal("The model `teacher` does not exist", 404)
    with pytest.raises(
        UserError, match=r"HTTP 404: The model .* not exist; correct the name of the model teacher or the add"
    ):
        completed(engine_for(server), chats(1))


def test_a_rate_limit_is_waited_for_as_long_as_the_server_asks(server):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    limit = (*refusal("Rate limit reached", 429), (("Retry-After", "7"),))
    server.trouble = lambda body, asked: limit if asked == 1 and question(body) != "q2" else None
    done = completed(engine_for(server, retries=Retries(tries=3, first=0.001, sleep=sleep)), chats(4))
    assert {i: one.text for i, one in done.items()} == {i: f"Q{i}" for i in range(4)}
    assert waited == [7.0] * 3 and server.asked == {"q0": 2, "q1": 2, "q2": 1, "q3": 2}


@pytest.mark.parametrize(
    "trouble",
    [
        DROP,
        (408, b"timeout"),
        (500, b""),
        (200, {"error": {"message": "Provider returned error", "code": 502, "metadata": {"raw": "upstream is full"}}}),
        (200, {"choices": None}),
        (200, b'{"choices": [{"mess'),
        (200, b"<html>busy</html>"),
        (200, said("hal", finish="insufficient_system_resource")),
        (200, said("hal", finish="error")),
    ],
)
def test_trouble_that_passes_is_waited_out_and_what_came_is_not_asked_for_again(server, trouble):
    server.trouble = lambda body, asked: trouble if asked < 3 and question(body) in ("q1", "q3") else None
    done = completed(engine_for(server), chats(5))
    assert {i: one.text for i, one in done.items()} == {i: f"Q{i}" for i in range(5)}
    assert server.asked == {"q0": 1, "q1": 3, "q2": 1, "q3": 3, "q4": 1}


def test_a_failure_behind_the_server_is_reported_in_its_own_words(server):
    error = {"message": "Provider returned error", "code": 502, "metadata": {"raw": "upstream is full"}}
    server.trouble = lambda body, asked: (200, {"error": error})
    with pytest.raises(
        UserError, match=r"4 times in a row \(last: HTTP 502: Provider returned error \(upstream is full"
    ):
        completed(engine_for(server), chats(1))


def test_what_came_before_the_server_died_has_been_reported(server):
    kept, dead = {}, threading.Event()

    def trouble(body, asked):
        if dead.is_set() or question(body) == "q5":
            dead.set()
            return DROP

    server.trouble = trouble
    with pytest.raises(UserError, match=r"failed 4 times in a row .*\. 5 of 10 completions are kept"):
        generate(engine_for(server, concurrency=1), chats(10), SAMPLING, kept.update)
    assert kept == {i: Completion(f"Q{i}", 9, "stop") for i in range(5)}
    server.trouble = lambda body, asked: None
    rest = [i for i in range(10) if i not in kept]
    completed(engine_for(server), [chats(10)[i] for i in rest])
    assert [server.asked[f"q{i}"] for i in range(5)] == [1] * 5


def test_without_a_name_the_server_must_say_which_model_it_has(server):
    with pytest.raises(
        UserError, match="does not list its models: rejected a request with HTTP 404: 404 page not found"
    ):
        completed(engine_for(server, model=None), chats(1))
    server.models = [{"id": f"model-{i}"} for i in range(300)]
    with pytest.raises(UserError, match=r"serves several models \(model-0, .*, model-7 and 292 more\); name one"):
        completed(engine_for(server, model=None), chats(1))
    server.models = [{"id": "only", "max_model_len": 10}]
    completed(engine_for(server, model=None), chats(1))
    assert [body["model"] for body in server.bodies] == ["only"]


def test_a_model_that_is_not_listed_may_be_there_all_the_same(server):
    server.models = [{"id": "another"}]
    assert len(completed(engine_for(server), chats(1))) == 1


def test_ids_and_messages_go_to_their_own_endpoints(server):
    server.models = [{"id": "teacher", "max_model_len": 100}]
    plain = {
        "choices": [{"text": "ids", "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1},
    }
    server.trouble = lambda body, asked: (200, plain) if "prompt" in body else None
    done = completed(engine_for(server, concurrency=1), [Request([5, 6]), *chats(1)])
    assert [done[i].text for i in range(2)] == ["ids", "Q0"]
    assert server.paths == ["/v1/models", "/v1/completions", "/v1/chat/completions"]


@pytest.mark.parametrize(
    "tail, path",
    [("", "/v1"), ("/api/v1/", "/api/v1"), ("/v1beta/openai", "/v1beta/openai"), ("/paas/v4", "/paas/v4")],
)
def test_the_version_in_an_address_is_kept(server, tail, path):
    completed(ServerEngine(server.url + tail, model="teacher", retries=QUICK), chats(1))
    assert server.paths == [f"{path}/chat/completions"]


def test_a_server_that_never_answers_in_json_raises_an_error(server):
    server.trouble = lambda body, asked: (200, b"<html>busy</html>")
    with pytest.raises(UserError, match=r"4 times in a row \(last: HTTP 200 with something that is not JSON: '<html>"):
        completed(engine_for(server), chats(1))


@pytest.mark.parametrize(
    "content, text, reasoning",
    [
        ([{"type": "text", "text": "4"}], "4", ""),
        ([{"type": "text", "text": "It is "}, {"type": "text", "text": "4"}], "It is 4", ""),
        (
            [
                {
                    "type": "thinking",
                    "thinking": [{"type": "text", "text": "2 + 2"}, {"type": "text", "text": " is 4"}],
                },
                {"type": "text", "text": "4"},
            ],
            "4",
            "2 + 2 is 4",
        ),
        ([{"type": "reasoning", "text": "2 + 2"}, {"type": "text", "text": "4"}], "4", "2 + 2"),
        ([{"type": "thinking", "thinking": "2 + 2"}], "", "2 + 2"),
        ([], "", ""),
    ],
)
def test_the_parts_of_a_message_are_joined(server, content, text, reasoning):
    server.trouble = lambda body, asked: (200, said(content))
    assert completed(engine_for(server), chats(1)) == {0: Completion(text, 9, "stop", reasoning)}


@pytest.mark.parametrize(
    "content", [4, {"text": "4"}, ["4"], [{"type": "image_url", "image_url": "x"}], [{"text": "4"}]]
)
def test_a_message_that_is_no_text_raises_an_error(server, content):
    server.trouble = lambda body, asked: (200, said(content))
    with pytest.raises(UserError, match="other than a chat completion in text"):
        completed(engine_for(server), chats(1))


def test_a_model_in_this_process_takes_no_messages():
    with pytest.raises(UserError, match="has chat messages, but a model in this process needs token ids"):
        completed(LocalEngine(tiny_model(), embedded_tokenizer()), chats(1))
