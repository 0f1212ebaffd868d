"""A real local HTTP server that answers chat requests or rejects them, as hosted ones do."""

import json
import socket
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

DROP = object()


class Server(ThreadingHTTPServer):
    """Repeats a question in capitals, or does what `trouble` says for the n-th request."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.trouble = lambda body, asked: None
        self.models = None
        self.bodies, self.paths, self.keys, self.headers, self.asked = [], [], [], [], Counter()
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address): ...  # a client that hangs up is part of the tests

    def listing(self, path):
        return (404, b"404 page not found") if self.models is None else (200, {"data": self.models})

    def key(self, body):
        return question(body)

    def reply(self, body):
        return said(question(body).upper())


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def log_message(self, format, *args): ...

    def do_GET(self):
        self.server.paths.append(self.path)
        self.server.headers.append(self.headers)
        self.answer(*self.server.listing(self.path))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.paths.append(self.path)
            self.server.keys.append(self.headers.get("Authorization"))
            self.server.asked[self.server.key(body)] += 1
            asked = self.server.asked[self.server.key(body)]
        found = self.server.trouble(body, asked)
        if found is DROP:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self.answer(*(found or (200, self.server.reply(body))))

    def answer(self, status, content, headers=()):
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in [("Content-Length", str(len(raw))), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)


def question(body) -> str:
    return body["messages"][-1]["content"] if "messages" in body else str(body["prompt"])


def said(text, *, finish="stop", usage={"completion_tokens": 9}, **message):  # noqa: B006
    """Make an answer of the chat endpoint."""
    return {"choices": [{"message": {"content": text, **message}, "finish_reason": finish}], "usage": usage}


def refusal(message, status=400, **facts):
    return status, {"error": {"message": message, **facts}}


@contextmanager
def serving(kind=Server):
    with kind() as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def server():
    with serving() as running:
        yield running
