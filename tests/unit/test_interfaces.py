"""What the variables that name interfaces mean: a decision table, a row a rule."""

from __future__ import annotations

import pytest

from gpucheck.judgement.interfaces import Interface, gloo, judge, nccl

HERE = (
    Interface("lo", is_up=True, addresses=("127.0.0.1", "::1")),
    Interface("eth0", is_up=True, addresses=("10.0.0.7",)),
    Interface("eth1", is_up=False, addresses=("10.0.1.7",)),
    Interface("eth10", is_up=True, addresses=("10.0.2.7",)),
    Interface("docker0", is_up=True, addresses=("172.17.0.1",)),
    Interface("ib0", is_up=True, addresses=()),
)


@pytest.mark.parametrize(
    ("value", "usable"),
    [
        pytest.param("eth0", ["eth0"], id="a whole name"),
        pytest.param("eth", ["eth0", "eth10"], id="the beginning of names; one that is down is not usable"),
        pytest.param("eth1", ["eth10"], id="the beginning of two names"),
        pytest.param("=eth1", [], id="= makes it a whole name, and that one is down"),
        pytest.param("=eth0,lo", ["lo", "eth0"], id="= holds for the whole list"),
        pytest.param("ib,eth0", ["eth0"], id="a list of beginnings"),
        pytest.param("^eth", [], id="^ leaves them out; docker and lo are never taken by themselves"),
        pytest.param("^docker", ["eth0", "eth10"], id="^docker"),
        pytest.param("^=eth1,eth10", ["eth0"], id="^= leaves out whole names"),
        pytest.param("ib0", [], id="an interface without an address"),
        pytest.param("enp3s0", [], id="a name from another machine"),
        pytest.param("eth0:50000", ["eth0"], id="a port behind the name"),
        pytest.param("docker0", ["docker0"], id="one that is named is taken, whatever it is"),
    ],
)
def test_nccl(value: str, usable: list[str]) -> None:
    """Beginnings, ``=`` whole names, ``^`` what is left out."""
    meaning = nccl(value, HERE)
    assert [interface.name for interface in meaning.usable] == usable
    assert (judge(meaning, HERE) is None) == bool(usable)


@pytest.mark.parametrize(
    ("value", "usable"),
    [
        pytest.param("eth0", ["eth0"], id="a whole name"),
        pytest.param("eth0,lo", ["eth0", "lo"], id="a list"),
        pytest.param("eth", [], id="no beginnings"),
        pytest.param("=eth0", [], id="no ="),
        pytest.param("^lo", [], id="no ^"),
        pytest.param("eth0,ib9", [], id="each name must be there"),
    ],
)
def test_gloo(value: str, usable: list[str]) -> None:
    """Whole names and nothing else."""
    assert [interface.name for interface in gloo(value, HERE).usable] == usable


def test_the_finding_says_what_was_meant_and_what_is_here() -> None:
    """An operator sees the syntax that was applied, and the names to choose from."""
    finding = judge(gloo("=eth0", HERE), HERE)
    assert finding is not None
    assert finding.pitfall == "interface-missing"
    assert "gloo knows no = and ^" in finding.evidence[0]
    assert "eth1 (is down)" in finding.evidence[1]
    assert "ib0 (has no address)" in finding.evidence[1]
    down = judge(nccl("=eth1", HERE), HERE)
    assert down is not None
    assert "means eth1 is down" in down.evidence[0]


def test_an_interface_is_read_from_the_facts() -> None:
    """An unknown state counts as up, an unknown address as none of that family."""
    read = Interface.parse({"name": "eth0", "up": None, "ipv4": None, "ipv6": ["fe80::1"]})
    assert read == Interface("eth0", None, ("fe80::1",))
    assert read.trouble is None
