"""Each verdict of ``ranks-rendezvous``: real torchruns in network and host-name namespaces that were made wrong."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.judgement.rendezvous import Try
from gpucheck.probes import test_ranks_rendezvous
from gpucheck.process import Ended, Reply, Value
from gpucheck.report import Report
from gpucheck.verdict import Bug, NotApplicable, Subject
from tests.fakes import answers
from tests.fakes.answers import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("torch")
root = pytest.mark.skipif(os.getuid() != 0, reason="namespaces of this kind need root")
LO = "ip link set lo up"
probe: Any = test_ranks_rendezvous  # taken with children that answer what a test gives
drive: Any = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("drive.py"))))


def judged(*steps: str, kinds: str = "--net --uts", **env: str) -> dict[str, Any]:
    """The result of the probe after ``steps`` in namespaces of these kinds (none: on this machine itself)."""
    argv = [sys.executable, str(answers.HERE / "judge.py"), sys.executable, "ranks_rendezvous"]
    if steps:
        argv = ["unshare", *kinds.split(), "sh", "-ec", "\n".join([*steps, f"exec {shlex.join(argv)}"])]
    clean = {name: text for name, text in os.environ.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run(argv, env=clean | env, capture_output=True, text=True, timeout=200, check=True)
    (result,) = json.loads(done.stdout)
    found: dict[str, Any] = result
    return found


def pitfalls(result: dict[str, Any]) -> list[str]:
    """What was found."""
    return [finding["pitfall"] for finding in result["findings"]]


def test_ranks_meet_here() -> None:
    """On this machine, with a free port of its own for the endpoint: ok, and the evidence names the network."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port = asked.getsockname()[1]
    proxy = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "localhost"}
    result = judged(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **proxy)
    assert result["verdict"] == "ok", result
    assert result["legs"] == ["endpoint", "local-http", "host"]
    assert f"127.0.0.1:{port} leads to 127.0.0.1 (free)" in result["evidence"][0]
    assert "a request to localhost arrives" in result["evidence"][1]
    assert "2 ranks met over" in result["evidence"][2]
    assert "127.0.0.1 (lo)" in result["evidence"][2]


@root
def test_a_name_that_nobody_resolves() -> None:
    """As in a container without network: told within a short deadline, and one option shows the name to be to blame."""
    result = judged(LO, "hostname nowhere-at-all")
    assert pitfalls(result) == ["hostname-unresolvable"]
    assert "did not end and was stopped" in result["findings"][0]["evidence"][1]
    assert "with --local-addr=localhost: they meet" in result["evidence"]


@root
def test_the_name_localhost_is_enough() -> None:
    """With the host name `localhost` ranks meet where nothing but the loopback is."""
    assert judged(LO, "hostname localhost")["verdict"] == "ok"


@root
def test_a_loopback_without_ipv4() -> None:
    """localhost means ::1 alone, and torch's store asks for IPv4."""
    result = judged(LO, "ip addr del 127.0.0.1/8 dev lo")
    assert pitfalls(result) == ["loopback-ipv6-only"]


def test_variables_that_name_no_interface() -> None:
    """Both are judged by their own syntax, and gloo really fails."""
    result = judged(NCCL_SOCKET_IFNAME="ib", GLOO_SOCKET_IFNAME="=lo")
    assert pitfalls(result) == ["interface-missing", "interface-missing"]
    assert any("Unable to find address for: =lo" in line for line in result["evidence"])


def test_an_endpoint_that_is_held_and_a_proxy_that_swallows_localhost() -> None:
    """The port of the environment is held; the proxy is a degradation, for torch's rendezvous speaks no HTTP."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        port = str(server.getsockname()[1])
        result = judged(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, http_proxy="http://127.0.0.1:9")
    assert pitfalls(result) == ["rendezvous-port-held", "proxy-swallows-localhost"]
    assert [finding["weight"] for finding in result["findings"]] == ["bad", "degraded"]
    assert "2 ranks met" in result["evidence"][-1]


@pytest.fixture(scope="module")
def in_containers(docker_host: str) -> Iterator[Callable[..., Reply]]:
    """Containers of the engine that answers here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", docker_host)
        with drive.containers() as made:
            yield made


def test_ranks_meet_in_a_container_that_is_called_localhost(in_containers: Callable[..., Reply]) -> None:
    """Without a network, over the loopback alone."""
    report = Report("ranks-rendezvous", "a title", Subject("host", "id", "here"))
    probe.in_container(report, in_containers)
    assert "in a container without network, over 127.0.0.1" in report.evidence[0]


def test_ranks_do_not_meet_in_a_container_with_another_name(in_containers: Callable[..., Reply]) -> None:
    """The same torchrun would wait for ten minutes; twenty seconds show what it waits for."""
    reply = in_containers("ranks_gloo", {"limit_s": 20}, network="none", hostname="nowhere-at-all")
    assert isinstance(reply.answer, Value), reply
    tried = Try.parse(reply.answer.value)
    assert tried.ended == "hang"
    assert any("(nowhere-at-all, " in line for line in tried.lines()), tried.lines()


class Answering:
    """A child whose payloads answer what a test gives."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __call__(self, payload: str, *_: Any, **__: Any) -> Reply:
        """The answer as a reply."""
        return Reply(Value(self.answers[payload]), Ended("exit", 0))


def no_container(*_: Any, **__: Any) -> Any:
    """No engine."""
    raise NotApplicable("engine.clients", "no container engine installed", "no client")


RANK = {"rank": 0, "world": 2, "sum": 3.0, "right": True, "addresses": ["127.0.0.1"]}
MET = {"endpoint": "localhost:1", "ended": "exit", "code": 0, "spent_s": 8.0, "errors": ""}


def run(child: Callable[..., Reply], changes: dict[str, Any] | None = None) -> Any:
    """The probe's result from answers as recorded."""
    report = Report("ranks-rendezvous", "a title", Subject("host", "id", "here"), essential=("host",))
    host = facts({"package.torch": "2.14.1", "net.interfaces": [], **(changes or {})})
    error = None
    try:
        probe.test_ranks_rendezvous(report, host, child, no_container)
    except Exception as raised:  # noqa: BLE001 - as the hooks around a probe take it
        error = raised
    return report.result(error)


def test_a_wrong_sum_is_a_defect() -> None:
    """Ranks that meet and disagree about numbers are worse than ranks that do not meet."""
    ranks = [RANK, RANK | {"rank": 1, "sum": 2.0, "right": False}]
    result = run(Answering(ranks_gloo=MET | {"ranks": ranks}))
    assert [finding.pitfall for finding in result.findings] == ["wrong-numbers"]


def test_a_rank_that_reports_twice_is_our_bug() -> None:
    """Two reports of one rank are no two ranks."""
    result = run(Answering(ranks_gloo=MET | {"ranks": [RANK, RANK]}))
    assert result.verdict == "checker-error"
    with pytest.raises(Bug):
        probe.judge_ranks(None, Try.parse(MET | {"ranks": [RANK, RANK]}), "here")


def test_a_failure_without_a_known_cause_is_no_verdict() -> None:
    """Ranks that do not meet for no reason that is known here: unable, with torchrun's own words."""
    failed = MET | {"code": 1, "errors": "RuntimeError: of next year", "ranks": []}
    result = run(Answering(ranks_gloo=failed))
    assert result.verdict == "unable"
    assert any("RuntimeError: of next year" in line for line in result.lacking)


@pytest.mark.parametrize(
    ("variables", "pitfall"),
    [
        ({"env.MASTER_ADDR": " node0"}, "master-addr-whitespace"),
        ({"env.MASTER_ADDR": "node0", "env.MASTER_PORT": "29500\r"}, "master-addr-whitespace"),
    ],
)
def test_stray_characters_in_the_endpoint(variables: dict[str, str], pitfall: str) -> None:
    """They are found before anything is asked about the name."""
    result = run(Answering(ranks_gloo=MET | {"ranks": [RANK, RANK | {"rank": 1}]}), variables)
    assert [finding.pitfall for finding in result.findings] == [pitfall]


@pytest.mark.parametrize(
    ("variables", "pitfalls"),
    [
        ({}, ["rendezvous-unreachable"]),
        ({"env.NODE_RANK": "0"}, ["rendezvous-unreachable"]),
        ({"env.NODE_RANK": "1"}, []),
        ({"env.WORLD_SIZE": "16", "env.LOCAL_WORLD_SIZE": "8", "env.RANK": "9"}, []),
    ],
)
def test_an_endpoint_on_another_machine(variables: dict[str, str], pitfalls: list[str]) -> None:
    """Wrong on the node of rank 0, right on every other, if somebody answers there."""
    there = "192.0.2.7"
    place = {"resolved": [there], "error": None, "places": {there: "elsewhere"}, "answers": {there: "open"}}
    child = Answering(ranks_gloo=MET | {"ranks": [RANK, RANK | {"rank": 1}]}, endpoint={**place, "local_http": None})
    result = run(child, {"env.MASTER_ADDR": "node0", **variables})
    assert [finding.pitfall for finding in result.findings] == pitfalls


def test_without_torch_it_does_not_apply() -> None:
    """The known fact stands in the row."""
    result = run(Answering(), {"package.torch": None})
    assert result.verdict == "not-applicable"
