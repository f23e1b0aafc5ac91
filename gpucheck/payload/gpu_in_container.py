"""What a container was given of the GPUs: nodes, whether they open, the driver's and NVML's devices, nvidia-smi.

Takes ``smi_s``, seconds that nvidia-smi may take (default 20). Run it in a container of its own. The answer holds

    nodes        {"/dev/nvidia0": null, ...}: each NVIDIA node and null, or why it does not open ("EPERM", "EACCES")
    other        the node that WSL or Jetson has in their place, or null
    driver       what ``cuda_driver.py`` says: libcuda.so.1, cuInit, the devices with their UUIDs
    nvml         {"error", "devices": ["GPU-...", ...]} by libnvidia-ml.so.1, the library of the capability "utility"
    smi          null where there is no nvidia-smi; else {"code", "output"} of ``nvidia-smi -L`` ("code" null: no end)
    etc          null when /etc may be written, else why not: the toolkit's hook writes there
    environment  the NVIDIA_* variables by which a container asks for GPUs

Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
from typing import Any

import bounded
import cuda_driver
import envelope

SMI_S = 20.0
NODE = re.compile(r"nvidia(?:\d+|ctl|-uvm|-uvm-tools|-modeset)")
OTHER = ("/dev/dxg", "/dev/nvhost-gpu", "/dev/nvmap")
ASKS = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
UUID_BYTES = 96
OUTPUT_BYTES = 4096


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Look at everything that a GPU needs inside."""
    envelope.progress("what the container sees of the GPUs")
    return {
        "nodes": {f"/dev/{name}": why_closed(f"/dev/{name}") for name in names()},
        "other": next((path for path in OTHER if os.path.exists(path)), None),
        "driver": cuda_driver.main({}),
        "nvml": nvml(),
        "smi": smi(float(args.get("smi_s", SMI_S))),
        "etc": why_not_written("/etc/.gpucheck"),
        "environment": {name: os.environ[name] for name in ASKS if name in os.environ},
    }


def names() -> list[str]:
    """NVIDIA's nodes in /dev."""
    return sorted(name for name in os.listdir("/dev") if NODE.fullmatch(name))


def why_closed(path: str) -> str | None:
    """Null when the node opens; a device cgroup says EPERM, a file mode EACCES, a missing device ENXIO."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return None


def why_not_written(path: str) -> str | None:
    """Null when a file can be made at ``path``, else the error's name."""
    try:
        with open(path, "w", encoding="ascii"):
            pass
        os.unlink(path)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return None


def nvml() -> dict[str, Any]:
    """The UUIDs by NVML, asked through ctypes: no module of Python's needs to be there."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        code = library.nvmlInitWithFlags(0)
    except (OSError, AttributeError) as error:
        return {"error": str(error), "devices": []}
    if code != 0:
        return {"error": f"nvmlInit: error {code}", "devices": []}
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return {"error": None, "devices": [uuid_of(library, index) for index in range(count.value)]}


def uuid_of(library: ctypes.CDLL, index: int) -> str | None:
    """One device's UUID, ``GPU-...``; null where it does not answer."""
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
        return None
    text = ctypes.create_string_buffer(UUID_BYTES)
    return text.value.decode() if library.nvmlDeviceGetUUID(handle, text, UUID_BYTES) == 0 else None


def smi(limit_s: float) -> dict[str, Any] | None:
    """What ``nvidia-smi -L`` says; null where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        said = bounded.run([program, "-L"], limit_s)
    except OSError as error:
        return {"code": None, "output": str(error)}
    if said.code is None:
        return {"code": None, "output": f"no end within {limit_s:g} s"}
    return {"code": said.code, "output": (said.output + said.errors)[:OUTPUT_BYTES]}
