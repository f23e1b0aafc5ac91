"""The need of a job, by NCCL's own sizes."""

from __future__ import annotations

import pytest

from gpucheck.judgement.shm_need import (
    CHANNELS,
    MIB,
    SEGMENT_BYTES,
    Need,
    bytes_text,
    channels,
    size_text,
    table,
)


def test_a_segment_has_the_size_that_nccl_prints() -> None:
    """The sum of the protocol buffers is the number in NCCL's own message."""
    assert SEGMENT_BYTES == 9_637_892


@pytest.mark.parametrize(
    ("ranks", "lanes", "mib"), [(2, 2, 36.8), (2, 4, 73.6), (4, 2, 73.6), (8, 2, 147.2), (8, 8, 589.0)]
)
def test_nccl_takes_ranks_times_channels_times_a_segment(ranks: int, lanes: int, mib: float) -> None:
    """The table of measured needs: 64 MiB hold two ranks of two channels, and not two of four."""
    assert Need(ranks, lanes).nccl_bytes / MIB == pytest.approx(mib, abs=0.06)


@pytest.mark.parametrize(("ranks", "flag"), [(2, "256m"), (4, "512m"), (8, "1g"), (16, "2g")])
def test_what_to_ask_for_is_a_power_of_two_above_the_need(ranks: int, flag: str) -> None:
    """The flag holds the need, and half of it does not."""
    need = Need(ranks)
    assert need.flag == flag
    assert need.flag_bytes / 2 < need.total_bytes <= need.flag_bytes


def test_the_default_64m_never_holds_a_job() -> None:
    """The engine's default is below the least need: a sweep that finds 64m enough has not looked."""
    assert Need(2).total_bytes > 64 * MIB


def test_as_many_segments_as_a_whole_job_take_at_least_what_it_takes() -> None:
    """The container leg has no torch: its segments stand for the loaders too."""
    need = Need(2)
    assert need.segments_for_all * SEGMENT_BYTES >= need.total_bytes - SEGMENT_BYTES
    assert need.segments_for_all > need.segments


def test_without_the_shm_transport_the_proxies_pools_remain() -> None:
    """NCCL_SHM_DISABLE=1 does not free a job of /dev/shm: two ranks still take more than 64 MiB."""
    need = Need(2, shm_disabled=True)
    assert need.nccl_bytes > 64 * MIB
    assert "NCCL_SHM_DISABLE" in str(need)


@pytest.mark.parametrize(
    ("least", "most", "number"),
    [
        (None, None, CHANNELS),
        ("8", None, 8),
        ("1", None, CHANNELS),
        (None, "2", 2),
        ("8", "4", 4),
        ("x", "-1", CHANNELS),
    ],
)
def test_channels_follow_nccls_variables_where_they_are_numbers(
    least: str | None, most: str | None, number: int
) -> None:
    """MIN raises, MAX caps; anything that is no number is left to NCCL to complain about."""
    assert channels(least, most) == number


def test_the_flags_name_docker_compose_and_kubernetes() -> None:
    """Each is what has to be typed there, with the same size."""
    docker, compose, kubernetes = Need(8).flags()
    assert docker == "docker run --shm-size=1g"
    assert compose == 'compose: shm_size: "1g"'
    assert "emptyDir: {medium: Memory, sizeLimit: 1024Mi}" in kubernetes
    assert "memory limit" in kubernetes


def test_params_fill_the_pitfalls_commands() -> None:
    """All texts, none empty."""
    assert Need(2).params() == {
        "shm_need": "256m",
        "shm_need_kubernetes": "256Mi",
        "shm_need_bytes": str(Need(2).total_bytes),
        "ranks": "2",
    }


def test_the_table_serves_a_machine_whose_gpus_are_not_known() -> None:
    """Two, four and eight ranks."""
    assert table() == "2 ranks 256m · 4 ranks 512m · 8 ranks 1g"


@pytest.mark.parametrize(("number", "text"), [(64 * MIB, "64m"), (1 << 30, "1g"), (512 << 10, "512k"), (1000, "1000")])
def test_a_size_is_written_as_the_engine_reads_it(number: int, text: str) -> None:
    """The largest unit that gives a whole number."""
    assert size_text(number) == text


@pytest.mark.parametrize(("number", "text"), [(4096, "4 KiB"), (SEGMENT_BYTES, "9.2 MiB"), (3 << 30, "3.0 GiB")])
def test_bytes_are_told_in_binary_units(number: int, text: str) -> None:
    """One decimal from a MiB on."""
    assert bytes_text(number) == text
