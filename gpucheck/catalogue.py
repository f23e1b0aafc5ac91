"""Probes, read from their files without importing them: a probe's id is its file's name."""

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


def id_of(path: Path) -> str:
    """A probe's id: its file's name without ``test_``, in kebab case."""
    return path.stem.removeprefix("test_").replace("_", "-")


def title_of(text: str) -> str:
    """The good state, as the first line of a probe's docstring states it."""
    return text.strip().partition("\n")[0].rstrip(".")


def ids(folder: Path = FOLDER) -> set[str]:
    """The ids of all probes of ``folder`` and the folders in it, by the names of their files alone."""
    return {id_of(path) for path in folder.rglob("test_*.py")}


def _level(tree: ast.Module) -> str:
    """The level in the file's first ``pytest.mark.probe(...)``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.probe":
            named = {keyword.arg: keyword.value for keyword in node.keywords}
            return str(ast.literal_eval(named["level"])) if "level" in named else "default"
    return "default"


def probes() -> list[Probe]:
    """Every probe that the package ships, by id."""
    found = []
    for path in sorted(FOLDER.glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        text = ast.get_docstring(tree) or ""
        found.append(Probe(id_of(path), title_of(text), _level(tree), text, path))
    return found
