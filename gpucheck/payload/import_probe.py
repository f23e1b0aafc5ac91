"""Why does ``import torch`` fail, crash or hang? It is imported in a process of its own, and watched.

Arguments: ``module`` (default ``torch``); ``limit_s``, seconds that one import may take (default 60). The answer holds

    ended       "works", "raises", "exits", "signal" or "hang"
    code        the exit status, or the signal's name
    text        the last line of the error
    module      the module that was not found
    library     the shared library that was not found, or that is damaged
    symbol      the symbol that was not found, with its version
    needed_by   the file that wanted it, or the one whose symbol is missing
    damage      "too short" or "wrong format" for a library that is there and cannot be read
    version     what a module that was imported says of itself
    import_s    how long it took
    found_in    folders that do hold ``library``
    where       the innermost frames of a crash or a hang
    shadow      the file that is imported instead, where it lies in the working folder or on PYTHONPATH
    culprit     the environment variable without which the import works; null when none of them is to blame

Fields that do not apply are null. Standard library only.
"""

from __future__ import annotations

import glob
import os
import re
import signal
import sys
import time
from typing import Any

import bounded
import envelope

LIMIT_S = 60.0
FRAMES = 6
SUSPECTS = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")
SCRIPT = """
import faulthandler, sys
faulthandler.enable()
faulthandler.dump_traceback_later(float(sys.argv[2]), exit=True)
module = __import__(sys.argv[1])
if sys.argv[1] == "torch" and not hasattr(module, "_C"):
    raise ImportError("%s is a torch without its compiled part (torch._C)" % getattr(module, "__file__", "it"))
import os
print("", getattr(module, "__version__", ""), sep=os.linesep, flush=True)
os._exit(0)
"""
HANG_CODE = 1  # faulthandler leaves by _exit(1) after its dump
HANG_WORDS = "Timeout ("
NOT_FOUND = re.compile(r"(?:ImportError|OSError): (\S+\.so\S*): cannot open shared object file")
NO_SYMBOL = re.compile(r"(/\S+\.so\S*): undefined symbol: (\S+?)(?:, version (\S+))?$", re.MULTILINE)
NO_LINK = re.compile(r"symbol (\S+?)(?:,)? version (\S+) not defined in file (\S+) with link time reference")
NO_VERSION = re.compile(r"(/\S+\.so\S*): version [`'](\S+)' not found \(required by (/\S+?)\)")
DAMAGED = re.compile(r"(?:ImportError|OSError): (/\S+\.so\S*): (file too short|invalid ELF header|wrong ELF class\S*)")
NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in (\S+)', re.MULTILINE)
FIELDS = ("module", "version", "library", "symbol", "needed_by", "damage", "found_in", "where", "shadow", "culprit")


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Import, and where that does not work, look for the reason."""
    module = args.get("module", "torch")
    limit_s = float(args.get("limit_s", LIMIT_S))
    envelope.progress(f"import {module}")
    began = time.monotonic()
    ended, code, said = attempt(module, limit_s, os.environ)
    errors = said.errors
    answer: dict[str, Any] = {"ended": ended, "code": code, "text": last_line(errors), **dict.fromkeys(FIELDS)}
    answer["import_s"] = time.monotonic() - began
    if ended == "works":
        return {**answer, "text": "", "version": said.output.splitlines()[-1]}
    answer.update(reason(errors))
    answer["where"] = frames(errors) if ended in ("signal", "hang") else None
    answer["found_in"] = homes(answer["library"]) if answer["library"] else None
    answer["shadow"] = shadow(module)
    answer["culprit"] = culprit(module, limit_s) if ended != "hang" else None
    return answer


def attempt(module: str, limit_s: float, environment: Any) -> tuple[str, Any, bounded.Said]:
    """Import ``module`` in a fresh interpreter: how it ended, its code, what it said."""
    argv = [sys.executable, "-c", SCRIPT, module, str(limit_s)]
    # Where its own timer does not fire, a library holds every thread.
    said = bounded.run(argv, limit_s + 5, dict(environment))
    return (*judged(said.code, said.errors), said)


def judged(code: int | None, errors: str) -> tuple[str, Any]:
    """How an import ended, from its exit status and its words."""
    if code == 0:
        return "works", 0
    if code is None or (code == HANG_CODE and HANG_WORDS in errors):
        return "hang", None
    if code < 0:
        return "signal", signal.Signals(-code).name
    return ("raises" if "Traceback (most recent call last)" in errors else "exits"), code


def last_line(errors: str) -> str:
    """The line that says what went wrong, for people."""
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    said = [line for line in lines if re.match(r"\w+(\.\w+)*(Error|Exception): |Fatal Python error", line)]
    return (said or lines or [""])[-1][:1000]


def reason(errors: str) -> dict[str, Any]:  # noqa: PLR0911 - one a wording
    """What was missing, by the loader's or the interpreter's own words."""
    if match := NO_LINK.search(errors):
        return {"symbol": f"{match[1]} ({match[2]})", "library": match[3]}
    if match := NO_SYMBOL.search(errors):
        symbol = f"{match[2]} ({match[3]})" if match[3] else match[2]
        return {"needed_by": match[1], "symbol": symbol, "library": match[3]}
    if match := NO_VERSION.search(errors):
        return {"library": match[1], "symbol": match[2], "needed_by": match[3]}
    if match := DAMAGED.search(errors):
        damage = "too short" if match[2] == "file too short" else "wrong format"
        return {"library": match[1], "damage": damage}
    if match := NOT_FOUND.search(errors):
        return {"library": match[1]}
    if match := NO_MODULE.search(errors):
        return {"module": match[1]}
    return {}


def frames(errors: str) -> list[str]:
    """The innermost frames that faulthandler wrote, ``file:line function``."""
    return [f"{path}:{line} {name}" for path, line, name in FRAME.findall(errors)[:FRAMES]]


def homes(library: str) -> list[str]:
    """Folders of this Python and of LD_LIBRARY_PATH that hold a file of that name."""
    name = os.path.basename(library)
    roots = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    for path in sys.path:
        for package in ("nvidia", "torch/lib"):
            folder = os.path.join(path, package)
            roots += [place for place, _, _ in os.walk(folder)] if os.path.isdir(folder) else []
    return sorted({root for root in roots if os.path.exists(os.path.join(root, name))})


def shadow(module: str) -> str | None:
    """A file or folder that stands before the installed module: in the working folder or on PYTHONPATH.

    A torch with its compiled part is no shadow: it is installed there.
    """
    for folder in [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(":")]:
        for name in (f"{module}.py", os.path.join(module, "__init__.py")):
            path = os.path.join(folder, name)
            compiled = glob.glob(os.path.join(glob.escape(folder), module, "_C*.so"))
            if folder and os.path.exists(path) and not compiled:
                return path
    return None


def culprit(module: str, limit_s: float) -> str | None:
    """The one variable without which the import works."""
    for name in SUSPECTS:
        if os.environ.get(name):
            envelope.progress(f"import {module} without {name}")
            environment = {key: value for key, value in os.environ.items() if key != name}
            if attempt(module, limit_s, environment)[0] == "works":
                return name
    return None
