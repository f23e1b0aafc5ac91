"""What an image says of itself: platform, environment, demands on a driver, and the names of its secrets."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.judgement import image_config
from gpucheck.judgement.image_config import Driver, Image, Met, demands, meets, unmet
from gpucheck.verdict import Verdict

TOLD: dict[str, Any] = {
    "id": "sha256:" + "1" * 64,
    "digests": ["team/train@sha256:" + "2" * 64],
    "os": "linux",
    "architecture": "arm64",
    "variant": "v8",
    "user": "1000",
    "entrypoint": True,
}
HERE = Driver("12.4", "550.54.15", ("9.0",))
NVIDIAS = (
    "cuda>=12.6 brand=unknown,driver>=470,driver<471 brand=grid,driver>=470,driver<471 "
    "brand=tesla,driver>=550,driver<551 brand=nvidia,driver>=550,driver<551"
)


def image(**env: str) -> Image:
    """An image with that environment."""
    return Image.parse("team/train:1", {**TOLD, "env": env})


def test_details_of_the_record() -> None:
    """Config id, digests and platform stand in the record."""
    assert image().details == {"config": TOLD["id"], "digests": TOLD["digests"], "platform": "linux/arm64/v8"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hf_abcdefgh"),
        ("POSTGRES_PASSWORD", "mouse7"),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI"),
        ("PIP_EXTRA_INDEX_URL", "https://user:hunter2@index.example/simple"),
        ("SETTING", "ghp_abcdefghijklmnop1234"),
    ],
)
def test_secrets(name: str, value: str) -> None:
    """By name, or by the shape of the value; and the value is nowhere."""
    found = image(**{name: value})
    assert found.secrets == (name,)
    assert value not in repr(found)
    assert value not in str(found.env)
    finding = next(image_config.environment(found, None))
    assert (finding.pitfall, finding.weight) == ("secret-in-image", Verdict.DEGRADED)
    assert finding.evidence == (f"variables with a value: {name}",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GPG_KEY", "A035C8C19219BA821ECEA86B64E628F8D684696D"),
        ("HF_TOKEN", ""),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("USE_AUTH_TOKEN", "false"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/run/secrets/key.json"),
        ("API_KEY", "${API_KEY}"),
        ("PATH", "/usr/local/bin:/usr/bin"),
        ("NVIDIA_REQUIRE_CUDA", NVIDIAS),
        ("PYTHON_SHA256", "d40ed703f29d1e8fd8d5f5a1e2e5d8d1"),
    ],
)
def test_no_secrets(name: str, value: str) -> None:
    """Empty values, paths, switches, and the public fingerprints that official images carry."""
    assert image(**{name: value}).secrets == ()


def test_what_an_official_image_sets_is_right() -> None:
    """The environment of NVIDIA's own images is no finding."""
    official = image(NVIDIA_VISIBLE_DEVICES="all", NVIDIA_DRIVER_CAPABILITIES="compute,utility", CUDA_VERSION="12.4.1")
    assert list(image_config.environment(official, "1 here")) == []


@pytest.mark.parametrize(
    ("env", "wants", "pitfall", "weight"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, "1 here", "hidden-by-environment", Verdict.DEGRADED),
        ({"CUDA_VISIBLE_DEVICES": ""}, "1 here", "hidden-by-environment", Verdict.BAD),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, None, "hidden-by-environment", Verdict.DEGRADED),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "1 here", "hidden-by-environment", Verdict.DEGRADED),
        ({"NVIDIA_DRIVER_CAPABILITIES": "graphics"}, "1 here", "driver-capability-missing", Verdict.BAD),
        ({"NVIDIA_DRIVER_CAPABILITIES": "graphics"}, None, "driver-capability-missing", Verdict.DEGRADED),
        ({"NVIDIA_DRIVER_CAPABILITIES": "compute"}, "1 here", "driver-capability-missing", Verdict.DEGRADED),
    ],
)
def test_environment(env: dict[str, str], wants: str | None, pitfall: str, weight: Verdict) -> None:
    """What stops each job is bad where somebody wants GPUs."""
    (finding,) = image_config.environment(image(**env), wants)
    assert (finding.pitfall, finding.weight) == (pitfall, weight)
    assert finding.params["image"] == "team/train:1"


def test_platform() -> None:
    """Native, or foreign: bad, and under an emulator only where nobody wants GPUs slow."""
    assert image_config.is_native(image(), "aarch64")
    assert not image_config.is_native(image(), "x86_64")
    assert image_config.is_native(Image("x", "y"), "x86_64")
    assert not image_config.is_native(Image("x", "y", os="windows", architecture="amd64"), "x86_64")
    assert image_config.handlers(image()) == ["/proc/sys/fs/binfmt_misc/qemu-aarch64"]
    enabled = "enabled\ninterpreter /usr/bin/qemu-aarch64-static\nflags: F\n"
    weights = {
        (handler, wants): image_config.foreign(image(), "x86_64", handler, wants).weight
        for handler in (None, "disabled\n", enabled)
        for wants in (None, "1 here")
    }
    assert [pair for pair, weight in weights.items() if weight is Verdict.DEGRADED] == [(enabled, None)]


@pytest.mark.parametrize(
    ("demand", "met"),
    [
        ("cuda>=12.4", Met.YES),
        ("cuda>=12.6", Met.NO),
        (NVIDIAS, Met.UNKNOWN),
        ("cuda>=12.6 driver>=550,driver<551", Met.YES),
        ("cuda>=12.6 brand=tesla,driver>=470,driver<471", Met.NO),
        ("cuda>=12.6 brand=tesla", Met.UNKNOWN),
        ("driver=550.54.15", Met.YES),
        ("driver!=550.54.15", Met.NO),
        ("driver>550 driver<500", Met.YES),
        ("driver<=550", Met.NO),
        ("arch>=9.0", Met.YES),
        ("arch>=10.0", Met.NO),
        ("nonsense", Met.UNKNOWN),
        ("", Met.YES),
    ],
)
def test_demands(demand: str, met: Met) -> None:
    """Alternatives stand between blanks, conditions of one between commas; what is not known here decides nothing."""
    assert meets(demand, HERE) is met


def test_an_unknown_driver_decides_nothing() -> None:
    """Without its version and its CUDA no demand can be called unmet."""
    assert meets("cuda>=12.6 driver>=560", Driver()) is Met.UNKNOWN


def test_who_demands() -> None:
    """Each variable by itself; images of 2017 by their CUDA version; none where the image switches it off."""
    assert demands(image(CUDA_VERSION="8.0.61")) == {"CUDA_VERSION": "cuda>=8.0"}
    assert demands(image(CUDA_VERSION="12.4.1", NVIDIA_REQUIRE_CUDA="")) == {}
    assert demands(image(NVIDIA_REQUIRE_CUDA="cuda>=13.0", NVIDIA_DISABLE_REQUIRE="1")) == {}
    (finding,) = unmet(image(NVIDIA_REQUIRE_CUDA="cuda>=13.0 driver>=580"), HERE)
    assert finding.pitfall == "driver-requirement-unmet"
    assert finding.evidence[0] == "the image sets NVIDIA_REQUIRE_CUDA=cuda>=13.0"
    assert finding.evidence[1] == "the driver 550.54.15 supports CUDA 12.4"
