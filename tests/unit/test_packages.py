"""Whether what a probe needs is installed: known to be, known not to be, and not known."""

from __future__ import annotations

import pytest

from gpucheck.facts import Fact, Facts
from gpucheck.judgement import packages
from gpucheck.verdict import NotApplicable, Unable

READ = Facts([Fact("package.*", 2, "the judged Python"), Fact("package.onnxruntime-gpu", "1.26", "metadata")])
UNREAD = Facts([Fact("package.torch", None, "the judged Python", "did not answer")])


def test_what_is_known_not_to_be_installed_rules_a_probe_out() -> None:
    """The fact, where it was read, and the command that installs it."""
    absent = packages.without(READ, "torch")
    assert absent is not None
    assert absent.because.fact == "package.torch"
    assert absent.because.source == "the judged Python"
    assert absent.because.value == "torch is not installed: pip install 'pytest-gpucheck[torch]'"
    with pytest.raises(NotApplicable, match=r"onnx is not installed: pip install 'pytest-gpucheck\[onnx\]'"):
        packages.need(READ, "onnx", extra="onnx")


def test_another_python_gets_no_command_for_our_own() -> None:
    """What pip installs beside gpucheck does not help the Python that is judged."""
    absent = packages.without(READ.plus([Fact("python.executable", "/opt/venv/bin/python", "it")]), "torch")
    assert absent is not None
    assert absent.because.value == "torch is not installed"


def test_one_of_several_is_enough() -> None:
    """As of the builds of ONNX Runtime."""
    packages.need(READ, "onnxruntime", "onnxruntime-gpu")


def test_what_nobody_could_read_is_no_absence() -> None:
    """A probe that tries it will see; one that must know is unable."""
    packages.need(UNREAD, "torch")
    with pytest.raises(Unable, match="whether torch is installed: did not answer"):
        packages.must_know(UNREAD, "torch")
