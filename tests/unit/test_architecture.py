"""The rules of :mod:`gpucheck.architecture`, a row a rule."""

from __future__ import annotations

import pytest

from gpucheck.architecture import (
    PRODUCTS,
    WHEELS,
    Capability,
    Code,
    Cuda,
    Fit,
    Image,
    Reach,
    best_fit,
    driver_runs,
    fit,
    name_of,
    newer_is_wrong,
    toolkit_of_isa,
    wheels_for,
)

CU130 = Cuda(13, 0)
CU132 = Cuda(13, 2)


@pytest.mark.parametrize(
    ("image", "device", "expected"),
    [
        pytest.param("sm_80", "8.0", Fit.NATIVE, id="SASS runs on its own capability"),
        pytest.param("sm_80", "8.6", Fit.NATIVE, id="SASS runs on a higher minor of the same major"),
        pytest.param("sm_80", "8.9", Fit.NATIVE, id="A100 code runs on an RTX 4090"),
        pytest.param("sm_86", "8.0", Fit.NONE, id="SASS does not run on a lower minor"),
        pytest.param("sm_80", "9.0", Fit.NONE, id="SASS does not run on a higher major"),
        pytest.param("sm_90", "8.9", Fit.NONE, id="SASS does not run on a lower major"),
        pytest.param("sm_90", "10.0", Fit.NONE, id="Hopper code does not run on Blackwell"),
        pytest.param("sm_100", "10.3", Fit.NATIVE, id="B200 code runs on B300"),
        pytest.param("sm_100", "12.0", Fit.NONE, id="data-centre Blackwell code does not run on RTX 50"),
        pytest.param("sm_120", "12.1", Fit.NATIVE, id="RTX 50 code runs on GB10"),
        pytest.param("sm_90a", "9.0", Fit.NATIVE, id="an a target runs on its own capability"),
        pytest.param("sm_120a", "12.1", Fit.NONE, id="an a target runs on no other minor"),
        pytest.param("sm_100f", "10.3", Fit.NATIVE, id="an f target runs on higher minors of its family"),
        pytest.param("sm_103f", "10.0", Fit.NONE, id="an f target does not run on lower minors"),
        pytest.param("sm_100f", "12.0", Fit.NONE, id="an f target does not leave its family"),
        pytest.param("sm_50", "5.3", Fit.NONE, id="discrete code does not run on TX1"),
        pytest.param("sm_60", "6.2", Fit.NONE, id="discrete code does not run on TX2"),
        pytest.param("sm_53", "5.3", Fit.NATIVE, id="integrated code runs on its own GPU"),
        pytest.param("sm_62", "6.2", Fit.NATIVE, id="TX2 code runs on TX2"),
        pytest.param("sm_72", "7.5", Fit.NONE, id="Xavier code does not run on Turing"),
        pytest.param("sm_87", "8.9", Fit.NONE, id="Orin code does not run on Ada"),
        pytest.param("sm_100", "10.1", Fit.NONE, id="B200 code does not run on Thor under its old number"),
        pytest.param("sm_101", "11.0", Fit.NATIVE, id="Thor's old number is its new one"),
        pytest.param("sm_110", "10.1", Fit.NATIVE, id="Thor's new number is its old one"),
        pytest.param("sm_101a", "11.0", Fit.NATIVE, id="the renaming holds for a targets"),
        pytest.param("sm_100", "10.7", Fit.NATIVE, id="an unknown minor follows the general rule"),
        pytest.param("sm_88", "8.9", Fit.NATIVE, id="an unknown target follows the general rule"),
        pytest.param("sm_140", "14.2", Fit.NATIVE, id="an unknown major follows the general rule"),
        pytest.param("sm_120", "14.0", Fit.NONE, id="today's code does not run on an unknown major"),
    ],
)
def test_sass(image: str, device: str, expected: Fit) -> None:
    """Machine code runs on its own major number, from its minor upwards, but for suffixes and integrated GPUs."""
    assert fit(Image.parse(image), Capability.parse(device), toolkit=CU130, driver=CU130) is expected


@pytest.mark.parametrize(
    ("image", "device", "toolkit", "expected"),
    [
        pytest.param("sm_70", "7.2", CU130, Fit.NONE, id="Xavier refuses discrete code of CUDA 13.0"),
        pytest.param("sm_80", "8.7", CU130, Fit.NONE, id="Orin refuses discrete code of CUDA 13.0"),
        pytest.param("sm_86", "8.7", Cuda(13, 1), Fit.NONE, id="and of CUDA 13.1"),
        pytest.param("sm_70", "7.2", CU132, Fit.NATIVE, id="Xavier takes it from CUDA 13.2"),
        pytest.param("sm_86", "8.7", CU132, Fit.NATIVE, id="Orin takes it from CUDA 13.2"),
        pytest.param("sm_80", "8.7", None, Fit.UNDECIDED, id="an unknown toolkit leaves it undecided"),
        pytest.param("sm_60", "6.2", CU132, Fit.NONE, id="older integrated GPUs stay apart"),
        pytest.param("sm_87", "8.9", CU132, Fit.NONE, id="Orin's own code stays on Orin"),
    ],
)
def test_integrated(image: str, device: str, toolkit: Cuda | None, expected: Fit) -> None:
    """Code for discrete GPUs runs on Xavier and Orin only when CUDA 13.2 or later built it."""
    assert fit(Image.parse(image), Capability.parse(device), toolkit=toolkit, driver=CU132) is expected


@pytest.mark.parametrize(
    ("image", "isa", "device", "driver", "expected"),
    [
        pytest.param("compute_80", (7, 0), "9.0", CU130, Fit.JIT, id="PTX runs on any later capability"),
        pytest.param("compute_80", (7, 0), "8.0", CU130, Fit.JIT, id="PTX runs on its own capability"),
        pytest.param("compute_90", (8, 0), "8.9", CU130, Fit.NONE, id="PTX does not run on an earlier one"),
        pytest.param("compute_80", (7, 0), "8.7", CU130, Fit.JIT, id="PTX runs on integrated GPUs"),
        pytest.param("compute_90a", (8, 0), "9.0", CU130, Fit.JIT, id="an a target of PTX runs on its own"),
        pytest.param("compute_90a", (8, 0), "10.0", CU130, Fit.NONE, id="and on no other"),
        pytest.param("compute_100f", (8, 8), "10.3", CU130, Fit.JIT, id="an f target of PTX runs in its family"),
        pytest.param("compute_100f", (8, 8), "12.0", CU130, Fit.NONE, id="and not outside it"),
        pytest.param("compute_120", (9, 0), "14.0", CU130, Fit.JIT, id="PTX runs on an unknown later major"),
        pytest.param("compute_80", (9, 0), "8.0", CU130, Fit.JIT, id="a driver reads the PTX of its own toolkit"),
        pytest.param("compute_80", (9, 1), "8.0", CU130, Fit.PTX_TOO_NEW, id="but not that of the next minor"),
        pytest.param("compute_80", (9, 0), "8.0", Cuda(12, 9), Fit.PTX_TOO_NEW, id="nor of the next major"),
        pytest.param("compute_80", (8, 6), "8.0", Cuda(12, 6), Fit.PTX_TOO_NEW, id="8.6 came with 12.7, not 12.6"),
        pytest.param("compute_80", (8, 5), "8.0", Cuda(12, 5), Fit.JIT, id="8.5 came with 12.5"),
        pytest.param("compute_80", (7, 0), "8.0", None, Fit.UNDECIDED, id="an unknown driver leaves it undecided"),
        pytest.param("compute_80", (11, 0), "8.0", CU130, Fit.UNDECIDED, id="so does an unknown PTX version"),
    ],
)
def test_ptx(image: str, isa: tuple[int, int], device: str, driver: Cuda | None, expected: Fit) -> None:
    """PTX runs from its capability upwards where the driver understands its version."""
    assert fit(Image.parse(image, isa), Capability.parse(device), driver=driver) is expected


def test_ptx_without_a_version_is_judged_by_its_toolkit() -> None:
    """A name in torch's list has no PTX version: the wheel's own CUDA stands for it, and nothing else does."""
    image = Image.parse("compute_90")
    device = Capability(10, 0)
    assert fit(image, device, toolkit=CU130, driver=CU132) is Fit.JIT
    assert fit(image, device, toolkit=CU132, driver=CU130) is Fit.PTX_TOO_NEW
    assert fit(image, device, driver=CU130) is Fit.UNDECIDED


def test_best_fit_takes_the_best_rung() -> None:
    """Native code wins over PTX, PTX over nothing, and an empty list has nothing."""
    torch_like = [Image.parse(name) for name in ("sm_80", "compute_80")]
    assert best_fit(torch_like, Capability(8, 6), toolkit=CU130, driver=CU130) is Fit.NATIVE
    assert best_fit(torch_like, Capability(9, 0), toolkit=CU130, driver=CU130) is Fit.JIT
    assert best_fit(torch_like, Capability(7, 5), toolkit=CU130, driver=CU130) is Fit.NONE
    assert best_fit([], Capability(8, 0), toolkit=CU130, driver=CU130) is Fit.NONE


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("7.0", Fit.NONE),
        ("7.5", Fit.NATIVE),
        ("8.0", Fit.NATIVE),
        ("8.7", Fit.NONE),
        ("8.9", Fit.NATIVE),
        ("9.0", Fit.NATIVE),
        ("10.3", Fit.NATIVE),
        ("11.0", Fit.NONE),
        ("12.1", Fit.NATIVE),
    ],
)
def test_the_flags_of_a_real_wheel(device: str, expected: Fit) -> None:
    """The list that torch 2.14.1+cu130 reports gives the verdicts that were measured on its library."""
    flags = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
    assert best_fit(map(Image.parse, flags), Capability.parse(device), toolkit=CU130, driver=CU130) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sm_80", Image(Code.SASS, Capability(8, 0))),
        ("sm_90a", Image(Code.SASS, Capability(9, 0), Reach.EXACT)),
        ("compute_120f", Image(Code.PTX, Capability(12, 0), Reach.FAMILY)),
        ("sm_107", Image(Code.SASS, Capability(10, 7))),
    ],
)
def test_names_are_read_and_written(name: str, expected: Image) -> None:
    """The last digit is the minor number, a letter the suffix, and the name comes back as it was."""
    assert Image.parse(name) == expected
    assert str(expected) == name


@pytest.mark.parametrize("name", ["", "sm_9", "sm90", "sm_90b", "gfx942", "compute_", "sm_90 "])
def test_a_name_that_is_none_is_refused_with_its_text(name: str) -> None:
    """What is no code target raises, and the message holds it."""
    with pytest.raises(ValueError, match="not the name of a GPU code target") as caught:
        Image.parse(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("text", ["9", "9.0.1", "", "nine", "-1.0"])
def test_a_number_that_is_none_is_refused_with_its_text(text: str) -> None:
    """A capability and a CUDA version are two numbers with a dot between them."""
    for kind in (Capability, Cuda):
        with pytest.raises(ValueError, match="not a") as caught:
            kind.parse(text)
        assert repr(text) in str(caught.value)


@pytest.mark.parametrize(("number", "expected"), [(12040, Cuda(12, 4)), (13000, Cuda(13, 0)), (11080, Cuda(11, 8))])
def test_the_number_of_a_driver_is_decoded(number: int, expected: Cuda) -> None:
    """12040 is CUDA 12.4."""
    assert Cuda.of_driver(number) == expected


@pytest.mark.parametrize(
    ("toolkit", "driver", "expected"),
    [
        pytest.param("12.8", "12.2", True, id="an older minor of the same line"),
        pytest.param("12.8", "13.0", True, id="a newer line"),
        pytest.param("13.0", "12.9", False, id="an older line"),
        pytest.param("11.8", "11.0", True, id="CUDA 11 has the minor rule"),
        pytest.param("10.2", "10.1", False, id="CUDA 10 has not"),
        pytest.param("10.2", "11.0", True, id="CUDA 10 under a newer driver"),
    ],
)
def test_drivers_start_their_own_line_and_earlier_ones(toolkit: str, driver: str, *, expected: bool) -> None:
    """A driver starts what is of its major number or an earlier one, since CUDA 11."""
    assert driver_runs(Cuda.parse(toolkit), Cuda.parse(driver)) is expected


@pytest.mark.parametrize(
    ("isa", "expected"),
    [
        ((7, 8), Cuda(11, 8)),
        ((8, 5), Cuda(12, 5)),
        ((8, 6), Cuda(12, 7)),
        ((8, 8), Cuda(12, 9)),
        ((9, 5), Cuda(13, 5)),
        ((8, 9), None),
        ((6, 5), None),
        ((12, 0), None),
    ],
)
def test_the_toolkit_of_a_ptx_version(isa: tuple[int, int], expected: Cuda | None) -> None:
    """PTX versions are numbered beside their toolkits, with three exceptions; what is not known is None."""
    assert toolkit_of_isa(isa) == expected


@pytest.mark.parametrize(
    ("device", "machine", "driver", "expected"),
    [
        pytest.param("9.0", "x86_64", None, "cu134 cu132 cu130 cu128 cu126", id="H100: every series"),
        pytest.param("8.9", "x86_64", "12.4", "cu128 cu126", id="RTX 4090 under a CUDA 12 driver"),
        pytest.param("7.0", "x86_64", None, "cu128 cu126", id="V100: dropped by CUDA 13"),
        pytest.param("6.1", "x86_64", None, "cu126", id="GTX 10: CUDA 12.6 alone"),
        pytest.param("10.0", "x86_64", None, "cu134 cu132 cu130 cu128", id="B200: not CUDA 12.6"),
        pytest.param("10.0", "x86_64", "11.8", "", id="B200 under a driver that is too old"),
        pytest.param("12.1", "aarch64", None, "cu134 cu132 cu130", id="GB10"),
        pytest.param("8.7", "aarch64", None, "cu134 cu132", id="Orin: since the unification"),
        pytest.param("11.0", "x86_64", None, "", id="Thor has no x86 wheel"),
        pytest.param("14.0", "x86_64", None, "", id="an unknown generation has none yet"),
        pytest.param("9.0", "riscv64", None, "", id="a processor without wheels"),
    ],
)
def test_wheels_that_fit(device: str, machine: str, driver: str | None, expected: str) -> None:
    """The newest series comes first, and one that the driver cannot start is left out."""
    found = wheels_for(Capability.parse(device), machine=machine, driver=Cuda.parse(driver) if driver else None)
    assert " ".join(wheel.index for wheel in found) == expected


def test_wheels_that_fit_several() -> None:
    """One environment serves all GPUs of a machine, or every capability that a profile names."""
    both = wheels_for(Capability(7, 0), Capability(10, 0), machine="x86_64")
    assert [wheel.index for wheel in both] == ["cu128"]
    assert len(wheels_for(machine="x86_64")) > len(both)


@pytest.mark.parametrize(
    ("device", "toolkit", "driver", "expected"),
    [
        pytest.param("7.0", "13.0", None, True, id="V100 under a CUDA 13 wheel: only older ones fit"),
        pytest.param("10.0", "12.6", None, False, id="B200 under a CUDA 12.6 wheel: newer ones fit"),
        pytest.param("9.0", "13.0", "12.4", True, id="H100 under a CUDA 12 driver: only older ones start"),
        pytest.param("14.0", "13.0", None, False, id="nothing fits: no advice either way"),
    ],
)
def test_a_newer_wheel_can_be_the_wrong_advice(
    device: str, toolkit: str, driver: str | None, *, expected: bool
) -> None:
    """It is wrong when each series that fits is of an older CUDA than the one installed."""
    newest = Cuda.parse(driver) if driver else None
    judged = newer_is_wrong(Capability.parse(device), machine="x86_64", toolkit=Cuda.parse(toolkit), driver=newest)
    assert judged is expected


def test_the_products_have_their_own_numbers() -> None:
    """A100 is 8.0, H100 is 9.0, RTX 4090 is 8.9: numbers that people mix up."""
    assert "A100" in PRODUCTS[Capability(8, 0)]
    assert "H100" in PRODUCTS[Capability(9, 0)]
    assert "RTX 40" in PRODUCTS[Capability(8, 9)]
    assert name_of(Capability(9, 0)) == "9.0 (H100, H200, GH200)"
    assert name_of(Capability(14, 2)) == "14.2"


def test_series_are_listed_from_the_oldest_cuda() -> None:
    """The advice takes them in reverse, so the order of the table matters."""
    for machine in ("x86_64", "aarch64"):
        series = [wheel.cuda for wheel in WHEELS if wheel.machine == machine]
        assert series == sorted(series)
