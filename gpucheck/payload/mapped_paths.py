"""Which files of this host a Python with these modules needs: asked by importing them and looking at the memory map."""

import importlib
import os
import sys


def _mapped():
    with open("/proc/self/maps") as stream:
        for line in stream:
            last = line.split(None, 5)[-1]  # the path, where there is one
            if last.startswith("/"):
                yield last.rstrip("\n")


def main(args):
    """``modules``: names to import, where they are there. Returns executable, prefixes, path and mapped files."""
    for name in args["modules"]:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    return {
        "executable": sys.executable,
        "real_executable": os.path.realpath(sys.executable),
        "prefixes": sorted({sys.prefix, sys.base_prefix, sys.exec_prefix}),
        "path": [p for p in sys.path if p and os.path.exists(p)],
        "mapped": sorted({p for p in _mapped() if os.path.exists(p)}),
    }
