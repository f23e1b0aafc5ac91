"""Why ranks do not meet: a decision table, a row a rule."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.judgement.rendezvous import Place, Try, cause, is_doubtful, networks, of_place, plain, stray, variables
from tests.fakes.answers import facts

LO = {"name": "lo", "up": True, "ipv4": ["127.0.0.1"], "ipv6": ["::1"]}
ETH0 = {"name": "eth0", "up": True, "ipv4": ["10.0.0.7"], "ipv6": []}
NETWORK: dict[str, Any] = {
    "net.interfaces": [LO, ETH0],
    "net.hostname_resolves": True,
    "net.hostname_addresses": ["10.0.0.7"],
    "net.loopback_ipv4": True,
    "net.loopback_ipv6": True,
}
RANK = {"rank": 0, "world": 2, "sum": 3.0, "right": True, "addresses": ["127.0.0.1", "::ffff:127.0.0.1"]}
#: Recorded: torch 2.13, torchrun in a namespace whose host name nobody resolves.
UNRESOLVED = (
    "[W1130 18:39:20.554831482 socket.cpp:764] [c10d] The IPv6 network addresses of (nowhere, 43021) cannot be "
    "retrieved (gai error: -3 - Temporary failure in name resolution)."
)
HELD = "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, EADDRINUSE"


def tried(**changes: Any) -> Try:
    """A try in which the ranks did not meet, with changes."""
    told: dict[str, Any] = {
        "endpoint": "localhost:40001",
        "ended": "hang",
        "code": None,
        "spent_s": 25.0,
        "errors": "",
        "ranks": [],
    }
    return Try.parse(told | changes)


@pytest.mark.parametrize(
    ("changes", "errors", "pitfall"),
    [
        pytest.param({}, "", None, id="nothing explains it"),
        pytest.param({}, HELD, "rendezvous-port-held", id="the port is held"),
        pytest.param(
            {"net.hostname_resolves": False, "net.hostname_addresses": []},
            UNRESOLVED,
            "hostname-unresolvable",
            id="own name",
        ),
        pytest.param({"net.loopback_ipv4": False}, "", "loopback-ipv6-only", id="lo has no IPv4"),
        pytest.param({"net.loopback_ipv6": False}, "", None, id="lo without IPv6 is no cause"),
        pytest.param(
            {"net.hostname_addresses": ["192.0.2.9"]}, "", "rendezvous-unreachable", id="own name leads elsewhere"
        ),
        pytest.param({"net.hostname_addresses": ["127.0.1.1"]}, "", None, id="Debian's 127.0.1.1 is this machine"),
        pytest.param(
            {"net.hostname_addresses": ["192.0.2.9", "10.0.0.7"]}, "", None, id="one of its addresses is here"
        ),
        pytest.param(
            {"net.loopback_ipv4": False, "net.loopback_ipv6": False}, "", "interface-missing", id="lo is down"
        ),
    ],
)
def test_one_cause(changes: dict[str, Any], errors: str, pitfall: str | None) -> None:
    """What names lead to and which addresses are here decide, not the words of the time-out."""
    finding = cause(facts(NETWORK | changes), tried(errors=errors))
    assert (finding.pitfall if finding else None) == pitfall


def test_the_evidence_has_no_stamps_and_no_repetition() -> None:
    """torch says the same with another time every second; one line of it is enough."""
    errors = "\n".join(UNRESOLVED.replace("18:39:20", f"18:39:{second}") for second in range(21, 40))
    lines = tried(errors=errors).lines()
    assert lines[0] == "torchrun at localhost:40001 did not end and was stopped after 25 s"
    assert len(lines) == 2
    assert lines[1].startswith("[socket.cpp:764]")


@pytest.mark.parametrize(
    ("changes", "met", "right"),
    [
        ({"ended": "exit", "code": 0, "ranks": [RANK, RANK | {"rank": 1}]}, True, True),
        ({"ended": "exit", "code": 0, "ranks": [RANK, RANK | {"rank": 1, "right": False}]}, True, False),
        ({"ended": "exit", "code": 0, "ranks": [RANK]}, False, False),
        ({"ended": "exit", "code": 1, "ranks": [RANK, RANK]}, False, False),
        ({}, False, False),
    ],
)
def test_ranks_met_when_both_reported_and_torchrun_says_so(changes: dict[str, Any], met: bool, right: bool) -> None:
    """One rank's report, or an exit status, alone is not enough."""
    assert tried(**changes).met is met
    assert tried(**changes).is_right is right


@pytest.mark.parametrize(
    ("places", "answers", "first", "pitfall"),
    [
        pytest.param({"10.0.0.7": "free"}, {}, True, None, id="this machine's, and free"),
        pytest.param({"10.0.0.7": "held"}, {"10.0.0.7": "open"}, True, "rendezvous-port-held", id="held"),
        pytest.param(
            {"192.0.2.9": "elsewhere"}, {"192.0.2.9": "timeout"}, True, "rendezvous-unreachable", id="rank 0 is here"
        ),
        pytest.param({"192.0.2.9": "elsewhere"}, {"192.0.2.9": "open"}, False, None, id="rank 0 is there and answers"),
        pytest.param(
            {"192.0.2.9": "elsewhere"},
            {"192.0.2.9": "ECONNREFUSED"},
            False,
            "rendezvous-unreachable",
            id="it does not answer",
        ),
        pytest.param({"::1": "free", "192.0.2.9": "elsewhere"}, {}, True, None, id="one of its addresses is here"),
        pytest.param({}, {}, True, "hostname-unresolvable", id="the name has no address"),
    ],
)
def test_where_the_endpoint_leads(
    places: dict[str, str], answers: dict[str, str], first: bool, pitfall: str | None
) -> None:
    """Held, elsewhere and nowhere are three things, and whether it must be here depends on the node."""
    place = Place("node0", 29500, tuple(places), None if places else "Name or service not known", places, answers)
    finding = of_place(place, is_first_node=first)
    assert (finding.pitfall if finding else None) == pitfall


@pytest.mark.parametrize("value", [" 10.0.5.4", "10.0.5.4\r", '"node0"', "tcp://node0"])
def test_stray_characters(value: str) -> None:
    """What belongs to the file that the value came from is found, and shown between brackets."""
    finding = stray("MASTER_ADDR", value)
    assert finding is not None
    assert f"[{value}]" in finding.evidence[0]
    assert stray("MASTER_ADDR", "node0.example.org") is None


def test_both_variables_are_judged() -> None:
    """Each variable that leaves no interface is a finding; one that is not set is none."""
    host = facts(NETWORK | {"env.NCCL_SOCKET_IFNAME": "ib", "env.GLOO_SOCKET_IFNAME": "eth0"})
    assert [finding.params["variable"] for finding in variables(host)] == ["NCCL_SOCKET_IFNAME"]
    assert variables(facts(NETWORK)) == []


def test_interfaces_that_were_not_read_judge_nothing() -> None:
    """Not knowing the interfaces is no reason to say that one is missing."""
    host = facts({"env.NCCL_SOCKET_IFNAME": "ib0"}, unread={"net.interfaces": "permission denied"})
    assert variables(host) == []


def test_the_networks_that_were_used_are_named() -> None:
    """Addresses come with their interfaces, IPv4 through IPv6 sockets as IPv4."""
    assert plain("::ffff:10.0.0.7") == "10.0.0.7"
    both = tried(ranks=[RANK, RANK | {"addresses": ["10.0.0.7"]}]).addresses
    assert networks(both, facts(NETWORK)) == "10.0.0.7 (eth0), 127.0.0.1 (lo)"
    assert (
        networks(["192.0.2.9", "127.0.0.5"], facts(NETWORK))
        == "192.0.2.9 (no interface that was read), 127.0.0.5 (loopback)"
    )


@pytest.mark.parametrize(
    ("changes", "doubtful"),
    [({}, False), ({"net.hostname_resolves": False}, True), ({"net.loopback_ipv4": False}, True)],
)
def test_a_try_need_not_be_long_where_it_is_known_to_fail(changes: dict[str, Any], doubtful: bool) -> None:
    """A name without an address, or a loopback without IPv4, makes ranks wait for ten minutes."""
    assert is_doubtful(facts(NETWORK | changes)) is doubtful
