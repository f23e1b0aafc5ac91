"""What was found in a container of an image: files of a driver, a Python, failures in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.facts import Fact, Facts
from gpucheck.judgement import image_inside
from gpucheck.judgement.image_config import Image
from gpucheck.verdict import Finding, Unable, Verdict

IMAGE = Image("team/train:1", "sha256:1", env={"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib"})
BAD, DEGRADED = Verdict.BAD, Verdict.DEGRADED
RUNC = 'OCI runtime create failed: runc create failed: exec: "python3": executable file not found in $PATH: unknown'
CRUN = "crun: executable file `python3` not found in $PATH: No such file or directory: OCI runtime attempted to invoke"
ABSOLUTE = 'exec: "/opt/venv/bin/python": stat /opt/venv/bin/python: no such file or directory: unknown'


def test_behind_an_entry_point_nothing_is_surely_missing() -> None:
    """What is not there is said with less confidence; what fails is not."""
    missing = Finding("torch-missing", BAD, ("no torch",))
    entered = replace(IMAGE, has_entrypoint=True)
    assert image_inside.behind(IMAGE, missing) is missing
    assert image_inside.behind(entered, missing).confidence == "medium"
    broken = Finding("torch-import-failed", BAD)
    assert image_inside.behind(entered, broken) is broken
    assert image_inside.no_python(entered, ["python3"]).confidence == "medium"


def file(path: str, real: str = "", **changes: Any) -> dict[str, Any]:
    """A file as the payload describes it."""
    told = {"name": path.rpartition("/")[2], "path": path, "real": real or path, "said_by": "default"}
    return {**told, "is_regular": not real, "is_stub": False, "size_bytes": 1 << 25, **changes}


COMPAT = file("/usr/local/cuda/compat/libcuda.so.1", "/usr/local/cuda/compat/libcuda.so.560.35.03")
LINKED = file("/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.550.54.15")


@pytest.mark.parametrize(
    ("told", "driver", "wants", "expected"),
    [
        (file("/x/stubs/libcuda.so", is_stub=True), None, "1 here", ("stub-libcuda", DEGRADED)),
        (file("/x/stubs/libcuda.so.1", is_stub=True), None, "1 here", ("stub-libcuda", BAD)),
        (file("/x/stubs/libcuda.so.1", is_stub=True), None, None, ("stub-libcuda", DEGRADED)),
        (file("/usr/lib/libcuda.so", "/usr/lib/libcuda.so.550.54.15"), None, "1 here", None),
        (file("/usr/lib/libcuda.so.1", size_bytes=0), None, "1 here", ("driver-libs-in-image", BAD)),
        (LINKED, None, "1 here", ("driver-libs-in-image", DEGRADED)),
        (LINKED, "580.65.06", "1 here", ("driver-libs-in-image", DEGRADED)),
        (LINKED, "535.183.01", "1 here", ("driver-libs-in-image", BAD)),
        (COMPAT, None, "1 here", ("compat-shadows-driver", DEGRADED)),
        (COMPAT, "580.65.06", "1 here", ("compat-shadows-driver", BAD)),
        (COMPAT, "560.35.03", "1 here", None),
        (COMPAT, "550.54.15", "1 here", None),
    ],
)
def test_files(told: dict[str, Any], driver: str | None, wants: str | None, expected: Any) -> None:
    """What stands in the place of the host's library, by its kind and the two versions."""
    found = image_inside.files([told], IMAGE, driver, wants)
    assert [(finding.pitfall, finding.weight) for finding in found] == ([expected] if expected else [])


def test_files_of_one_kind_are_one_finding() -> None:
    """The heavier weight, and a line a file, with who sends the loader there."""
    (finding,) = image_inside.files([LINKED, file("/usr/lib/libnvidia-ml.so.1", size_bytes=0)], IMAGE, None, "1 here")
    assert finding.weight is BAD
    assert finding.evidence[0] == "/usr/lib/libcuda.so.1 (by default): of driver 550.54.15; fails under an older one"
    assert finding.evidence[1] == "/usr/lib/libnvidia-ml.so.1 (by default): an empty file, in the place of the host's"


def test_what_stands_in_for_a_newer_driver() -> None:
    """Only a library of compatibility that is newer than the driver."""
    assert image_inside.forward([COMPAT], "550.54.15") == COMPAT["path"]
    assert image_inside.forward([COMPAT], "580.65.06") is None
    assert image_inside.forward([COMPAT], None) is None
    assert image_inside.forward([LINKED], "470.57.02") is None


@pytest.mark.parametrize("refusal", [RUNC, CRUN, ABSOLUTE])
def test_a_program_that_is_not_there(refusal: str) -> None:
    """In the words of each runtime."""
    assert image_inside.lacks_program(refusal)
    assert not image_inside.lacks_program('could not select device driver "" with capabilities: [[gpu]]')


@pytest.mark.parametrize(
    "errors",
    [
        '  File "/gpucheck/envelope/envelope.py", line 118\n    *delivery = argv\nSyntaxError: invalid syntax',
        'Traceback\n  File "/gpucheck/payload/torch_in_image.py", line 24\nSyntaxError: future feature annotations',
    ],
)
def test_an_old_python(errors: str) -> None:
    """It does not read what we send; a syntax error of the image's own is another matter."""
    with pytest.raises(Unable, match=r"Python 3\.8 or later"):
        image_inside.refuse_old_python(errors, "python")
    image_inside.refuse_old_python('File "/opt/site/torch/__init__.py", line 1\nSyntaxError: invalid syntax', "python3")


def used(**changes: Any) -> dict[str, Any]:
    """What came of using torch."""
    right = {"numpy": {"ended": "value", "value": "2.1.0"}, "cpu": {"ended": "value", "value": 0.3}}
    return {**right, "python": {"version": "3.12.3"}, "seen": None, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"numpy": {"ended": "absent"}}, []),
        ({"cpu": {"ended": "value", "value": 40.0}}, ["a product on the CPU: wrong numbers"]),
        ({"cpu": {"ended": "value", "value": None}}, ["a product on the CPU: wrong numbers"]),
        ({"cpu": {"ended": "signal", "signal": "SIGILL"}}, ["a product on the CPU: Illegal instruction"]),
        ({"cpu": {"ended": "hang"}}, ["a product on the CPU: did not come back"]),
        (
            {"numpy": {"ended": "failure", "type": "RuntimeError", "text": "Numpy is not available\nmore"}},
            ["numpy with torch: RuntimeError: Numpy is not available"],
        ),
    ],
)
def test_what_is_misused(changes: dict[str, Any], words: list[str]) -> None:
    """Wrong numbers, exceptions, deaths and hangs each in one line; no numpy is none of them."""
    assert [lack.what for lack in image_inside.misused(used(**changes))] == words


def test_facts_are_the_images() -> None:
    """Of the host only GPUs and driver are taken: its own Python has another numpy."""
    host = Facts([Fact("package.numpy", "1.26.4"), Fact("nvml.status", "ok"), Fact("env.PATH", "/host")])
    facts = image_inside.facts_of(used(), IMAGE, "docker", host)
    assert facts.known("package.numpy") == "2.1.0"
    assert facts.known("nvml.status") == "ok"
    assert facts.known("env.PATH") == "/usr/bin"
    assert facts.known("machine.container") == "docker"
    assert image_inside.facts_of(used(numpy={"ended": "absent"}), IMAGE, "docker", host)["package.numpy"].why


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"library": "libcublas.so.12", "text": "libcublas.so.12: cannot open"}, True),
        ({"library": "/opt/torch/lib/libtorch_cpu.so", "text": "file too short"}, False),
        ({"text": "cannot import name 'x' from partially initialized module 'torch'"}, False),
        ({"text": "from partially initialized module 'torch'", "shadow": "/job/torch.py"}, True),
    ],
)
def test_whose_words_are_held_against_the_knowledge_base(told: dict[str, Any], expected: bool) -> None:
    """A torn torch is no program with a wrong extension."""
    assert image_inside.says_why({"library": None, "shadow": None, **told}) is expected
