"""Ask this machine's resolver for a name, as a program would that connects to it.

``main({"name": NAME})`` returns {addresses: [...], error: the resolver's words or null}.
"""

from __future__ import annotations

import socket
from typing import Any


def main(args: dict[str, Any]) -> dict[str, Any]:
    """See the module."""
    try:
        rows = socket.getaddrinfo(args["name"], None)
    except socket.gaierror as error:
        return {"addresses": [], "error": error.strerror}
    return {"addresses": sorted({row[4][0] for row in rows}), "error": None}
