"""What was found in a container of an image, and what it means for jobs: answers of ``payload/torch_in_image.py`` in.

Pure. What torch is and what it computed on GPUs is judged where any torch is: ``computation``, ``wheel``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gpucheck.facts import Fact, Facts
from gpucheck.judgement.computation import Seen
from gpucheck.verdict import Finding, Unable, Unexplained, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpucheck.judgement.image_config import Image

GENERAL: Final = "torch-import-failed"
MISSING: Final = "torch-missing"
#: What an engine says of a program that is not in the image: runc's words and crun's.
_NO_PROGRAM = re.compile(r"executable file .{0,80}not found in \$PATH|stat \S+: no such file or directory")
_ELSEWHERE = "bind source path does not exist"
_OLD_PYTHON = re.compile(r'File "/gpucheck/.{1,400}SyntaxError: ', re.DOTALL)
_VERSION = re.compile(r"\.so\.(\d{3}\.\d{2,3}(?:\.\d{2,3})?)$")
_OF_TORCH = ("libtorch", "libc10", "libshm")
_CIRCULAR = "partially initialized module 'torch'"
#: Refusals of an engine, and states of a container, that an image can be the cause of.
OF_AN_IMAGE: Final = (
    "driver-libs-in-image",
    "driver-requirement-unmet",
    "driver-capability-missing",
    "stub-libcuda",
    "compat-shadows-driver",
    "compat-unsupported-gpu",
)
_OF_THE_HOST = ("gpu.", "nvml.", "driver.module", "uvm.", "fabric.")
#: Statuses of cuInit that say which libcuda was loaded.
OF_A_LIBRARY: Final = (34, 803, 804)


def lacks_program(refusal: str) -> bool:
    """Whether the engine refused because the image does not have the program."""
    return bool(_NO_PROGRAM.search(refusal))


def refuse_elsewhere(refusal: str) -> None:
    """Raises Unable where the engine does not see our files: it runs elsewhere."""
    if _ELSEWHERE in refusal:
        raise Unable(f"the engine here: it does not see this host's files ({refusal}); run gpucheck where it runs")


def refuse_old_python(errors: str, command: str) -> None:
    """Raises Unable where the Python of the image does not know the language of what we send."""
    if _OLD_PYTHON.search(errors):
        raise Unable(f"a Python 3.8 or later in the image: its {command} does not read what gpucheck sends")


def no_python(image: Image, tried: Iterable[str]) -> Finding:
    """Neither name of a Python leads to one. An entry point may put one on the PATH, and it does not run here."""
    said = f"no {' and no '.join(tried)} on its PATH: {image.env.get('PATH', 'not set')}"
    return behind(image, Finding("image-without-python", Verdict.BAD, (said,), {"image": image.name}))


def behind(image: Image, finding: Finding) -> Finding:
    """The finding that something is not there: less sure where an entry point may change what is looked at."""
    if not image.has_entrypoint or finding.pitfall not in (MISSING, "image-without-python"):
        return finding
    passed_over = "the image's ENTRYPOINT was passed over; it may change the PATH"
    return replace(finding, evidence=(*finding.evidence, passed_over), confidence="medium")


def python_of(told: Mapping[str, Any], command: str) -> str:
    """The Python, as the image's PATH gives it."""
    python = told["python"]
    return f"{command} is {python['executable']} {python['version']}, as uid {told['uid']}"


def lacks_torch(told: Mapping[str, Any]) -> bool:
    """Whether there is no torch at all in that Python."""
    torch = told["torch"]
    return bool(torch["ended"] == "raises" and torch["module"] == "torch")


def says_why(torch: Mapping[str, Any]) -> bool:
    """Whether the words of a failed import may be held against the knowledge base.

    Not where a file of torch's own is missing, nor where torch meets itself half imported: of those the knowledge base
    knows what they mean in a program of the user's.
    """
    library = str(torch["library"] or "").rpartition("/")[2]
    return not library.startswith(_OF_TORCH) and bool(torch["shadow"] or _CIRCULAR not in torch["text"])


def torch_of(told: Mapping[str, Any]) -> str:
    """Torch and numpy in one phrase."""
    numpy = told["numpy"]
    beside = {"value": f"numpy {numpy.get('value')}", "absent": "no numpy"}.get(numpy["ended"], "a numpy that fails")
    return f"{Seen.parse(told['seen']).build}, {beside}"


def facts_of(told: Mapping[str, Any], image: Image, kind: str, host: Facts) -> Facts:
    """What decides between causes of one message: of this host its GPUs and driver, all else of the image."""
    numpy, seen = told["numpy"] or {}, told["seen"] or {}
    known = {
        "machine.container": kind,
        "python.version": told["python"]["version"],
        **{f"env.{name}": value for name, value in image.env.items()},
    }
    if numpy.get("ended") == "value":
        known["package.numpy"] = numpy["value"]
    if seen:
        known |= {"package.torch": seen["version"], "torch.cuda_build": seen["cuda_build"] or "none"}
    kept = [host[name] for name in host if name.startswith(_OF_THE_HOST)]
    return Facts([*kept, Fact("env.*", source=image.name), *(Fact(n, value, image.name) for n, value in known.items())])


def misused(told: Mapping[str, Any]) -> Iterator[Unexplained]:
    """What can be imported and does not work: in words that the knowledge base may know."""
    for what, used in (("numpy with torch", told["numpy"]), ("a product on the CPU", told["cpu"])):
        if used["ended"] == "value":
            if used["value"] is None or (what != "numpy with torch" and not 0 <= used["value"] <= 1):
                yield Unexplained(f"{what}: wrong numbers", "wrong numbers on the CPU")
        elif used["ended"] != "absent":
            # As a shell says it of a program that died so.
            signals = {"SIGILL": "Illegal instruction", "SIGSEGV": "Segmentation fault"}
            died = signals.get(used.get("signal", ""), used.get("signal", ""))
            said = f"{used['type']}: {used['text']}" if used.get("type") else died or "did not come back"
            yield Unexplained(f"{what}: {said.partition(chr(10))[0]}", said)


def files(told: Iterable[Mapping[str, Any]], image: Image, driver: str | None, wants_gpus: str | None) -> list[Finding]:
    """What a driver's libraries in the image do; ``driver`` is the version of this host's, None: there is none."""
    serious = Verdict.BAD if wants_gpus else Verdict.DEGRADED
    heaviest: dict[str, Verdict] = {}
    lines: dict[str, list[str]] = {}
    for file in told:
        if (judged := _file(file, driver, serious)) is not None:
            pitfall, weight, why = judged
            heaviest[pitfall] = Verdict.BAD if Verdict.BAD in (weight, heaviest.get(pitfall)) else Verdict.DEGRADED
            lines.setdefault(pitfall, []).append(f"{file['path']} (by {file['said_by']}): {why}")
    params = {"image": image.name}
    return [Finding(pitfall, weight, tuple(lines[pitfall]), params) for pitfall, weight in heaviest.items()]


def _file(file: Mapping[str, Any], driver: str | None, serious: Verdict) -> tuple[str, Verdict, str] | None:
    """The pitfall of one file, its weight, and why."""
    named_to_link = file["name"] == "libcuda.so"
    if file["is_stub"]:
        if named_to_link:
            return "stub-libcuda", Verdict.DEGRADED, "a stand-in for linking; Triton and Numba would load it"
        return "stub-libcuda", serious, "a stand-in for linking, under the name that every program loads"
    if named_to_link:
        return None
    return (_compat if _is_compat(file) else _of_a_driver)(file, driver, serious)


def _compat(file: Mapping[str, Any], driver: str | None, serious: Verdict) -> tuple[str, Verdict, str] | None:
    version = _version(file["real"])
    if driver is None:
        return "compat-shadows-driver", Verdict.DEGRADED, f"fails under a driver newer than {version or 'its own'}"
    if version and _numbers(version) < _numbers(driver):
        return "compat-shadows-driver", serious, f"older than this host's driver {driver}"
    return None


def _of_a_driver(file: Mapping[str, Any], driver: str | None, serious: Verdict) -> tuple[str, Verdict, str]:
    version = _version(file["real"])
    if file["is_regular"] or not version:
        empty = "an empty file" if file["size_bytes"] == 0 else "a file of the image"
        return "driver-libs-in-image", serious, f"{empty}, in the place of the host's"
    if driver is not None and _numbers(version) > _numbers(driver):
        return "driver-libs-in-image", serious, f"of driver {version}, newer than this host's {driver}"
    return "driver-libs-in-image", Verdict.DEGRADED, f"of driver {version}; fails under an older one"


def _is_compat(file: Mapping[str, Any]) -> bool:
    return "/compat/" in f"{file['path']} {file['real']}"


def forward(told: Iterable[Mapping[str, Any]], driver: str | None) -> str | None:
    """The compatibility library that a job would load over an older driver: it decides what CUDA can be used."""
    for file in told:
        if file["name"] == "libcuda.so.1" and _is_compat(file):
            version = _version(file["real"])
            return str(file["path"]) if version and driver and _numbers(version) > _numbers(driver) else None
    return None


def _version(path: str) -> str | None:
    match = _VERSION.search(path)
    return match[1] if match else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
