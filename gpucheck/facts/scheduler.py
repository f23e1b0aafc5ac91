"""The batch scheduler: whether we are in one of its jobs, and how many GPUs it says this job or this node has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpucheck.facts.tree import Tree

_JOB_VARIABLES: Final = {
    "SLURM_JOB_ID": "slurm",
    "PBS_JOBID": "pbs",
    "LSB_JOBID": "lsf",
    "SGE_TASK_ID": "sge",
    "COBALT_JOBID": "cobalt",
    "FLUX_JOB_ID": "flux",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
}
_SLURM_FOLDERS: Final = ("/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf", "/var/spool/slurmd/conf-cache")
_GPU_GRES: Final = re.compile(r"(?<![^,])gpu(?::[^:,(]+)*?(?::(\d+))?(?:\(.*?\))?(?:,|$)")
_SLICE: Final = re.compile(r"\dg\.\d+gb")
_RANGE: Final = re.compile(r"(.*?)\[([\d,-]+)\](.*)")
_DEVICE_RANGE: Final = re.compile(r"\[(\d+)-(\d+)\]")


def job(tree: Tree) -> tuple[str, str] | None:
    """The scheduler's kind and the id of the job that we are in; None outside every job."""
    for variable, kind in _JOB_VARIABLES.items():
        if variable in tree.environ:
            return kind, "pod" if kind == "kubernetes" else tree.environ[variable]
    return None


def _kind(tree: Tree) -> Reading:
    found = job(tree)
    if found:
        return Reading(found[0], "environment")
    configured = [folder for folder in _SLURM_FOLDERS if tree.names(folder)]
    return Reading("slurm" if configured else None, configured[0] if configured else "environment, /etc/slurm")


def _job(tree: Tree) -> Reading:
    found = job(tree)
    return Reading(found[1] if found else None, "environment")


def _gres(tree: Tree) -> Reading:
    count, source = node_gpus(tree)
    return Reading(None if count is None else f"gpu:{count}", source)


def job_gpus(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """How many GPUs the scheduler gave this job on this node, and the variable that says so; None when none says."""
    if "SLURM_GPUS_ON_NODE" in environ and environ["SLURM_GPUS_ON_NODE"].isdecimal():
        return int(environ["SLURM_GPUS_ON_NODE"]), "SLURM_GPUS_ON_NODE"
    # A scheduler that gives devices names them here as well; outside its jobs the variable is the user's own.
    for variable in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"):
        if variable in environ:
            given = [
                item for item in environ[variable].split(",") if re.fullmatch(r"\s*(?:\d+|(?:GPU|MIG)-\S+)\s*", item)
            ]
            return len(given), variable
    return None


def node_gpus(tree: Tree) -> tuple[int | None, str]:
    """How many GPUs Slurm's configuration gives this node, and which file says so; None when none does."""
    host = tree.text("/proc/sys/kernel/hostname").partition(".")[0]
    for folder in _SLURM_FOLDERS:
        for name, counter in (("gres.conf", _of_gres_conf), ("slurm.conf", _of_slurm_conf)):
            text = tree.text_if_any(f"{folder}/{name}")
            count = counter(text, host) if text else None
            if count is not None:
                return count, f"{folder}/{name}"
    return None, "no gres.conf or slurm.conf that names GPUs for this node"


def _of_gres_conf(text: str, host: str) -> int | None:
    counts = [
        int(row["count"]) if row.get("count", "").isdecimal() else _devices(row.get("file", ""))
        for row in _rows(text)
        if row.get("name", "").lower() == "gpu"
        and _names_host(row.get("nodename", host), host)
        and not _SLICE.search(row.get("type", ""))
    ]
    return sum(counts) or None


def _of_slurm_conf(text: str, host: str) -> int | None:
    default = ""
    for row in _rows(text):
        node = row.get("nodename", "")
        if node.upper() == "DEFAULT":
            default = row.get("gres", default)
        elif node and _names_host(node, host):
            return _gres_count(row.get("gres", default))
    return None


def _gres_count(gres: str) -> int | None:
    """How many whole GPUs a Gres value names; None when none, or when it names slices of GPUs (MIG)."""
    found = list(_GPU_GRES.finditer(gres))
    if any(_SLICE.search(match[0]) for match in found):
        return None
    return sum(int(match[1] or 1) for match in found) or None


def _rows(text: str) -> Iterator[dict[str, str]]:
    for line in text.replace("\\\n", " ").splitlines():
        words = (word.partition("=") for word in line.partition("#")[0].split())
        yield {name.lower(): value for name, equals, value in words if equals}


def _devices(file: str) -> int:
    """How many devices ``/dev/nvidia[0-7]`` or ``/dev/nvidia0,/dev/nvidia1`` names."""
    if not file:
        return 0
    ranges = _DEVICE_RANGE.findall(file)
    return sum(int(last) - int(first) + 1 for first, last in ranges) or file.count(",") + 1


def _names_host(expression: str, host: str) -> bool:
    """Whether a host list such as ``gpu[01-04,07],login`` names ``host``."""
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", expression)
    return any(part == host or _in_range(part, host) for part in parts)


def _in_range(part: str, host: str) -> bool:
    found = _RANGE.fullmatch(part)
    if not found or not (host.startswith(found[1]) and host.endswith(found[3])):
        return False
    number = host[len(found[1]) : len(host) - len(found[3])]
    if not number.isdecimal():
        return False
    spans = (span.partition("-") for span in found[2].split(","))
    return any(int(first) <= int(number) <= int(last or first) for first, _, last in spans)


READERS: Final = group({"scheduler.kind": _kind, "scheduler.job": _job, "scheduler.gres": _gres})
