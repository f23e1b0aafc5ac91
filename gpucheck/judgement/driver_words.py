"""Names and numbers by which drivers, NVML and CUDA say one thing, wherever they say it. A leaf."""

from __future__ import annotations

from typing import Final

#: Kernel drivers that keep a device for somebody else: a virtual machine, nobody.
RESERVED: Final = ("vfio-pci", "pci-stub", "xen-pciback", "pciback")
#: Kernel drivers that drive a GPU, and with which CUDA does not work.
OPEN_SOURCE: Final = ("nouveau", "nova_core", "nova-core", "nova")

# NVML's (nvml.h).
LOST: Final = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")
MISMATCH: Final = "NVML_ERROR_LIB_RM_VERSION_MISMATCH"
NO_PERMISSION: Final = "NVML_ERROR_NO_PERMISSION"
NOT_SUPPORTED: Final = "NVML_ERROR_NOT_SUPPORTED"

#: What opening a device node is refused with: by a device cgroup, by a file's mode.
BY_CGROUP: Final = "EPERM"
DENIED: Final = (BY_CGROUP, "EACCES")

# CUDA's statuses of a GPU for which there is no code, and of PTX that the driver does not know (driver_types.h).
NO_KERNEL_IMAGE: Final = 209
UNKNOWN_PTX: Final = 222
NO_IMAGE: Final = (NO_KERNEL_IMAGE, UNKNOWN_PTX)
