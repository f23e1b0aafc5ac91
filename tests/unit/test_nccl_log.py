"""NCCL's log, from recorded texts of versions before 2.12, 2.18, 2.21, 2.27 and 2.30, good and failing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.judgement.nccl_log import LAST_LINES, Link, Log, Place, Segment, Trouble, Version, Way, bare, parse

RECORDED = Path(__file__).parent.parent / "data" / "nccl"
MADE = 9637888


def log(name: str) -> Log:
    """The recorded log of that name, read."""
    return parse((RECORDED / f"{name}.log").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.log")), ids=lambda path: path.stem)
def test_every_recorded_log_says_where_it_comes_from(path: Path) -> None:
    """The first line names an issue or the source's tag, and each log has a version."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert "#" in text.partition("\n")[0][1:] or "NVIDIA/nccl v2." in text.partition("\n")[0]
    assert parse(text).version is not None


@pytest.mark.parametrize(
    ("name", "version", "channels"),
    [
        ("before-2.12-good", Version(2, 11, 4), 2),
        ("2.18-good", Version(2, 18, 5), 2),
        ("2.21-good", Version(2, 21, 5), 2),
        ("2.27-good", Version(2, 27, 5), 2),
        ("2.30-good", Version(2, 30, 7), 4),
    ],
)
def test_shm_is_known_by_the_words_of_each_version(name: str, version: Version, channels: int) -> None:
    """A healthy run over shared memory: the way, its channels, and nothing complained of."""
    seen = log(name)
    assert seen.version == version
    assert seen.ways == (Way.SHM,)
    assert seen.channels == channels
    assert seen.uses_dev_shm
    assert seen.cause is None


@pytest.mark.parametrize(
    ("name", "trouble", "words"),
    [
        ("before-2.12-no-space", Trouble.NO_SPACE, "Call to posix_fallocate failed"),
        ("2.18-not-extended", Trouble.NOT_EXTENDED, "failed to extend /dev/shm/nccl-fjwOOB to 5967876 bytes"),
        ("2.21-not-extended", Trouble.NOT_EXTENDED, "failed to extend /dev/shm/nccl-H1dBqY to 9637892 bytes"),
        ("2.21-not-registered", Trouble.NOT_REGISTERED, "Cuda failure 'invalid argument'"),
        ("2.27-cumem-falls-back", Trouble.NO_SPACE, "error: No space left on device (28)"),
        ("2.27-cumem-refused", Trouble.HOST_BUFFER, "peer access is not supported"),
        ("2.27-attach-size-0", Trouble.SEGMENT, "attaching to shared memory segment /dev/shm/nccl-glnlGK (size 0)"),
        ("2.27-same-gpu", Trouble.SAME_GPU, "Duplicate GPU detected"),
        ("2.27-peer-to-peer", Trouble.TIMEOUT, "SeqNum=3, OpType=ALLREDUCE"),
        ("2.30-no-space", Trouble.NO_SPACE, "failed to extend /dev/shm/nccl-3pQx9V"),
        ("2.30-same-gpu", Trouble.SAME_GPU, "NCCL_MULTI_RANK_GPU_ENABLE=1"),
    ],
)
def test_the_cause_is_told_from_what_follows_it(name: str, trouble: Trouble, words: str) -> None:
    """Of all complaints of a failing run the one to believe, with NCCL's words for it."""
    cause = log(name).cause
    assert cause is not None
    assert cause.trouble is trouble
    assert words in cause.line


def test_2_18_ends_without_a_word_before_a_bus_error() -> None:
    """With ftruncate nothing is complained of: only the way how the process ended can tell."""
    seen = log("2.18-bus-error")
    assert seen.cause is None
    assert seen.uses_dev_shm


@pytest.mark.parametrize(
    ("version", "shares"),
    [
        (Version(2, 11, 4), False),
        (Version(2, 29, 7), False),
        (Version(2, 30, 3), True),
        (Version(3, 0, 0), True),
    ],
)
def test_what_a_version_does(version: Version, shares: bool) -> None:
    """From 2.30 two ranks may share a GPU."""
    assert version.shares_gpu is shares


def test_cumem_is_not_dev_shm() -> None:
    """Over SHM with cuMem's buffers /dev/shm is not used, and the words say so."""
    seen = log("2.27-cumem")
    assert seen.ways == (Way.SHM,)
    assert seen.segments == (Segment(Place.CUMEM, 10485760),)
    assert not seen.uses_dev_shm
    assert "(cuMem host memory)" in seen.words


def test_a_fall_back_from_cumem_is_no_complaint() -> None:
    """The line about falling back to /dev/shm is information; the failure after it is the cause."""
    seen = log("2.27-cumem-falls-back")
    assert {complaint.trouble for complaint in seen.complaints} == {Trouble.NO_SPACE, Trouble.PEER_LOST}


def test_peer_to_peer_needs_no_shared_memory() -> None:
    """P2P with IPC, cuMem or both is one way, and says nothing about /dev/shm."""
    seen = log("2.27-peer-to-peer")
    assert seen.ways == (Way.P2P,)
    assert not seen.uses_dev_shm
    assert seen.words == "P2P/CUMEM, P2P/CUMEM/read, P2P/IPC on 2 channels"


def test_the_network_path_takes_a_pool_of_dev_shm() -> None:
    """Both ends of a link are told; it counts once. The pools are segments in /dev/shm."""
    seen = log("2.28-network")
    assert seen.links == (Link(0, 1, 0, Way.NET, "Socket/0"), Link(0, 0, 1, Way.NET, "Socket/0"))
    assert [segment.size_bytes for segment in seen.segments] == [34210180, 34210180]
    assert {segment.place for segment in seen.segments} == {Place.DEV_SHM}


def test_segments_are_read_with_path_and_size() -> None:
    """Where the buffers were made, by the words of 2.24 and later."""
    paths = [segment.path for segment in log("2.30-good").segments]
    assert paths == ["/dev/shm/nccl-O2ukZb", "/dev/shm/nccl-9aKkWv"]
    assert {segment.size_bytes for segment in log("2.30-good").segments} == {MADE}


def test_an_old_ring_line_is_a_link() -> None:
    """Up to 2.6 a channel was called a ring (NVIDIA/nccl#290)."""
    seen = parse("gpu2:2144:2556 [2] NCCL INFO Ring 00 : 2[3d000] -> 3[3e000] via direct shared memory")
    assert seen.links == (Link(0, 2, 3, Way.SHM, "direct"),)


def test_no_memory_left_on_the_gpu_is_no_fault_of_host_buffers() -> None:
    """alloc.h also allocates on the device: only what the host's buffers can fail with accuses them."""
    line = "node7:1:108 [0] include/alloc.h:{} NCCL WARN Cuda failure {}"
    device, host = line.format(228, "2 'out of memory'"), line.format(71, "1 'invalid argument'")
    causes = [parse(text).cause for text in (device, host)]
    assert [cause and cause.trouble for cause in causes] == [Trouble.CUDA, Trouble.HOST_BUFFER]


@pytest.mark.parametrize(
    "line", ["misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]", "NCCL INFO NET/IB : No device found."]
)
def test_harmless_lines_are_no_complaint(line: str) -> None:
    """What healthy runs print too is not a failure."""
    assert parse(f"node7:1:106 [0] {line}").complaints == ()


def test_an_empty_log_says_so() -> None:
    """No text is no transport, and no evidence."""
    assert parse("") == Log()
    assert parse("").words == "no channel in NCCL's log"
    assert not parse("").uses_dev_shm


def test_the_last_lines_are_kept_without_their_prefix() -> None:
    """For a hang: what NCCL said last, without host, pid and thread."""
    seen = log("2.27-good")
    assert len(seen.last) == LAST_LINES
    assert seen.last[-1] == "NCCL INFO Connected all rings, use ring PXN 0 GDR 1"
    assert bare("  no prefix here ") == "no prefix here"
