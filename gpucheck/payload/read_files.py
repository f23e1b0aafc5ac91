"""Read files whose reader may have to wait: a driver's own, or those of a server that may be gone.

``main({"paths": [...]})`` returns {path: its first 64 KiB as text, or null where it cannot be read}.
"""

from __future__ import annotations

from typing import Any

LIMIT_BYTES = 65536


def read(path: str) -> str | None:
    """The text at ``path``; None where there is none to be had."""
    try:
        with open(path, errors="replace") as stream:
            return stream.read(LIMIT_BYTES)
    except OSError:
        return None


def main(args: dict[str, Any]) -> dict[str, str | None]:
    """See the module."""
    return {path: read(path) for path in args["paths"]}
