"""Options from every source, and the profile file: nothing that an operator wrote is lost or glued to its neighbour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpucheck import profile
from gpucheck.profile import UsageError
from gpucheck.verdict import Acceptance

if TYPE_CHECKING:
    from pathlib import Path


def resolved(folder: Path, text: str) -> profile.Options:
    """The options that a profile with this text gives."""
    path = folder / "node.toml"
    path.write_text(text)
    return profile.resolve({"profile": str(path)})


def test_each_entry_of_a_list_is_one(tmp_path: Path) -> None:
    """Two images are two, named twice or not; and the reason of an acceptance keeps its commas."""
    found = resolved(tmp_path, '[options]\nimage = ["a:1", "b:2", "a:1"]\naccept = ["x=one, two", "y=three"]\n')
    assert found["image"] == ("a:1", "b:2")
    assert found["accept"] == (Acceptance("x", "one, two"), Acceptance("y", "three"))
    assert found.settings["image"].origin == "profile"


def test_an_empty_list_is_nothing(tmp_path: Path) -> None:
    """An empty list names no image, not one without a name."""
    assert resolved(tmp_path, "[options]\nimage = []\n")["image"] == ()


def test_a_list_of_words_may_be_a_list_or_a_text(tmp_path: Path) -> None:
    """Probes and sizes are written either way."""
    either = resolved(tmp_path, '[options]\nrequire = ["a", "b"]\nshm = "64m,host"\n')
    assert either["require"] == ("a", "b")
    assert either["shm"] == ("64m", "host")


@pytest.mark.parametrize("value", ["true", "'yes'", "1"])
def test_a_flag_of_the_profile(tmp_path: Path, value: str) -> None:
    """A flag takes TOML's truth values and words."""
    assert resolved(tmp_path, f"[options]\nstrict = {value}\n")["strict"] is True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[options]\nstrict = 'perhaps'", "strict = 'perhaps' (from profile): allowed is yes or no"),
        ("[options]\nlevel = ''", "level = '' (from profile): allowed is quick, default or deep"),
        ("[options]\naccept = ['x=one', 'y']", "accept = 'y' (from profile): allowed is PITFALL=REASON"),
        ("[limits]\nepoch_s = 2", "unknown key `limits` in the profile"),
        ("[options]\nshm = '99999999999g'", "allowed is sizes such as"),
        ("x = " + "[" * 10_000, "cannot be read"),
        ("[expect]\nshm = '64q'", "[expect] shm): allowed is sizes"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, text: str, words: str) -> None:
    """The error names the value, where it came from and what is allowed; a section that nobody reads is refused."""
    with pytest.raises(UsageError) as error:
        resolved(tmp_path, text)
    assert words in str(error.value)


def test_an_empty_word_on_the_command_line_is_refused() -> None:
    """It is not taken for "not given"; an empty variable is."""
    with pytest.raises(UsageError, match="level = ''"):
        profile.resolve({"level": ""})


def test_an_empty_variable_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in every shell."""
    monkeypatch.setenv("GPUCHECK_LEVEL", "")
    assert profile.resolve({})["level"] == "default"
