"""Everything that NVML says about this machine's GPUs. The only place that imports pynvml.

``main({"control_node": PATH})`` returns {status, text, control_node, driver_version, cuda_version, gpu_count, gpus,
unknown}. ``status``: "ok", "not installed" (pynvml), or the name of NVML's error ("NVML_ERROR_DRIVER_NOT_LOADED"),
with its ``text``. Where it is not "ok" there is nothing beyond ``control_node``.
``unknown`` holds, by field, the error of each single question that failed: one refusal costs one field.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
NO_FABRIC = "Not Supported"
FABRIC_STATES = (NO_FABRIC, "Not Started", "In Progress", "Completed")  # as nvidia-smi -q words them
VOLATILE, AGGREGATE = 0, 1
UNCORRECTED = 1


class Device:
    """One GPU's questions, each a method of no arguments that returns JSON or raises NVMLError."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call pynvml's ``nvmlDevice<function>`` for this GPU."""
        return question(self.nvml, "nvmlDevice" + function)(self.handle, *arguments)

    def number(self, function: str, *arguments: Any) -> int:
        """The same, for a question whose answer is a number."""
        return int(self.ask(function, *arguments))

    def uuid(self) -> str:
        return text(self.ask("GetUUID"))

    def name(self) -> str:
        return text(self.ask("GetName"))

    def serial(self) -> str:
        return text(self.ask("GetSerial"))

    def minor(self) -> int:
        return self.number("GetMinorNumber")

    def pci(self) -> str:
        """As the kernel writes it: NVML pads the domain to eight digits."""
        domain, _, rest = text(self.ask("GetPciInfo").busId).lower().partition(":")
        return f"{int(domain, 16):04x}:{rest}"

    def capability(self) -> str:
        major, minor = self.ask("GetCudaComputeCapability")
        return f"{major}.{minor}"

    def memory_bytes(self) -> int:
        return int(self.ask("GetMemoryInfo").total)

    def memory_free_bytes(self) -> int:
        return int(self.ask("GetMemoryInfo").free)

    def compute_mode(self) -> str:
        return named(COMPUTE_MODES, self.number("GetComputeMode"))

    def persistence(self) -> bool:
        return bool(self.ask("GetPersistenceMode"))

    def mig(self) -> bool:
        return bool(self.ask("GetMigMode")[0])

    def mig_devices(self) -> list[dict[str, Any]]:
        """{uuid, memory_bytes} of each slice; none where MIG is off or unknown to the GPU."""
        if not self.mig():
            return []
        found = []
        for index in range(self.number("GetMaxMigDeviceCount")):
            try:
                slice_ = Device(self.nvml, self.ask("GetMigDeviceHandleByIndex", index))
            except self.nvml.NVMLError_NotFound:
                continue
            found.append({"uuid": slice_.uuid(), "memory_bytes": slice_.memory_bytes()})
        return found

    def processes(self) -> list[dict[str, Any]]:
        """{pid, kind, memory_bytes} of everybody on the GPU; memory is null where the driver does not tell."""
        return [*self._processes("Compute"), *self._graphics()]

    def _graphics(self) -> list[dict[str, Any]]:
        try:
            return self._processes("Graphics")
        except (self.nvml.NVMLError_NotSupported, self.nvml.NVMLError_FunctionNotFound):
            return []  # a GPU that cannot draw: that must not hide who computes on it

    def _processes(self, kind: str) -> list[dict[str, Any]]:
        # By version: the function without one raises an error outside of NVMLError's family for an older driver.
        try:
            found = self.ask(f"Get{kind}RunningProcesses_v3")
        except self.nvml.NVMLError_FunctionNotFound:  # drivers before 510
            found = self.ask(f"Get{kind}RunningProcesses_v2")
        return [{"pid": p.pid, "kind": kind.lower(), "memory_bytes": p.usedGpuMemory} for p in found]

    def ecc_enabled(self) -> bool:
        return bool(self.ask("GetEccMode")[0])

    def ecc_uncorrected_volatile(self) -> int:
        return self.number("GetTotalEccErrors", UNCORRECTED, VOLATILE)

    def ecc_uncorrected_aggregate(self) -> int:
        return self.number("GetTotalEccErrors", UNCORRECTED, AGGREGATE)

    def remapped_rows(self) -> dict[str, Any]:
        corrected, uncorrected, pending, failed = self.ask("GetRemappedRows")
        rows: dict[str, Any] = {"corrected": corrected, "uncorrected": uncorrected}
        rows.update(pending=bool(pending), failed=bool(failed))
        return rows

    def throttle_reasons(self) -> list[str]:
        try:
            bits = self.number("GetCurrentClocksEventReasons")
        except self.nvml.NVMLError_FunctionNotFound:  # drivers before 535 know the old name
            bits = self.number("GetCurrentClocksThrottleReasons")
        return [name for bit, name in THROTTLE_REASONS.items() if bits & bit]

    def pcie_generation(self) -> int:
        return self.number("GetCurrPcieLinkGeneration")

    def pcie_generation_max(self) -> int:
        return self.number("GetMaxPcieLinkGeneration")

    def pcie_width(self) -> int:
        return self.number("GetCurrPcieLinkWidth")

    def pcie_width_max(self) -> int:
        return self.number("GetMaxPcieLinkWidth")

    def pcie_replays(self) -> int:
        return self.number("GetPcieReplayCounter")

    def fabric(self) -> dict[str, Any] | None:
        """{state, status (NVML's number, 0 is success)}; null for a GPU that is on no fabric."""
        info = question(self.nvml, "c_nvmlGpuFabricInfoV_t")()
        self.ask("GetGpuFabricInfoV", ctypes.byref(info))
        state = named(FABRIC_STATES, info.state)
        return None if state == NO_FABRIC else {"state": state, "status": info.status}


FIELDS = tuple(name for name in vars(Device) if not name.startswith("_") and name not in ("ask", "number"))


def question(nvml: Any, name: str) -> Callable[..., Any]:
    """The function of pynvml of that name; one that this pynvml lacks fails as one that the driver lacks."""
    try:
        function: Callable[..., Any] = getattr(nvml, name)
    except AttributeError:
        raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND) from None
    return function


def text(value: str | bytes) -> str:
    """Older releases of pynvml return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def named(names: tuple[str, ...], number: int) -> str:
    """The name of a number; the number itself, as text, where a newer driver knows more."""
    return names[number] if number < len(names) else str(number)


def error_name(nvml: Any, error: Any) -> str:
    """``NVML_ERROR_DRIVER_NOT_LOADED`` of the code 9; a code that this pynvml does not know as ``NVML_ERROR 1234``."""
    names = (name for name in vars(nvml) if name.startswith("NVML_ERROR_") and getattr(nvml, name) == error.value)
    return next(names, f"NVML_ERROR {error.value}")


def control_node(path: str) -> str:
    """Whether /dev/nvidiactl opens: "ok" or the error's name. A device cgroup says EPERM, a file mode EACCES."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "ok"


def collect(nvml: Any, askers: list[tuple[str, Callable[[], Any]]]) -> dict[str, Any]:
    """{field: answer, "unknown": {field: error}}: a field that was refused is null."""
    found: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    for name, asker in askers:
        try:
            found[name] = asker()
        except nvml.NVMLError as error:
            found[name] = None
            unknown[name] = error_name(nvml, error)
    found["unknown"] = unknown
    return found


def gpu(nvml: Any, index: int) -> dict[str, Any]:
    """All fields of one GPU. One that is lost has no handle and no fields, only its index and the reason."""
    try:
        device = Device(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as error:
        fields = dict.fromkeys(FIELDS)
        fields["unknown"] = {"handle": error_name(nvml, error)}
    else:
        fields = collect(nvml, [(name, getattr(device, name)) for name in FIELDS])
    fields["index"] = index
    return fields


def cuda_version(nvml: Any) -> str:
    """The newest CUDA that the driver can run, as "13.0"."""
    number = question(nvml, "nvmlSystemGetCudaDriverVersion_v2")()
    return f"{number // 1000}.{number % 1000 // 10}"


def main(args: dict[str, Any]) -> dict[str, Any]:
    """See the module."""
    control = control_node(args["control_node"])
    try:
        import pynvml as nvml
    except ImportError as error:
        return {"status": "not installed", "text": str(error), "control_node": control}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return {"status": error_name(nvml, error), "text": str(error), "control_node": control}
    found = collect(
        nvml,
        [
            ("driver_version", lambda: text(nvml.nvmlSystemGetDriverVersion())),
            ("cuda_version", lambda: cuda_version(nvml)),
            ("gpu_count", nvml.nvmlDeviceGetCount),
            ("gpus", lambda: [gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]),
        ],
    )
    found.update(status="ok", text="", control_node=control)
    return found
