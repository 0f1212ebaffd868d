"""The two endpoints of an OpenAI-compatible server: what is sent to each, and what its answers mean.

`/v1/completions` gets token ids and all that decides how vLLM samples. `/v1/chat/completions` gets messages and nothing
that only some servers know, because hosted ones refuse a request for one unknown name. What it leaves out (top_k,
penalties) is up to the server: vLLM takes it from the checkpoint unless started with `--generation-config vllm`.
"""

import re
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import httpx2

from weakdriven.eval.generate.requests import Completion, Request, Sampling

NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_p": 0.0}
"""Sent with every request for token ids: what is left out, vLLM takes from the checkpoint's generation_config.json."""
NOT_TAKEN = r"(?i)n[o']t support|unsupported|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed|cannot both"
"""How servers say that they have no such parameter, or not this value of it; a number too large is another thing."""
FILTERED = (
    r"(?i)content_?filter|content.policy|content management policy|content exists risk|invalid_prompt|"
    r"data_inspection_failed|(input|prompt) was flagged"
)
"""How Azure, OpenAI, DeepSeek, Alibaba and OpenRouter say that they will not answer this question."""
TOO_LONG = (
    r"(?i)context_length_exceeded|maximum context length|exceeds the available context size|prompt is too long|"
    r"input length"
)
"""How OpenAI, vLLM, llama.cpp, Anthropic and Alibaba say that this question does not fit."""
ENDS: dict[str, str] = dict.fromkeys(("eos", "eos_token", "end_turn", "stop_sequence", "STOP"), "stop")
ENDS |= dict.fromkeys(("max_tokens", "MAX_TOKENS"), "length")
"""Words of other servers for the two ordinary ends of a completion."""
INTERRUPTED = ("insufficient_system_resource", "error", "abort")
"""Ends of a completion that DeepSeek, OpenRouter and vLLM gave up for reasons of their own."""


class Failed(Exception):
    """What the server did, in half a sentence; the engine adds what is kept."""

    def __init__(self, what: str, status: int = 200):
        super().__init__(what)
        self.status = status


class Again(Exception):
    """The server could not take a request now."""

    def __init__(self, what: str, seconds: float = 0.0):
        super().__init__(what)
        self.seconds = seconds


def ids_body(model: str, request: Request, sampling: Sampling) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": request.ids,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": request.seed,
        "stop_token_ids": list(sampling.stop_ids),
        "skip_special_tokens": True,
        "n": 1,
        "top_k": sampling.top_k or 0,
        **NEUTRAL,
    }


def chat_body(model: str, request: Request, sampling: Sampling, without: Collection[str] = ()) -> dict[str, Any]:
    """What every server understands.

    Args:
        without: Parameters that this server has refused; `max_tokens` then goes by its newer name, and a temperature
            or top_p is left out only if it is 1.
    """
    body = {
        "model": model,
        "messages": request.prompt,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": request.seed,
        "stream": False,
        **({} if sampling.top_k is None else {"top_k": sampling.top_k}),  # which not every server knows
    }
    body = {name: value for name, value in body.items() if name not in without or not _spare(name, value)}
    return body | ({"max_completion_tokens": sampling.max_new_tokens} if "max_tokens" in without else {})


def refused_parameter(response: httpx2.Response, body: dict[str, Any]) -> str | None:
    """The parameter that this server does not take and that can go without changing what is asked for, if any.

    `max_tokens` has another name, `seed` does not change the distribution, and a temperature or top_p of 1 is what a
    server without that setting has. Another temperature or top_p is `Failed`: nobody asked for samples at 1.
    """
    (status, content), param = _opened(response), None
    if status not in (400, 422) or not re.search(NOT_TAKEN, response.text):
        return None
    with suppress(KeyError, TypeError):
        param = content["error"]["param"]
    known = [name for name in ("max_tokens", "seed", "temperature", "top_p", "top_k") if name in body]
    named = [name for name in known if name == param]
    named = named or [name for name in known if re.search(rf"\b{name}\b", response.text)]
    spare = [name for name in named if _spare(name, body[name])]
    if named and not spare:
        name = named[0]
        neutral = "leave it out" if name == "top_k" else "set it to 1.0"
        raise Failed(f"does not take {name}={body[name]} ({_message(response)}); {neutral}, or ask another model")
    return spare[0] if spare else None


def _spare(name: str, value: Any) -> bool:
    return name in ("max_tokens", "seed") or (name in ("temperature", "top_p") and value == 1)


def read(response: httpx2.Response) -> dict[str, Any]:
    """The JSON of a good answer; `Again` if it is worth asking once more, `Failed` if not."""
    status, content = _opened(response)
    if status in (408, 429) or status >= 500:
        asked = response.headers.get("Retry-After", "")
        raise Again(f"HTTP {status}: {_message(response)}", float(asked) if re.fullmatch(r"\d+(\.\d+)?", asked) else 0)
    if status >= 400:
        raise Failed(f"refused a request with HTTP {status}: {_message(response)}", status)
    if content is None and status < 300:  # half an answer, or a page of a proxy on the way
        raise Again(f"HTTP {status} with something that is not JSON: {response.text[:200]!r}")
    if not isinstance(content, dict):
        raise Failed(f"answered HTTP {status} with something that is not a JSON object: {response.text[:200]!r}")
    return content


def _opened(response: httpx2.Response) -> tuple[int, Any]:
    """Status and content. OpenRouter says 200 before it asks the provider, whose own status is in the content."""
    status, content = response.status_code, None
    with suppress(ValueError):
        content = response.json()
    with suppress(TypeError, KeyError, ValueError):
        status = int(content["error"]["code"]) if status == 200 else status  # pyright: ignore
    return status, content


def _message(response: httpx2.Response) -> str:
    """The reason in the server's own words."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        content = response.json()
        error = content.get("error", content)
        behind = (error.get("metadata") or {}).get("raw")  # OpenRouter's own message says only that there was one
        return str(error["message"]).rstrip(". ") + (f" ({str(behind)[:300]})" if behind else "")
    return response.text[:300].strip().rstrip(". ") or response.reason_phrase


def ids_completion(response: httpx2.Response, body: dict[str, Any]) -> Completion:
    """The one completion of an answer; one that was not made as asked is an error and not a score."""
    answer = read(response)
    try:
        (choice,) = answer["choices"]
        text, finish = str(choice["text"]), choice["finish_reason"]
        tokens, prompt = int(answer["usage"]["completion_tokens"]), int(answer["usage"]["prompt_tokens"])
    except (KeyError, TypeError, ValueError):
        raise Failed(f"gave an answer that is not one completion with its usage: {str(answer)[:200]}") from None
    if finish not in ("stop", "length"):
        raise Failed(f"ended a completion with {finish!r}; expected 'stop' or 'length'")
    if prompt != len(body["prompt"]):
        raise Failed(f"read {prompt} tokens of a prompt of {len(body['prompt'])}; start it without truncation")
    if finish == "length" and tokens != body["max_tokens"]:
        raise Failed(
            f"cut a completion at {tokens} of {body['max_tokens']} tokens; start it with --generation-config vllm and "
            "without max_new_tokens in --override-generation-config"
        )
    return Completion(text, tokens, finish)


def chat_completion(response: httpx2.Response, body: dict[str, Any]) -> Completion:
    """The first choice of an answer.

    One question that a hosted server will not answer must not end a run of thousands. So a refusal by its filter, a
    question that is too long, and any other end is a completion with the text that came and the server's own word as
    `finish`.
    """
    status, _ = _opened(response)
    if status in (400, 403, 422, 451) and re.search(FILTERED, response.text):
        return Completion("", 0, "content_filter")
    if status in (400, 413, 422) and re.search(TOO_LONG, response.text):
        limit = re.search(r"(?i)maximum context length (?:is|of) (\d+)", response.text)
        # a completion that alone is longer than the model takes is a wrong setting: no question fits
        if limit is None or int(body.get("max_tokens") or body["max_completion_tokens"]) <= int(limit[1]):
            return Completion("", 0, "context_length")
    answer = read(response)
    if not answer.get("choices"):
        raise Again(f"an answer without choices: {str(answer)[:200]}")
    try:
        choice = answer["choices"][0]
        message = choice.get("message") or {}
        finish = str(choice.get("finish_reason") or "unknown")
        finish = ENDS.get(finish, finish)
        text, thought = _spoken(message.get("content") or "")
        reasoning = message.get("reasoning_content") or message.get("reasoning") or thought
        tokens = int((answer.get("usage") or {}).get("completion_tokens") or 0)
        if not isinstance(reasoning, str):
            raise TypeError("not a text")
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Failed(f"gave an answer that is not a chat completion in text: {str(answer)[:200]}") from None
    if finish in INTERRUPTED:
        raise Again(f"a completion that ended with {finish!r}")
    if not text and message.get("refusal"):
        text, finish = str(message["refusal"]), "refusal"
    return Completion(text, tokens, finish, reasoning)


def _spoken(content: Any) -> tuple[str, str]:
    """Text and thoughts of a message, which Mistral gives as a list of parts; parts of other types are a KeyError."""
    if isinstance(content, str):
        return content, ""
    found = {"text": "", "thinking": "", "reasoning": ""}
    for part in content:
        found[part["type"]] += _part(part)
    return found["text"], found["thinking"] + found["reasoning"]


def _part(part: dict[str, Any]) -> str:
    """The text of a part, or of the parts within it."""
    within = part.get(part["type"]) or part.get("text") or ""
    return within if isinstance(within, str) else "".join(_part(one) for one in within)
