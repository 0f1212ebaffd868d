"""Completions over HTTP: an engine that speaks the OpenAI API of a vLLM server.

vLLM needs other versions of transformers than we do, so it lives in an environment of its own and is never imported.
"""

import asyncio
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import httpx2

from weakdriven.errors import UserError
from weakdriven.generate.requests import Completion, OnDone, Request, Sampling

NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "top_k": 0, "min_p": 0.0}
"""Sent with every request: what is left out, vLLM takes from the checkpoint's generation_config.json."""
START_TRIES, START_SECONDS = 4, 10.0

Put = Callable[[int, Completion], None]


@dataclass(frozen=True)
class Served:
    """What a server says of its model."""

    name: str
    folder: str
    """Where the server loaded it from; empty if it does not say."""
    max_length: int | None
    """Most tokens of a prompt and its completion together."""


@dataclass(frozen=True)
class Retries:
    """How often, and after how many seconds, a request is sent again that the server could not take."""

    tries: int = 8
    first: float = 1.0
    longest: float = 60.0
    longest_asked: float = 600.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def seconds(self, failures: int, asked: float = 0.0) -> float:
        """Doubles with each failure, less a random part so that clients do not return all at once.

        Args:
            asked: What the server asks for (Retry-After).
        """
        own = min(self.longest, self.first * 2 ** (failures - 1)) * random.SystemRandom().uniform(0.5, 1)
        return max(own, min(asked, self.longest_asked))


class _Failed(Exception):
    """What the server did, in one sentence; `complete` adds what is kept."""


class _Again(Exception):
    """The server could not take a request now."""

    def __init__(self, what: str, seconds: float = 0.0):
        super().__init__(what)
        self.seconds = seconds


class ServerEngine:
    """Completes requests through a running server, many at a time.

    Args:
        url: Address of the server, with or without `/v1`.
        model: Name under which the server has the model; needed only if it serves several.
        concurrency: Requests in flight; the server puts them together into batches.
        timeout: Seconds that one completion may take.
        api_key: What the server was started with as `--api-key`.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        concurrency: int = 64,
        timeout: float = 3600.0,
        api_key: str | None = None,
        retries: Retries | None = None,
    ):
        self.url = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
        self.model, self.concurrency, self.timeout = model, concurrency, timeout
        self.retries = retries or Retries()
        # a proxy set for the internet is no way to a server on this machine
        local = re.match(r"(?i)https?://(localhost|127\.|\[::1\])", self.url) is not None
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        verify = self.url.lower().startswith("https:")  # else no time is spent on certificates
        self._options: dict[str, Any] = {"trust_env": not local, "headers": headers, "verify": verify}

    def served(self) -> Served:
        """The model behind the address; an error at once if there is none, or if it is not clear which."""
        cards = {str(card.get("id")): card for card in self._list_models()}
        if not cards:
            raise UserError(f"The server at {self.url} serves no model; start it with one.")
        if self.model is None and len(cards) > 1:
            raise UserError(
                f"The server at {self.url} serves several models ({', '.join(cards)}); name one with --served-name."
            )
        if self.model is not None and self.model not in cards:
            raise UserError(f"The server at {self.url} has no model {self.model}; it serves {', '.join(cards)}.")
        name = self.model or next(iter(cards))
        return Served(name, str(cards[name].get("root") or ""), cards[name].get("max_model_len"))

    def _list_models(self) -> list[dict[str, Any]]:
        failure = ""
        with httpx2.Client(timeout=START_SECONDS, **self._options) as client:
            for tried in range(START_TRIES):
                if tried:
                    time.sleep(self.retries.seconds(tried) / 2)
                try:
                    return list(_read(client.get(f"{self.url}/v1/models"))["data"])
                except (_Again, httpx2.RequestError) as error:
                    failure = _words(error)
                except _Failed as error:
                    raise UserError(f"The server at {self.url} does not list its models: {error}.") from None
                except (KeyError, TypeError, httpx2.InvalidURL):
                    raise UserError(
                        f"{self.url} does not answer as an OpenAI-compatible server; give the address of one, "
                        "such as http://localhost:8000."
                    ) from None
        raise UserError(
            f"There is no server to be reached at {self.url} ({failure}); start it, or correct the address, and run "
            "the same command again."
        )

    def complete(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Complete every request; what arrived before an error has been reported."""
        served = self.served()
        _check_length(served, requests, sampling, self.url)
        kept = 0
        with closing(_arrivals(lambda put: self._send_all(served.name, requests, sampling, put))) as arrivals:
            try:
                for done in arrivals:
                    on_done(done)
                    kept += len(done)
            except _Failed as error:
                raise UserError(
                    f"The server at {self.url} {error}. {kept} of {len(requests)} completions are kept; when this is "
                    "mended, the same command goes on where it stopped."
                ) from error

    async def _send_all(self, model: str, requests: Sequence[Request], sampling: Sampling, put: Put) -> None:
        waiting = iter(enumerate(requests))
        # an idle connection is dropped before the server (after 5 seconds) drops it under a request
        limits = httpx2.Limits(max_connections=self.concurrency, keepalive_expiry=2.0)
        timeout = httpx2.Timeout(self.timeout, connect=30.0)

        async with httpx2.AsyncClient(timeout=timeout, limits=limits, **self._options) as client:

            async def work() -> None:
                for i, request in waiting:
                    put(i, await self._send(client, _body(model, request, sampling)))

            workers = [asyncio.ensure_future(work()) for _ in range(min(self.concurrency, len(requests)))]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def _send(self, client: httpx2.AsyncClient, body: dict[str, Any]) -> Completion:
        for failures in range(1, self.retries.tries + 1):
            try:
                return _completion(_read(await client.post(f"{self.url}/v1/completions", json=body)), body)
            except (_Again, httpx2.RequestError) as error:
                if failures == self.retries.tries:
                    raise _Failed(f"failed {failures} times in a row (last: {_words(error)})") from error
                await self.retries.sleep(self.retries.seconds(failures, getattr(error, "seconds", 0.0)))
        raise AssertionError("unreachable: the last try returns or raises")


def _body(model: str, request: Request, sampling: Sampling) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": request.seed,
        "stop_token_ids": list(sampling.stop_ids),
        "skip_special_tokens": True,
        "n": 1,
        **NEUTRAL,
    }


def _read(response: httpx2.Response) -> dict[str, Any]:
    """The JSON of a good answer; `_Again` if it is worth asking once more, `_Failed` if not."""
    status = response.status_code
    if status == 429 or status >= 500:
        asked = response.headers.get("Retry-After", "")
        raise _Again(f"HTTP {status}: {_message(response)}", float(asked) if re.fullmatch(r"\d+(\.\d+)?", asked) else 0)
    if status >= 400:
        raise _Failed(f"refused a request with HTTP {status}: {_message(response)}")
    try:
        content = response.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise _Failed(f"answered HTTP {status} with something that is not a JSON object: {response.text[:200]!r}")
    return content


def _message(response: httpx2.Response) -> str:
    """The reason in the server's own words."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        content = response.json()
        return str(content["error"]["message"] if "error" in content else content["message"]).rstrip(". ")
    return response.text[:300].strip().rstrip(". ") or response.reason_phrase


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, _Again) else f"{type(error).__name__} {error}".strip()


def _completion(answer: dict[str, Any], body: dict[str, Any]) -> Completion:
    """The one completion of an answer; one that was not made as asked is an error and not a score."""
    try:
        (choice,) = answer["choices"]
        text, finish = str(choice["text"]), choice["finish_reason"]
        tokens, prompt = int(answer["usage"]["completion_tokens"]), int(answer["usage"]["prompt_tokens"])
    except (KeyError, TypeError, ValueError):
        raise _Failed(f"gave an answer that is not one completion with its usage: {str(answer)[:200]}") from None
    if finish not in ("stop", "length"):
        raise _Failed(f"ended a completion with {finish!r}; expected 'stop' or 'length'")
    if prompt != len(body["prompt"]):
        raise _Failed(f"read {prompt} tokens of a prompt of {len(body['prompt'])}; start it without truncation")
    if finish == "length" and tokens != body["max_tokens"]:
        raise _Failed(
            f"cut a completion at {tokens} of {body['max_tokens']} tokens; start it with --generation-config vllm and "
            "without max_new_tokens in --override-generation-config"
        )
    return Completion(text, tokens, finish)


def _check_length(served: Served, requests: Sequence[Request], sampling: Sampling, url: str) -> None:
    longest = max((len(request.prompt) for request in requests), default=0)
    needed, limit = longest + sampling.max_new_tokens, served.max_length
    if limit is not None and needed > limit:
        shorter = f", or set max_new_tokens to {limit - longest} or less" if longest < limit else ""
        raise UserError(
            f"The longest prompt has {longest} tokens and max_new_tokens is {sampling.max_new_tokens}, together "
            f"{needed}; the server at {url} takes {limit}. Start it with --max-model-len {needed}{shorter}."
        )


def _arrivals(start: Callable[[Put], Any]) -> Generator[dict[int, Completion], None, None]:
    """Run a coroutine in a thread and yield what it puts, in the calling thread; closing cancels it.

    A thread, so that it also works where an event loop is running already, as in notebooks.
    """
    arrived: SimpleQueue[tuple[int, Completion] | BaseException | None] = SimpleQueue()
    loop = asyncio.new_event_loop()
    task = loop.create_task(start(lambda i, completion: arrived.put((i, completion))))

    def run() -> None:
        try:
            loop.run_until_complete(task)
            arrived.put(None)
        except BaseException as error:
            arrived.put(error)
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="completions", daemon=True)
    try:
        thread.start()
        while True:
            items = [arrived.get()]
            while not arrived.empty():
                items.append(arrived.get())
            if done := dict(item for item in items if isinstance(item, tuple)):
                yield done
            if isinstance(items[-1], BaseException):
                raise items[-1]
            if items[-1] is None:
                return
    finally:
        with suppress(RuntimeError):  # the loop is closed: all is done
            loop.call_soon_threadsafe(task.cancel)
        if thread.is_alive():
            thread.join(timeout=10)
