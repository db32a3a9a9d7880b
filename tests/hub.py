"""A Hugging Face Hub on the loopback interface, with the calls that loading a repository makes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_API = re.compile(r"/api/(?P<kind>models|datasets)/(?P<name>[^/]+/[^/]+)(?P<rest>/.*)?")
_FILE = re.compile(
    r"/(?:(?P<kind>datasets)/)?(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"
)


@dataclass
class Repository:
    """Folders that the server shows as the revisions of a repository."""

    revisions: dict[str, Path]
    """A folder for each branch and tag."""
    kind: str = "models"
    gated: HTTPStatus | None = None
    """How requests for a file are refused: 401 to strangers, 403 to whom access is not granted."""
    cut: str | None = None
    """Name of a file that breaks off in the middle."""
    recovers: bool = False
    """Whether the connection is closed in order and the next one holds, or reset every time."""


def commit(folder: Path) -> str:
    """Return the hash under which a folder is shown."""
    return hashlib.sha1(str(folder).encode()).hexdigest()


@dataclass
class Hub:
    """The repositories that are served, and the requests that came."""

    repositories: dict[str, Repository]
    requests: list[str] = field(default_factory=list)


@contextlib.contextmanager
def serve(repositories: dict[str, Repository]) -> Iterator[tuple[str, Hub]]:
    """Serve ``{"owner/name": Repository}`` at the address given, for ``HF_ENDPOINT``."""
    hub = Hub(repositories)
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", hub
        finally:
            server.shutdown()
            thread.join()


class _RefusedError(Exception):
    """Ends a request with the code by which a client tells the reasons apart."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._respond()

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def log_message(self, *_: object) -> None:
        """Keep the tests' output clean."""

    def _respond(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        try:
            if found := _FILE.fullmatch(path):
                repository = self._repository(found["kind"] or "models", found["name"])
                folder = self._folder(repository, found["revision"])
                self._send_file(repository, folder, unquote(found["path"]))
            elif found := _API.fullmatch(path):
                repository = self._repository(found["kind"], found["name"])
                self._send_json(self._api(repository, found["name"], found["rest"] or "", body))
            else:
                raise _RefusedError(HTTPStatus.NOT_FOUND, "NotFound", "no such page")
        except _RefusedError as refusal:
            self._send(
                refusal.status,
                json.dumps({"error": str(refusal)}).encode(),
                {"X-Error-Code": refusal.code, "X-Error-Message": str(refusal)},
            )

    def _repository(self, kind: str, name: str) -> Repository:
        repository = self.hub.repositories.get(name)
        if repository is None or repository.kind != kind:
            # As the Hub does, without saying whether it is private.
            raise _RefusedError(HTTPStatus.UNAUTHORIZED, "RepoNotFound", "Repository not found")
        return repository

    @staticmethod
    def _folder(repository: Repository, quoted: str) -> Path:
        revision = unquote(quoted)
        for name, folder in repository.revisions.items():
            if revision in (name, commit(folder)):
                return folder
        message = f"Invalid rev id: {revision}"
        raise _RefusedError(HTTPStatus.NOT_FOUND, "RevisionNotFound", message)

    def _api(self, repository: Repository, name: str, rest: str, body: bytes) -> object:
        """Answer for a repository's description, which is public even where files are gated."""
        action, _, where = rest.removeprefix("/").partition("/")
        revision, _, below = where.partition("/")
        folder = self._folder(repository, revision or "main")
        if action == "tree":
            query = parse_qs(urlsplit(self.path).query)
            deep = query.get("recursive", ["false"])[0].lower() == "true"
            return self._entries(folder, unquote(below), deep)
        if action == "paths-info":
            as_json = self.headers.get("Content-Type", "").startswith("application/json")
            wanted = json.loads(body)["paths"] if as_json else parse_qs(body.decode())["paths"]
            return [entry for entry in self._entries(folder, "", True) if entry["path"] in wanted]
        entries = self._entries(folder, "", True)
        return {
            "id": name,
            "sha": commit(folder),
            "private": False,
            "gated": "manual" if repository.gated else False,
            "disabled": False,
            "tags": [],
            "siblings": [{"rfilename": e["path"]} for e in entries if e["type"] == "file"],
        }

    @staticmethod
    def _entries(folder: Path, below: str, deep: bool) -> list[dict[str, Any]]:
        root = folder / below
        if not root.is_dir():
            raise _RefusedError(HTTPStatus.NOT_FOUND, "EntryNotFound", f"{below} does not exist")
        return [
            {
                "type": "directory" if path.is_dir() else "file",
                "oid": hashlib.sha1(path.name.encode()).hexdigest(),
                "size": path.stat().st_size if path.is_file() else 0,
                "path": path.relative_to(folder).as_posix(),
            }
            for path in sorted(root.rglob("*") if deep else root.iterdir())
        ]

    def _send_json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self._send(HTTPStatus.OK, body, {"Content-Type": "application/json"})

    def _send_file(self, repository: Repository, folder: Path, name: str) -> None:
        if repository.gated:
            message = f"Access to {name} is restricted"
            raise _RefusedError(repository.gated, "GatedRepo", message)
        path = folder / name
        if not path.is_file():
            raise _RefusedError(HTTPStatus.NOT_FOUND, "EntryNotFound", f"{name} does not exist")
        content = path.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": commit(folder),
            "Accept-Ranges": "bytes",
        }
        status, start = HTTPStatus.OK, 0
        if asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            status, start = HTTPStatus.PARTIAL_CONTENT, int(asked[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if name != repository.cut or self.command == "HEAD":
            self._send(status, content[start:], headers)
            return
        self._send(status, content[start:], headers, cut_after=len(content) // 2)
        self.close_connection = True
        if repository.recovers:
            repository.cut = None
        else:
            # Reset it, as a failing network does, instead of closing it in order.
            now = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
            self.connection.close()

    def _send(
        self,
        status: HTTPStatus,
        content: bytes,
        headers: dict[str, str],
        cut_after: int | None = None,
    ) -> None:
        self.send_response(status)
        for header, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:cut_after])
