"""A door before a real engine: single requests are held up or refused there, all others pass."""

from __future__ import annotations

import http.client
import json
import re
import socket
import socketserver
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What belongs to one connection and not to the answer.
HOP = ("transfer-encoding", "connection", "keep-alive", "content-length")


class Door:
    """The rules of one door. ``passed`` are the requests that came to it, as ``POST /v1.41/volumes/create``."""

    def __init__(self, url: str, engine: str) -> None:
        self.url, self.engine = url, engine.removeprefix("unix://")
        self.passed: list[str] = []
        self.over = threading.Event()
        self._slow: dict[str, list[float]] = {}
        self._refused: dict[str, tuple[int, str]] = {}

    def slow(self, pattern: str, seconds: float, times: int = 1000) -> None:
        """The next ``times`` requests that match ``pattern`` (method and path) wait so long."""
        self._slow[pattern] = [seconds] * times

    def refuse(self, pattern: str, text: str, status: int = 500) -> None:
        """Requests that match are answered so, and the engine never sees them."""
        self._refused[pattern] = (status, text)

    def open(self) -> None:
        """From now on everything passes, also what waits."""
        self._slow.clear()
        self._refused.clear()
        self.over.set()
        self.over = threading.Event()

    def answer(self, asked: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, list[tuple[str, str]]]:
        """Status, body and headers: ours where a rule says so, else the engine's."""
        self.passed.append(asked)
        for pattern, waits in list(self._slow.items()):
            if waits and re.search(pattern, asked):
                self.over.wait(waits.pop())
        for pattern, (status, text) in list(self._refused.items()):
            if re.search(pattern, asked):
                return status, json.dumps({"message": text}).encode(), [("Content-Type", "application/json")]
        return self._of_the_engine(asked, body, headers)

    def _of_the_engine(
        self, asked: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes, list[tuple[str, str]]]:
        method, _, path = asked.partition(" ")
        connection = http.client.HTTPConnection("engine")
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.connect(self.engine)
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP]
            return answer.status, answer.read(), kept
        finally:
            connection.close()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64
    door: Door


class _Handler(BaseHTTPRequestHandler):
    """One request a connection."""

    server: _Server

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        self.close_connection = True
        if not self.raw_requestline or not self.parse_request():
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        status, text, kept = self.server.door.answer(f"{self.command} {self.path}", body, headers)
        with suppress(OSError):  # whoever asked may be gone
            self.send_response_only(status)
            for name, value in [*kept, ("Content-Length", str(len(text))), ("Connection", "close")]:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)


@contextmanager
def before(engine: str, folder: Path) -> Iterator[Door]:
    """A door in ``folder`` before the engine at that address."""
    path = str(folder / "door.sock")
    with _Server(path, _Handler) as server:
        server.door = Door(f"unix://{path}", engine)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.door
        finally:
            server.door.over.set()
            server.shutdown()
            thread.join()
