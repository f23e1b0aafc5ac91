"""Two ranks started by torchrun meet and agree on a sum.

Looks at: torchrun with two ranks over gloo on this host's own network (a free port, this machine's own name), the sum
and a broadcast checked in each rank, and over which addresses they talked; NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME
against the interfaces that are here; MASTER_ADDR and MASTER_PORT where they are set; requests to localhost where a
proxy is set; then the same torchrun in a container without network.
Why it matters: ranks that do not meet wait for ten minutes and longer, then blame IPv6, the network, or NCCL. Whether
it is the port, the name, the interface or a proxy cannot be told from the message.
Does not apply when: torch is not installed.
Cost and disturbance: ten seconds on two cores, most of it three imports of torch; uses no GPU; disturbs nobody. Says
nothing about shared memory: gloo uses none.
If it is bad: the finding names the name, the address, the port or the interface, and what to set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpucheck.judgement import packages, rendezvous
from gpucheck.judgement.rendezvous import Place, Try
from gpucheck.legs.replies import value_of
from gpucheck.verdict import Bug, NotApplicable, Unable, Unexplained

if TYPE_CHECKING:
    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child, Containers
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(
    subject="host",
    essential=("host",),
    extra=("endpoint", "local-http", "container"),
    disturbs="none",
    deadline_s=170,
    cost_s=12,
)
RANKS_S = 60.0
# Long enough for three imports of torch; a name that nobody resolves would be waited for ten minutes.
SHORT_S = 25.0
RETRY_S = 45.0
ENDPOINT_S = 20.0
PORT = 29500
OPEN_PORTS = 65536


def test_ranks_rendezvous(report: Report, host: Facts, child: Child, container: Containers) -> None:
    """The probe."""
    packages.need(host, "torch")
    for finding in rendezvous.variables(host):
        report.take(finding)
    with report.leg("endpoint"):
        at_endpoint(report, host, child)
    with report.leg("local-http"):
        through_proxy(report, host, child)
    with report.leg("host"):
        on_host(report, host, child)
    with report.leg("container"):
        in_container(report, container)


def at_endpoint(report: Report, host: Facts, child: Child) -> None:
    """What MASTER_ADDR and MASTER_PORT lead to. Raises NotApplicable when they are not set."""
    address = host.known("env.MASTER_ADDR")
    if address is None:
        raise NotApplicable("env.MASTER_ADDR", "MASTER_ADDR is not set", "environment")
    port = host.known("env.MASTER_PORT") or str(PORT)
    for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port)):
        if (finding := rendezvous.stray(name, value)) is not None:
            report.take(finding)
            return
    if not port.isdecimal() or not 0 < int(port) < OPEN_PORTS:
        raise Unable(f"a port: MASTER_PORT is {port!r}")
    reply = child("endpoint", {"host": address, "port": int(port)}, warm=False, deadline_s=ENDPOINT_S)
    if reply.hung:
        raise Unable(f"the addresses of {address}: the resolver did not answer")
    place = Place.parse(address, int(port), value_of(reply, f"where {address} leads"))
    report.saw(f"the endpoint of the environment: {place}")
    report.take(rendezvous.of_place(place, is_first_node=is_first(host)))


def is_first(host: Facts) -> bool:
    """Whether rank 0 is on this node, by what the environment says of ranks; alone, it is."""
    node = host.known("env.NODE_RANK") or host.known("env.SLURM_NODEID")
    if node is not None:
        return bool(node == "0")
    world, local = host.known("env.WORLD_SIZE"), host.known("env.LOCAL_WORLD_SIZE")
    return bool(world is None or world == local or host.known("env.RANK") == "0")


def through_proxy(report: Report, host: Facts, child: Child) -> None:
    """Whether a request to localhost arrives. Raises NotApplicable without a proxy."""
    proxies = host.known("net.proxies")
    if not proxies:
        raise NotApplicable("net.proxies", "no proxy is set", host["net.proxies"].source)
    reply = child("endpoint", {"local_http": True}, warm=False, deadline_s=ENDPOINT_S)
    came = value_of(reply, "a request to localhost")["local_http"]
    set_ = f"{', '.join(proxies)} set, no_proxy={host.known('net.no_proxy') or ''}"
    if came == "arrives":
        report.saw(f"a request to localhost arrives ({set_})")
        return
    # torch's own rendezvous speaks TCP, not HTTP, and does not care; servers of metrics, models and etcd do.
    report.degraded("proxy-swallows-localhost", f"{set_}: a request to http://localhost came to: {came}")


def on_host(report: Report, host: Facts, child: Child) -> None:
    """torchrun as a user types it; where that fails, once more with the option that shows the name to be to blame."""
    limit_s = SHORT_S if rendezvous.is_doubtful(host) else RANKS_S
    tried = Try.parse(value_of(child("ranks_gloo", {"limit_s": limit_s}, warm=False), "torchrun"))
    if tried.met:
        judge_ranks(report, tried, f"over {rendezvous.networks(tried.addresses, host)}")
        report.measure("rendezvous_s", tried.spent_s)
        return
    if report.findings:
        for line in tried.lines():
            report.saw(line)
        return
    finding = rendezvous.cause(host, tried)
    if finding is None:
        raise Unexplained("torchrun did not bring its ranks together", tried.errors, *tried.lines())
    report.take(finding)
    if finding.pitfall == "hostname-unresolvable":
        again = Try.parse(
            value_of(child("ranks_gloo", {"local_addr": "localhost", "limit_s": RETRY_S}, warm=False), "torchrun")
        )
        report.saw(f"with --local-addr=localhost: {'they meet' if again.met else again.lines()[0]}")


def in_container(report: Report, container: Containers) -> None:
    """The same in a container without network, where the only name that resolves is localhost."""
    reply = container("ranks_gloo", {"limit_s": RANKS_S}, network="none", hostname="localhost")
    tried = Try.parse(value_of(reply, "torchrun in a container"))
    if not tried.met:
        raise Unexplained("ranks that do not meet in a container", tried.errors, *tried.lines())
    judge_ranks(report, tried, f"in a container without network, over {', '.join(tried.addresses)}")


def judge_ranks(report: Report, tried: Try, where: str) -> None:
    """Ranks that met must have the right numbers."""
    if len({rank["rank"] for rank in tried.ranks}) != len(tried.ranks):
        raise Bug(f"ranks that report twice: {tried.ranks}")
    if tried.is_right:
        report.saw(f"2 ranks met {where} in {tried.spent_s:.1f} s; the sum and the broadcast are right in both")
    else:
        sums = ", ".join(f"rank {rank['rank']}: {rank['sum']:g}" for rank in tried.ranks)
        report.bad("wrong-numbers", f"two ranks {where}: the sum of 1 and 2 is {sums}")
