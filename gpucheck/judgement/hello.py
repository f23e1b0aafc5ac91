"""What an engine says of itself, parsed once. Pure, a leaf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Hello:
    """Kind and version; the runtimes, CDI folders and devices that it knows; where its files lie; how it runs."""

    kind: str
    version: str
    runtimes: tuple[str, ...] = ()
    cdi_folders: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    root: str = ""
    rootless: bool = False

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Hello:
        """From the answer of ``payload/engine_call.py``."""
        return cls(
            kind=told["kind"],
            version=told["version"],
            runtimes=tuple(told["runtimes"]),
            cdi_folders=tuple(told["cdi_folders"]),
            devices=tuple(told["devices"]),
            root=told["root"],
            rootless=any("rootless" in option for option in told["security"]),
        )

    @property
    def label(self) -> str:
        """For people: ``docker 26.1.5``."""
        return f"{self.kind} {self.version}"

    @property
    def snap(self) -> bool:
        """Whether its files lie in a snap, which sees nothing of the host's programs."""
        return self.root.startswith(("/var/snap/", "/snap/"))
