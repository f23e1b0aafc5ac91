"""Whether a wheel holds code for a GPU: findings and advice, a row a case."""

from __future__ import annotations

import pytest

from gpucheck.architecture import Capability, Cuda, Fit
from gpucheck.judgement.wheel import Installed, advice, how, judge
from gpucheck.verdict import Unable, Verdict

FLAGS = {
    "cu130": ("2.14.1+cu130", "13.0", "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"),
    "cu126": ("2.14.1+cu126", "12.6", "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"),
    "own": ("2.5.0a0", "12.6", "sm_80 compute_80"),
    "a100": ("2.5.0a0", "12.6", "sm_80"),
}


def installed(name: str, machine: str = "x86_64") -> Installed:
    """One of the wheels above."""
    version, cuda, flags = FLAGS[name]
    return Installed.parse(version, cuda, flags.split(), machine)


@pytest.mark.parametrize(
    ("wheel", "device", "driver", "pitfall"),
    [
        pytest.param("cu130", "9.0", "13.0", None, id="H100"),
        pytest.param("cu130", "8.9", "13.0", None, id="RTX 4090 by the code of A100"),
        pytest.param("cu130", "12.1", "13.0", None, id="GB10 by the code of RTX 50"),
        pytest.param("cu130", "7.0", "13.0", "wheel-newer-wrong", id="V100: only older wheels fit"),
        pytest.param("cu126", "10.0", "13.0", "no-kernel-image", id="B200: newer wheels fit"),
        pytest.param("cu130", "14.0", "13.0", "no-kernel-image", id="a generation that nobody builds for yet"),
        pytest.param("own", "9.0", "13.0", "jit-only", id="PTX that the driver reads"),
        pytest.param("own", "9.0", "12.4", "ptx-too-new", id="PTX that it does not"),
        pytest.param("a100", "9.0", "13.0", "no-kernel-image", id="code for another major alone"),
    ],
)
def test_one_gpu(wheel: str, device: str, driver: str, pitfall: str | None) -> None:
    """Machine code is right, PTX alone is degraded, neither is bad; a wrong advice is part of the finding."""
    finding = judge(installed(wheel), Capability.parse(device), Cuda.parse(driver))
    assert (finding.pitfall if finding else None) == pitfall
    if finding is not None:
        assert finding.weight is (Verdict.DEGRADED if pitfall == "jit-only" else Verdict.BAD)
        assert device in finding.evidence[0]


def test_ptx_and_an_unknown_driver_are_undecided() -> None:
    """Whether PTX will be understood depends on the driver: unknown is not ok, and not bad."""
    with pytest.raises(Unable, match="the driver's CUDA version"):
        judge(installed("own"), Capability(9, 0), None)
    assert how(installed("own"), Capability(9, 0), None) is Fit.UNDECIDED


@pytest.mark.parametrize(
    ("wheel", "device", "driver", "machine", "words"),
    [
        ("cu130", "7.0", "13.0", "x86_64", "a newer CUDA than 12.8 does not help: its wheels left 7.0 out"),
        (
            "cu130",
            "9.0",
            "12.4",
            "x86_64",
            "a newer CUDA than 12.8 does not help: the driver (CUDA 12.4) does not start it",
        ),
        ("cu126", "10.0", "13.0", "x86_64", "wheels that fit: cu134 (torch 2.14 and later)"),
        ("cu130", "14.0", "13.0", "x86_64", "build with TORCH_CUDA_ARCH_LIST=14.0"),
        ("cu130", "7.0", "13.0", "aarch64", "no published wheel for aarch64"),
    ],
)
def test_the_advice(wheel: str, device: str, driver: str, machine: str, words: str) -> None:
    """It names what fits this GPU, this processor and this driver, or what to build."""
    lines = advice(installed(wheel, machine), Capability.parse(device), Cuda.parse(driver))
    assert words in " | ".join(lines)


def test_the_parameters_fill_the_commands() -> None:
    """The index of the newest wheel that fits, and the list to build with."""
    finding = judge(installed("cu130"), Capability(7, 0), Cuda(13, 0))
    assert finding is not None
    assert finding.params["index"] == "cu128"
    assert finding.params["arch_list"] == "7.0"


def test_what_is_installed_is_told_in_its_own_names() -> None:
    """The evidence shows the list as torch gives it; a name that is none is refused."""
    assert str(installed("own")) == "torch 2.5.0a0 (CUDA 12.6): sm_80 compute_80"
    with pytest.raises(ValueError, match="gfx942"):
        Installed.parse("2.5", "12.6", ["gfx942"], "x86_64")
