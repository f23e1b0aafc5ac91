"""What keeps a run from beginning: the operator asked for what cannot be."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from gpucheck.usage import UsageError

if TYPE_CHECKING:
    from gpucheck.profile import Options


def namesake() -> None:
    """Another distribution on the index ships files of the same names over ours. Raises UsageError where it is."""
    try:
        metadata.distribution("gpucheck")
    except metadata.PackageNotFoundError:
        return
    raise UsageError(
        "another package named `gpucheck` is installed beside pytest-gpucheck and overwrites its files; run\n"
        "  pip uninstall -y gpucheck pytest-gpucheck && pip install pytest-gpucheck"
    )


def unknown_probes(options: Options, known: set[str]) -> None:
    """A requirement on a probe that does not exist would never be looked at. Raises UsageError for one."""
    if unknown := sorted((options.policy.require | options.policy.allow_unable) - known):
        raise UsageError(f"no probe is called {', '.join(unknown)}; see `gpucheck list`")
