"""What the driver itself says: ``libcuda.so.1`` through ctypes, with no CUDA runtime and no torch between.

Takes no arguments; run it in a fresh process, because ``cuInit`` reads the environment once. The answer holds

    error     why the library could not be opened, in the loader's words; null when it could
    library   the file that was opened, links resolved; null when unknown
    version   what ``cuDriverGetVersion`` says, 13000 for CUDA 13.0; null when it does not answer
    init      {"code", "name", "text"} of ``cuInit``; code 0 is success
    devices   [{"ordinal", "name", "uuid", "capability", "memory_bytes", "pci", "integrated", "compute_mode"}], in the
              order of the driver; what a device does not answer is null
    refused   {node: "EPERM"} of the device nodes that are there and do not open: the error's name

Numbers are those of the driver API (cuda.h). Standard library only; no context is created and no memory taken.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import uuid
from typing import Any

import envelope

LIBRARY = "libcuda.so.1"
SUCCESS = 0
INTEGRATED = 18
COMPUTE_MODE = 20
CAPABILITY_MAJOR = 75
CAPABILITY_MINOR = 76
TEXT_BYTES = 256
NODES = re.compile(r"nvidia(?:\d+|ctl|-uvm)")
NOTHING: dict[str, Any] = {"error": None, "library": None, "version": None, "init": None, "devices": [], "refused": {}}


class Driver:
    """The driver API as far as it is asked here. A function that an old driver lacks answers nothing."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def call(self, name: str, *arguments: Any) -> int | None:
        """The function's status; None when the library has no such function."""
        function = getattr(self.library, name, None)
        return None if function is None else int(function(*arguments))

    def number(self, name: str, *arguments: Any) -> int | None:
        """The ``int`` that the function writes to its first argument."""
        value = ctypes.c_int()
        return value.value if self.call(name, ctypes.byref(value), *arguments) == SUCCESS else None

    def text(self, name: str, *arguments: Any) -> str | None:
        """The text that the function writes to its first argument, whose size is its second."""
        buffer = ctypes.create_string_buffer(TEXT_BYTES)
        if self.call(name, buffer, TEXT_BYTES, *arguments) != SUCCESS:
            return None
        return buffer.value.decode(errors="replace")

    def words(self, name: str, code: int) -> str | None:
        """What ``cuGetErrorName`` or ``cuGetErrorString`` has for a status."""
        pointer = ctypes.c_char_p()
        if self.call(name, code, ctypes.byref(pointer)) != SUCCESS or pointer.value is None:
            return None
        return pointer.value.decode(errors="replace")


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Open the library, initialise it and list its devices."""
    del args
    try:
        driver = Driver(ctypes.CDLL(LIBRARY))
    except OSError as error:
        return {**NOTHING, "error": str(error)}
    envelope.progress("cuInit")
    version = driver.number("cuDriverGetVersion")
    code = driver.call("cuInit", 0)
    if code is None:
        return {**NOTHING, "error": f"{opened()} has no cuInit", "library": opened(), "version": version}
    init = {
        "code": code,
        "name": driver.words("cuGetErrorName", code),
        "text": driver.words("cuGetErrorString", code),
    }
    found = devices(driver) if code == SUCCESS else []
    answer = {"library": opened(), "version": version, "init": init, "devices": found}
    return {**NOTHING, **answer, "refused": {} if code == SUCCESS else refused()}


def opened() -> str | None:
    """The file behind ``libcuda.so.1`` in this process, by the kernel's own list."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if os.path.basename(path).startswith("libcuda.so"):
                return os.path.realpath("/" + path)
    return None


def refused() -> dict[str, str]:
    """The device nodes that do not open. A device cgroup says EPERM, a file mode EACCES, an absent driver ENXIO."""
    found = {}
    for name in sorted(os.listdir("/dev")):
        if NODES.fullmatch(name):
            try:
                os.close(os.open(f"/dev/{name}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
            except OSError as error:
                found[f"/dev/{name}"] = errno.errorcode.get(error.errno or 0, str(error.errno))
    return found


def devices(driver: Driver) -> list[dict[str, Any]]:
    """Each device that the driver shows to this process."""
    count = driver.number("cuDeviceGetCount") or 0
    return [device(driver, ordinal) for ordinal in range(count)]


def device(driver: Driver, ordinal: int) -> dict[str, Any]:
    """What the driver says of one device."""
    handle = driver.number("cuDeviceGet", ordinal)
    if handle is None:
        return {"ordinal": ordinal, "name": None, "uuid": None, "capability": None, "memory_bytes": None, "pci": None}
    memory = ctypes.c_size_t()
    sized = driver.call("cuDeviceTotalMem_v2", ctypes.byref(memory), handle) == SUCCESS
    return {
        "ordinal": ordinal,
        "name": driver.text("cuDeviceGetName", handle),
        "uuid": uuid_of(driver, handle),
        "capability": capability(driver, handle),
        "memory_bytes": memory.value if sized else None,
        "pci": driver.text("cuDeviceGetPCIBusId", handle),
        "integrated": driver.number("cuDeviceGetAttribute", INTEGRATED, handle),
        "compute_mode": driver.number("cuDeviceGetAttribute", COMPUTE_MODE, handle),
    }


def uuid_of(driver: Driver, handle: int) -> str | None:
    """The sixteen bytes as people write them, without ``GPU-`` or ``MIG-``: CUDA does not say which of the two."""
    raw = (ctypes.c_ubyte * 16)()
    # _v2 gives the slice's own id under MIG; the first form gives that of the whole board.
    for name in ("cuDeviceGetUuid_v2", "cuDeviceGetUuid"):
        if driver.call(name, raw, handle) == SUCCESS:
            return str(uuid.UUID(bytes=bytes(raw)))
    return None


def capability(driver: Driver, handle: int) -> str | None:
    """The compute capability, ``9.0``."""
    major = driver.number("cuDeviceGetAttribute", CAPABILITY_MAJOR, handle)
    minor = driver.number("cuDeviceGetAttribute", CAPABILITY_MINOR, handle)
    return None if major is None or minor is None else f"{major}.{minor}"
