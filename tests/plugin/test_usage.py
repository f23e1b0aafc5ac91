"""A wrong option is a usage error that names the value, where it came from and what is allowed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from gpucheck import plugin, profile

if TYPE_CHECKING:
    from tests.plugin.conftest import Bench

WRONG = [
    ("--gpucheck-level=fast", ("level", "'fast'", "--gpucheck-level", "quick, default or deep")),
    ("--gpucheck-budget=0", ("budget", "'0'", "seconds, more than 0")),
    ("--gpucheck-budget=soon", ("budget", "'soon'")),
    ("--gpucheck-engine=lxc", ("engine", "'lxc'", "auto, docker, podman or none")),
    ("--gpucheck-shm=64q", ("shm", "'64q'", "sizes such as 64m")),
    ("--gpucheck-python=/nonexistent/python", ("python", "/nonexistent/python")),
    ("--gpucheck-accept=shm-too-small", ("accept", "'shm-too-small'", "PITFALL=REASON")),
    ("--gpucheck-profile=/nonexistent.toml", ("profile", "/nonexistent.toml")),
    ("--gpucheck-disturb=all", ("disturb", "'all'", "none, idle or any")),
    ("--gpucheck-require=no-such-probe", ("no-such-probe", "gpucheck list")),
    ("--gpucheck-dataset=nonsense", ("dataset", "MODULE:FACTORY")),
    ("--gpucheck-image=", ("image", "''", "--gpucheck-image", "name:tag")),
    ("--gpucheck-image=Team/App", ("image", "'Team/App'", "registry:5000/team/name@sha256:")),
    ("--gpucheck-image=--privileged", ("image", "'--privileged'")),
    ("--gpucheck-image=app@sha256:12", ("image", "'app@sha256:12'")),
]


@pytest.mark.parametrize(("option", "words"), WRONG)
def test_wrong_option(bench: Bench, option: str, words: tuple[str, ...]) -> None:
    """Status 4, one readable error, no traceback."""
    bench.probe("site_ok", "report.saw('x')")
    ran = bench.run(option)
    assert ran.status == 4, ran.out + ran.err
    text = ran.out + ran.err
    for word in words:
        assert word in text
    assert "Traceback" not in text


PROFILES = [
    ("[expects]\ngpus = 8", "unknown key `expects`"),
    ("[expect]\ngpu = 8", "unknown key `gpu` in [expect]"),
    ("[expect]\ngpus = -1", "gpus = -1"),
    ("[expect]\ncapabilities = ['sm_90']", "'sm_90'"),
    ("[require]\nprobes = 'x'", "a list of probe ids"),
    ("[accept]\npitfall = 'x'", "[[accept]]"),
    ("[[accept]]\npitfall = 'x'", "needs `pitfall` and `reason`"),
    ("[[accept]]\npitfall = 'x'\nreason = 'y'\nuntil = 'soon'", "'soon'"),
    ("[options]\nlevl = 'quick'", "unknown key `levl`"),
    ("[options]\nlevel = 'fast'", "from profile"),
    ("not toml", "cannot be read"),
]


@pytest.mark.parametrize(("text", "word"), PROFILES)
def test_wrong_profile(bench: Bench, text: str, word: str) -> None:
    """A profile with an unknown key or a wrong value is refused, naming file and key."""
    bench.probe("site_ok", "report.saw('x')")
    (bench.project / "p.toml").write_text(text)
    options = profile.OPTIONS
    with pytest.raises(profile.UsageError, match=re.escape(word)):
        profile.resolve(dict.fromkeys(options) | {"profile": str(bench.project / "p.toml")})


def test_precedence(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    """Command line before environment before profile before ini before default, each with its origin."""
    path = bench.project / "p.toml"
    path.write_text("[options]\nlevel = 'deep'\n")
    nothing = dict.fromkeys(profile.OPTIONS)
    monkeypatch.delenv("GPUCHECK_LEVEL", raising=False)
    assert profile.resolve(nothing).settings["level"] == profile.Setting("default", "default")
    ini = {"gpucheck_level": "quick"}.get
    assert profile.resolve(nothing, lambda name: ini(name, "")).settings["level"].origin == "the ini file"
    named = nothing | {"profile": str(path)}
    assert profile.resolve(named, lambda name: ini(name, "")).settings["level"] == profile.Setting("deep", "profile")
    monkeypatch.setenv("GPUCHECK_LEVEL", "quick")
    assert profile.resolve(named).settings["level"] == profile.Setting("quick", "GPUCHECK_LEVEL")
    typed = named | {"level": "deep"}
    assert profile.resolve(typed).settings["level"] == profile.Setting("deep", "--gpucheck-level")


def test_images_of_each_source(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    """Several on the command line or in a list of the profile, one in the environment; the same one counts once."""
    path = bench.project / "p.toml"
    digest = "registry.example:5000/team/app@sha256:" + "0" * 64
    path.write_text(f"[options]\nimage = ['a:1', '{digest}', 'a:1']\n")
    named = dict.fromkeys(profile.OPTIONS) | {"profile": str(path)}
    assert profile.resolve(named)["image"] == ("a:1", digest)
    monkeypatch.setenv("GPUCHECK_IMAGE", "b")
    assert profile.resolve(named)["image"] == ("b",)
    assert profile.resolve(named | {"image": ["c", "d:1", "c"]})["image"] == ("c", "d:1")
    monkeypatch.setenv("GPUCHECK_IMAGE", "b,c")
    with pytest.raises(profile.UsageError, match=r"image = 'b,c' \(from GPUCHECK_IMAGE\): allowed is one image"):
        profile.resolve(named)


def test_plugin_declares_exactly_the_options_that_are_resolved() -> None:
    """The always-loaded plugin repeats the option names because it imports nothing of ours; the two lists agree."""
    declared = {*plugin.TEXTS, *plugin.LISTS, *plugin.FLAGS}
    assert declared == set(profile.OPTIONS)
    assert set(plugin.LISTS) == {name for name, option in profile.OPTIONS.items() if option.many}
    assert set(plugin.FLAGS) == {name for name, option in profile.OPTIONS.items() if option.flag}
    assert set(plugin.INI) == {name for name, option in profile.OPTIONS.items() if option.ini}


def test_plugin_imports_nothing_of_ours() -> None:
    """Loading the plugin costs the standard library and pytest, nothing else."""
    import subprocess
    import sys

    code = (
        "import sys, pytest; before = set(sys.modules); import gpucheck.plugin;"
        "print(sorted(m for m in set(sys.modules) - before if m.split('.')[0] not in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['gpucheck', 'gpucheck.plugin']"
