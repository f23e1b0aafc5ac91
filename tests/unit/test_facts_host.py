"""Facts about the machine, its limits, shared memory, engines and network, from made trees and from this machine."""

from __future__ import annotations

import json
import math
import mmap
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpucheck import facts
from gpucheck.facts import aside, network
from gpucheck.facts.fact import Unknown
from gpucheck.facts.mounts import mount_of, mounts
from gpucheck.facts.tree import Tree
from gpucheck.payload.bounded import Said

FIRST_PID_NAMESPACE = "pid:[4026531836]"
OVERLAY = "1 0 0:50 / / rw - overlay overlay rw\n"


def known(plant: Any, name: str, **environ: str) -> Any:
    """The value of a fact that must be known."""
    fact = plant.facts(name, **environ)[name]
    assert fact.is_known, fact.why
    return fact.value


def why(plant: Any, name: str, **environ: str) -> str | None:
    """Why a fact that must be unknown is."""
    reason: str | None = plant.facts(name, **environ)[name].why
    return reason


def test_the_machines_id_is_a_hash_of_its_identifiers(plant: Any) -> None:
    """Two machines that were cloned with one machine-id differ by their boards, and neither identifier is shown."""
    plant.file("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    first = known(plant, "machine.id")
    plant.file("/sys/class/dmi/id/product_uuid", "4C4C4544-0042\n")
    second = known(plant, "machine.id")
    assert first != second
    assert "0123456789" not in first + second


def test_a_machine_without_identifiers_is_unknown(plant: Any) -> None:
    """An empty machine-id, as images have it, is none."""
    plant.file("/etc/machine-id", "")
    assert why(plant, "machine.id") == "neither a machine id nor a readable DMI uuid"


@pytest.mark.parametrize(("text", "serial"), [("S1234", "S1234"), ("To be filled by O.E.M.", None), ("0", None)])
def test_a_placeholder_is_no_serial_number(plant: Any, text: str, serial: str | None) -> None:
    """What a vendor forgot to fill in does not name a machine."""
    plant.file("/sys/class/dmi/id/product_serial", text + "\n")
    assert known(plant, "machine.serial") == serial


def test_an_unreadable_serial_number_is_unknown(plant: Any) -> None:
    """Only root may read DMI's serial: for others it is unknown; a loop of links refuses root, too."""
    plant.link("/sys/class/dmi/id/product_serial", "product_serial")
    assert why(plant, "machine.serial")


@pytest.mark.parametrize(
    ("files", "mountinfo", "cgroup", "environ", "kind"),
    [
        ({}, None, "0::/init.scope", {}, "none"),
        ({"/.dockerenv": ""}, OVERLAY, "0::/", {}, "docker"),
        ({"/run/.containerenv": ""}, OVERLAY, "0::/", {}, "podman"),
        ({}, OVERLAY, "0::/", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"/.dockerenv": "", "/var/run/secrets/kubernetes.io/x": ""}, OVERLAY, "0::/", {}, "kubernetes"),
        ({}, OVERLAY, "12:cpu:/docker/0a1b2c3d", {}, "docker"),
        ({}, OVERLAY, "0::/machine.slice/libpod-0a1b.scope", {}, "podman"),
        ({}, OVERLAY, "0::/system.slice/docker.service", {}, "other"),
        ({}, OVERLAY, "0::/kubepods.slice", {}, "kubernetes"),
        ({}, OVERLAY, "0::/lxc.payload.c1", {}, "lxc"),
        ({"/run/systemd/container": "lxc\n"}, "1 0 0:9 / / rw - zfs pool rw\n", "0::/", {}, "lxc"),
        ({"/run/systemd/system/x": ""}, OVERLAY, "0::/init.scope", {}, "none"),
        ({"/.dockerenv": ""}, "1 0 254:0 / / rw - ext4 /dev/vda rw\n", "0::/", {}, "none"),
        ({"/.dockerenv": ""}, "1 0 8:1 /var/lib/docker/x / rw - ext4 /dev/sda1 rw\n", "0::/", {}, "docker"),
    ],
)
def test_kinds_of_container_are_told_apart(
    plant: Any, files: dict[str, str], mountinfo: str | None, cgroup: str, environ: dict[str, str], kind: str
) -> None:
    """Files, cgroup and variables say which kind; a whole disk at / says none, also when it was made from an image."""
    for name, text in files.items():
        plant.file(name, text)
    plant.file("/proc/1/cgroup", cgroup + "\n")
    if mountinfo:
        plant.file("/proc/self/mountinfo", mountinfo)
    assert known(plant, "machine.container", **environ) == kind


def test_wsl_is_told_by_its_kernel(plant: Any) -> None:
    """Linux under Windows has Microsoft's kernel."""
    assert known(plant, "machine.wsl") is False
    plant.file("/proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n")
    assert known(plant, "machine.wsl") is True


@pytest.mark.parametrize(("byte", "on"), [(b"\x01", True), (b"\x00", False)])
def test_secure_boot_is_the_variables_fifth_byte(plant: Any, byte: bytes, *, on: bool) -> None:
    """The firmware's variable holds four bytes of attributes before its value."""
    name = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    plant.path(name).write_bytes(b"\x06\0\0\0" + byte)
    assert known(plant, "machine.secure_boot") is on


def test_secure_boot_is_unknown_in_a_container(plant: Any) -> None:
    """Engines hide the firmware: that the variable is not there says nothing."""
    assert known(plant, "machine.secure_boot") is False
    plant.file("/.dockerenv")
    plant.file("/proc/self/mountinfo", OVERLAY)
    assert why(plant, "machine.secure_boot") == "hidden in a container"


def test_the_tightest_quota_up_the_tree_binds(plant: Any) -> None:
    """Version 2: the smallest cpu.max of our cgroup and its parents."""
    plant.file("/proc/self/mountinfo", OVERLAY + "2 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    plant.file("/proc/self/cgroup", "0::/a/b\n")
    plant.file("/sys/fs/cgroup/a/b/cpu.max", "200000 100000\n")
    plant.file("/sys/fs/cgroup/cpu.max", "max 100000\n")
    plant.file("/sys/fs/cgroup/a/cpu.max", "50000 100000\n")
    plant.file("/sys/fs/cgroup/a/memory.max", "1073741824\n")
    plant.file("/sys/fs/cgroup/a/b/memory.max", "2147483648\n")
    plant.file("/sys/fs/cgroup/memory.max", "max\n")
    plant.file("/sys/fs/cgroup/a/b/memory.events", "oom 3\noom_kill 2\n")
    assert known(plant, "cgroup.version") == 2
    assert known(plant, "cpu.quota") == 0.5
    assert known(plant, "memory.limit_bytes") == 1 << 30
    assert known(plant, "memory.oom_kills") == 2


V1 = (
    "2 1 0:27 /docker/0a1b /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
    "3 1 0:28 /docker/0a1b /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    "4 1 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)


def test_version_1_is_read_inside_a_container_without_a_namespace(plant: Any) -> None:
    """Only our own part is mounted there, while our path is the host's; a hybrid's controllers are version 1's."""
    plant.file("/proc/self/mountinfo", OVERLAY + V1)
    plant.file("/proc/self/cgroup", "5:memory:/docker/0a1b\n3:cpu,cpuacct:/docker/0a1b\n0::/docker/0a1b\n")
    plant.file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n")
    plant.file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    plant.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    plant.file("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert known(plant, "cgroup.version") == 1
    assert known(plant, "cpu.quota") == 1.5
    assert known(plant, "memory.limit_bytes") is None
    assert known(plant, "memory.oom_kills") == 5


def test_a_cgroup_that_is_mounted_elsewhere_is_read_where_it_is(plant: Any) -> None:
    """Moved to a cgroup outside of what is mounted: the mounted part is all that can be read, and nothing beside it."""
    plant.file("/proc/self/mountinfo", OVERLAY + "2 1 0:26 /docker/0a1b /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    plant.file("/proc/self/cgroup", "0::/user.slice\n")
    plant.file("/sys/fs/cgroup/cpu.max", "300000 100000\n")
    plant.file("/sys/user.slice/cpu.max", "100000 100000\n")
    assert known(plant, "cpu.quota") == 3


def test_no_quota_is_known_and_no_cgroup_is_not(plant: Any) -> None:
    """That nothing limits us is something else than that we could not look."""
    assert why(plant, "cpu.quota")
    plant.file("/proc/self/mountinfo", OVERLAY + "2 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    plant.file("/proc/self/cgroup", "0::/\n")
    assert known(plant, "cpu.quota") is None


def test_cpus_and_memory_are_read(plant: Any) -> None:
    """Lists of CPUs are counted, kibibytes are bytes."""
    plant.file("/sys/devices/system/cpu/online", "0-3,8-9\n")
    plant.file("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t1,3\nMems_allowed_list:\t0\n")
    plant.file("/proc/meminfo", "MemTotal:       2048 kB\nMemFree:  7 kB\nMemAvailable:    1024 kB\n")
    assert known(plant, "cpu.count") == 6
    assert known(plant, "cpu.affinity") == 2
    assert known(plant, "memory.total_bytes") == 2 << 20
    assert known(plant, "memory.available_bytes") == 1 << 20


def test_the_limits_of_this_process_are_read() -> None:
    """What the kernel says of this process is what the standard library says of it; no limit is None."""
    names = {"limits.nofile": resource.RLIMIT_NOFILE, "limits.memlock_bytes": resource.RLIMIT_MEMLOCK}
    names |= {"limits.nproc": resource.RLIMIT_NPROC, "limits.address_space_bytes": resource.RLIMIT_AS}
    found = facts.read(names)
    for name, number in names.items():
        soft = resource.getrlimit(number)[0]
        assert found[name].is_known
        assert found.known(name) == (None if soft == resource.RLIM_INFINITY else soft)


def test_mounts_are_found_by_depth_and_age(plant: Any) -> None:
    """Of two mounts at one point the later is seen; spaces in names are escaped by the kernel."""
    plant.file(
        "/proc/self/mountinfo",
        OVERLAY + "2 1 0:2 / /data rw - tmpfs a rw\n3 2 8:1 /x\\040y /data ro shared:1 - ext4 /dev/sdb ro\n",
    )
    tree = Tree(plant.root, {}, "", math.inf)
    assert len(mounts(tree)) == 3
    found = mount_of(tree, "/data/set")
    assert found is not None
    assert (found.device, found.top, found.options) == ("/dev/sdb", "/x y", ("ro",))
    assert mount_of(tree, "/database").point == "/"  # type: ignore[union-attr]
    assert known(plant, "mounts.bind_count") == 1
    assert known(plant, "mounts.readonly_root") is False


def test_a_broken_mount_table_is_unknown(plant: Any) -> None:
    """A table that cannot be understood is no empty table."""
    plant.file("/proc/self/mountinfo", "nonsense\n")
    assert str(why(plant, "mounts.bind_count")).startswith("not understood")


def test_a_network_file_system_is_not_asked_for_its_size(plant: Any) -> None:
    """A dead server would block who asks: the free space of a temporary folder there is unknown, and says why."""
    plant.file("/proc/self/mountinfo", OVERLAY + "2 1 0:60 / /scratch rw - nfs4 server:/export rw\n")
    assert "network file system" in str(why(plant, "disk.tmp_free_bytes", TMPDIR="/scratch/me"))
    plant.path("/tmp/x")
    assert known(plant, "disk.tmp_free_bytes") > 0


def test_a_library_on_a_network_file_system_is_looked_at_in_a_child(plant: Any) -> None:
    """LD_LIBRARY_PATH may point to a server: what is there is found, and the loader's order holds."""
    plant.file("/proc/self/mountinfo", OVERLAY + "2 1 0:60 / /nfs rw - nfs4 server:/export rw\n")
    plant.library("/nfs/lib/libcuda.so.1")
    plant.library("/usr/lib64/libcuda.so.1")
    assert known(plant, "driver.libcuda_path", LD_LIBRARY_PATH="/nfs/lib") == "/nfs/lib/libcuda.so.1"


def test_the_size_of_shm_is_that_of_its_file_system() -> None:
    """Total and free bytes are statvfs's, in bytes, and the type of file system is named."""
    found = facts.read(["shm.total_bytes", "shm.free_bytes", "shm.filesystem"])
    space = os.statvfs("/dev/shm")
    assert found.known("shm.total_bytes") == space.f_blocks * space.f_frsize
    assert 0 <= found.known("shm.free_bytes") <= found.known("shm.total_bytes")
    assert found.known("shm.filesystem") == "tmpfs"


def test_without_shm_its_size_is_unknown(plant: Any) -> None:
    """A container with --ipc=none has no /dev/shm at all: no file system, and no size that could be compared."""
    assert known(plant, "shm.filesystem") is None
    assert why(plant, "shm.total_bytes") == "not there"


def process(plant: Any, pid: int, *mapped: str) -> None:
    """A living process that has these files mapped, and none open."""
    found = [(path, os.stat(plant.path(path))) for path in mapped]
    lines = [
        f"7f00-7f01 rw-s 00000000 {os.major(s.st_dev):02x}:{os.minor(s.st_dev):02x} {s.st_ino} {path}\n"
        for path, s in found
    ]
    plant.file(f"/proc/{pid}/maps", "".join(["7f02-7f03 rw-p 00000000 00:00 0 [heap]\n", *lines]))
    plant.path(f"/proc/{pid}/fd/0").symlink_to("/dev/null")


def leftovers(plant: Any) -> dict[str, bool | None]:
    """Segment to whether it is an orphan."""
    return {row["name"]: row["orphan"] for row in known(plant, "shm.leftovers")}


def test_segments_that_nobody_holds_are_orphans(plant: Any) -> None:
    """Of the segments of known makers those that no process has mapped are left over; a user's own files are not."""
    for name in ("nccl-aaa", "nccl-bbb", "torch_900_1_0", "dataset.bin"):
        plant.path(f"/dev/shm/{name}").write_bytes(bytes(8192))
    plant.link("/proc/self/ns/pid", FIRST_PID_NAMESPACE)
    process(plant, 7, "/dev/shm/nccl-aaa")
    assert leftovers(plant) == {"nccl-aaa": False, "nccl-bbb": True, "torch_900_1_0": True}
    assert known(plant, "shm.leftover_bytes") == 2 * 8192


def test_the_segments_of_somebody_whose_processes_cannot_be_seen_are_undecided(plant: Any) -> None:
    """A process that may not be looked into may hold what its owner owns."""
    plant.file("/dev/shm/nccl-aaa", "x")
    plant.link("/proc/self/ns/pid", FIRST_PID_NAMESPACE)
    process(plant, 7)
    assert leftovers(plant) == {"nccl-aaa": True}
    argv = ["unshare", "--user", sys.executable, "-c", HIDDEN_PROCESSES.format(root=str(plant.root))]
    said = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "Operation not permitted" in said.stderr:
        pytest.skip("this kernel gives no user namespace")
    plant.path("/proc/7/maps").chmod(0)
    said = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["None"]


HIDDEN_PROCESSES = """
import pathlib
from gpucheck import facts
rows = facts.read(["shm.leftovers"], pathlib.Path({root!r})).known("shm.leftovers")
print(*[row["orphan"] for row in rows])
"""


def test_in_a_pid_namespace_of_our_own_nobody_is_called_an_orphan(plant: Any) -> None:
    """With a shared /dev/shm the holder may live outside: that nobody is seen does not say that nobody is there."""
    plant.file("/dev/shm/nccl-aaa", "x")
    plant.link("/proc/self/ns/pid", "pid:[4026532201]")
    assert leftovers(plant) == {"nccl-aaa": None}
    assert str(why(plant, "shm.leftover_bytes")).startswith("somebody whose processes are not seen")


def test_when_the_holders_cannot_be_asked_nothing_is_known_of_leftovers(plant: Any) -> None:
    """A process that hangs whoever looks at its mappings (here: a pipe) makes them unknown, and none is zero bytes."""
    plant.file("/dev/shm/nccl-aaa", "x")
    process(plant, 7)
    plant.path("/proc/7/maps").unlink()
    os.mkfifo(plant.path("/proc/7/maps"))
    found = facts.read(["shm.leftovers", "shm.leftover_bytes"], root=plant.root, environ={}, deadline_s=1)
    assert [found[name].why for name in ("shm.leftovers", "shm.leftover_bytes")] == ["hang", "hang"]


def test_looking_for_leftovers_writes_nothing(plant: Any) -> None:
    """A fact is read: unlike the probe, it creates no file to see whether one could be created."""
    plant.file("/dev/shm/nccl-aaa", "x")
    folder = plant.path("/dev/shm/nccl-aaa").parent
    before = folder.stat().st_mtime_ns
    assert known(plant, "shm.leftovers")
    assert folder.stat().st_mtime_ns == before


def test_a_held_segment_of_this_machine_is_no_orphan() -> None:
    """A file of a known name in the real /dev/shm that a living process has mapped is not left over."""
    path = Path(f"/dev/shm/psm_gpucheck_test_{os.getpid()}")
    path.write_bytes(bytes(4096))
    try:
        with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 4096):
            rows = facts.read(["shm.leftovers"]).known("shm.leftovers")
        assert [row["orphan"] for row in rows if row["name"] == path.name] == [False]
    finally:
        path.unlink()


def test_engines_are_found_by_their_files(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients by name, sockets by being sockets, the engine's address without who logs in there."""
    plant.file("/usr/bin/podman")
    plant.file("/opt/tools/docker")
    plant.file("/run/docker.sock")
    with socket.socket(socket.AF_UNIX) as made:
        place = plant.path("/run/podman/podman.sock")
        monkeypatch.chdir(place.parent)  # a socket's path may not be long
        made.bind("podman.sock")
    environ = {"PATH": "/opt/tools:relative", "DOCKER_HOST": "tcp://me:secret@far:2376"}
    assert known(plant, "engine.clients", **environ) == ["docker", "podman"]
    assert known(plant, "engine.sockets", **environ) == ["/run/podman/podman.sock"]
    assert known(plant, "engine.host", **environ) == "tcp://[redacted]@far:2376"
    assert known(plant, "engine.host") is None
    assert known(plant, "engine.snap") is False
    assert known(plant, "engine.starter") == "none"


@pytest.mark.parametrize(("config", "value"), [({}, None), ({"features": {"cdi": True}}, True)])
def test_cdi_is_as_the_daemons_file_says(plant: Any, config: dict[str, Any], value: object) -> None:
    """Without a word in daemon.json the engine's version decides, which is None here."""
    plant.file("/etc/docker/daemon.json", json.dumps(config))
    assert known(plant, "engine.cdi_enabled") is value


def test_a_rootless_engine_is_told_by_its_socket(plant: Any) -> None:
    """DOCKER_HOST below /run/user is a user's own engine."""
    assert known(plant, "engine.rootless", DOCKER_HOST="unix:///run/user/1000/docker.sock") is True
    assert known(plant, "engine.rootless", DOCKER_HOST="unix:///run/docker.sock") is False


NET_DEV = "Inter-|   Receive\n face |bytes\n    lo: 1 0\n  eth0: 2 0\n"


def test_interfaces_of_a_made_machine_are_read(plant: Any) -> None:
    """Names, state and IPv6 come from files; IPv4 only the kernel knows, so that it is unknown here, not empty."""
    plant.file("/proc/net/dev", NET_DEV)
    plant.file("/proc/net/if_inet6", "00000000000000000000000000000001 01 80 10 80       lo\n")
    plant.file("/sys/class/net/lo/flags", "0x9\n")
    plant.file("/sys/class/net/eth0/flags", "0x1002\n")
    assert known(plant, "net.interfaces") == [
        {"name": "lo", "up": True, "ipv4": None, "ipv6": ["::1"]},
        {"name": "eth0", "up": False, "ipv4": None, "ipv6": []},
    ]
    assert known(plant, "net.loopback_ipv6") is True
    assert why(plant, "net.loopback_ipv4")
    plant.file("/sys/class/net/lo/flags", "0x8\n")
    assert known(plant, "net.loopback_ipv6") is False


def test_interfaces_of_this_machine_have_their_addresses() -> None:
    """The loopback interface is found with its IPv4 address, which the kernel gives."""
    found = facts.read(["net.interfaces", "net.loopback_ipv4"])
    own = {row["name"]: row for row in found.known("net.interfaces")}
    assert "127.0.0.1" in own["lo"]["ipv4"]
    assert found.known("net.loopback_ipv4") is True


def test_a_network_without_loopback_has_none(tmp_path: Path) -> None:
    """In a network namespace of its own the loopback interface is down: no address to meet at."""
    argv = ["unshare", "--net", sys.executable, "-m", "gpucheck.facts", "--names", "net.loopback_ipv4"]
    said = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    if "Operation not permitted" in said.stderr:
        pytest.skip("a network namespace needs root")
    assert json.loads(said.stdout)["facts"]["net.loopback_ipv4"]["value"] is False


def test_a_name_in_the_hosts_file_resolves_without_asking_anybody(plant: Any) -> None:
    """All addresses that /etc/hosts gives the machine's own name, and no other line's."""
    plant.file("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 node7.example node7 # node7\n::1 node7\n10.0.0.9 node70\n")
    assert known(plant, "net.hostname_addresses") == ["127.0.1.1", "::1"]
    assert known(plant, "net.hostname_resolves") is True


def test_a_name_that_is_nowhere_is_unknown_on_a_made_machine(plant: Any) -> None:
    """The resolver of this machine must not answer for another."""
    assert "cannot be asked" in str(why(plant, "net.hostname_resolves"))


def test_a_name_that_the_resolver_does_not_know_has_no_address() -> None:
    """The resolver's refusal is an answer: a program here gets no address, and the fact says in whose words."""
    tree = Tree(Path("/"), os.environ, "", time.monotonic() + 20.0)
    assert network.ask_resolver(tree, "localhost").value[-1] in ("127.0.0.1", "::1")
    refused = network.ask_resolver(tree, "no-such-name.invalid")
    assert refused.value == []
    assert refused.source.startswith("the resolver: ")


def test_proxies_are_named_without_their_values(plant: Any) -> None:
    """Which variables are set, and for whom no proxy is used; an empty one is not set."""
    environ = {"HTTPS_PROXY": "http://u:p@proxy:1", "http_proxy": "", "NO_PROXY": "localhost,.corp"}
    assert known(plant, "net.proxies", **environ) == ["HTTPS_PROXY"]
    assert known(plant, "net.no_proxy", **environ) == "localhost,.corp"


def test_the_clock_is_asked_and_not_set() -> None:
    """The kernel says whether the clock is kept in step; of another root nobody can say."""
    fact = facts.read(["clock.synchronised"])["clock.synchronised"]
    assert fact.value in (True, False) or fact.why == "Operation not permitted"


def test_selinux_and_the_clocks_keeper_are_read(plant: Any) -> None:
    """Both by the files that they leave."""
    assert known(plant, "selinux.enforcing") is False
    assert known(plant, "clock.source") is None
    plant.file("/sys/fs/selinux/enforce", "1")
    plant.file("/run/chrony/chronyd.pid", "1")
    assert known(plant, "selinux.enforcing") is True
    assert known(plant, "clock.source") == "chrony"


def test_only_listed_variables_become_facts(plant: Any) -> None:
    """The environment is read by the list of names; a secret beside them is not."""
    found = plant.facts("env.NCCL_DEBUG", NCCL_DEBUG="INFO", HF_TOKEN="hf_planted_secret")
    assert found.known("env.NCCL_DEBUG") == "INFO"
    assert found["env.NCCL_P2P_DISABLE"].is_known
    assert "planted" not in json.dumps(found.to_json())


def test_how_a_child_ended_is_told_with_its_last_words_redacted() -> None:
    """A signal, an exit status, and the last line of its complaints, without the secret in it."""
    assert aside.ending(Said("", "first\nbad --token abc\n", 3)) == "exit 3: bad --token [redacted]"
    assert aside.ending(Said("out", "", -11)) == "signal 11"
    assert aside.ending(Said("out", "", None)) == "hang"
    long = "x" * 280 + " hf_" + "a1B2" * 9
    assert "a1B2" not in aside.ending(Said("", long, 3))


def test_files_of_a_driver_that_cannot_be_read_are_none(plant: Any) -> None:
    """A file that is gone is None; what could be read is there."""
    plant.file("/a", "text")
    tree = Tree(plant.root, {}, "", time.monotonic() + 10.0)
    assert aside.files(tree, ["/a", "/b"]) == {"/a": "text", "/b": None}


def test_files_of_a_driver_that_hangs_are_unknown(plant: Any) -> None:
    """A file whose reader waits for ever (here: a pipe without a writer) costs its fact and not the others."""
    os.mkfifo(plant.path("/hangs"))
    with pytest.raises(Unknown, match="hang"):
        aside.files(Tree(plant.root, {}, "", time.monotonic()), ["/hangs"])
