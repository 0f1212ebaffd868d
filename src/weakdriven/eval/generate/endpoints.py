"""The two endpoints of an OpenAI-compatible server: request bodies, and the meaning of responses.

`/v1/completions` gets token ids and everything that decides how vLLM samples. `/v1/chat/completions` gets messages and
only fields that all servers know, because hosted ones reject a request with an unknown field. Omitted fields (top_k,
penalties) are up to the server: vLLM takes them from the checkpoint unless started with `--generation-config vllm`.
"""

import re
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import httpx2

from weakdriven.eval.generate.requests import Completion, Request, Sampling

NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_p": 0.0}
"""Sent with every request for token ids, because vLLM takes omitted ones from generation_config.json."""
NOT_TAKEN = r"(?i)n[o']t support|unsupported|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed|cannot both"
"""How servers say that they do not support a parameter or this value of it; an out-of-range number is different."""
FILTERED = (
    r"(?i)content_?filter|content.policy|content management policy|content exists risk|invalid_prompt|"
    r"data_inspection_failed|(input|prompt) was flagged"
)
"""How Azure, OpenAI, DeepSeek, Alibaba and OpenRouter reject a question by their filters."""
TOO_LONG = (
    r"(?i)context_length_exceeded|maximum context length|exceeds the available context size|prompt is too long|"
    r"input length"
)
"""How OpenAI, vLLM, llama.cpp, Anthropic and Alibaba say that a question is too long."""
ENDS: dict[str, str] = dict.fromkeys(("eos", "eos_token", "end_turn", "stop_sequence", "STOP"), "stop")
ENDS |= dict.fromkeys(("max_tokens", "MAX_TOKENS"), "length")
"""Other servers' names for the two ordinary finish reasons."""
INTERRUPTED = ("insufficient_system_resource", "error", "abort")
"""Finish reasons of completions that DeepSeek, OpenRouter and vLLM aborted."""


class Failed(Exception):
    """What the server did, in half a sentence; the engine adds how many completions are kept."""

    def __init__(self, what: str, status: int = 200):
        super().__init__(what)
        self.status = status


class Again(Exception):
    """The server cannot take a request now; retry."""

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
    """Build a request that every server understands.

    Args:
        without: Parameters that this server rejected: `max_tokens` then has its newer name, and temperature or top_p is
            omitted only if it is 1.
    """
    body = {
        "model": model,
        "messages": request.prompt,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": request.seed,
        "stream": False,
        **({} if sampling.top_k is None else {"top_k": sampling.top_k}),  # some servers do not know it
    }
    body = {name: value for name, value in body.items() if name not in without or not _spare(name, value)}
    return body | ({"max_completion_tokens": sampling.max_new_tokens} if "max_tokens" in without else {})


def refused_parameter(response: httpx2.Response, body: dict[str, Any]) -> str | None:
    """Return the rejected parameter if it can be omitted without changing the request's meaning.

    `max_tokens` has another name, `seed` does not change the distribution, and temperature and top_p default to 1. Any
    other value raises `Failed`, because the samples would come from another distribution.
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
        raise Failed(f"does not take {name}={body[name]} ({_message(response)}); {neutral}, or use another model")
    return spare[0] if spare else None


def _spare(name: str, value: Any) -> bool:
    return name in ("max_tokens", "seed") or (name in ("temperature", "top_p") and value == 1)


def read(response: httpx2.Response) -> dict[str, Any]:
    """Return the JSON of a good response; raise `Again` if a retry may help, else `Failed`."""
    status, content = _opened(response)
    if status in (408, 429) or status >= 500:
        asked = response.headers.get("Retry-After", "")
        raise Again(f"HTTP {status}: {_message(response)}", float(asked) if re.fullmatch(r"\d+(\.\d+)?", asked) else 0)
    if status >= 400:
        raise Failed(f"rejected a request with HTTP {status}: {_message(response)}", status)
    if content is None and status < 300:  # half a response, or the page of a proxy
        raise Again(f"HTTP {status} with something that is not JSON: {response.text[:200]!r}")
    if not isinstance(content, dict):
        raise Failed(f"returned HTTP {status} with something that is not a JSON object: {response.text[:200]!r}")
    return content


def _opened(response: httpx2.Response) -> tuple[int, Any]:
    """Return status and content. OpenRouter answers 200 before it asks the provider, whose status is in the content."""
    status, content = response.status_code, None
    with suppress(ValueError):
        content = response.json()
    with suppress(TypeError, KeyError, ValueError):
        status = int(content["error"]["code"]) if status == 200 else status  # pyright: ignore
    return status, content


def _message(response: httpx2.Response) -> str:
    """Return the reason in the server's own words."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        content = response.json()
        error = content.get("error", content)
        behind = (error.get("metadata") or {}).get("raw")  # OpenRouter's own message gives no reason
        return str(error["message"]).rstrip(". ") + (f" ({str(behind)[:300]})" if behind else "")
    return response.text[:300].strip().rstrip(". ") or response.reason_phrase


def ids_completion(response: httpx2.Response, body: dict[str, Any]) -> Completion:
    """Return the one completion of a response; raise an error if the server did not follow the request."""
    answer = read(response)
    try:
        (choice,) = answer["choices"]
        text, finish = str(choice["text"]), choice["finish_reason"]
        tokens, prompt = int(answer["usage"]["completion_tokens"]), int(answer["usage"]["prompt_tokens"])
    except (KeyError, TypeError, ValueError):
        raise Failed(f"returned something other than one completion with its usage: {str(answer)[:200]}") from None
    if finish not in ("stop", "length"):
        raise Failed(f"ended a completion with {finish!r}; expected 'stop' or 'length'")
    if prompt != len(body["prompt"]):
        raise Failed(f"read {prompt} of {len(body['prompt'])} prompt tokens; start it without truncation")
    if finish == "length" and tokens != body["max_tokens"]:
        raise Failed(
            f"cut a completion after {tokens} of {body['max_tokens']} tokens; start it with --generation-config vllm "
            "and without max_new_tokens in --override-generation-config"
        )
    return Completion(text, tokens, finish)


def chat_completion(response: httpx2.Response, body: dict[str, Any]) -> Completion:
    """Return the first choice of a response.

    A single question that a hosted server rejects must not end a run of thousands. So a rejection by its filter, a too
    long question, and any other finish reason give a completion with the received text and the server's own reason as
    `finish`.
    """
    status, _ = _opened(response)
    if status in (400, 403, 422, 451) and re.search(FILTERED, response.text):
        return Completion("", 0, "content_filter")
    if status in (400, 413, 422) and re.search(TOO_LONG, response.text):
        limit = re.search(r"(?i)maximum context length (?:is|of) (\d+)", response.text)
        # if the completion alone exceeds the model's length, no question fits, so the setting is wrong
        if limit is None or int(body.get("max_tokens") or body["max_completion_tokens"]) <= int(limit[1]):
            return Completion("", 0, "context_length")
    answer = read(response)
    if not answer.get("choices"):
        raise Again(f"a response without choices: {str(answer)[:200]}")
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
        raise Failed(f"returned something other than a chat completion in text: {str(answer)[:200]}") from None
    if finish in INTERRUPTED:
        raise Again(f"a completion that ended with {finish!r}")
    if not text and message.get("refusal"):
        text, finish = str(message["refusal"]), "refusal"
    return Completion(text, tokens, finish, reasoning)


def _spoken(content: Any) -> tuple[str, str]:
    """Return text and reasoning of a message, which Mistral gives as a list of parts; other parts raise a KeyError."""
    if isinstance(content, str):
        return content, ""
    found = {"text": "", "thinking": "", "reasoning": ""}
    for part in content:
        found[part["type"]] += _part(part)
    return found["text"], found["thinking"] + found["reasoning"]


def _part(part: dict[str, Any]) -> str:
    """Return the text of a part, or of the parts within it."""
    within = part.get(part["type"]) or part.get("text") or ""
    return within if isinstance(within, str) else "".join(_part(one) for one in within)
