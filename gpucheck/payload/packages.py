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


def cuda_build() -> tuple[str | None, str]:
    """What torch's version.py says, and its path. It is read, not run: importing torch takes seconds, and may crash."""
    for folder in sys.path:
        path = os.path.join(folder, "torch", "version.py")
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as stream:
                text = stream.read()
            found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
            return (found.group(1) if found else "none"), path
    return None, "sys.path: no torch"


def main(args: dict[str, Any]) -> dict[str, Any]:
    """See the module."""
    build, source = cuda_build()
    return {
        "version": platform.python_version(),
        "packages": distributions(),
        "cuda_build": build,
        "cuda_build_source": source,
    }
