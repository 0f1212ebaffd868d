"""A small server with the part of the Hub's API that a push and a dataset need; it keeps what it receives."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from huggingface_hub import HfApi, constants

TOKEN = "hf_test_token"


class HubServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, role: str = "write", refused: str = ""):
        super().__init__(("127.0.0.1", 0), Handler)
        self.role, self.refused = role, refused
        self.requests: list[str] = []
        self.repos: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}
        self.cards: list[str] = []
        self.messages: list[str] = []
        self.datasets: dict[str, dict[str, dict[str, bytes]]] = {}
        """Files of each commit of each dataset, the newest commit last."""
        self.down = 0
        """Status code of every answer about datasets if the Hub is down, else 0."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, format: str, *args: Any) -> None: ...

    def _answer(self, value: Any, status: int = 200, **headers: str) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _handle(self) -> None:
        hub, path, body = self.server, self.path.partition("?")[0], self._body()
        hub.requests.append(f"{self.command} {path}")
        if path.removeprefix("/api").startswith("/datasets/"):
            return self._dataset(path.removeprefix("/api").split("/")[2:], body)
        stored = path.startswith("/objects/")  # like S3, where the URL is the permission
        if not stored and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer({"error": "Invalid credentials"}, 401)
        if hub.refused and hub.refused in path:
            return self._answer({"error": "You have no room left"}, 403)
        if path == "/api/whoami-v2":
            token = {"displayName": "t", "role": hub.role}
            return self._answer({"name": "me", "orgs": [{"name": "lab"}], "auth": {"accessToken": token}})
        if path == "/api/repos/create":
            facts = json.loads(body)
            repo = f"{facts['organization']}/{facts['name']}"
            there = repo in hub.repos
            hub.repos.setdefault(repo, facts)
            return self._answer({"url": f"{hub.url}/{repo}"}, 409 if there else 200)
        if path == "/api/validate-yaml":
            hub.cards.append(json.loads(body)["content"])
            return self._answer({"errors": [], "warnings": []})
        if "/preupload/" in path:
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for file in json.loads(body)["files"]
            ]
            return self._answer({"files": modes})
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**one, "actions": {"upload": {"href": f"{hub.url}/objects/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            return self._answer({"transfer": "basic", "objects": objects})
        if stored:
            oid = path.removeprefix("/objects/")
            assert hashlib.sha256(body).hexdigest() == oid
            hub.objects[oid] = body
            return self._answer({})
        if "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "header":
                    hub.messages.append(value["summary"])
                elif line["key"] == "file":
                    hub.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    hub.files[value["path"]] = hub.objects[value["oid"]]
            repo = path.split("/commit/")[0].removeprefix("/api/models/")
            facts = {"commitUrl": f"{hub.url}/{repo}/commit/{'0' * 40}", "commitOid": "0" * 40, "success": True}
            return self._answer(facts)
        self._answer({"error": f"nothing at {path}"}, 404)

    def _dataset(self, words: list[str], body: bytes) -> None:
        """Answer a dataset request; `words` are owner, name, the kind of request, revision and file."""
        hub, name, what = self.server, "/".join(words[:2]), "".join(words[2:3])
        if hub.down:
            return self._answer({"error": "The Hub is down"}, hub.down)
        if not (commits := hub.datasets.get(name)):
            return self._answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        commit = words[3] if len(words) > 3 and words[3] in commits else list(commits)[-1]
        files, file = commits[commit], "/".join(words[4:])
        listed = [{"type": "file", "path": one, "size": len(content), "oid": one} for one, content in files.items()]
        if what == "tree":
            return self._answer(listed)
        if what == "paths-info":
            asked = json.loads(body)["paths"]
            return self._answer([entry for entry in listed if entry["path"] in asked])
        if what == "resolve" and file in files:
            oid = hashlib.sha1(files[file]).hexdigest()
            return self._answer(files[file], X_Repo_Commit=commit, ETag=f'"{oid}"')
        if what == "resolve":
            return self._answer({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        self._answer({"id": name, "sha": commit, "siblings": [{"rfilename": one} for one in files]})

    do_GET = do_HEAD = do_POST = do_PUT = _handle


@contextmanager
def hub_of_trainers(monkeypatch) -> Iterator[HubServer]:
    """Start a server to which trainers of this process push."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with HubServer() as server:
        monkeypatch.setattr("transformers.utils.hub._hf_api", HfApi(server.url, TOKEN))
        yield server
