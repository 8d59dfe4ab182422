"""The part of Grafana's HTTP API that pushing needs, in memory: folders, data sources, dashboards and versions."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "glsa_right"
Answer = tuple[int, Any]


@dataclass
class FakeGrafana:
    """State of a Grafana; `handle` is its API."""

    prefix: str = ""
    folders: dict[str, str] = field(default_factory=dict)
    """uid -> title."""
    datasources: dict[str, dict[str, Any]] = field(default_factory=dict)
    dashboards: dict[str, dict[str, Any]] = field(default_factory=dict)
    """uid -> the model with its version."""
    placed: dict[str, str] = field(default_factory=dict)
    """uid of a dashboard -> uid of its folder."""
    history: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """uid -> versions, the latest first."""
    writes: list[str] = field(default_factory=list)
    forbidden: str | None = None
    """A path that the token may not use."""

    def edit(self, uid: str, title: str) -> None:
        """Edit a dashboard as a user would in the browser."""
        self._save({**self.dashboards[uid], "title": title}, message="", by="admin")

    def handle(self, method: str, path: str, *, token: str, content: Any) -> Answer:
        path = path.removeprefix(self.prefix)
        if path == "/api/health":
            return 200, {"database": "ok", "version": "11.6.0", "commit": "abc"}
        if token != f"Bearer {TOKEN}":
            return 401, {"message": "Invalid API key", "messageId": "api-key.invalid", "statusCode": 401}
        if self.forbidden and path.startswith(self.forbidden):
            return 403, {"message": "You'll need additional permissions to perform this action."}
        if method != "GET":
            self.writes.append(f"{method} {path}")
        match path.removeprefix("/api/").split("/"):
            case ["folders"]:
                return self._make_folder(content)
            case ["folders", uid]:
                return _found(self.folders.get(uid) and {"uid": uid, "title": self.folders[uid]}, "folder not found")
            case ["datasources"] if method == "POST":
                self.datasources[content["uid"]] = {**content, "id": 1, "readOnly": False}
                return 200, {"message": "Datasource added"}
            case ["datasources", "uid", uid]:
                if method == "PUT":
                    self.datasources[uid] |= content
                return _found(self.datasources.get(uid), "Data source not found")
            case ["dashboards", "db"]:
                return self._post_dashboard(content)
            case ["dashboards", "uid", uid]:
                model = self.dashboards.get(uid)
                return _found(model and {"dashboard": model, "meta": {"folderUid": self.placed[uid]}}, "Not found")
            case ["dashboards", "uid", uid, "versions"]:
                return 200, {"continueToken": "", "versions": self.history[uid]}
        return 404, {"message": "Not found"}

    def _make_folder(self, content: Any) -> Answer:
        if content["title"] in self.folders.values():
            return 409, {"message": "a folder with the same name already exists in the current location"}
        self.folders[content["uid"]] = content["title"]
        return 200, content

    def _post_dashboard(self, content: Any) -> Answer:
        model, uid = content["dashboard"], content["dashboard"]["uid"]
        current = self.dashboards.get(uid)
        if current and not content["overwrite"] and model.get("version") != current["version"]:
            return 412, {"message": "The dashboard has been changed by someone else", "status": "version-mismatch"}
        if content["folderUid"] not in self.folders:
            return 400, {"message": "folder not found"}
        self.placed[uid] = content["folderUid"]
        self._save(model, message=content["message"], by="sa-traincope")
        return 200, {"status": "success", "uid": uid}

    def _save(self, model: dict[str, Any], *, message: str, by: str) -> None:
        versions = self.history.setdefault(model["uid"], [])
        saved = {**model, "id": 7, "version": len(versions) + 1}
        self.dashboards[model["uid"]] = saved
        versions.insert(0, {"version": saved["version"], "createdBy": by, "message": message})


@contextmanager
def serving(handle: Any) -> Iterator[str]:
    """URL of a server. `handle(method, path, token=, content=)` returns the answer: JSON, or a page if it is text."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            content = json.loads(self.rfile.read(length)) if length else None
            token = self.headers.get("Authorization", "")
            status, answer = handle(self.command, self.path, token=token, content=content)
            body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if isinstance(answer, str) else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _found(content: Any, otherwise: str) -> Answer:
    return (200, content) if content else (404, {"message": otherwise})
