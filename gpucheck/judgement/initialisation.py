"""Why CUDA does not start: facts and what the driver answered make a finding. Pure.

One message has several causes ("unknown error", "no device", 802, 803), so that a status alone decides nothing: each
status has its rules, each rule looks at a fact, and the first that holds gives the finding. When none holds there is no
finding, and whoever asked must say that it could not decide. Statuses are those of ``cuInit`` (cuda.h).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucheck.architecture import Cuda
from gpucheck.judgement.driver_words import BY_CGROUP, DENIED, LOST, MISMATCH, OPEN_SOURCE
from gpucheck.judgement.visibility import VARIABLE, Gpu, View, view
from gpucheck.verdict import NotApplicable, bad

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucheck.facts import Facts
    from gpucheck.verdict import Finding


@dataclass(frozen=True, slots=True)
class Start:
    """One attempt to start CUDA through the driver alone: what ``payload/cuda_driver.py`` answered.

    ``code`` is the status of ``cuInit``; None where it was not reached: ``error`` says why, or it ``hung``.
    """

    code: int | None
    words: str = ""
    error: str | None = None
    library: str | None = None
    version: Cuda | None = None
    devices: tuple[Mapping[str, Any], ...] = ()
    refused: Mapping[str, str] | None = None
    hung: bool = False

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Start:
        """An attempt as the payload reports it."""
        init = told["init"] or {"code": None, "name": None, "text": None}
        words = " ".join(str(part) for part in (init["code"], init["name"], init["text"]) if part is not None)
        return cls(
            code=init["code"],
            words=words,
            error=told["error"],
            library=told["library"],
            version=Cuda.of_driver(told["version"]) if told["version"] else None,
            devices=tuple(told["devices"]),
            refused=told["refused"],
        )

    @property
    def line(self) -> str:
        """The attempt as a line of evidence."""
        if self.hung:
            return "cuInit did not return"
        if self.code is None:
            return f"libcuda.so.1: {self.error}"
        version = f", CUDA {self.version}" if self.version else ""
        return f"cuInit of {self.library}{version}: {self.words}"


def gpus_of(facts: Facts) -> tuple[Gpu, ...]:
    """The GPUs that NVML lists; empty when it could not be asked."""
    return tuple(Gpu.parse(told) for told in facts.known("nvml.gpus") or ())


def view_of(facts: Facts) -> View:
    """What CUDA should show of them under this host's environment."""
    return view(gpus_of(facts), facts.known(f"env.{VARIABLE}"))


def hidden_on_purpose(facts: Facts, gpu: Gpu) -> NotApplicable | None:
    """The known fact that hides this GPU from here, or None."""
    for hidden in view_of(facts).hidden:
        if hidden.gpu == gpu:
            return NotApplicable(f"env.{VARIABLE}", f"{gpu} is hidden on purpose", hidden.by)
    return None


def cause(facts: Facts, start: Start) -> Finding | None:
    """Why the driver did not start; None when it did, or when nothing that is known explains it."""
    rules = _HUNG if start.hung else _UNOPENED if start.code is None else _RULES.get(start.code, ())
    return next((finding for rule in rules if (finding := rule(facts, start))), None)


def _hang(facts: Facts, start: Start) -> Finding:
    return bad("cuda-init-hangs", start.line, f"NVML: {facts.known('nvml.status') or 'unknown'}")


def _nouveau(facts: Facts, start: Start) -> Finding | None:
    held = [gpu["address"] for gpu in facts.known("gpu.pci") or () if gpu["driver"] in OPEN_SOURCE]
    if not held:
        return None
    return bad("nouveau-bound", f"{', '.join(held)}: bound to nouveau, not to nvidia", start.line)


def _not_loaded(facts: Facts, start: Start) -> Finding | None:
    module = facts["driver.module_version"]
    if module.why is not None or module.value is not None or not facts.known("gpu.pci"):
        return None
    unbound = f"the kernel module nvidia is not loaded ({module.source})"
    if not facts.known("driver.installed"):
        return bad("driver-missing", unbound, f"no driver is installed: {facts['driver.installed'].source}", start.line)
    secure = ["Secure Boot is on: an unsigned module is refused"] if facts.known("machine.secure_boot") else []
    return bad("driver-not-loaded", unbound, f"installed: {facts['driver.installed'].source}", *secure, start.line)


def _not_in_container(facts: Facts, start: Start) -> Finding | None:
    kind = facts.known("machine.container")
    if kind in (None, "none") or (facts.known("gpu.nodes") and start.code is not None):
        return None
    lacking = [] if facts.known("gpu.nodes") else ["no /dev/nvidia<N> in this container"]
    return bad("gpu-not-in-container", f"this is a container ({kind})", *lacking, start.line, container=kind)


def _damaged(_facts: Facts, start: Start) -> Finding | None:
    if not start.error or "No such file" in start.error:
        return None
    return bad("driver-library-damaged", start.line, library=start.library or "libcuda.so.1")


def _missing(facts: Facts, start: Start) -> Finding | None:
    version = facts.known("driver.module_version")
    loaded = (
        f"the kernel module is loaded ({version}), the libraries are not here" if version else "no module is loaded"
    )
    return bad("driver-missing", start.line, loaded)


def _stub(_facts: Facts, start: Start) -> Finding | None:
    return bad("stub-libcuda", start.line, library=start.library)


def _hidden(facts: Facts, start: Start) -> Finding | None:
    """Nothing is left to CUDA by the variable, or its first word names nothing."""
    value = facts.known(f"env.{VARIABLE}")
    if value is None:
        return None
    seen = view_of(facts)
    if not gpus_of(facts) or (seen.shown and seen.fault is None):
        return None
    return hidden_by_environment(value, seen, start.line)


def hidden_by_environment(value: str, seen: View, *evidence: str) -> Finding:
    """The finding for a variable that hides what it does not say it hides."""
    fault = seen.fault or "hides every GPU"
    lines = [f"{VARIABLE}={value!r} {fault}"]
    lines += [f"hidden: {hidden.gpu}" for hidden in seen.hidden]
    return bad("hidden-by-environment", *lines, *evidence, variable=VARIABLE, value=value)


def _revoked(facts: Facts, start: Start) -> Finding | None:
    """Device nodes that are there and may not be opened: in a container its device cgroup was rewritten."""
    denied = {node: why for node, why in (start.refused or {}).items() if why in DENIED}
    if not denied:
        return None
    lines = [f"opening {node}: {why}" for node, why in denied.items()]
    inside = facts.known("machine.container") not in (None, "none")
    revoked = inside and BY_CGROUP in denied.values()
    return bad("nvml-devices-revoked" if revoked else "gpu-hidden-device", *lines, start.line)


def _lost(facts: Facts, start: Start) -> Finding | None:
    lost = [gpu for gpu in gpus_of(facts) if gpu.trouble in LOST]
    if not lost:
        return None
    lines = [f"GPU {gpu.index}: NVML says {gpu.trouble}" for gpu in lost]
    return bad("gpu-lost", *lines, start.line, index=lost[0].index)


def _unsliced(facts: Facts, start: Start) -> Finding | None:
    gpus = gpus_of(facts)
    bare = [str(gpu) for gpu in gpus if gpu.is_split and not gpu.slices]
    if not gpus or len(bare) < len(gpus):
        return None
    return bad("mig-without-instances", *(f"{gpu}: MIG is on, and it has no instance" for gpu in bare), start.line)


def _closed_module(facts: Facts, start: Start) -> Finding | None:
    """Blackwell and later work with the open modules alone; the closed one loads and then finds no device."""
    if facts.known("driver.module_kind") != "proprietary" or facts.known("nvml.gpus") or not facts.known("gpu.proc"):
        return None
    return bad("closed-module-on-blackwell", "the proprietary module found no device", start.line, confidence="low")


def _uvm_missing(facts: Facts, start: Start) -> Finding | None:
    node = facts["uvm.node"]
    if node.why is not None or node.value:
        return None
    loaded = {True: "is loaded", False: "is not loaded"}.get(facts.known("uvm.loaded"), "may be loaded or not")
    return bad("uvm-missing", f"no {node.source}; the module nvidia_uvm {loaded}", start.line)


def _uvm_broken(facts: Facts, start: Start) -> Finding | None:
    if facts.known("nvml.status") != "ok" or not facts.known("uvm.node"):
        return None
    return bad("uvm-broken", "NVML answers, the node of nvidia_uvm is there", start.line, confidence="medium")


def _fabric(facts: Facts, start: Start) -> Finding | None:
    manager, switches = facts.known("fabric.manager"), facts.known("fabric.switches")
    state = facts.known("fabric.state")
    module, version = facts.known("driver.module_version"), facts.known("fabric.manager_version")
    lines = [f"fabric manager: {manager or facts['fabric.manager'].why}", f"state of the fabric: {state or 'not told'}"]
    if switches and manager in ("stopped", "absent"):
        return bad("fabric-manager", *lines, f"{switches} NVSwitches on PCI", start.line)
    if version and module and version != module:
        return bad("fabric-manager", f"fabric manager {version}, driver {module}", *lines, start.line)
    if state == "Completed":
        return None
    confidence = "high" if state else "medium"
    return bad("fabric-not-completed", *lines, start.line, confidence=confidence)


def _compat(facts: Facts, start: Start) -> Finding | None:
    """A libcuda that is not the driver's own: by its folder, or by a version that is not the module's."""
    path = facts.known("driver.compat_path")
    if not start.library or "/compat/" not in f"{start.library} {facts.known('driver.libcuda_path')}":
        return None
    module = facts.known("driver.module_version")
    pitfall = "compat-unsupported-gpu" if start.code == _COMPAT_REFUSED else "compat-shadows-driver"
    return bad(pitfall, start.line, f"the kernel module is {module}", library=start.library, compat=path)


def _mismatch(facts: Facts, start: Start) -> Finding | None:
    """By the two versions; by NVML's word where one of them is unknown."""
    module, library = facts.known("driver.module_version"), facts.known("driver.library_version")
    status = facts.known("nvml.status")
    if status != MISMATCH and (not module or not library or module == library):
        return None
    line = f"kernel module {module or 'of unknown version'}, libraries {library or 'of unknown version'}"
    return bad("driver-library-mismatch", line, f"NVML: {status}", start.line, module=module, library=library)


def _foreign(facts: Facts, start: Start) -> Finding | None:
    """803 with nothing that shows which of the two: still a libcuda that does not fit the module."""
    module = f"the kernel module is {facts.known('driver.module_version')}"
    return bad("compat-shadows-driver", start.line, module, confidence="medium", library=start.library)


def _refused_card(_facts: Facts, start: Start) -> Finding | None:
    """804 says by itself that compatibility libraries met a card that does not take them."""
    return bad("compat-unsupported-gpu", start.line, confidence="medium", library=start.library)


def _address_space(facts: Facts, start: Start) -> Finding | None:
    limit = facts.known("limits.address_space_bytes")
    if limit is None:
        return bad("cuda-count-out-of-memory", start.line, confidence="medium")
    return bad("address-space-limited", f"address space limited to {limit} bytes", start.line, limit_bytes=limit)


Rule = Callable[["Facts", Start], "Finding | None"]
_COMPAT_REFUSED = 804
_HUNG: tuple[Rule, ...] = (_hang,)
_UNOPENED: tuple[Rule, ...] = (_nouveau, _not_loaded, _damaged, _not_in_container, _missing)
_RULES: dict[int, tuple[Rule, ...]] = {
    2: (_address_space,),
    3: (_uvm_missing, _revoked, _mismatch),
    34: (_stub,),
    100: (
        _hidden,
        _nouveau,
        _not_loaded,
        _not_in_container,
        _revoked,
        _lost,
        _unsliced,
        _uvm_missing,
        _closed_module,
        _mismatch,
    ),
    101: (_hidden, _lost, _unsliced, _revoked),
    802: (_fabric,),
    803: (_compat, _mismatch, _foreign),
    804: (_compat, _refused_card),
    999: (_lost, _uvm_missing, _revoked, _mismatch, _uvm_broken),
}
