"""The pytest plugin: options and one marker. Everything else is loaded only when ``--gpucheck`` is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

# Written out here because this module imports nothing of ours: a test holds it against `profile.OPTIONS`.
TEXTS = {
    "level": "quick, default (which it is) or deep",
    "budget": "seconds for the whole run (by level: 20, 180, 1800)",
    "python": "judge this Python without installing into it",
    "engine": "auto (which it is), docker, podman or none",
    "shm": "sizes of the shm sweep, such as 64m,256m,1g",
    "probes": "a folder with probes of your own",
    "profile": "TOML file: what this machine is expected to be",
    "require": "probes that must be ok or degraded: ids, with commas",
    "allow-unable": "probes that may be unable to look: ids, with commas",
    "disturb": "none, idle (which it is) or any: which GPUs may be loaded",
    "record": "where the record goes (JSON lines; else below ~/.local/state)",
    "lang": "en or zh: language of the findings (else by locale)",
    "rehearse": "see the probes go red for these faults: ids, with commas",
}
LISTS = {
    "image": "an image to judge too (repeatable)",
    "dataset": "MODULE:FACTORY of your own Dataset (repeatable)",
    "model": "MODULE:FACTORY of your own model (repeatable)",
    "accept": "PITFALL=REASON: live with it (repeatable)",
}
FLAGS = {"strict": "degraded counts as failed", "no-gate": "run your tests even when a probe is bad"}
INI = ("level", "profile", "engine", "record")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options; their values are read and checked only when the plugin is asked for."""
    group = parser.getgroup("gpucheck", "gpucheck: will a GPU job run on this machine?")
    group.addoption("--gpucheck", action="store_true", help="probe this machine before the tests")
    for name, text in TEXTS.items():
        group.addoption(f"--gpucheck-{name}", metavar=name.upper(), help=text)
    for name, text in LISTS.items():
        group.addoption(f"--gpucheck-{name}", action="append", default=[], metavar=name.upper(), help=text)
    for name, text in FLAGS.items():
        group.addoption(f"--gpucheck-{name}", action="store_true", help=text)
    for name in INI:
        parser.addini(f"gpucheck_{name}", f"default of --gpucheck-{name}")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Asked about the machine alone, no test of the user's is collected, so no conftest of theirs is loaded either."""
    known = early_config.known_args_namespace
    if known.gpucheck and not known.file_or_dir:
        known.noconftest = True


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; register the run when it is asked for."""
    config.addinivalue_line(
        "markers",
        "gpucheck(gpus=, memory_gb=, capability=, probes=[...]): skip, saying why, where --gpucheck found that "
        "this machine does not have it",
    )
    if config.option.gpucheck:
        from gpucheck.replay import attach

        attach(config)


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int, int]:
    """The exit status is ours when the probes ran, also where pytest sets one after its last hook."""
    status = yield
    run = config.pluginmanager.get_plugin("gpucheck-run")
    return run.close(status) if run else status
