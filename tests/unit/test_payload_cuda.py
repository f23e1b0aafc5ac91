"""The payloads that ask the driver and torch: run for real, against libraries that are broken or played on purpose."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import owner, scratch
from gpucheck.fakes import machine
from gpucheck.process import PAYLOADS, Children, Failure

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins for the driver's libraries."""
    return machine.build(tmp_path_factory.mktemp("built"))


@pytest.fixture
def library_of(built: Path, tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Writes a machine's libraries and returns its environment."""

    def write(name: str) -> dict[str, str]:
        played = machine.load(name)
        played.write_libraries(tmp_path / name, built)
        return played.environment(tmp_path / name)

    return write


@pytest.fixture
def children() -> Iterator[Children]:
    """Cold children of this Python."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder) as made:
        yield made


def by_hand(payload: str, args: dict[str, Any], env: dict[str, str]) -> Any:
    """What a payload answers when it is run by hand, as its envelope."""
    argv = [
        sys.executable,
        "-B",
        str(PAYLOADS / "envelope.py"),
        str(PAYLOADS / f"{payload}.py"),
        json.dumps(args or {}),
    ]
    done = subprocess.run(argv, env=os.environ | env, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


def value(payload: str, args: dict[str, Any], env: dict[str, str]) -> Any:
    """What it returned."""
    envelope = by_hand(payload, args, env)
    assert "value" in envelope, envelope
    return envelope["value"]


class TestDriver:
    """``cuda_driver``: libcuda.so.1 alone."""

    def test_a_healthy_driver_lists_its_devices(self, library_of: Callable[[str], dict[str, str]]) -> None:
        """Each GPU comes with its UUID, capability and memory, and the file that was opened is named."""
        told = value("cuda_driver", {}, library_of("eight-h100"))
        assert told["error"] is None
        assert told["init"] == {"code": 0, "name": "CUDA_SUCCESS", "text": "no error"}
        assert told["version"] == 13000
        assert told["library"].endswith("/lib/libcuda.so.580.95.05")
        cards = machine.load("eight-h100").cards
        assert [device["uuid"] for device in told["devices"]] == [card.uuid.removeprefix("GPU-") for card in cards]
        assert {device["capability"] for device in told["devices"]} == {"9.0"}
        assert {device["memory_bytes"] for device in told["devices"]} == {80 << 30}

    def test_a_refusal_is_told_in_the_drivers_own_words(self, library_of: Callable[[str], dict[str, str]]) -> None:
        """The status, its name and its text come back; no device is asked for."""
        told = value("cuda_driver", {}, library_of("versions-differ"))
        assert told["init"]["code"] == 803
        assert told["init"]["name"] == "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
        assert told["devices"] == []

    def test_the_library_that_comes_first_is_named(self, library_of: Callable[[str], dict[str, str]]) -> None:
        """Of two libcuda.so.1 the one that the loader took is in the answer."""
        told = value("cuda_driver", {}, library_of("stub-first"))
        assert told["init"]["code"] == 34
        assert "/stubs/" in told["library"]

    def test_hidden_devices_are_not_listed(self, library_of: Callable[[str], dict[str, str]]) -> None:
        """The driver obeys CUDA_VISIBLE_DEVICES, so the payload sees what a job would."""
        env = library_of("hidden-on-purpose")
        cards = machine.load("hidden-on-purpose").cards
        wanted = [card.uuid.removeprefix("GPU-") for card in cards[2:4]]
        assert [device["uuid"] for device in value("cuda_driver", {}, env)["devices"]] == wanted

    def test_no_library_is_an_answer(self, tmp_path: Path) -> None:
        """The loader's words say why; an empty file is another reason than none."""
        (tmp_path / "libcuda.so.1").touch()
        assert "file too short" in value("cuda_driver", {}, {"LD_LIBRARY_PATH": str(tmp_path)})["error"]

    def test_a_driver_that_hangs_is_ended(
        self, library_of: Callable[[str], dict[str, str]], children: Children
    ) -> None:
        """A cuInit that never returns costs the deadline and no more."""
        begun = time.monotonic()
        reply = children.run("cuda_driver", {}, deadline_s=3, warm=False, env=library_of("init-hangs"))
        assert reply.hung
        assert time.monotonic() - begun < 20


@pytest.fixture
def cuda_torch(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The payload ``cuda_torch`` as a module."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(PAYLOADS))
    return importlib.import_module("cuda_torch")


class TestTorch:
    """``cuda_torch``: what it computes with, on the CPU."""

    def test_a_right_product_is_within_the_bound(self, cuda_torch: types.ModuleType) -> None:
        """float32 on the CPU is far below what any order of summation may be off by."""
        import torch

        left, right = torch.randn(2, 512, 512, generator=torch.Generator().manual_seed(1))
        assert 0 < cuda_torch.share_of_bound(left @ right, left, right) < 0.1

    @pytest.mark.parametrize("wrong", [0.5, -0.05, float("nan"), float("inf")])
    def test_one_wrong_number_is_seen(self, cuda_torch: types.ModuleType, wrong: float) -> None:
        """One element of a quarter of a million that is off, or is no number, is outside the bound."""
        import torch

        left, right = torch.randn(2, 512, 512, generator=torch.Generator().manual_seed(1))
        product = left @ right
        product[3, 4] += wrong
        assert cuda_torch.share_of_bound(product, left, right) > 1

    def test_reduced_precision_is_outside_the_bound(
        self, cuda_torch: types.ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Inputs rounded to ten bits, as TF32 does, are wrong for float32, but not where the environment asks."""
        import torch

        left, right = torch.randn(2, 512, 512, generator=torch.Generator().manual_seed(1))
        short = left.to(torch.float16).float() @ right.to(torch.float16).float()
        assert cuda_torch.share_of_bound(short, left, right) > 1
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
        assert cuda_torch.share_of_bound(short, left, right) < 1

    def test_what_is_to_be_left_alone_is_not_loaded(self, cuda_torch: types.ModuleType) -> None:
        """A device is known by its UUID; where torch does not tell it (before 2.4) it may be the one to be spared."""
        devices = [{"ordinal": 0, "uuid": "a"}, {"ordinal": 1, "uuid": "b"}, {"ordinal": 2, "uuid": None}]
        assert cuda_torch.loadable(devices, ["a"]) == [1]
        assert cuda_torch.loadable(devices, []) == [0, 1, 2]

    def test_each_job_says_how_it_ended(self, cuda_torch: types.ModuleType) -> None:
        """A value, an exception, a crash and a hang come back as such, with the step that was reached."""

        def stuck() -> dict[str, Any]:
            cuda_torch.Step.to("launch a kernel")
            time.sleep(60)
            return {}

        def crashes() -> dict[str, Any]:
            cuda_torch.Step.to("copy back")
            os.kill(os.getpid(), signal.SIGKILL)
            return {}

        def fails() -> dict[str, Any]:
            raise RuntimeError("no")

        begun = time.monotonic()
        answers = cuda_torch.in_processes([lambda: {"worst": 0.0}, fails, crashes, stuck], 2.0)
        assert time.monotonic() - begun < 10
        assert answers[0] == {"ended": "value", "value": {"worst": 0.0}, "step": ""}
        assert answers[1] == {"ended": "failure", "type": "RuntimeError", "text": "no", "step": ""}
        assert answers[2] == {"ended": "signal", "signal": "SIGKILL", "step": "copy back"}
        assert answers[3] == {"ended": "hang", "step": "launch a kernel"}

    def test_a_cpu_build_is_told_as_one(self) -> None:
        """A torch without CUDA answers at once; what it cannot know is null."""
        torch = pytest.importorskip("torch")
        if torch.version.cuda is not None:
            pytest.skip("this torch has CUDA")
        told = value("cuda_torch", {"kernel": "matmul"}, {})
        assert told["cuda_build"] is None
        assert told["arch_flags"] is None
        assert told["devices"] == told["kernels"] == []


@pytest.fixture
def module(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Writes a module ``broken`` and returns the environment in which it is found."""

    def write(text: str) -> dict[str, str]:
        (tmp_path / "broken.py").write_text(text)
        return {"PYTHONPATH": str(tmp_path)}

    return write


def compile_library(path: Path, text: str, *flags: str) -> None:
    """A shared library of this C text."""
    argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(path), *flags]
    subprocess.run(argv, input=text, text=True, check=True)


def imported(env: dict[str, str], limit_s: float = 20.0) -> Any:
    """What the payload says of importing it."""
    return value("import_probe", {"module": "broken", "limit_s": limit_s}, env)


class TestImport:
    """``import_probe``: why an import does not work."""

    def test_one_that_works(self, module: Callable[[str], dict[str, str]]) -> None:
        """Nothing is looked for then."""
        told = imported(module("x = 1"))
        assert told["ended"] == "works"
        assert told["culprit"] is None

    def test_a_library_that_is_not_there(self, module: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
        """The library is named, and the folder that does hold it."""
        hidden = tmp_path / "nvidia" / "needed" / "lib"
        hidden.mkdir(parents=True)
        compile_library(hidden / "libneeded.so.3", "int f(void) { return 1; }", "-Wl,-soname,libneeded.so.3")
        compile_library(
            tmp_path / "user.so", "int f(void); int g(void) { return f(); }", str(hidden / "libneeded.so.3")
        )
        told = imported(module(f"import ctypes; ctypes.CDLL({str(tmp_path / 'user.so')!r})"))
        assert told["ended"] == "raises"
        assert told["library"] == "libneeded.so.3"
        assert told["found_in"] == [str(hidden)]

    def test_a_symbol_that_is_not_there(self, module: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
        """The symbol and the file that wanted it are named."""
        compile_library(tmp_path / "user.so", "int absent_function(void); int g(void) { return absent_function(); }")
        told = imported(module(f"import ctypes, os; ctypes.CDLL({str(tmp_path / 'user.so')!r}, mode=os.RTLD_NOW)"))
        assert told["symbol"] == "absent_function"
        assert told["needed_by"] == str(tmp_path / "user.so")

    def test_an_empty_library(self, module: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
        """A file of no bytes is damage, not absence."""
        (tmp_path / "user.so").touch()
        told = imported(module(f"import ctypes; ctypes.CDLL({str(tmp_path / 'user.so')!r})"))
        assert told["library"] == str(tmp_path / "user.so")
        assert told["damage"] == "too short"

    def test_a_module_that_is_not_there(self, module: Callable[[str], dict[str, str]]) -> None:
        """The module that was missing is named, not the one that wanted it."""
        assert imported(module("import surely_not_installed"))["module"] == "surely_not_installed"

    def test_a_crash(self, module: Callable[[str], dict[str, str]]) -> None:
        """The signal and the innermost frames are told."""
        told = imported(module("import ctypes\ndef fall():\n    ctypes.string_at(0)\nfall()"))
        assert told["ended"] == "signal"
        assert told["code"] == "SIGSEGV"
        assert any(frame.endswith("fall") for frame in told["where"])

    def test_a_hang(self, module: Callable[[str], dict[str, str]]) -> None:
        """It is ended, and where it hung is told."""
        told = imported(module("import time\ndef wait():\n    time.sleep(60)\nwait()"), limit_s=2)
        assert told["ended"] == "hang"
        assert told["where"][0].endswith("wait")

    def test_an_exit(self, module: Callable[[str], dict[str, str]]) -> None:
        """A module that ends the process is neither a failure nor a crash."""
        told = imported(module("import os; os._exit(7)"))
        assert (told["ended"], told["code"]) == ("exits", 7)

    def test_the_variable_that_is_to_blame(self, module: Callable[[str], dict[str, str]]) -> None:
        """The import is tried again without each suspect, and the one without which it works is named."""
        env = module("import os\nif os.environ.get('LD_PRELOAD'): raise ImportError('poisoned')")
        told = imported(env | {"LD_PRELOAD": "libm.so.6"})
        assert told["culprit"] == "LD_PRELOAD"

    def test_a_file_that_stands_before_the_package(self, tmp_path: Path) -> None:
        """A stray file of the same name on PYTHONPATH is found."""
        (tmp_path / "broken.py").write_text("raise ImportError('I am not it')")
        told = imported({"PYTHONPATH": str(tmp_path)})
        assert told["shadow"] == str(tmp_path / "broken.py")
        assert told["text"] == "ImportError: I am not it"

    def test_a_package_with_its_compiled_part_is_no_shadow(self, tmp_path: Path) -> None:
        """A torch that PYTHONPATH leads to is installed there."""
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken/__init__.py").write_text("raise ImportError('I am it')")
        (tmp_path / "broken/_C.cpython-312-x86_64-linux-gnu.so").touch()
        assert imported({"PYTHONPATH": str(tmp_path)})["shadow"] is None


def test_a_torch_that_cannot_be_imported_is_a_failure_of_the_payload(tmp_path: Path, children: Children) -> None:
    """The exception of the import comes back as data, for the probe to look into."""
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cuda.so: undefined symbol: ncclCommSplit')")
    reply = children.run("cuda_torch", {}, deadline_s=30, warm=False, env={"PYTHONPATH": str(tmp_path)})
    assert isinstance(reply.answer, Failure)
    assert reply.answer.type == "ImportError"
