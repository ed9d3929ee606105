"""The operator's endpoint: GET /statistics, GET /finished?since=N, POST /drain. For loopback; no password."""

from __future__ import annotations

import json
import threading
from concurrent.futures import CancelledError
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from sluiceway.runtime.errors import ConfigError


class Administered(Protocol):
    """What the endpoint asks; all may raise TimeoutError."""

    def statistics(self) -> dict[str, Any]: ...

    def finished_since(self, n: int) -> dict[str, Any]: ...

    def drain(self) -> None: ...


class AdminServer:
    """Raises ConfigError naming the address if it cannot be listened on."""

    def __init__(self, listen: str, service: Administered) -> None:
        host, _, port = listen.rpartition(":")
        handler = type("Handler", (_Handler,), {"service": service})
        try:
            self._server = _Server((host, int(port)), handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"admin.listen: cannot listen on {listen}: {error}") from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="admin", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Give the address back; for a server that was never started."""
        self._server.server_close()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=2.0)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


class _Handler(BaseHTTPRequestHandler):
    service: Administered
    protocol_version = "HTTP/1.0"  # one request a connection: nothing idle is left at shutdown
    timeout = 10.0

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/statistics":
            self._answer(self.service.statistics)
        elif url.path == "/finished":
            since = parse_qs(url.query).get("since", ["0"])[0]
            if not since.isascii() or not since.isdigit() or len(since) > 18:
                self._send(HTTPStatus.BAD_REQUEST, {"error": "since: must be a whole number, 0 or more"})
            else:
                self._answer(lambda: self.service.finished_since(int(since)))
        else:
            self._send(HTTPStatus.NOT_FOUND, {"error": "known: GET /statistics, GET /finished?since=N, POST /drain"})

    def do_POST(self) -> None:
        if urlsplit(self.path).path != "/drain":
            self._send(HTTPStatus.NOT_FOUND, {"error": "known: POST /drain"})
            return

        def drain() -> dict[str, Any]:
            self.service.drain()
            return {"drained": True}

        self._answer(drain)

    def _answer(self, ask: Any) -> None:
        try:
            answer = ask()
        except (TimeoutError, CancelledError) as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, {"error": f"the backend does not answer: {error}"})
        else:
            self._send(HTTPStatus.OK, answer)

    def _send(self, status: HTTPStatus, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Requests of the operator's tools are not worth a line each."""
