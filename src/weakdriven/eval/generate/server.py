"""Completions over HTTP: token ids to a vLLM server, or chat messages to any OpenAI-compatible server.

vLLM needs other versions of transformers than we do, so it has its own environment and is never imported.
"""

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import httpx2

from weakdriven.errors import UserError
from weakdriven.eval.generate.endpoints import (
    Again,
    Failed,
    chat_body,
    chat_completion,
    ids_body,
    ids_completion,
    read,
    refused_parameter,
)
from weakdriven.eval.generate.requests import Completion, OnDone, Request, Sampling

logger = logging.getLogger(__name__)
START_TRIES, START_SECONDS = 4, 10.0
LONGEST_ASKED = 600.0
"""Maximum of seconds to wait if a server asks for a longer pause."""

Put = Callable[[int, Completion], None]


@dataclass(frozen=True)
class Served:
    """What a server reports about its model."""

    name: str
    folder: str
    """Folder that the server loaded it from; empty if unknown."""
    max_length: int | None
    """Maximum of tokens of a prompt and its completion together."""


@dataclass(frozen=True)
class Retries:
    """How often, and after how many seconds, a request is sent again."""

    tries: int = 8
    first: float = 1.0
    longest: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def seconds(self, failures: int, asked: float = 0.0) -> float:
        """Compute the pause: doubled by each failure, minus a random part, but at least the server's Retry-After."""
        own = min(self.longest, self.first * 2 ** (failures - 1)) * random.SystemRandom().uniform(0.5, 1)
        return max(own, min(asked, LONGEST_ASKED))


class ServerEngine:
    """Completes requests through a running server, many at a time; the kind of prompt decides the endpoint.

    Args:
        url: Address of the server, with or without `/v1`; another version in it (`/v1beta/openai`) is kept.
        model: Name of the model on the server; needed only if it serves several. With a name, chats are
            sent without reading the server's list of models, which hosted servers may not have.
        concurrency: Requests in flight; the server batches them.
        timeout: Seconds for one completion.
        api_key: The server's `--api-key`, or the key of an account.
        key_variable: Environment variable of the key, to be named in errors.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        concurrency: int = 64,
        timeout: float = 3600.0,
        api_key: str | None = None,
        key_variable: str = "VLLM_API_KEY",
        retries: Retries | None = None,
    ):
        self.url = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
        self._base = self.url if re.search(r"[^/]/v\d[^/]*(/|$)", self.url) else f"{self.url}/v1"
        self.model, self.concurrency, self.timeout, self.key_variable = model, concurrency, timeout, key_variable
        self.retries = retries or Retries()
        self._without: set[str] = set()
        self._warned: set[str] = set()
        self._options: dict[str, Any] = {
            # a proxy for the internet cannot reach a server on this machine
            "trust_env": not re.match(r"(?i)https?://(localhost|127\.|\[::1\])", self.url),
            "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
            "verify": self.url.lower().startswith("https:"),  # skip loading certificates for plain HTTP
        }

    def served(self) -> Served:
        """Describe the model behind the address; raise an error if there is none or several match."""
        cards = {str(card.get("id")): card for card in self._list_models()}
        if not cards:
            raise UserError(f"The server at {self.url} serves no model; start it with a model.")
        if self.model is None and len(cards) > 1:
            raise UserError(
                f"The server at {self.url} serves several models ({_some(cards)}); name one with served_name."
            )
        if self.model is not None and self.model not in cards:
            raise UserError(f"The server at {self.url} does not serve {self.model}; it serves {_some(cards)}.")
        name = self.model or next(iter(cards))
        return Served(name, str(cards[name].get("root") or ""), cards[name].get("max_model_len"))

    def _list_models(self) -> list[dict[str, Any]]:
        failure = ""
        with httpx2.Client(timeout=START_SECONDS, **self._options) as client:
            for tried in range(START_TRIES):
                if tried:
                    time.sleep(self.retries.seconds(tried) / 2)
                try:
                    return list(read(client.get(f"{self._base}/models"))["data"])
                except (Again, httpx2.RequestError) as error:
                    failure = _words(error)
                except Failed as error:
                    raise UserError(
                        f"The server at {self.url} does not list its models: {error}{self._advice(error)}."
                    ) from None
                except (KeyError, TypeError, httpx2.InvalidURL):
                    raise UserError(
                        f"{self.url} does not respond like an OpenAI-compatible server; give the address of one, "
                        "such as http://localhost:8000."
                    ) from None
        raise UserError(
            f"No server can be reached at {self.url} ({failure}); start it, or correct the address, and run "
            "the same command again."
        )

    def complete(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Complete every request; before an error is raised, what arrived has been reported."""
        name, tokenised = self.model, [request for request in requests if not request.is_chat]
        if name is None or tokenised:
            served = self.served()
            name = served.name
            _check_length(served, tokenised, sampling, self.url)
        kept = 0
        try:
            with closing(_arrivals(lambda put: self._send_all(name, requests, sampling, put))) as arrivals:
                for done in arrivals:
                    on_done(done)
                    kept += len(done)
        except Failed as error:
            raise UserError(
                f"The server at {self.url} {error}{self._advice(error)}. {kept} of {len(requests)} completions are "
                "kept; run the same command again to resume."
            ) from error

    async def _send_all(self, model: str, requests: Sequence[Request], sampling: Sampling, put: Put) -> None:
        waiting = iter(enumerate(requests))
        # drop idle connections before the server does (after 5 seconds), which could break a request
        limits = httpx2.Limits(max_connections=self.concurrency, keepalive_expiry=2.0)
        timeout = httpx2.Timeout(self.timeout, connect=30.0)

        async with httpx2.AsyncClient(timeout=timeout, limits=limits, **self._options) as client:

            async def work() -> None:
                for i, request in waiting:
                    put(i, await self._send(client, model, request, sampling))

            workers = [asyncio.ensure_future(work()) for _ in range(min(self.concurrency, len(requests)))]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def _send(self, client: httpx2.AsyncClient, model: str, request: Request, sampling: Sampling) -> Completion:
        failures = 0
        while True:
            try:
                if not request.is_chat:
                    body = ids_body(model, request, sampling)
                    return ids_completion(await client.post(f"{self._base}/completions", json=body), body)
                body = chat_body(model, request, sampling, self._without)
                response = await client.post(f"{self._base}/chat/completions", json=body)
                if refused := refused_parameter(response, body):
                    self._without.add(refused)
                    if refused != "max_tokens":  # it is sent as max_completion_tokens instead
                        self._warn_once(f"does not take {refused}; it is omitted from now on.")
                    continue
                completion = chat_completion(response, body)
                if completion.finish not in ("stop", "length"):
                    self._warn_once(
                        f"ended a completion with {completion.finish}, not with stop or length; it is kept with this "
                        "reason, and so are similar ones."
                    )
                return completion
            except (Again, httpx2.RequestError) as error:
                failures += 1
                if failures == self.retries.tries:
                    raise Failed(f"failed {failures} times in a row (last: {_words(error)})") from error
                await self.retries.sleep(self.retries.seconds(failures, getattr(error, "seconds", 0.0)))

    def _warn_once(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("The server at %s %s", self.url, what)

    def _advice(self, error: Failed) -> str:
        if error.status in (401, 403):
            return f"; give a key that it accepts in the environment variable {self.key_variable}"
        if error.status == 404:
            named = f" {self.model}" if self.model else ""
            return f"; correct the name of the model{named} or the address"
        return ""


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, Again) else f"{type(error).__name__} {error}".strip()


def _some(names: Iterable[str]) -> str:
    """List the first few names; hosted servers have hundreds."""
    names = list(names)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _check_length(served: Served, requests: Sequence[Request], sampling: Sampling, url: str) -> None:
    longest = max((len(request.ids) for request in requests), default=0)
    needed, limit = longest + sampling.max_new_tokens, served.max_length
    if requests and limit is not None and needed > limit:
        shorter = f", or set max_new_tokens to {limit - longest} or less" if longest < limit else ""
        raise UserError(
            f"The longest prompt ({longest} tokens) and max_new_tokens={sampling.max_new_tokens} need {needed} tokens; "
            f"the server at {url} takes {limit}. Start it with --max-model-len {needed}{shorter}."
        )


def _arrivals(start: Callable[[Put], Coroutine[Any, Any, None]]) -> Generator[dict[int, Completion], None, None]:
    """Run a coroutine in a thread and yield what it puts, in the calling thread; closing cancels it.

    The thread makes it work where an event loop is already running, as in notebooks.
    """
    arrived: SimpleQueue[tuple[int, Completion] | None] = SimpleQueue()
    loop = asyncio.new_event_loop()
    task = loop.create_task(start(lambda i, completion: arrived.put((i, completion))))
    task.add_done_callback(lambda _: arrived.put(None))
    with ThreadPoolExecutor(1, "completions") as thread, closing(loop):
        running = thread.submit(loop.run_until_complete, task)
        try:
            items: list[tuple[int, Completion] | None] = []
            while not items or items[-1]:  # the last item is None
                items = [arrived.get(), *(arrived.get() for _ in range(arrived.qsize()))]
                if done := dict(filter(None, items)):
                    yield done
            running.result()
        finally:
            loop.call_soon_threadsafe(task.cancel)
            wait([running])
