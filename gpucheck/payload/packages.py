"""The distributions that an interpreter sees, and what torch was built for. Nothing of what is installed is imported.

``main({})`` returns {version, packages: {normalised name: [version, folder]}, cuda_build, cuda_build_source}.
``cuda_build``: "13.0"; "none" for a build without CUDA; null without torch. Standard library only, Python 3.8.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from typing import Any


def distributions() -> dict[str, list[str]]:
    """Name to [version, folder] of every distribution; of two with one name that which an import would find."""
    own = os.path.dirname(os.path.abspath(__file__))
    path = [folder for folder in sys.path if os.path.abspath(folder) != own]
    found: dict[str, list[str]] = {}
    for distribution in importlib.metadata.distributions(path=path):
        # A folder that an interrupted uninstall left has no name.
        name = distribution.metadata["Name"]
        if name:
            key = re.sub(r"[-_.]+", "-", name).lower()
            found.setdefault(key, [distribution.version, str(distribution.locate_file(""))])
    return found


def torch_file() -> str | None:
    """Torch's version.py. It is read, not run: importing torch takes seconds, and may crash."""
    paths = [os.path.join(folder, "torch", "version.py") for folder in sys.path]
    return next((path for path in paths if os.path.isfile(path)), None)


def value_in(path: str, name: str) -> str | None:
    """The text that a module gives to that name; null when it is no text."""
    with open(path, encoding="utf-8") as stream:
        found = re.search(r"^%s\b[^=\n]*=\s*['\"]([^'\"]+)['\"]" % name, stream.read(), re.MULTILINE)
    return found.group(1) if found else None


def main(args: dict[str, Any]) -> dict[str, Any]:
    """See the module."""
    packages = distributions()
    path = torch_file()
    version = value_in(path, "__version__") if path else None
    if path and version:
        # A source tree on the path was installed by nobody, and is imported all the same.
        packages.setdefault("torch", [version, os.path.dirname(os.path.dirname(path))])
    return {
        "version": platform.python_version(),
        "packages": packages,
        "cuda_build": value_in(path, "cuda") or "none" if path else None,
        "cuda_build_source": path or "sys.path: no torch",
    }
