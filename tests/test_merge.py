"""Merging: each kernel and measurement once, nothing damaged, and never two different kernels with one name."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import measured
import pytest
from click.testing import CliRunner
from conftest import call, start
from hypothesis import given, settings
from hypothesis import strategies as st
from records import make_record

from generator.cli.library import merge_command as command
from generator.errors import LibraryError
from generator.store.index import INDEX_NAME
from generator.store.library import Library
from generator.store.maintenance import collect_garbage, merge
from generator.store.proofs import with_proof
from hgemm.measured import SessionWriter, chained


def library(folder: Path, *symbols: str, **overrides: object) -> Library:
    made = Library(folder)
    folder.mkdir(exist_ok=True)
    for symbol in symbols:
        made.publish(*make_record(symbol, **overrides))
    return made


def measure(folder: Path, symbol: str, *times_us: float) -> None:
    measured.write(folder, [(measured.problem(64, 64, at), {symbol: one}) for at, one in enumerate(times_us, 1)])


def timings(folder: Path) -> list[tuple[str, float]]:
    return sorted((one.symbol, one.time_us) for one in Library(folder).measurements())


def join(*folders: Path, to: Path):
    return merge(folders, to, lambda *messages: None)


def files(folder: Path) -> dict[str, bytes]:
    """Return every file of the kernels of a library."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("[a-z]*/*")}


def test_merge_copies_every_kernel_once_unchanged(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    library(a, "one", "two")
    library(b, "two", "three")
    done = join(a, b, to=c)
    assert (done.added, done.present) == (3, 0)
    assert files(c) == {**files(a), **files(b)}
    assert [row["symbol"] for row in Library(c).rows()] == ["one", "three", "two"]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sets(st.sampled_from("abcdefgh")), min_size=1, max_size=4), st.data())
def test_merge_result_does_not_depend_on_order_or_interruptions(tmp_path_factory, held: list[set[str]], data) -> None:
    """Libraries merged one after the other, in any order, are those merged at once; again, nothing is added."""
    root = tmp_path_factory.mktemp("merge")
    folders = [library(root / f"l{place}", *symbols).folder for place, symbols in enumerate(held)]
    join(*folders, to=root / "at_once")
    for folder in data.draw(st.permutations(folders)):
        join(folder, to=root / "in_turn")
    assert files(root / "in_turn") == files(root / "at_once")
    again = join(*folders, to=root / "at_once")
    assert (again.added, again.present) == (0, len(set().union(*held)))


def test_target_may_be_one_of_the_sources(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    measure(library(a, "one").folder, "one", 1.5)
    measure(library(b, "two").folder, "two", 2.5)
    done = join(a, b, b / ".." / "b", to=a)
    assert (done.added, done.present, done.measurements) == (1, 1, 1)
    assert timings(a) == [("one", 1.5), ("two", 2.5)]


def test_conflicting_kernels_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    library(a, "one", "two", "fine")
    library(b, "one", "two", key="ab" * 32)
    with pytest.raises(LibraryError) as raised:
        join(a, b, to=c)
    head, *lines = str(raised.value).splitlines()
    assert head.startswith("2 kernels differ between the libraries, so nothing was written")
    assert lines == [
        f"  {symbol}: key {hashlib.sha256(symbol.encode()).hexdigest()[:16]} in {a}, {'ab' * 8} in {b}"
        for symbol in ("one", "two")
    ]
    assert not c.exists()


def test_kernels_of_the_target_conflict_too(tmp_path: Path) -> None:
    a, c = tmp_path / "a", tmp_path / "c"
    library(a, "one", "two")
    library(c, "one", key="ab" * 32)
    before = files(c)
    with pytest.raises(LibraryError, match=f"one: key .* in {a}, abab.* in {c}"):
        join(a, to=c)
    assert files(c) == before


@pytest.mark.parametrize("name", ["record.json", "kernel.cubin"])
def test_damaged_kernel_stops_the_merge_before_writing(tmp_path: Path, name: str) -> None:
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    library(a, "one")
    library(b, "two")
    with (b / "two" / name).open("ab") as file:
        file.write(b"!")
    with pytest.raises(LibraryError, match=f"{b / 'two' / name}"):
        join(a, b, to=c)
    assert not c.exists()


def test_a_damaged_kernel_of_the_target_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a, c = tmp_path / "a", tmp_path / "c"
    library(a, "one")
    library(c, "one")
    (c / "one" / "kernel.cubin").write_bytes(b"!")
    assert join(a, to=c).added == 1 and files(c) == files(a) and "one is damaged" in caplog.text


def test_kernel_with_a_proof_is_preferred(tmp_path: Path) -> None:
    plain, proved, c = tmp_path / "plain", tmp_path / "proved", tmp_path / "c"
    library(plain, "one")
    record, artefacts = make_record("one")
    Library(proved).publish(with_proof(record, {"executor": "1234", "shapes": ["8x8x8"], "races": 0}), artefacts)
    join(plain, to=c)
    assert join(plain, proved, to=c).replaced == 1 and files(c) == files(proved)
    assert join(plain, to=c).present == 1 and files(c) == files(proved)


def test_measurements_are_merged_once(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    measure(library(a, "one").folder, "one", 1.0, 2.0)
    shutil.copytree(a / "measurements", library(b).folder / "measurements")
    measure(b, "one", 3.0)
    assert join(a, b, to=c).measurements == 3 and timings(c) == [("one", 1.0), ("one", 2.0), ("one", 3.0)]
    assert join(a, b, to=c).measurements == 0 and len(timings(c)) == 3


def test_session_without_a_complete_first_line_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a, c = tmp_path / "a", tmp_path / "c"
    measure(library(a, "one").folder, "one", 1.0)
    (path,) = (a / "measurements").iterdir()
    for size in (0, 20):
        path.with_name("20260101t000000000000z_00000000.jsonl").write_bytes(path.read_bytes()[:size])
        join(a, to=c)
        assert timings(a) == timings(c) == [("one", 1.0)] and not caplog.records


def test_longer_copy_of_a_session_is_kept(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    writer = SessionWriter(library(a, "one").folder, **measured.HEADER)
    for time_us in (1.0, 2.0):
        writer.add(measured.problem(64, 64, 64), "steady", measured.times({"one": time_us}))
        if time_us == 1.0:
            shutil.copytree(a, b)
    writer.close()
    assert join(b, to=c).measurements == 1 and join(a, to=c).measurements == 1 and join(b, to=c).measurements == 0
    assert files(c) == files(a) and timings(c) == [("one", 1.0), ("one", 2.0)]


def test_conflicting_sessions_are_rejected(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    session = measured.write(library(a).folder, [(measured.problem(64, 64, 64), {"one": 1.0})])
    other = measured.write(library(b).folder, [(measured.problem(64, 64, 64), {"one": 2.0})])
    assert other.name != session.name
    before = ""
    lines = [{**json.loads(line.partition(b" ")[2]), "session": session.name} for line in other.lines[:1]]
    text = b""
    for line in lines + [json.loads(line.partition(b" ")[2]) for line in other.lines[1:]]:
        before, chunk = chained(before, line)
        text += chunk
    (b / "measurements" / f"{other.name}.jsonl").unlink()
    (b / "measurements" / f"{session.name}.jsonl").write_bytes(text)
    with pytest.raises(LibraryError, match="differs from another session of the same name"):
        join(a, b, to=c)
    assert not c.exists()


def test_sources_of_a_merge_are_not_written(tmp_path: Path) -> None:
    a = library(tmp_path / "a", "one").folder
    (a / INDEX_NAME).unlink()
    before = sorted(os.listdir(a))
    join(a, to=tmp_path / "c")
    assert sorted(os.listdir(a)) == before


def test_untrusted_measurements_fail_the_merge(tmp_path: Path) -> None:
    a, c = library(tmp_path / "a", "one").folder, tmp_path / "c"
    measure(a, "one", 1.0)
    (path,) = (a / "measurements").iterdir()
    path.write_bytes(path.read_bytes().replace(b"H200", b"H100"))
    with pytest.raises(LibraryError, match=f"{path}: line 1 was changed"):
        join(a, to=c)
    assert not c.exists()


def test_next_merge_completes_a_killed_one(tmp_path: Path) -> None:
    a, c = tmp_path / "a", tmp_path / "c"
    library(a, *(f"kernel_{number}" for number in range(60)))
    process = start("hgemm", "merge", a, "--to", c)
    while process.poll() is None and not (c.exists() and any(c.iterdir())):
        time.sleep(0.001)
    process.kill()
    process.communicate()
    done = json.loads(call("hgemm", "merge", a, "--to", c, "--json", "-q").stdout)
    assert done["added"] + done["present"] == 60
    collect_garbage(Library(c))
    assert files(c) == files(a)


def test_merge_exits_with_1_on_a_conflict(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    library(a, "one")
    library(b, "two")
    done = CliRunner().invoke(command, [str(a), str(b), "--to", str(c)])
    assert done.stdout == f"{c}: 2 kernels added, 0 already present, 0 measurements added\n"
    assert "[2/2] added two" in done.stderr and "2 kernels in" in done.stderr
    library(b, "one", key="cd" * 32)
    failed = call("hgemm", "merge", a, b, "--to", tmp_path / "d")
    assert failed.returncode == 1 and failed.stderr.startswith("hgemm: error: 1 kernel differs") and not failed.stdout
    assert call("hgemm", "merge", tmp_path / "none", "--to", c).stderr.startswith("hgemm: error: library ")


def test_unwritable_target_names_its_option(tmp_path: Path) -> None:
    Library(tmp_path / "a").publish(*make_record("one"))
    (tmp_path / "file").touch()
    with pytest.raises(LibraryError, match="cannot write .*file/b: .* choose another --to$"):
        merge([tmp_path / "a"], tmp_path / "file" / "b", lambda *messages: None)


@pytest.mark.parametrize("refused", ["mkdir", "replace"])
def test_a_full_disk_names_the_option_of_the_target(tmp_path: Path, monkeypatch, refused: str) -> None:
    """`mkdir` writes kernels, `replace` sessions."""
    measure(library(tmp_path / "a", "one").folder, "one", 1.5)
    (tmp_path / "c").mkdir()

    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, refused, refuse)
        with pytest.raises(LibraryError, match="no space is left on the disk: free some or choose another --to"):
            join(tmp_path / "a", to=tmp_path / "c")
    assert join(tmp_path / "a", to=tmp_path / "c").measurements == 1


def test_an_empty_library_is_noted_and_another_folder_rejected(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "b").mkdir()
    library(tmp_path / "parts" / "a", "one")
    done = CliRunner().invoke(command, [str(tmp_path / "parts"), "--to", str(tmp_path / "all")])
    assert isinstance(done.exception, LibraryError) and "no kernels and no measurements: name" in str(done.exception)
    assert not (tmp_path / "all").exists()
    done = call("hgemm", "merge", tmp_path / "parts" / "a", tmp_path / "b", "--to", tmp_path / "all", "-q")
    assert done.returncode == 0 and "1 kernel added" in done.stdout
    assert done.stderr == f"hgemm: {tmp_path / 'b'} has no kernels and no measurements\n"
