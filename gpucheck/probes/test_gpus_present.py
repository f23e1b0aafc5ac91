"""As many NVIDIA GPUs are present as are expected.

Looks at: PCI (and Jetson's platform bus), the kernel driver of each GPU, loaded modules, /dev/nvidia*, the driver's own
/proc, NVML, and everybody who expects GPUs here: a loaded module, an installed driver, the container engine's nvidia
runtime or CDI file, NVSwitches, the scheduler, the profile, the last record that saw some. All of them side by side.
Why it matters: a GPU that fell off the bus, or a driver that did not load after a kernel update, leaves a machine on
which everything still "works", on the CPU or on seven GPUs of eight.
Does not apply when: there is no NVIDIA device and nothing expects one, or the GPUs were handed to nobody here
(vfio-pci, NVIDIA_VISIBLE_DEVICES=void, a device cgroup).
Cost and disturbance: reads facts that are read anyway; disturbs nothing.
If it is bad: look for the GPU on PCI, then for the kernel's own words about it (dmesg: NVRM, Xid).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpucheck.judgement import absence, presence
from gpucheck.verdict import Unable

if TYPE_CHECKING:
    from gpucheck.facts import Facts
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(subject="host", level="quick", disturbs="none", deadline_s=10, cost_s=0.0)


def test_gpus_present(report: Report, host: Facts) -> None:
    """The probe."""
    if unread := presence.unread(host):
        raise Unable(*unread)
    seen = presence.Seen.of(host)
    for line in presence.lines(host, seen):
        report.saw(line)
    if (reason := presence.ruled_out(host, seen)) is not None:
        raise reason
    if seen.opened is not None:
        report.measure("gpus", seen.opened)  # what a later run of this machine expects
    for finding in absence.findings(host, seen):
        report.take(finding)
    if not report.findings:
        report.saw(f"{seen.usable} GPUs can be used; expected by {seen.who or 'nobody in particular'}")
