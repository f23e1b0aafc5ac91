"""What a policy makes of verdicts: every cell of the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.verdict import (
    Acceptance,
    Exit,
    Finding,
    Outcome,
    Policy,
    Result,
    Subject,
    Verdict,
    accept,
    exit_status,
    outcome,
)

HOST = Subject("host", "h", "h")
PASSED, FAILED, SKIPPED = Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED
PLAIN = Policy()
STRICT = Policy(strict=True)
REQUIRED = Policy(require=frozenset({"p"}))
ALLOWED = Policy(allow_unable=frozenset({"p"}))
BOTH = Policy(require=frozenset({"p"}), allow_unable=frozenset({"p"}))


def result(verdict: Verdict) -> Result:
    """A result with this verdict, and a finding where it needs one."""
    weight = verdict if verdict in (Verdict.BAD, Verdict.DEGRADED) else None
    findings = (Finding("pit", weight),) if weight else ()
    return Result("p", "t", HOST, verdict, findings=findings)


TABLE = [
    (Verdict.OK, (PASSED, PASSED, PASSED, PASSED, PASSED)),
    (Verdict.DEGRADED, (PASSED, FAILED, PASSED, PASSED, PASSED)),
    (Verdict.BAD, (FAILED, FAILED, FAILED, FAILED, FAILED)),
    (Verdict.UNABLE, (FAILED, FAILED, FAILED, SKIPPED, FAILED)),
    (Verdict.NOT_APPLICABLE, (SKIPPED, SKIPPED, FAILED, SKIPPED, FAILED)),
    (Verdict.CHECKER_ERROR, (FAILED, FAILED, FAILED, FAILED, FAILED)),
]


@pytest.mark.parametrize(("verdict", "outcomes"), TABLE)
def test_outcome(verdict: Verdict, outcomes: tuple[Outcome, ...]) -> None:
    """Plain, strict, required, allowed-unable, and required against allowed."""
    policies = (PLAIN, STRICT, REQUIRED, ALLOWED, BOTH)
    assert tuple(outcome(result(verdict), policy) for policy in policies) == outcomes


def test_every_finding_must_be_accepted() -> None:
    """A probe with two defects of which one is accepted is still bad."""
    both = replace(result(Verdict.BAD), findings=(Finding("pit", Verdict.BAD), Finding("other", Verdict.BAD)))
    policy = Policy(accept={"pit": Acceptance("pit", "known")})
    assert outcome(accept(both, policy, "2026-01-01"), policy) is FAILED
    policy = Policy(accept={name: Acceptance(name, "known") for name in ("pit", "other")})
    assert outcome(accept(both, policy, "2026-01-01"), policy) is SKIPPED


def test_accepted_defect_is_no_green() -> None:
    """A run whose only probe is bad and accepted has judged nothing."""
    policy = Policy(accept={"pit": Acceptance("pit", "known")})
    accepted = accept(result(Verdict.BAD), policy, "2026-01-01")
    assert exit_status([accepted], policy) is Exit.NOTHING_JUDGED


@pytest.mark.parametrize(
    ("verdicts", "user", "status"),
    [
        ([], (0, 0), Exit.NOTHING_JUDGED),
        ([], (1, 0), Exit.OK),
        ([], (1, 1), Exit.BAD),
        ([Verdict.OK], (0, 0), Exit.OK),
        ([Verdict.OK, Verdict.UNABLE], (0, 0), Exit.UNDECIDED),
        ([Verdict.OK, Verdict.CHECKER_ERROR], (3, 0), Exit.UNDECIDED),
        ([Verdict.UNABLE, Verdict.BAD], (0, 0), Exit.BAD),
        ([Verdict.UNABLE], (5, 1), Exit.BAD),
        ([Verdict.NOT_APPLICABLE], (0, 0), Exit.NOTHING_JUDGED),
        ([Verdict.NOT_APPLICABLE, Verdict.DEGRADED], (0, 0), Exit.OK),
    ],
)
def test_exit_status(verdicts: list[Verdict], user: tuple[int, int], status: Exit) -> None:
    """The first that holds: bad, undecided, nothing judged, ok."""
    results = [result(verdict) for verdict in verdicts]
    assert exit_status(results, PLAIN, user_passed=user[0], user_failed=user[1]) is status
