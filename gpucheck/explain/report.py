"""A diagnosis as lines of text and as JSON. Pure."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck.diagnose import Confidence, Origin, Truth
from gpucheck.diagnose.conditions import judge_fact
from gpucheck.explain.layout import COLUMNS, clipped, command, printable, width, wrapped
from gpucheck.explain.params import params_of
from gpucheck.explain.phrases import PHRASES, Phrases
from gpucheck.pitfalls import FactTest
from gpucheck.redact import redact
from gpucheck.words import fill, fill_commands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpucheck.diagnose import Answer, Diagnosis, Place, Reason
    from gpucheck.facts import Facts
    from gpucheck.pitfalls import Pitfall

SHOWN_PLACES = 2
SHOWN_REASONS = 3
SHOWN_RIVALS = 6
_LABEL_COLUMNS = 10
_NONE: Mapping[str, str] = MappingProxyType({})


def entry_as_json(
    pitfall: Pitfall, facts: Facts | None, language: str, params: Mapping[str, str] = _NONE
) -> dict[str, Any]:
    """A pitfall as a JSON object; ``params`` are what its log tells to fill the commands with."""
    words = pitfall.words(language)
    return {
        "pitfall": pitfall.id,
        "headline": fill(words.headline, {}, facts),
        "cause": fill(words.cause, {}, facts),
        "wrong_guess": words.wrong_guess,
        "remedy": fill(words.remedy, {}, facts),
        "commands": list(fill_commands(pitfall.commands, params, facts)),
        "safety": pitfall.safety.value,
        "ask": pitfall.ask or None,
        "probe": pitfall.probe or None,
        "sources": list(pitfall.sources),
    }


def as_json(answer: Answer, facts: Facts | None, language: str) -> dict[str, Any]:
    """One answer as a JSON object: the pitfall, and what this log and these facts say of it."""
    return {
        **entry_as_json(answer.pitfall, facts, language, params_of(answer, facts)),
        "confidence": answer.confidence.value,
        "lines": [
            {"source": p.source, "line": p.line, "text": redact(printable(p.shown).strip())} for p in answer.places
        ],
        "confirmed_by": _texts(answer, Truth.YES),
        "contradicted_by": _texts(answer, Truth.NO),
        "undecided": _texts(answer, Truth.UNKNOWN),
        "only_if_run_here": [redact(printable(r.text)) for r in answer.reasons if r.origin is Origin.HOST],
        "rivals": [{"pitfall": r.id, "headline": r.words(language).headline, "ask": r.ask} for r in answer.rivals],
        "follows": answer.follows or None,
    }


def _texts(answer: Answer, truth: Truth) -> list[str]:
    return [redact(printable(_reason(r))) for r in _decisive(answer, truth)]


def _decisive(answer: Answer, truth: Truth) -> list[Reason]:
    """The reasons of this kind; of one fact's two that say the same, the one that says more."""
    found = [reason for reason in answer.reasons if reason.truth is truth]
    return [r for r in found if not any(o.text.startswith(f"{r.text} (") for o in found)]


def _shown(reasons: list[Reason], say: Phrases) -> Iterator[str]:
    """The reasons one by one; facts of this host together, with what it takes to be true of the log."""
    here = [redact(printable(reason.text)) for reason in reasons if reason.origin is Origin.HOST]
    yield from (redact(printable(_reason(reason))) for reason in reasons if reason.origin is Origin.JOB)
    if here:
        yield say.only_here.format(reason="; ".join(here))


def _reason(reason: Reason) -> str:
    return f"{reason.subject}: {reason.text}" if reason.subject.startswith("line ") else reason.text


def as_text(diagnosis: Diagnosis, facts: Facts | None, language: str, *, source: str, size: str) -> Iterator[str]:
    """The whole answer, at most three pitfalls, or that nothing is known and what to collect."""
    say = PHRASES[language]
    if not diagnosis.found:
        yield from _unsure(diagnosis, say, language, source=source, size=size)
        return
    for number, answer in enumerate(diagnosis.answers, 1):
        if number > 1:
            yield ""
        yield from _answer(answer, number, facts, say, language)
    if diagnosis.ruled_out:
        yield ""
    yield from _ruled_out(diagnosis, say)


def _ruled_out(diagnosis: Diagnosis, say: Phrases) -> Iterator[str]:
    for out in diagnosis.ruled_out:
        reason = redact(printable(_reason(out.reason)))
        yield from wrapped(say.ruled_out.format(pitfall=out.pitfall.id, reason=reason), COLUMNS)


def _unsure(diagnosis: Diagnosis, say: Phrases, language: str, *, source: str, size: str) -> Iterator[str]:
    if diagnosis.answers:
        yield say.unsure
        yield say.hints
        for answer in diagnosis.answers:
            headline = answer.pitfall.words(language).headline
            yield from _indented(f"{answer.pitfall.id}: {headline}", "  - ")
            yield from (line for place in answer.places[:1] for line in _place(place, say, "    "))
    else:
        yield from wrapped(say.nothing.format(size=size, source=printable(source)), COLUMNS)
    yield from _ruled_out(diagnosis, say)
    yield say.collect
    asks = dict.fromkeys(answer.pitfall.ask for answer in diagnosis.answers if answer.pitfall.ask)
    for text in (*asks, *say.collect_list):
        yield from _indented(text, "  - ")


def _answer(answer: Answer, number: int, facts: Facts | None, say: Phrases, language: str) -> Iterator[str]:
    level = say.confidence.format(level=getattr(say, answer.confidence.value))
    words = answer.pitfall.words(language)
    yield from _indented(f"{fill(words.headline, {}, facts)}", f"{number}. ")
    yield f"   {answer.pitfall.id}, {level}"
    for place in answer.places[:SHOWN_PLACES]:
        yield from _place(place, say, _label(say.seen))
    if more := len(answer.places) - SHOWN_PLACES:
        yield from ([" " * _LABEL_COLUMNS + say.more.format(count=more)] if more > 0 else [])
    yield from _entry(answer.pitfall, facts, say, language, params_of(answer, facts))
    for text in _why(answer, say):
        yield from _indented(text, _label(say.why))


def entry_as_text(pitfall: Pitfall, facts: Facts | None, language: str) -> Iterator[str]:
    """A pitfall by its id: its words, and what the facts of a machine say of it."""
    say = PHRASES[language]
    yield from _indented(fill(pitfall.words(language).headline, {}, facts), f"{pitfall.id}: ")
    yield from _entry(pitfall, facts, say, language)
    tests = [(test, say.for_it) for test in pitfall.confirm] + [(test, say.excludes) for test in pitfall.rule_out]
    for test, wording in tests:
        if isinstance(test, FactTest) and (reason := judge_fact(test, facts)).truth is Truth.YES:
            yield from _indented(wording.format(reason=reason.text), _label(say.here))
    if pitfall.ask:
        yield from _indented(say.decide.format(ask=pitfall.ask), _label(say.why))
    for label, values in ((say.probe, [pitfall.probe]), (say.sources, pitfall.sources)):
        if text := ", ".join(filter(None, values)):
            yield from _indented(text, _label(label))


def _entry(
    pitfall: Pitfall, facts: Facts | None, say: Phrases, language: str, params: Mapping[str, str] = _NONE
) -> Iterator[str]:
    words = pitfall.words(language)
    yield from _indented(fill(words.cause, {}, facts), _label(say.cause))
    yield from _indented(words.wrong_guess, _label(say.wrong_guess))
    yield from _indented(fill(words.remedy, {}, facts), _label(say.remedy))
    label = _label(say.commands)
    for text in fill_commands(pitfall.commands, params, facts):
        yield from _lines(command(text, COLUMNS - _LABEL_COLUMNS), label)
        label = " " * _LABEL_COLUMNS
    if pitfall.commands:
        yield (" " * _LABEL_COLUMNS + f"({getattr(say, pitfall.safety.value.replace('-', '_'))})")


def _why(answer: Answer, say: Phrases) -> Iterator[str]:
    """What the confidence rests on."""
    if answer.follows:
        yield say.consequence.format(cause=answer.follows)
    for truth, wording in ((Truth.YES, say.for_it), (Truth.NO, say.against_it)):
        for text in _shown(_decisive(answer, truth)[:SHOWN_REASONS], say):
            yield wording.format(reason=text)
    if not _decisive(answer, Truth.YES) and not answer.rivals:
        yield say.text_weak if answer.confidence is Confidence.LOW else say.text_only
    if answer.rivals:
        yield say.shared.format(rivals=", ".join(rival.id for rival in answer.rivals[:SHOWN_RIVALS]))
    if answer.pitfall.ask and answer.confidence is not Confidence.HIGH:
        yield say.decide.format(ask=answer.pitfall.ask)


def _place(place: Place, say: Phrases, label: str) -> Iterator[str]:
    where = f"{clipped(printable(place.source), 30)}, {say.line.format(line=place.line)}: "
    text = redact(printable(place.shown))
    lead = len(text) - len(text.lstrip())
    room = COLUMNS - width(label) - width(where)
    yield label + where + clipped(text.strip(), room, around=max(0, place.start - lead))


def _label(text: str) -> str:
    return text + " " * max(1, _LABEL_COLUMNS - width(text))


def _indented(text: str, label: str) -> Iterator[str]:
    yield from _lines(wrapped(printable(text), COLUMNS - width(label)), label)


def _lines(lines: Iterator[str], label: str) -> Iterator[str]:
    for line in lines:
        yield label + line
        label = " " * width(label)
