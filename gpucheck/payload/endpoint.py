"""Where a name leads, and whether a port there is free: what a rendezvous stumbles over, asked without torch.

Arguments: ``host`` and ``port`` (0: none is asked for), ``local_http`` to see whether requests to localhost arrive. The
answer holds

    resolved     the addresses of ``host``; empty when it has none
    error        why not, in the resolver's words; null
    places       by address: "free" (it is this machine's, and nobody holds the port), "held", "elsewhere" (no interface
                 here has the address), or the error's name
    answers      by address that is held or elsewhere: "open" when somebody accepts connections there, else the error
    local_http   null when not asked, "arrives", or what came instead of a local server's answer

Standard library only.
"""

from __future__ import annotations

import errno
import http.server
import secrets
import socket
import threading
import urllib.request
from typing import Any

CONNECT_S = 3.0
HTTP_S = 5.0
PLACES = {errno.EADDRINUSE: "held", errno.EADDRNOTAVAIL: "elsewhere"}


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Resolve, try to bind, try to connect."""
    host, port = args.get("host", "localhost"), int(args.get("port", 0))
    found, error = resolve(host, port)
    places = {target[0]: place(family, target) for family, target in found}
    asked = [(family, target) for family, target in found if port and places[target[0]] in ("held", "elsewhere")]
    return {
        "resolved": list(places),
        "error": error,
        "places": places,
        "answers": {target[0]: answer(family, target) for family, target in asked},
        "local_http": local_http() if args.get("local_http") else None,
    }


def resolve(host: str, port: int) -> tuple[list[tuple[int, Any]], str | None]:
    """(family, socket address) of each address, or none and the resolver's words."""
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        return [], str(error)
    return [(row[0], row[4]) for row in rows], None


def place(family: int, target: Any) -> str:
    """Whether this machine can listen there."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            # As TCPStore does it: a port that is only waiting out its last connection can be taken.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(target)
            tried.listen(1)
    except OSError as error:
        return PLACES.get(error.errno or 0, name_of(error))
    return "free"


def answer(family: int, target: Any) -> str:
    """Whether somebody accepts connections there."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.settimeout(CONNECT_S)
            tried.connect(target)
    except OSError as error:
        return name_of(error)
    return "open"


def name_of(error: OSError) -> str:
    """The error's name, ``ECONNREFUSED``; ``timeout`` when nobody answered at all."""
    if isinstance(error, socket.timeout):
        return "timeout"
    return errno.errorcode.get(error.errno or 0, str(error))


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with the token that only this process knows."""

    token = secrets.token_hex(8)

    def do_GET(self) -> None:
        """One short answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.token.encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def local_http() -> str:
    """Whether a request to localhost, made as this environment's proxies have it, reaches a server on this machine."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with urllib.request.urlopen(f"http://localhost:{server.server_port}/", timeout=HTTP_S) as reply:
            said = reply.read(64).decode(errors="replace")
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        server.shutdown()
        server.server_close()
    return "arrives" if said == Handler.token else "an answer that is not the server's"
