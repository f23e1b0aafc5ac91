"""The options: what each may be, and where its text comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucheck.language import LANGUAGES
from gpucheck.levels import DISTURBANCE, LEVELS
from gpucheck.profile import values
from gpucheck.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Option:
    """One option: how its text is read, what is allowed (for people), its default, whether it may be given often.

    What it is for stands in ``plugin.TEXTS``, which must be there before anything of ours is imported.
    """

    name: str
    parse: Callable[[str], Any]
    allowed: str
    default: Any = None
    many: bool = False
    ini: bool = False
    flag: bool = False

    def read(self, given: Any, origin: str) -> Any:
        """The value that a text, or the list or truth value of a profile, stands for. Raises UsageError."""
        if isinstance(given, bool) and self.flag:
            return given
        if self.many:
            texts = given if isinstance(given, (list, tuple)) else [given]
            return tuple(dict.fromkeys(self._parse(str(text), origin) for text in texts))
        text = ",".join(str(part) for part in given) if isinstance(given, (list, tuple)) else str(given)
        return self._parse(text, origin)

    def _parse(self, text: str, origin: str) -> Any:
        try:
            return self.parse(text)
        except ValueError:
            raise UsageError(f"{self.name} = {text!r} (from {origin}): allowed is {self.allowed}") from None


_SHM = ("64m", "128m", "256m", "512m", "1g")
_IMAGE = "one image as the engine names it: name:tag, registry:5000/team/name@sha256:…, or its id"
_ENGINES = ("auto", "docker", "podman", "none")
OPTIONS = {
    option.name: option
    for option in (
        Option("level", values.choice(*LEVELS), "quick, default or deep", "default", ini=True),
        Option("budget", values.seconds, "seconds, more than 0"),
        Option("python", values.executable, "an executable Python"),
        Option("engine", values.choice(*_ENGINES), "auto, docker, podman or none", "auto", ini=True),
        Option("image", values.reference, _IMAGE, (), many=True),
        Option("shm", values.sizes, "sizes such as 64m,256m,1g, or host", _SHM),
        Option("dataset", values.factory, "MODULE:FACTORY", (), many=True),
        Option("model", values.factory, "MODULE:FACTORY", (), many=True),
        Option("probes", values.folder, "a folder that holds test_*.py files"),
        Option("profile", values.file, "a TOML file", ini=True),
        Option("require", values.words, "probe ids", ()),
        Option("allow-unable", values.words, "probe ids", ()),
        Option("accept", values.acceptance, "PITFALL=REASON", (), many=True),
        Option("strict", values.flag, "yes or no", default=False, flag=True),
        Option("no-gate", values.flag, "yes or no", default=False, flag=True),
        Option("disturb", values.choice(*DISTURBANCE), "none, idle or any", "idle"),
        Option("record", str, "a file that can be written", ini=True),
        Option("lang", values.choice(*LANGUAGES), "en or zh"),
        Option("rehearse", values.words, "fault ids (gpucheck list --faults)", ()),
    )
}
