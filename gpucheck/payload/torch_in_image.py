"""What a job finds in this image: its Python, its torch and whether that computes, and files that belong to a driver.

Arguments: ``limit_s``, seconds that one import may take. The answer holds

    python   {"executable", "version", "machine", "libc"}
    uid      who the image runs as
    files    one entry a place where the loader looks and a library of the driver, or a toolkit's stand-in, lies in the
             image: {"name", "path", "real", "said_by", "is_regular", "is_stub", "size_bytes"}; ``said_by`` is
             LD_LIBRARY_PATH, a file of the loader's configuration, or "default"
    torch    how its import ended, as ``import_probe`` says it
    seen     what it is, as ``cuda_torch`` says it without a kernel; null where it cannot be imported
    file     the file of torch that was imported; null likewise
    numpy, cpu   null likewise; else how using it ended: {"ended": "value" | "failure" | "signal" | "hang" | "absent",
             "type", "text", "signal", "value"}; of ``cpu`` the value is ``worst`` as in ``cuda_torch``

What was mounted into the container is no file of the image. Standard library, and torch where it can be imported.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import sys
from typing import Any, Iterator

import envelope
import import_probe

LIBRARIES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")
CONFIGURATION = "/etc/ld.so.conf"
STUB_LIMIT_BYTES = 1 << 20
STUB_WITNESS = b"cuGraphicsUnmapResources"
USE_S = 60.0
SIDE = 64


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Look at the files first, then import, then use."""
    answer: dict[str, Any] = {
        "python": {
            "executable": sys.executable,
            "version": platform.python_version(),
            "machine": platform.machine(),
            "libc": "-".join(platform.libc_ver()),
        },
        "uid": os.getuid(),
        "files": list(files()),
        "torch": import_probe.main({"limit_s": args["limit_s"]}),
        **dict.fromkeys(("seen", "file", "numpy", "cpu")),
    }
    if answer["torch"]["ended"] == "works":
        answer.update(use())
    return answer


def use() -> dict[str, Any]:
    """What the torch that can be imported is, and how using it ends."""
    import cuda_torch
    import torch

    envelope.progress("torch computes on the CPU")
    numpy, cpu = cuda_torch.in_processes([with_numpy, compute], USE_S)
    if numpy.get("type") == "ModuleNotFoundError" and "'numpy'" in numpy["text"]:
        numpy = {"ended": "absent"}
    return {"seen": cuda_torch.main({"kernel": None}), "file": torch.__file__, "numpy": numpy, "cpu": cpu}


def with_numpy() -> str:
    """Numpy's version, after an array went to torch and came back."""
    import numpy
    import torch

    numbers = torch.from_numpy(numpy.arange(SIDE, dtype=numpy.float32)).numpy()
    if not (numbers == numpy.arange(SIDE, dtype=numpy.float32)).all():
        raise ValueError("numbers changed between numpy and torch")
    return str(numpy.__version__)


def compute() -> float | None:
    """A float32 product and its gradient: the largest error as a share of what float32 may be off by."""
    import cuda_torch
    import torch

    maker = torch.Generator().manual_seed(20)
    left, right = (torch.randn(SIDE, SIDE, generator=maker) for _ in range(2))
    left.requires_grad_()
    product = left @ right
    product.sum().backward()
    ones = torch.ones(SIDE, SIDE)
    shares = [
        cuda_torch.share_of_bound(product.detach(), left.detach(), right),
        cuda_torch.share_of_bound(left.grad, ones, right.t()),
    ]
    return max(shares) if max(shares) != float("inf") else None


# Files of a driver


def files() -> Iterator[dict[str, Any]]:
    """The libraries of a driver that lie in the image where the loader looks, in the loader's order."""
    mounted = mount_points()
    seen = set()
    for folder, said_by in folders():
        for name in LIBRARIES:
            path = os.path.join(os.path.realpath(folder), name)
            real = os.path.realpath(path)
            if os.path.isfile(real) and path not in seen and not {path, real} & mounted:
                seen.add(path)
                yield {**described(path, real), "name": name, "said_by": said_by}


def described(path: str, real: str) -> dict[str, Any]:
    """One file. The toolkit's stand-in has the whole interface in some dozens of kilobytes."""
    size_bytes = os.path.getsize(real)
    is_stub = "/stubs/" in path or "/stubs/" in real
    if not is_stub and 0 < size_bytes < STUB_LIMIT_BYTES:
        with open(real, "rb") as stream:
            is_stub = STUB_WITNESS in stream.read()
    regular = not os.path.islink(path)
    return {"path": path, "real": real, "is_regular": regular, "is_stub": is_stub, "size_bytes": size_bytes}


def folders() -> Iterator[tuple[str, str]]:
    """Where the loader looks, and who says so."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield folder, "LD_LIBRARY_PATH"
    yield from configured(CONFIGURATION)
    machine = platform.machine()
    for folder in ("/lib/%s-linux-gnu", "/usr/lib/%s-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"):
        yield (folder % machine if "%" in folder else folder), "default"


def configured(path: str, depth: int = 2) -> Iterator[tuple[str, str]]:
    """The folders of a file of the loader's configuration, and of those that it includes (not for ever)."""
    try:
        with open(path, errors="replace") as stream:
            lines = [line.partition("#")[0].strip() for line in stream]
    except OSError:
        return
    for line in lines:
        included = re.match(r"include\s+(\S+)", line)
        if included:
            others = glob.glob(os.path.join(os.path.dirname(path), included.group(1))) if depth else []
            for other in sorted(others):
                yield from configured(other, depth - 1)
        elif line:
            yield line, path


def mount_points() -> set[str]:
    """Where something is mounted in this container."""
    with open("/proc/self/mountinfo", errors="replace") as stream:
        return {line.split()[4] for line in stream}
