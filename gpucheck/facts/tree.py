"""The place that facts are read from: a root folder (``/``, or a made one in tests), an environment, a judged Python.

Readers see it only through these methods, which touch pseudo files and small local files and nothing that could block:
no network file system, no device.
"""

from __future__ import annotations

import math
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
# Less than a child takes to start is no time at all.
_LEAST_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Tree:
    """Where to read, and until when (``ends``, by the monotonic clock): one time for all that may have to wait.

    ``live`` is whether it is this machine itself, so that the kernel may be asked too.
    """

    root: Path
    environ: Mapping[str, str] = field(repr=False)
    python: str
    ends: float
    memo: dict[Callable[[Tree], Any], Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def live(self) -> bool:
        """Whether the root is this process's own."""
        return str(self.root) == "/"

    def left_s(self, wanted_s: float = math.inf) -> float:
        """Seconds that the next child may take: ``wanted_s``, but half of what is left at most.

        So one that hangs leaves time for the next, and for everything that does not wait.
        """
        return max(_LEAST_S, min(wanted_s, (self.ends - time.monotonic()) / 2))

    def path(self, name: str) -> Path:
        """The file that is called ``name`` (absolute) in this tree."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str:
        """The file's text without the newline at its end. Raises OSError that names the file."""
        try:
            return self.path(name).read_bytes().decode(errors="replace").rstrip("\n")
        except OSError as error:
            # The kernel refuses some reads only after the file was opened; Python then does not know its name.
            raise OSError(error.errno, error.strerror, name) from error

    def text_if_any(self, name: str) -> str | None:
        """The file's text, or None when there is no such file. Any other trouble raises OSError."""
        try:
            return self.text(name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        """What a folder holds, sorted; nothing when there is no such folder. Any other trouble raises OSError."""
        try:
            return sorted(os.listdir(self.path(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder. A folder that may not be searched raises OSError."""
        return self._mode(name) is not None

    def is_device(self, name: str) -> bool:
        """Whether there is such a character device: a file or folder of that name is a leftover of a wrong bind."""
        mode = self._mode(name)
        return mode is not None and stat.S_ISCHR(mode)

    def is_socket(self, name: str) -> bool:
        """Whether there is such a socket."""
        mode = self._mode(name)
        return mode is not None and stat.S_ISSOCK(mode)

    def _mode(self, name: str) -> int | None:
        try:
            return self.path(name).stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    def link_name(self, name: str) -> str | None:
        """The last part of what a link points to (sysfs: the driver's name); None when there is no link."""
        try:
            return Path(os.readlink(self.path(name))).name
        except (FileNotFoundError, NotADirectoryError):
            return None

    def real(self, name: str) -> str:
        """``name`` with its links followed, as seen inside the tree."""
        path = str(self.path(name).resolve())
        root = str(self.root.resolve())
        return path if self.live or not path.startswith(root) else path[len(root) :]

    def once(self, reader: Callable[[Tree], T]) -> T:
        """What ``reader`` gives for this tree, read at most once however many facts are made from it."""
        if reader not in self.memo:
            self.memo[reader] = reader(self)
        value: T = self.memo[reader]
        return value
