"""The place that facts are read from: a root folder (``/``, or a made one in tests), an environment, a judged Python.

Readers see it only through these methods, which touch pseudo files and small local files and nothing that could block:
no network file system, no device.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tree:
    """Where to read. ``live`` is whether it is this machine itself, so that the kernel may be asked too."""

    root: Path
    environ: Mapping[str, str] = field(repr=False)
    python: str
    deadline_s: float
    memo: dict[Callable[[Tree], Any], Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def live(self) -> bool:
        """Whether the root is this process's own."""
        return str(self.root) == "/"

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
