"""Rows as people read them."""

from __future__ import annotations

from typing import Any

from gpucheck import render


def finding(pitfall: str, weight: str, accepted: str | None = None) -> dict[str, Any]:
    """A finding with its words."""
    told = dict.fromkeys(("headline", "cause", "remedy"), f"words of {pitfall}")
    plain: dict[str, Any] = {
        "evidence": [f"saw {pitfall}"],
        "wrong_guess": "",
        "commands": [],
        "safety": "safe",
        "confidence": "high",
    }
    return {"pitfall": pitfall, "weight": weight, "accepted": accepted, **told, **plain}


def row(probe: str, verdict: str, *findings: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A row of the record, as far as it is shown."""
    subject = {"kind": "host", "id": "m1", "label": "node7"}
    plain: dict[str, Any] = {"outcome": "failed", "evidence": [], "lacking": [], "not_run": [], "gist": ""}
    plain |= {"blocked_by": None, "because": None}
    return {"probe": probe, "verdict": verdict, "findings": list(findings), "subject": subject, **plain, **more}


def heads(*rows: dict[str, Any]) -> list[str]:
    """The first line of each block, and each line of what is accepted."""
    return [line for line in render.blocks(rows) if line and not line.startswith(" ")]


def test_the_worst_comes_first() -> None:
    """Bad stands before degraded, whoever found it; then what could not be looked at, then what is accepted."""
    slow = row("a", "degraded", finding("slow", "degraded"), finding("known", "degraded", "we know"))
    broken = row("b", "bad", finding("loose", "degraded"), finding("broken", "bad"))
    blind = row("c", "unable", lacking=["a driver"])
    assert heads(slow, broken, blind) == [
        "BAD  words of broken",
        "DEGRADED  words of slow",
        "DEGRADED  words of loose",
        "UNABLE  c · node7",
        "accepted   known (a · node7): we know",
    ]


def test_what_a_finding_explains_stands_under_it() -> None:
    """A probe that could not look because of a finding is named there, and has no block of its own."""
    lines = list(render.blocks([row("a", "bad", finding("broken", "bad")), row("b", "unable", blocked_by="a")]))
    assert "  blocks   b" in lines
    assert not any(line.startswith("UNABLE") for line in lines)


def test_no_line_but_a_command_is_longer_than_80_columns() -> None:
    """Prose is wrapped; a command is there to be copied."""
    long = finding("x", "bad") | {"cause": "word " * 60, "commands": ["run " * 40], "evidence": ["seen " * 50]}
    lines = list(render.blocks([row("a", "bad", long)]))
    assert [line for line in lines if len(line) > render.WIDTH] == ["  type".ljust(render.INDENT) + "run " * 40]


def test_what_was_required_and_is_ruled_out_says_so() -> None:
    """It failed the run, so it is no line among what does not apply; what nobody required is one, with its subjects."""
    because = {"because": {"value": "no engine", "source": "no socket"}}
    required = row("a", "not-applicable", **because)
    assert list(render.ruled_out_lines([required])) == []
    assert heads(required) == ["NOT APPLICABLE  a · node7"]
    other = row("b", "not-applicable", outcome="skipped", **because)
    assert list(render.ruled_out_lines([other, other])) == ["  not applicable  b[host, host] (no engine)"]
    assert heads(other) == []


def test_what_several_legs_lack_is_said_once() -> None:
    """One sentence with all the legs, those that are not essential too, and not again under the probe's line."""
    why = "a container engine: dockerd is installed"
    legs = ["named", "bind", "uid", "tmpfs", "ro", "two", "three", "four"]
    missed = [{"leg": leg, "why": why} for leg in legs] + [{"leg": "gpu", "why": "no GPU"}]
    blind = row("v", "unable", lacking=[f"named: {why}", f"bind: {why}", "time: none"], not_run=missed, gist="")
    assert list(render.lack_lines(blind))[1:] == [
        "  lacking  named, bind, uid, tmpfs, ro, two and 2 more: a container engine:",
        "           dockerd is installed",
        "           time: none",
    ]
    assert [line.strip() for line in render.under_lines(blind)] == ["not run: gpu (no GPU)"]
    explained = [line.strip() for line in render.under_lines(blind | {"blocked_by": "x", "not_run": missed[:2]})]
    assert explained == ["blocked by x", "not run: named, bind (a container engine: dockerd is", "installed)"]
