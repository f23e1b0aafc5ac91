"""Our own modules in a process of their own, without a variable that the children of that process would inherit."""

from __future__ import annotations

import sys
from pathlib import Path

PLACE = Path(__file__).parents[2]
# Not the folder in which the operator stands, where a json.py of theirs may lie. And in front only what is not on the
# path: a folder of packages is no place to look for the standard library's.
_START = """
import sys
_, place, name = sys.argv[:3]
del sys.argv[1:3]
sys.path[:] = [folder for folder in sys.path if folder]
if place not in sys.path:
    sys.path.insert(0, place)
import runpy
runpy.run_module(name, run_name="__main__", alter_sys=True)
""".strip()


def own_argv(module: str, *args: str) -> list[str]:
    """``python -m MODULE ARGS`` in our own Python, which finds this very package however it got onto our path.

    Not by PYTHONPATH: to a judged Python it would lend every package that is installed beside us.
    """
    return [sys.executable, "-B", "-c", _START, str(PLACE), module, *args]
