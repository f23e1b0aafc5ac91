"""What ``CUDA_VISIBLE_DEVICES`` hides: a decision table, a row a rule."""

from __future__ import annotations

import pytest

from gpucheck.judgement.visibility import Gpu, bare, missing, view
from tests.fakes.answers import lost_gpu, nvml_gpu, uuid

FOUR = tuple(Gpu.parse(nvml_gpu(index)) for index in range(4))
SLICE = "MIG-3e4f6a52-77b3-5d34-8b0c-1d6f7a2c9e01"
SPLIT = Gpu.parse(nvml_gpu(4, mig=True, mig_devices=[{"uuid": SLICE, "memory_bytes": 1}]))


@pytest.mark.parametrize(
    ("value", "shown", "fault"),
    [
        pytest.param(None, [0, 1, 2, 3], None, id="not set: every GPU"),
        pytest.param("0,1,2,3", [0, 1, 2, 3], None, id="all of them by number"),
        pytest.param("2", [2], None, id="one by number"),
        pytest.param("3,1", [3, 1], None, id="the order is the user's"),
        pytest.param(" 1 , 2 ", [1, 2], None, id="blanks around numbers do no harm"),
        pytest.param("1x", [1], None, id="what follows a number is ignored, as by atoi"),
        pytest.param("", [], "is empty", id="empty hides all"),
        pytest.param(" ", [], "is empty", id="a blank hides all"),
        pytest.param("-1", [], "no GPU -1", id="-1 hides all"),
        pytest.param("NoDevFiles", [], "neither a number nor a UUID", id="a word hides all"),
        pytest.param("4", [], "no GPU 4 (the last is 3)", id="out of range"),
        pytest.param("0,9,1", [0], "no GPU 9", id="it ends at the first that is not there"),
        pytest.param("0,1,0", [], "names 0 twice", id="a GPU named twice hides all"),
        pytest.param(f"GPU-{uuid(2)}", [2], None, id="a whole UUID"),
        pytest.param("GPU-00000003", [3], None, id="the beginning of a UUID"),
        pytest.param("GPU-0000000", [], "the beginning of 4 UUIDs", id="a beginning that four share"),
        pytest.param("GPU-deadbeef", [], "no GPU here has the UUID", id="a UUID that is not here"),
        pytest.param("2,GPU-00000000", [2, 0], None, id="numbers and UUIDs mixed"),
    ],
)
def test_what_is_shown(value: str | None, shown: list[int], fault: str | None) -> None:
    """CUDA shows the GPUs named up to the first word that names none, and the view says why it does not."""
    seen = view(FOUR, value)
    assert [gpu.index for gpu in seen.shown] == shown
    assert (fault is None) == (seen.fault is None)
    assert fault is None or fault in (seen.fault or "")
    assert {hidden.gpu.index for hidden in seen.hidden} == {0, 1, 2, 3} - set(shown)


def test_what_hides_a_gpu_is_named() -> None:
    """Each hidden GPU comes with the variable and its value."""
    (hidden, *_) = view(FOUR, "1").hidden
    assert hidden.by == "CUDA_VISIBLE_DEVICES=1"
    assert str(hidden.gpu) == f"GPU 0 (NVIDIA H100, GPU-{uuid(0)})"


def test_a_slice_is_named_by_its_own_uuid() -> None:
    """A MIG slice makes its GPU shown; two slices of one GPU are no repetition."""
    seen = view((*FOUR, SPLIT), f"{SLICE},{SLICE[:12]}")
    assert seen.shown == (SPLIT,)
    assert seen.slices == (SLICE,)
    assert seen.fault is None


def test_no_gpu_at_all() -> None:
    """With no GPU a number names nothing, and the view says that there is none."""
    assert "there is none" in (view((), "0").fault or "")
    assert view((), None).shown == ()


def test_what_is_missing_is_told_by_uuid() -> None:
    """UUIDs are compared without their kind and case; a GPU whose UUID nobody knows is missing."""
    lost = Gpu.parse(lost_gpu(9))
    assert lost.trouble == "NVML_ERROR_GPU_IS_LOST"
    assert missing([*FOUR, lost], [uuid(0).upper(), uuid(2), None, uuid(3)]) == (FOUR[1], lost)
    assert bare(f"GPU-{uuid(1)}") == uuid(1)
    assert bare(SLICE) == SLICE[4:]
