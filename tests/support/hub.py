"""A Hugging Face Hub in small: the HTTP calls that its client makes to create a dataset and commit files to it.

What a commit names has to have been uploaded, with the size and the hash that the client announced. Requests without
the token are answered 401; a path that the Hub does not have is 404 and noted in `unknown`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

TOKEN = "hf_onlyForTheTests0123456789"


class Hub:
    """Datasets by name, each with its files; `created` are the bodies of the requests that created one."""

    def __init__(self) -> None:
        self.datasets: dict[str, dict[str, bytes]] = {}
        self.created: list[dict[str, object]] = []
        self.summaries: list[str] = []
        self.objects: dict[str, bytes] = {}
        self.unknown: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                hub.answer(self)

            do_GET = do_PUT = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Hub:
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = _read_body(request)
        path = request.path.partition("?")[0]
        stored = path.startswith("/objects/")  # a signed address: the client sends no token there
        if not stored and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            _send(request, 401, {"error": "Invalid credentials in Authorization header"})
            return
        _send(request, *self._find_answer(f"{request.command} {path}", body))

    def _find_answer(self, line: str, body: bytes) -> tuple[int, object]:
        routes = {
            r"POST /api/repos/create": self._create,
            r"GET /api/datasets/(\w+/[\w.-]+)/tree/main": self._list,
            r"POST /api/validate-yaml": lambda body: (200, {"errors": [], "warnings": []}),
            r"POST /api/datasets/(\w+/[\w.-]+)/preupload/main": self._choose_modes,
            r"POST /datasets/(\w+/[\w.-]+)\.git/info/lfs/objects/batch": self._offer_uploads,
            r"PUT /objects/(\w+)": self._store,
            r"POST /verify": self._verify,
            r"POST /api/datasets/(\w+/[\w.-]+)/commit/main": self._commit,
        }
        for pattern, route in routes.items():
            if found := re.fullmatch(pattern, line):
                return route(*found.groups(), body)  # type: ignore[operator, no-any-return]
        self.unknown.append(line)
        return 404, {"error": "Not Found"}

    def _create(self, body: bytes) -> tuple[int, object]:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        url = f"{self.url}/datasets/{name}"
        if name in self.datasets:
            return 409, {"error": "You already created this dataset repo", "url": url}
        assert asked["type"] == "dataset"
        self.created.append(asked)
        self.datasets[name] = {}
        return 200, {"url": url, "name": name, "id": "1"}

    def _list(self, name: str, body: bytes) -> tuple[int, object]:
        files = self.datasets[name].items()
        return 200, [{"type": "file", "path": path, "size": len(data), "oid": "0" * 40} for path, data in files]

    def _choose_modes(self, name: str, body: bytes) -> tuple[int, object]:
        paths = [each["path"] for each in json.loads(body)["files"]]
        modes = [
            {"path": path, "uploadMode": "lfs" if path.endswith(".parquet") else "regular", "shouldIgnore": False}
            for path in paths
        ]
        return 200, {"files": modes}

    def _offer_uploads(self, name: str, body: bytes) -> tuple[int, object]:
        asked = json.loads(body)
        assert (asked["operation"], asked["hash_algo"]) == ("upload", "sha256")
        offers = [
            {
                **each,
                "actions": {
                    "upload": {"href": f"{self.url}/objects/{each['oid']}", "header": {}},
                    "verify": {"href": f"{self.url}/verify"},
                },
            }
            for each in asked["objects"]
        ]
        return 200, {"transfer": "basic", "objects": offers}

    def _store(self, oid: str, body: bytes) -> tuple[int, object]:
        if hashlib.sha256(body).hexdigest() != oid:
            return 400, {"error": "another hash"}
        self.objects[oid] = body
        return 200, {}

    def _verify(self, body: bytes) -> tuple[int, object]:
        asked = json.loads(body)
        found = self.objects.get(asked["oid"])
        return (200, {}) if found is not None and len(found) == asked["size"] else (404, {"error": "not uploaded"})

    def _commit(self, name: str, body: bytes) -> tuple[int, object]:
        lines = [json.loads(line) for line in body.splitlines()]
        assert lines[0]["key"] == "header"
        self.summaries.append(lines[0]["value"]["summary"])
        for line in lines[1:]:
            value = line["value"]
            data = self.objects[value["oid"]] if line["key"] == "lfsFile" else base64.b64decode(value["content"])
            self.datasets[name][value["path"]] = data
        oid = hashlib.sha1(body).hexdigest()
        return 200, {"success": True, "commitOid": oid, "commitUrl": f"{self.url}/datasets/{name}/commit/{oid}"}


def _read_body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding") != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    chunks = []
    while size := int(request.rfile.readline().strip(), 16):
        chunks.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(chunks)


def _send(request: BaseHTTPRequestHandler, status: int, answer: object) -> None:
    data = json.dumps(answer).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
