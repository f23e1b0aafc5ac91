"""The probe image-runs-torch: images of a real engine, made of this host's files, each with one thing wrong.

The containers with GPUs alone are played: their answers are those of the payloads.
"""

from __future__ import annotations

import json
import os
import platform
import runpy
import struct
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.judgement.hello import Hello
from gpucheck.judgement.image_config import Image
from gpucheck.process import Ended, NoAnswer, Reply, Value
from gpucheck.record import result_row
from gpucheck.redact import redacted
from gpucheck.report import Report
from gpucheck.verdict import Result, Subject, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Judge = Callable[..., Result]

drive: Any = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("drive.py"))))
images: Any = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("images.py"))))
PROBE = "image_runs_torch"
SITE, PATH = images.SITE, images.PATH
SECRET = "hf_" + "aBcD1234" * 4
AARCH64, X86_64 = 183, 62
FOREIGN, FOREIGN_MACHINE = ("arm64", AARCH64) if platform.machine() == "x86_64" else ("amd64", X86_64)
NATIVE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
DRIVEN = {"driver.module_version": "550.54.15", "nvml.cuda_version": "12.4"}
NO_GPU: dict[str, Any] = {
    "gpu.nodes": [],
    "gpu.hidden_by": [],
    "gpu.expected": [],
    "gpu.pci": [],
    "driver.module_version": None,
    "machine.container": "none",
}
GPU: dict[str, Any] = {
    "index": 0,
    "uuid": "GPU-00000000-0000-0000-0000-000000000000",
    "name": "a GPU",
    "capability": "9.0",
    "mig": False,
    "mig_devices": [],
    "unknown": {},
    "compute_mode": "default",
    "processes": [],
}
WITH_GPU = {**NO_GPU, **DRIVEN, "nvml.gpus": [GPU], "gpu.nodes": ["/dev/nvidia0"]}


@pytest.fixture(scope="module")
def bakery(docker_host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Makes images in the engine that answers here, and removes them."""
    made = images.Bakery(docker_host, tmp_path_factory.mktemp("images"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def python(bakery: Any) -> str:
    """An image with this host's Python and no torch."""
    name: str = bakery.of_files("python", images.python_files())
    return name


@pytest.fixture(scope="module")
def torch(bakery: Any) -> str:
    """An image with this host's Python and the torch of this environment."""
    pytest.importorskip("torch")
    name: str = bakery.of_files("torch", images.python_files(), images.torch_files())
    return name


@pytest.fixture(scope="module")
def cuda(bakery: Any, torch: str) -> str:
    """The same, whose torch says that it was built with CUDA 12.6 for sm_80 and sm_86; it still computes on the CPU."""
    script = f"""
path = "{SITE}/torch/version.py"
text = open(path).read() + "\\ncuda = '12.6'\\n"
open(path, "w").write(text)
path = "{SITE}/torch/__init__.py"
text = open(path).read() + "\\n_C._cuda_getArchFlags = lambda: 'sm_80 sm_86'\\n"
open(path, "w").write(text)
"""
    name: str = bakery.altered(torch, "cuda", script=script)
    return name


@pytest.fixture(scope="module")
def container(docker_host: str) -> Iterator[Any]:
    """Containers of the engine that answers here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", docker_host)
        # What the host's own Python would need is nothing to an image.
        patch.setenv("LD_LIBRARY_PATH", "/nonexistent/of/the/host")
        with drive.containers() as made:
            yield made


@pytest.fixture
def judge(container: Any) -> Judge:
    """Judges the image of that name on a machine with these facts, where the profile expects these capabilities."""

    def run(name: str, *capabilities: str, facts: dict[str, Any] = NO_GPU, within: Any = None) -> Result:
        image = container.engine.image(name, container.deadline)
        assert image is not None, name
        return judged(image, within or container, facts, *capabilities)

    return run


def judged(image: Any, container: Any, facts: dict[str, Any], *capabilities: str) -> Result:
    """The row of an image."""
    module = drive.load(PROBE)
    marks = module.pytestmark.kwargs
    report = Report("image-runs-torch", "a probe", Subject("image", "x", "x"), essential=marks["essential"])
    options = drive.options_of({}, {"capabilities": list(capabilities)} if capabilities else {})

    def child(payload: str, args: Any, **_: Any) -> Reply:
        """The kernel's emulators: on a machine under test there is none."""
        return Reply(Value(dict.fromkeys(args["paths"])), Ended("exit", 0))

    try:
        module.test_image_runs_torch(report, drive.facts_of(facts), options, child, container, image)
    except Exception as raised:  # noqa: BLE001 - as the hooks around a probe take it
        return report.result(raised)
    return report.result()


def found(result: Result) -> list[tuple[str, str]]:
    """The findings' ids and weights."""
    return [(finding.pitfall, finding.weight.value) for finding in result.findings]


def text(result: Result) -> str:
    """All that a result says."""
    lines = [*result.evidence, *(line for finding in result.findings for line in finding.evidence), *result.lacking]
    return "\n".join([*lines, *(f"{missed.leg}: {missed.why}" for missed in result.not_run)])


# ------------------------------------------------------------------------------------------- what is right


def test_a_torch_that_works(judge: Judge, bakery: Any, torch: str) -> None:
    """Ok as the image's own user and without its entry point; what was not looked at is said."""
    name = bakery.altered(torch, "user", "USER 1234:1234", 'ENTRYPOINT ["/nonexistent"]', f"WORKDIR {SITE}")
    result = judge(name)
    assert result.verdict is Verdict.OK, text(result)
    assert result.gist.startswith("torch ")
    assert result.gist.endswith("as uid 1234")
    assert f"{SITE}/torch/__init__.py, imported in" in text(result)
    assert "a product and its gradient on the CPU are right" in text(result)
    assert [missed.leg for missed in result.not_run] == ["kernel-images", "driver", "gpu"]
    assert "gpu: no NVIDIA device, and nothing expects one" in text(result)


def test_nothing_of_the_host_is_in_it(container: Any, bakery: Any, python: str) -> None:
    """The image's own environment and nothing of this host's, whose folders are not bound."""
    name = bakery.altered(python, "own", "ENV LD_LIBRARY_PATH=/opt/own HOME=/opt/home")
    paths = ["/proc/self/environ", "/proc/self/mountinfo"]
    reply = container("read_files", {"paths": paths}, image=name)
    assert isinstance(reply.answer, Value), reply
    environ = dict(entry.split("=", 1) for entry in reply.answer.value[paths[0]].split("\0") if entry)
    ours = {"TMPDIR", "PYTHONDONTWRITEBYTECODE", "GPUCHECK_RUN", "GPUCHECK_STACKS", "HOSTNAME"}
    own = {"PATH": PATH, "PYTHONPATH": SITE, "LD_LIBRARY_PATH": "/opt/own", "HOME": "/opt/home"}
    assert {name: value for name, value in environ.items() if name not in ours} == own
    lines = [line.split(" - ") for line in reply.answer.value[paths[1]].splitlines()]
    points = {left.split()[4]: right.split()[0] for left, right in lines}
    on_disk = {point for point, kind in points.items() if kind not in ("proc", "sysfs", "tmpfs", "mqueue", "devpts")}
    of_engine = {"/etc/resolv.conf", "/etc/hostname", "/etc/hosts"}
    assert {point for point in on_disk - of_engine if not point.startswith("/sys/fs/cgroup")} == {
        "/",
        "/gpucheck/answer",
        "/gpucheck/envelope",
        "/gpucheck/payload",
    }


def test_the_other_python_is_tried(judge: Judge, bakery: Any, torch: str) -> None:
    """Where python3 has no torch and python has one, a job is said to need python."""
    other = f"#!{images.PYTHON}\nimport os, sys\nenv = dict(os.environ, PYTHONPATH='{SITE}')\n"
    other += f"os.execve('{images.PYTHON}', ['python', *sys.argv[1:]], env)\n"
    name = bakery.altered(torch, "two", "ENV PYTHONPATH=/nonexistent", files={"/usr/local/bin/python": other})
    result = judge(name)
    assert result.verdict is Verdict.OK, text(result)
    assert "python3 is " in text(result)
    assert "python is " in text(result)


# ------------------------------------------------------------------------------------------- platform and Python


def test_an_image_for_another_processor(judge: Judge, bakery: Any) -> None:
    """It is told by what the image says of itself, and nothing of it is run."""
    result = judge(bakery.loaded("foreign", FOREIGN, {"/usr/local/bin/python3": "nothing"}))
    assert found(result) == [("image-wrong-architecture", "bad")]
    assert f"the image is for linux/{FOREIGN}, this machine is {platform.machine()}" in text(result)
    assert {missed.leg for missed in result.not_run} == {"import", "kernel-images", "driver", "gpu"}


def test_an_image_that_lies_about_its_processor(judge: Judge, bakery: Any) -> None:
    """The kernel's own words tell it then."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, FOREIGN_MACHINE, 1, 0, 64, *[0] * 8)
    result = judge(bakery.loaded("liar", NATIVE, {"/usr/local/bin/python3": header + bytes(64)}))
    assert found(result) == [("image-wrong-architecture", "bad")], text(result)
    assert "exec format error" in text(result)


def test_an_image_without_python(judge: Judge, bakery: Any) -> None:
    """No shell and no Python is a finding; behind an entry point there may be one, so it is less sure."""
    name = bakery.loaded("empty", NATIVE, {"/hello": "hello"})
    result = judge(name)
    assert found(result) == [("image-without-python", "bad")], text(result)
    assert f"no python3 and no python on its PATH: {PATH}" in text(result)
    assert result.findings[0].confidence == "high"
    behind = judge(bakery.altered(name, "behind", 'ENTRYPOINT ["/hello"]'))
    assert behind.findings[0].confidence == "medium"


def test_an_image_without_torch(judge: Judge, python: str) -> None:
    """An image that was named and has no torch runs no torch jobs, and it is said which Python was asked."""
    result = judge(python)
    assert found(result) == [("torch-missing", "bad")]
    assert result.findings[0].confidence == "high"
    assert f"python3 is {images.PYTHON} " in text(result)


def test_a_python_that_is_too_old_for_us(judge: Judge, bakery: Any, python: str) -> None:
    """It cannot be judged, which is no fault of the image."""
    old = (
        f"#!{images.PYTHON}\nimport sys\nprint('  File \"/gpucheck/envelope/envelope.py\", line 1', file=sys.stderr)\n"
    )
    old += "sys.exit('SyntaxError: invalid syntax')\n"
    name = bakery.altered(python, "old", "ENV PATH=/old", files={"/old/python3": old})
    result = judge(name)
    assert (result.verdict, result.findings) == (Verdict.UNABLE, ())
    assert "a Python 3.8 or later in the image" in text(result)


# ------------------------------------------------------------------------------------------- an import that fails

NO_CUBLAS = "import ctypes; ctypes.CDLL('libcublas.so.99')"
ILL = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
TLS = "raise ImportError('/x/libgomp.so.1: cannot allocate memory in static TLS block')"
# A module of the standard library that wants a glibc which nobody has yet.
GLIBC = f"""
import glob, os
folder = os.path.dirname(os.__file__)
old = [data for path in glob.glob(folder + "/lib-dynload/*.so") if b"GLIBC_2." in (data := open(path, "rb").read())]
open("{SITE}/torch/_fast.so", "wb").write(old[0].replace(b"2.2.5", b"9.225").replace(b"GLIBC_2.", b"GLIBC_9."))
"""


@pytest.mark.parametrize(
    ("tag", "torch_text", "script", "pitfall", "words"),
    [
        ("cublas", NO_CUBLAS, "", "cuda-runtime-library-missing", "library: libcublas.so.99"),
        ("illegal", ILL, "", "illegal-instruction", "import torch died of SIGILL"),
        ("tls", TLS, "", "static-tls-exhausted", "static TLS block"),
        ("glibc", "from torch import _fast", GLIBC, "glibc-too-old", "symbol: GLIBC_9."),
        ("hidden", "raise ImportError('something of its own')", "", "torch-import-failed", "something of its own"),
    ],
)
def test_an_import_that_fails(
    judge: Judge, bakery: Any, python: str, tag: str, torch_text: str, script: str, pitfall: str, words: str
) -> None:
    """The true cause where the words name one; else that the import failed, with what was missing."""
    name = bakery.altered(python, f"{tag}-0", files={f"{SITE}/torch/__init__.py": torch_text})
    result = judge(bakery.altered(name, tag, script=script) if script else name)
    assert found(result) == [(pitfall, "bad")], text(result)
    assert words in text(result)
    assert f"python3 is {images.PYTHON}" in text(result)
    assert [missed.why for missed in result.not_run] == ["torch cannot be imported"] * 3


def test_a_secret_of_the_image_in_its_own_error(judge: Judge, bakery: Any, python: str) -> None:
    """What an import complains about may quote a variable of the image: its value reaches no row of the record."""
    raises = "import os; raise ImportError('refused for ' + os.environ['API_TOKEN_PROD'])"
    name = bakery.altered(python, "told-0", files={f"{SITE}/torch/__init__.py": raises})
    result = judge(bakery.altered(name, "told", "ENV API_TOKEN_PROD=swordfish-of-the-image"))
    written = json.dumps(redacted(result_row(result)))
    assert "refused for [redacted]" in written
    assert "swordfish" not in written


def test_a_library_of_torch_that_is_gone(judge: Judge, bakery: Any, torch: str) -> None:
    """A real torch without one of its files: the loader's name for it is in the finding."""
    result = judge(bakery.altered(torch, "torn", script=f"import os; os.remove('{SITE}/torch/lib/libtorch_cpu.so')"))
    assert found(result) == [("torch-import-failed", "bad")], text(result)
    assert "library: libtorch_cpu.so" in text(result)


def test_a_numpy_that_torch_cannot_use(judge: Judge, bakery: Any, torch: str) -> None:
    """Torch imports and its numbers are right, and each array fails."""
    broken = "raise ImportError('numpy.core.multiarray failed to import')\n"
    result = judge(bakery.altered(torch, "numpy", files={f"{SITE}/numpy/__init__.py": broken}))
    assert found(result) == [("numpy2-abi", "bad")], text(result)
    gone = judge(bakery.altered(torch, "bare", script=f"import shutil; shutil.rmtree('{SITE}/numpy')"))
    assert gone.verdict is Verdict.OK, text(gone)
    assert "no numpy" in gone.gist


# ------------------------------------------------------------------------------------------- GPUs that are wanted


def test_a_torch_for_the_cpu_where_gpus_are_wanted(judge: Judge, torch: str) -> None:
    """It imports and computes, and is none for GPUs."""
    result = judge(torch, "9.0")
    assert found(result) == [("cpu-only-wheel", "bad")]


def test_code_for_other_gpus(judge: Judge, cuda: str) -> None:
    """It imports, and by its list of images nothing runs on a capability that the profile expects."""
    result = judge(cuda, "8.6", "9.0")
    assert found(result) == [("no-kernel-image", "bad")], text(result)
    assert "sm_80 sm_86 runs as it is" in text(result)


# ------------------------------------------------------------------------------------------- what lies in the image

FILES = {
    "stub": ({"/usr/local/cuda/lib64/stubs/libcuda.so": "ELF"}, "stub-libcuda", "degraded"),
    "stub-1": ({"/usr/local/cuda/lib64/stubs/libcuda.so.1": "ELF"}, "stub-libcuda", "bad"),
    "empty": ({"/usr/lib/libnvidia-ml.so.1": ""}, "driver-libs-in-image", "bad"),
    "driver": ({"/usr/lib/libcuda.so.1": "ELF"}, "driver-libs-in-image", "bad"),
    "configured": (
        {"/etc/ld.so.conf": "include ld.so.conf.d/*.conf\n", "/etc/ld.so.conf.d/x.conf": "/opt/driver # ours\n"}
        | {"/opt/driver/libcuda.so.1": "ELF"},
        "driver-libs-in-image",
        "bad",
    ),
}


@pytest.mark.parametrize("tag", FILES)
def test_files_of_a_driver(judge: Judge, bakery: Any, python: str, tag: str) -> None:
    """Where the loader looks and a file of the image stands before the driver's, it is found, and by whose word."""
    files, pitfall, weight = FILES[tag]
    name = bakery.altered(python, f"files-{tag}", "ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs", files=files)
    result = judge(name, "9.0")
    assert (pitfall, weight) in found(result), text(result)
    path = next(path for path in files if ".so" in path and "conf" not in path)
    assert path in text(result)


LINK = """
import os
os.makedirs("/usr/local/cuda/compat")
os.chdir("/usr/local/cuda/compat")
open("libcuda.so.560.35.03", "wb").write(bytes(2 << 20))
os.symlink("libcuda.so.560.35.03", "libcuda.so.1")
"""


def test_a_compatibility_library(judge: Judge, bakery: Any, python: str) -> None:
    """On the loader's path it fails under every newer driver."""
    name = bakery.altered(python, "compat", "ENV LD_LIBRARY_PATH=/usr/local/cuda/compat", script=LINK)
    newer = {**NO_GPU, "driver.module_version": "580.65.06", "nvml.cuda_version": "13.0"}
    assert ("compat-shadows-driver", "bad") in found(judge(name, "9.0", facts=newer))
    assert ("compat-shadows-driver", "degraded") in found(judge(name, "9.0"))
    older = {**NO_GPU, **DRIVEN}
    assert "compat-shadows-driver" not in dict(found(judge(name, "9.0", facts=older)))


def test_what_the_environment_does(judge: Judge, bakery: Any, python: str) -> None:
    """Variables that hide GPUs or the driver, and secrets, whose names alone are ever shown."""
    name = bakery.altered(
        python,
        "environment",
        "ENV NVIDIA_VISIBLE_DEVICES=void NVIDIA_DRIVER_CAPABILITIES=graphics,video",
        f"ENV HF_TOKEN={SECRET} GPG_KEY=A035C8C19219BA821ECEA86B64E628F8D684696D EMPTY_TOKEN=",
        "ENV PIP_INDEX_URL=https://me:pw-of-mine@index.example/simple KEY_FILE=/run/secrets/key",
    )
    result = judge(name, "9.0")
    first = [
        ("hidden-by-environment", "degraded"),
        ("driver-capability-missing", "bad"),
        ("secret-in-image", "degraded"),
    ]
    assert found(result)[:3] == first
    assert "variables with a value: HF_TOKEN, PIP_INDEX_URL" in text(result)
    whole = json.dumps(asdict(result), default=str)
    assert SECRET not in whole
    assert "pw-of-mine" not in whole


# ------------------------------------------------------------------------------------------- with GPUs


def test_a_real_engine_that_hands_out_none(judge: Judge, container: Any, bakery: Any, cuda: str) -> None:
    """With GPUs here the container with GPUs is essential; the engine's refusal is another probe's finding."""
    if "nvidia" in container.engine.hello.runtimes:
        pytest.skip("this engine hands out GPUs")
    fitting = bakery.altered(cuda, "hopper", files={f"{SITE}/sitecustomize.py": HOPPER})
    result = judge(fitting, facts=WITH_GPU)
    assert (result.verdict, result.findings) == (Verdict.UNABLE, ()), text(result)
    assert result.blocked_by == "container-sees-gpu"
    assert "could not select device driver" in text(result)
    assert "machine code" not in text(result)


HOPPER = """
import builtins
real = builtins.__import__
def importing(name, *rest, **named):
    module = real(name, *rest, **named)
    if name == "torch" and hasattr(module, "_C"):
        module._C._cuda_getArchFlags = lambda: "sm_80 sm_90"
    return module
builtins.__import__ = importing
"""


class PlayedContainers:
    """An engine that hands out GPUs: answers by payload, recorded from payloads over stand-ins for the driver."""

    def __init__(self, **answers: Any) -> None:
        hello = Hello("docker", "28.2.2", runtimes=("runc",), root="/var/lib/docker")
        self.engine = SimpleNamespace(hello=hello, label=hello.label)
        self.answers = {**ANSWERS, **answers}
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, payload: str, _args: dict[str, Any], **how: Any) -> Reply:
        """The answer; a text is the engine's refusal."""
        self.asked.append((payload, how))
        answer = self.answers[payload]
        if isinstance(answer, str):
            return Reply(NoAnswer(), Ended("refused"), errors=f"gpucheck-refused: {answer}")
        return Reply(Value(answer), Ended("exit", 0))


TORCH: dict[str, Any] = {
    "version": "2.9.1+cu128",
    "cuda_build": "12.8",
    "hip_build": None,
    "arch_flags": ["sm_80", "sm_90"],
    "is_available": False,
    "error": {"type": "RuntimeError", "text": "Found no NVIDIA driver on your system."},
    "warnings": [],
    "devices": [],
    "kernels": [],
}
DEVICE = {"ordinal": 0, "uuid": GPU["uuid"][4:], "name": "a GPU", "capability": "9.0", "memory_bytes": 1 << 36}
KERNEL = {"ordinal": 0, "ended": "value", "worst": 0.1, "kernel_s": 0.5, "free_bytes": 1 << 36, "step": "copy back"}
STARTED = {"code": 0, "name": "CUDA_SUCCESS", "text": "no error"}
INSIDE: dict[str, Any] = {
    "nodes": {"/dev/nvidia0": None, "/dev/nvidia-uvm": None, "/dev/nvidiactl": None},
    "other": None,
    "driver": {"error": None, "library": "/usr/lib/libcuda.so.550.54.15", "version": 12040, "init": STARTED}
    | {"devices": [DEVICE], "refused": {}},
    "nvml": {"error": None, "devices": [GPU["uuid"]]},
    "smi": None,
    "etc": None,
    "environment": {},
}
ANSWERS: dict[str, Any] = {
    "torch_in_image": {
        "python": {"executable": "/usr/bin/python3", "version": "3.12.3", "machine": "x86_64", "libc": "glibc-2.39"},
        "uid": 0,
        "files": [],
        "torch": {"ended": "works", "import_s": 2.0, "text": ""},
        "seen": TORCH,
        "file": "/usr/lib/python3/torch/__init__.py",
        "numpy": {"ended": "value", "value": "2.3.0"},
        "cpu": {"ended": "value", "value": 0.1},
    },
    "gpu_in_container": INSIDE,
    "cuda_torch": {**TORCH, "is_available": True, "error": None, "devices": [DEVICE], "kernels": [KERNEL]},
}
IMAGE = {"id": "sha256:" + "a" * 64, "digests": [], "os": "linux", "architecture": "", "variant": "", "user": ""}


def played(container: PlayedContainers, facts: dict[str, Any] = WITH_GPU, env: dict[str, str] | None = None) -> Result:
    """The row of an image whose containers are played."""
    return judged(Image.parse("team/train:1", {**IMAGE, "entrypoint": False, "env": env or {}}), container, facts)


def test_on_gpus_it_computes() -> None:
    """Every leg runs, and the container asks for GPUs as `docker run --gpus all` does."""
    container = PlayedContainers()
    result = played(container, env={"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"})
    assert result.verdict is Verdict.OK, text(result)
    assert result.legs == ("configuration", "import", "kernel-images", "driver", "gpu")
    assert "a product by torch of the image is right" in text(result)
    how = dict(container.asked)["cuda_torch"]
    assert how["gpus"] == {"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}
    assert (how["read_only"], how.get("env"), how["image"]) == (False, None, IMAGE["id"])


COMPAT = {"code": 803, "name": "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "text": "unsupported display driver"}
MISMATCHED = {**INSIDE, "driver": {**INSIDE["driver"], "init": COMPAT, "devices": []}}
LOST = {**INSIDE, "driver": {**INSIDE["driver"], "error": "libcuda.so.1: cannot open", "devices": []}}


@pytest.mark.parametrize(
    ("answers", "env", "expected"),
    [
        ({"cuda_torch": {**ANSWERS["cuda_torch"], "kernels": [{**KERNEL, "worst": 900.0}]}}, {}, "wrong-numbers"),
        ({"gpu_in_container": MISMATCHED}, {}, "compat-shadows-driver"),
        ({"gpu_in_container": LOST}, {}, "driver-capability-missing"),
        ({"gpu_in_container": LOST}, {"NVIDIA_DRIVER_CAPABILITIES": "graphics"}, "driver-capability-missing"),
        ({"gpu_in_container": "unsatisfied condition: cuda>=12.8"}, {}, "driver-requirement-unmet"),
    ],
)
def test_on_gpus_the_image_is_in_the_way(answers: Any, env: dict[str, str], expected: str) -> None:
    """What the image does to the GPU is its finding, once."""
    assert found(played(PlayedContainers(**answers), env=env)) == [(expected, "bad")]


OLD = {**WITH_GPU, "driver.module_version": "470.57.02", "nvml.cuda_version": "11.4"}
COMPAT_FILE = {
    "name": "libcuda.so.1",
    "path": "/usr/local/cuda/compat/libcuda.so.1",
    "real": "/usr/local/cuda/compat/libcuda.so.560.35.03",
    "said_by": "LD_LIBRARY_PATH",
    "is_regular": False,
    "is_stub": False,
    "size_bytes": 1 << 25,
}


def test_a_driver_that_is_too_old() -> None:
    """By torch's CUDA, and by what the image demands of a driver."""
    assert found(played(PlayedContainers(), OLD)) == [("driver-too-old", "bad")]
    demand = {"NVIDIA_REQUIRE_CUDA": "cuda>=12.6 driver>=560"}
    assert found(played(PlayedContainers(), env=demand)) == [("driver-requirement-unmet", "bad")]


def test_a_library_that_stands_in_for_a_newer_driver() -> None:
    """With one, whether a driver is too old is for the GPU to say, and it does."""
    inside = {**ANSWERS["torch_in_image"], "files": [COMPAT_FILE]}
    result = played(PlayedContainers(torch_in_image=inside), OLD)
    assert result.verdict is Verdict.OK, text(result)
    assert "stands in for a newer driver; only data-centre GPUs take it" in text(result)
    refused = {"code": 804, "name": "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "text": "forward compatibility"}
    driver = {**INSIDE["driver"], "init": refused, "library": COMPAT_FILE["real"], "devices": []}
    consumer = PlayedContainers(torch_in_image=inside, gpu_in_container={**INSIDE, "driver": driver})
    assert found(played(consumer, OLD)) == [("compat-unsupported-gpu", "bad")]


@pytest.mark.parametrize(
    ("answers", "blocked_by"),
    [
        ({"gpu_in_container": {**INSIDE, "nodes": {}}}, "container-sees-gpu"),
        ({"gpu_in_container": 'could not select device driver ""'}, "container-sees-gpu"),
        ({"cuda_torch": {**ANSWERS["cuda_torch"], "devices": [], "kernels": []}}, "container-sees-gpu"),
        (
            {"gpu_in_container": {**INSIDE, "driver": {**INSIDE["driver"], "init": {**COMPAT, "code": 999}}}},
            "cuda-available",
        ),
    ],
)
def test_on_gpus_what_is_no_fault_of_the_image(answers: Any, blocked_by: str) -> None:
    """Engine and driver have their own probes: without a GPU there is no ok for an image on a machine with GPUs."""
    result = played(PlayedContainers(**answers))
    assert (result.verdict, result.findings, result.blocked_by) == (Verdict.UNABLE, (), blocked_by)


def test_on_gpus_that_the_image_hides() -> None:
    """A variable of the image that hides some GPUs is its finding, and the others are computed on."""
    second = {**GPU, "index": 1, "uuid": "GPU-11111111-1111-1111-1111-111111111111"}
    result = played(PlayedContainers(), {**WITH_GPU, "nvml.gpus": [GPU, second]}, {"CUDA_VISIBLE_DEVICES": "0"})
    assert found(result) == [("hidden-by-environment", "degraded")]
    assert (result.verdict, result.legs[-1]) == (Verdict.DEGRADED, "gpu")
    partial = played(PlayedContainers(), {**WITH_GPU, "nvml.gpus": [GPU, second]})
    assert (partial.verdict, partial.blocked_by) == (Verdict.UNABLE, "container-sees-gpu")


def test_on_gpus_that_are_busy() -> None:
    """Somebody's GPU is left alone, and then the image is not judged on it."""
    busy = {**GPU, "processes": [{"pid": 7}]}
    result = played(PlayedContainers(), {**WITH_GPU, "nvml.gpus": [busy]})
    assert (result.verdict, result.lacking) == (Verdict.UNABLE, ("gpu: a GPU that nobody uses",))


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ({"ended": "signal", "signal": "SIGILL"}, [("illegal-instruction", "bad")]),
        ({"ended": "value", "value": 90.0}, []),
    ],
)
def test_a_torch_that_imports_and_does_not_compute(cpu: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    """An import alone is no ok: a death has its cause, and wrong numbers without one are not decided."""
    result = played(PlayedContainers(torch_in_image={**ANSWERS["torch_in_image"], "cpu": cpu}))
    assert found(result) == expected
    assert result.verdict is (Verdict.BAD if expected else Verdict.UNABLE)
    assert "are right" not in text(result)


def test_an_engine_that_runs_elsewhere() -> None:
    """An engine that does not see our files gives no answer, which is no fault of the image."""
    refusal = 'invalid mount config for type "bind": bind source path does not exist: /tmp/x'
    result = played(PlayedContainers(torch_in_image=refusal), NO_GPU)
    assert (result.verdict, result.findings) == (Verdict.UNABLE, ())
    assert "does not see this host's files" in text(result)


def test_nothing_is_left(container: Any) -> None:
    """No container of an image stays."""
    marked = container.engine.call("marked", container.deadline)
    mine = [thing["kind"] for thing in marked if thing["labels"]["gpucheck.run"] == container.engine.owner.run]
    assert mine == []
    assert os.environ["LD_LIBRARY_PATH"] == "/nonexistent/of/the/host"
