"""The payloads that meet over the network: asked about ports that are held, addresses of others, and proxies."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.process import PAYLOADS

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator

# An address that no machine has (RFC 5737).
NOBODYS = "192.0.2.77"


def ask(args: dict[str, Any], **env: str) -> Any:
    """What ``endpoint`` answers."""
    argv = [sys.executable, "-B", str(PAYLOADS / "envelope.py"), str(PAYLOADS / "endpoint.py"), json.dumps(args)]
    clean = {name: text for name, text in os.environ.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run(argv, env=clean | env, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)["value"]


@pytest.fixture
def held() -> Iterator[int]:
    """A port on the loopback that somebody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        yield server.getsockname()[1]


@pytest.fixture
def ranks_gloo(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The payload ``ranks_gloo`` as a module."""
    monkeypatch.syspath_prepend(str(PAYLOADS))
    return importlib.import_module("ranks_gloo")


def test_a_port_that_somebody_holds(held: int) -> None:
    """It is held, and whoever holds it answers."""
    told = ask({"host": "127.0.0.1", "port": held})
    assert told["places"] == {"127.0.0.1": "held"}
    assert told["answers"] == {"127.0.0.1": "open"}


def test_a_port_that_is_free(held: int, ranks_gloo: types.ModuleType) -> None:
    """A free port is free, and is left so."""
    port = ranks_gloo.free_port()
    for _ in range(2):
        assert ask({"host": "127.0.0.1", "port": port})["places"] == {"127.0.0.1": "free"}
    assert port != held


def test_an_address_that_is_not_here() -> None:
    """No interface has it, so that nobody can listen there; whether it answers is told too."""
    told = ask({"host": NOBODYS, "port": 29500})
    assert told["places"] == {NOBODYS: "elsewhere"}
    assert told["answers"][NOBODYS] != "open"


def test_a_name_without_an_address() -> None:
    """The resolver's words come back, and no address."""
    told = ask({"host": "surely-not-there.invalid", "port": 29500})
    assert told["resolved"] == []
    assert told["error"]


def test_a_request_to_localhost_arrives() -> None:
    """Without a proxy, and with one that leaves localhost alone."""
    assert ask({"local_http": True})["local_http"] == "arrives"
    assert ask({"local_http": True}, http_proxy="http://127.0.0.1:9", no_proxy="localhost")["local_http"] == "arrives"


def test_a_proxy_that_swallows_localhost() -> None:
    """With a proxy and no exception the request goes to the proxy, which is not there."""
    assert "refused" in ask({"local_http": True}, http_proxy="http://127.0.0.1:9")["local_http"]


def test_the_addresses_of_a_process_are_those_of_its_connections(held: int, ranks_gloo: types.ModuleType) -> None:
    """The kernel's tables give this process's own ends, and only those of connections that stand."""
    before = ranks_gloo.own_addresses()
    with socket.create_connection(("127.0.0.1", held)):
        assert "127.0.0.1" in ranks_gloo.own_addresses()
    assert ranks_gloo.own_addresses() == before
    assert ranks_gloo.words("0100007F" if sys.byteorder == "little" else "7F000001") == socket.inet_aton("127.0.0.1")
