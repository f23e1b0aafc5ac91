"""The probes that the package ships, read from their files without importing them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "probes"


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe: its id, the good state that it shows, the level from which it runs, its docstring."""

    id: str
    title: str
    level: str
    text: str
    path: Path


def _level(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "level" and isinstance(node.value, ast.Constant):
            return str(node.value.value)
    return "default"


def probes(folder: Path = FOLDER) -> list[Probe]:
    """Every probe of ``folder``, by id."""
    found = []
    for path in sorted(folder.glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        text = ast.get_docstring(tree) or ""
        name = path.stem.removeprefix("test_").replace("_", "-")
        found.append(Probe(name, text.partition("\n")[0].rstrip("."), _level(tree), text, path))
    return found
