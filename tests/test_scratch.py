"""The library that a verb has for the while: nothing of it is left, however the verb ends."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
from conftest import start

from generator.cli.scratch import scratch_library
from hgemm.errors import LibraryError


@pytest.mark.parametrize(
    "words",
    [["compare", "--arch", "sm_80", "--emulate"], ["ladder", "s3", "--static", "-j", "1"]],
    ids=lambda words: words[0],
)
def test_sigterm_leaves_no_library_behind(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process, until = start("hgemm", *words), time.monotonic() + 60
    while not [*tmp_path.glob("hgemm-*")] and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert [*tmp_path.glob("hgemm-*")], process.communicate()
    process.terminate()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and "Traceback" not in told
    assert [*tmp_path.iterdir()] == []


def test_a_file_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LibraryError, match="is a file: name a folder"), scratch_library(tmp_path / "file"):
        pytest.fail("the library was opened")


def test_afterwards_sigterm_is_handled_as_before_and_a_thread_leaves_it_alone(tmp_path: Path) -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []
    with scratch_library(None) as library:
        assert library.folder.is_dir() and signal.getsignal(signal.SIGTERM) != before
    assert not library.folder.exists() and signal.getsignal(signal.SIGTERM) == before

    def in_a_thread() -> None:
        with scratch_library(None) as library:
            seen.append((library.folder.is_dir(), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert seen == [(True, before)]
