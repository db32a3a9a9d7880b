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
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"

_API = re.compile(r"/api/(?P<kind>models|datasets)/(?P<name>[^/]+/[^/]+)(?P<rest>/.*)?")
_FILE = re.compile(
    r"/(?:(?P<kind>datasets)/)?(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"
)


@dataclass
class Repository:
    """A folder that the server shows as a repository with one commit."""

    folder: Path
    kind: str = "models"
    revisions: tuple[str, ...] = ("main",)
    """Names of the commit besides its hash."""
    gated: bool = False
    cut: str | None = None
    """Name of a file in whose middle the connection is reset."""
    cuts: int = 10**9
    """How often that happens before the file is served to its end."""

    def files(self) -> list[Path]:
        """Return every file of the folder."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file())


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


class _Refused(Exception):
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
        path = unquote(urlsplit(self.path).path)
        try:
            if found := _FILE.fullmatch(path):
                repository = self._repository(found["kind"] or "models", found["name"])
                self._require_revision(repository, found["revision"])
                self._send_file(repository, found["path"])
            elif found := _API.fullmatch(path):
                repository = self._repository(found["kind"], found["name"])
                self._send_json(self._api(repository, found["name"], found["rest"] or "", body))
            else:
                raise _Refused(HTTPStatus.NOT_FOUND, "NotFound", "no such page")
        except _Refused as refusal:
            self._send(
                refusal.status,
                json.dumps({"error": str(refusal)}).encode(),
                {"X-Error-Code": refusal.code, "X-Error-Message": str(refusal)},
            )

    def _repository(self, kind: str, name: str) -> Repository:
        repository = self.hub.repositories.get(name)
        if repository is None or repository.kind != kind:
            # As the Hub does, without saying whether it is private.
            raise _Refused(HTTPStatus.UNAUTHORIZED, "RepoNotFound", "Repository not found")
        return repository

    def _require_revision(self, repository: Repository, revision: str) -> None:
        if revision not in (*repository.revisions, COMMIT):
            raise _Refused(
                HTTPStatus.NOT_FOUND, "RevisionNotFound", f"Invalid rev id: {revision}"
            )

    def _api(self, repository: Repository, name: str, rest: str, body: bytes) -> object:
        """Answer for a repository's description, which is public even where files are gated."""
        action, _, where = rest.removeprefix("/").partition("/")
        revision, _, folder = where.partition("/")
        if action in ("revision", "tree", "paths-info"):
            self._require_revision(repository, revision)
        if action == "tree":
            return self._tree(repository, folder)
        if action == "paths-info":
            wanted = parse_qs(body.decode()).get("paths", [])
            if self.headers.get("Content-Type", "").startswith("application/json"):
                wanted = json.loads(body)["paths"]
            return [entry for entry in self._tree(repository, "", True) if entry["path"] in wanted]
        siblings = [{"rfilename": self._name(repository, path)} for path in repository.files()]
        return {
            "id": name,
            "sha": COMMIT,
            "private": False,
            "gated": "manual" if repository.gated else False,
            "disabled": False,
            "tags": [],
            "siblings": siblings,
        }

    def _tree(self, repository: Repository, folder: str, deep: bool = False) -> list[dict]:
        root = repository.folder / folder
        if not root.is_dir():
            raise _Refused(HTTPStatus.NOT_FOUND, "EntryNotFound", f"{folder} does not exist")
        query = parse_qs(urlsplit(self.path).query)
        deep = deep or query.get("recursive", ["false"])[0].lower() == "true"
        return [
            {
                "type": "directory" if path.is_dir() else "file",
                "oid": hashlib.sha1(path.name.encode()).hexdigest(),
                "size": path.stat().st_size if path.is_file() else 0,
                "path": self._name(repository, path),
            }
            for path in sorted(root.rglob("*") if deep else root.iterdir())
        ]

    @staticmethod
    def _name(repository: Repository, path: Path) -> str:
        return path.relative_to(repository.folder).as_posix()

    def _send_json(self, content: object) -> None:
        headers = {"Content-Type": "application/json", "X-Repo-Commit": COMMIT}
        self._send(HTTPStatus.OK, json.dumps(content).encode(), headers)

    def _send_file(self, repository: Repository, name: str) -> None:
        if repository.gated:
            message = "Access to this repository is restricted"
            raise _Refused(HTTPStatus.FORBIDDEN, "GatedRepo", message)
        path = repository.folder / name
        if not path.is_file():
            raise _Refused(HTTPStatus.NOT_FOUND, "EntryNotFound", f"{name} does not exist")
        content = path.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        status, start = HTTPStatus.OK, 0
        if asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            status, start = HTTPStatus.PARTIAL_CONTENT, int(asked[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = name == repository.cut and repository.cuts > 0 and self.command == "GET"
        self._send(status, content[start:], headers, cut_after=len(content) // 2 if cut else None)
        if cut:
            repository.cuts -= 1
            self._hang_up()

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
            self.wfile.flush()

    def _hang_up(self) -> None:
        """Reset the connection, as a failing network does, instead of closing it in order."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
