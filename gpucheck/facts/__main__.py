"""``python -m gpucheck.facts [--names a,b] [--python PATH] [--deadline SECONDS]``: print the facts as JSON.

The child that a run starts. It always exits 0 when it printed: a fact that could not be read says so itself.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.facts.catalogue import DEADLINE_S, read

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Read the facts and print them."""
    parser = argparse.ArgumentParser(prog="python -m gpucheck.facts", description="Read the facts; print them as JSON.")
    parser.add_argument("--names", help="only these, separated by commas")
    parser.add_argument("--python", help="the interpreter whose packages are read (default: this one)")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS", help="for the whole reading")
    parser.add_argument("--out", help="write the JSON to this file (default: standard output)")
    options = parser.parse_args(argv)
    names = options.names.split(",") if options.names else None
    text = json.dumps(read(names, python=options.python, deadline_s=options.deadline).to_json(), indent=1) + "\n"
    if options.out:
        Path(options.out).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    # A reader that hangs, or a library, must not be able to hold up a child that has answered.
    os._exit(status)
