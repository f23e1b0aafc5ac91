"""Installed Debian packages, from dpkg's own file: dpkg itself takes locks, and is not everywhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpucheck.facts.tree import Tree

STATUS: Final = "/var/lib/dpkg/status"
# A whole file has tens of thousands of stanzas; only these vendors' are of interest here.
_STANZA: Final = re.compile(
    r"^Package: ((?:nvidia|libnvidia|cuda|linux-modules-nvidia)\S*)\n((?:\S[^\n]*\n|[ \t][^\n]*\n)*)", re.MULTILINE
)


def installed_packages(tree: Tree) -> dict[str, str]:
    """Name and version of each installed package of NVIDIA's. Removed ones whose configuration is left do not count."""
    return tree.once(_installed_packages)


def _installed_packages(tree: Tree) -> dict[str, str]:
    text = tree.text_if_any(STATUS)
    if text is None or "nvidia" not in text:
        return {}
    return {
        name: version[1]
        for name, rest in _STANZA.findall(text + "\n")
        if re.search(r"^Status: \S+ ok installed$", rest, re.MULTILINE)
        and (version := re.search(r"^Version: (\S+)$", rest, re.MULTILINE))
    }
