"""The index of a library: it agrees with the folders, heals, and answers `--where` as Python does."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import sqlite3
import time
from pathlib import Path

import measured
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import make_record

from generator.errors import LibraryError, RequestError
from generator.store import index as index_module
from generator.store import library as library_module
from generator.store.index import And, Compare, Index, Literal, matches, open_index
from generator.store.library import Library, write_stored
from generator.store.maintenance import collect_garbage
from generator.store.query import MAX_COMPARISONS, parse_where
from hgemm.measured import SessionWriter
from hgemm.record import Record

PROCESSES, EACH = 4, 25
DEAD_PID = 2**22 + 1  # above the kernel's largest pid


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "lib")


def publish(library: Library, symbol: str = "one", **overrides: object) -> Path:
    return library.publish(*make_record(symbol, **overrides))


def symbols(library: Library) -> list[str]:
    return [str(row["symbol"]) for row in library.rows()]


def measure(folder: Path, symbol: str = "one", time_us: float = 12.5) -> None:
    measured.write(folder, [(measured.problem(64, 64, 64), {symbol: time_us})])


def _publish_many(folder: str, worker: int) -> float:
    longest_s = 0.0
    for number in range(EACH):
        start_s = time.monotonic()
        publish(Library(Path(folder)), f"kernel_{worker}_{number}", registers=number)
        publish(Library(Path(folder)), "shared", registers=worker)
        longest_s = max(longest_s, time.monotonic() - start_s)
    measure(Path(folder), time_us=1.0 + worker)
    return longest_s


def test_concurrent_processes_lose_nothing_and_do_not_wait_long(library: Library) -> None:
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        waits_s = pool.starmap(_publish_many, [(str(library.folder), worker) for worker in range(PROCESSES)])
    with open_index(library.folder) as index:
        assert len(index.stamps()) >= PROCESSES * EACH  # before anything heals
    expected = sorted(
        [f"kernel_{worker}_{number}" for worker in range(PROCESSES) for number in range(EACH)] + ["shared"]
    )
    assert symbols(library) == expected
    assert library.load("shared").record.data["resources"]["registers"] in range(PROCESSES)
    assert sorted(found.time_us for found in library.measurements()) == [1.0 + worker for worker in range(PROCESSES)]
    assert not [path for path in library.folder.iterdir() if path.name.startswith(".tmp-")]
    assert max(waits_s) < 10


def test_index_and_folders_agree(library: Library) -> None:
    for number in range(6):
        publish(library, f"k{number}", registers=64 + number, layout=("tn", "nn")[number % 2])
    for text in (
        "registers<67 and layout=tn",
        "not layout=tn",
        "occupancy>=0.25",
        "symbol like 'k?'",
        "sass_hmma>1000",
    ):
        where = parse_where(text)
        assert library.rows(where) == library._scan_rows(where)
    assert library.rows() == library._scan_rows(And(()))
    assert library.field_names() == {name for row in library.rows() for name in row}


def test_changes_of_folders_are_seen(library: Library) -> None:
    publish(library, "one")
    publish(library, "two")
    shutil.rmtree(library.folder / "one")
    assert library.orphan_rows() == ["one"]
    assert symbols(library) == ["two"] and library.orphan_rows() == []
    other = Library(library.folder.parent / "other")
    publish(other, "three", registers=7)
    shutil.copytree(other.folder / "three", library.folder / "three")
    shutil.rmtree(library.folder / "two")
    shutil.copytree(other.folder / "three", library.folder / "stranger")  # named otherwise than its record says
    assert symbols(library) == ["three"]
    assert library.rows()[0]["registers"] == 7


def test_stale_row_of_a_failed_update_is_refreshed(library: Library, monkeypatch) -> None:
    publish(library, registers=1)
    with monkeypatch.context() as patch:
        patch.setattr(
            index_module.Index, "upsert", lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("locked"))
        )
        publish(library, registers=2)
        publish(library, "two", registers=3)
    assert [row["registers"] for row in library.rows()] == [2, 3]


STATEMENTS = {
    "version": "PRAGMA user_version = 1",
    "tables": "DROP TABLE kernels",
    "rows": "UPDATE kernels SET flat = '{'",
    "one cell": "UPDATE kernels SET flat = replace(flat, '128', '129') WHERE symbol = 'k07'",
    "bytes that are no text": "UPDATE kernels SET flat = CAST(x'ff' || flat AS TEXT)",
    "another type": "UPDATE kernels SET flat = 7",
    "measurement": "UPDATE measurements SET time_us = 1.0",
    "trigger": "CREATE TRIGGER again AFTER INSERT ON kernels BEGIN DELETE FROM kernels; END",
    "view": "CREATE VIEW more AS SELECT * FROM kernels",
    "endless view": "DROP TABLE kernels; CREATE VIEW kernels AS WITH RECURSIVE n(symbol, stamp, flat, hash) AS "
    "(SELECT 1, 2, 3, 4 UNION ALL SELECT symbol, stamp, flat, hash FROM n) SELECT * FROM n",
}


@pytest.mark.parametrize(
    "damage",
    ["missing", "empty", "garbage", "truncated", "torn", "fifo", "link", "device", "fifo of a journal", *STATEMENTS],
)
def test_damaged_index_is_rebuilt_with_its_measurements(library: Library, damage: str) -> None:
    for number in range(9):
        publish(library, f"k{number:02}")
    measure(library.folder)
    before = library.measurements()
    path = library.folder / "index.db"
    content = path.read_bytes()
    if damage in STATEMENTS:
        database = sqlite3.connect(path)
        database.executescript(STATEMENTS[damage])
        database.close()
    elif damage == "fifo of a journal":
        path.write_bytes(b"x" * 9000)
        path.with_name("index.db-wal").unlink(missing_ok=True)
        os.mkfifo(path.with_name("index.db-wal"))
    elif damage in ("missing", "fifo", "link", "device"):
        path.unlink()
        if damage == "fifo":
            os.mkfifo(path)
        elif damage != "missing":
            path.symlink_to("/dev/zero" if damage == "device" else library.folder / "k00" / "record.json")
    else:
        torn = content[:4096] + b"\xaa" * 40960 + content[45056:]
        changed = {"empty": b"", "garbage": b"x" * 9000, "truncated": content[: len(content) // 2], "torn": torn}
        path.write_bytes(changed[damage])
    assert symbols(library) == [f"k{number:02}" for number in range(9)]
    assert [row["registers"] for row in library.rows(parse_where("registers=128"))] == [128] * 9
    assert library.measurements() == before and [found.time_us for found in before] == [12.5]
    publish(library, "more")
    assert "more" in symbols(library)
    assert library.reindex() == 10


def test_readers_see_all_rows_during_a_rebuild(library: Library, monkeypatch) -> None:
    for symbol in ("one", "two"):
        publish(library, symbol)
    measure(library.folder)
    assert len(library.measurements()) == 1
    upsert, seen = Index._upsert, []

    def observed(index: Index, record: Record, stamp: str) -> None:
        seen.append((symbols(library), len(library.measurements())))
        upsert(index, record, stamp)

    monkeypatch.setattr(Index, "_upsert", observed)
    assert library.reindex() == 2
    assert seen == [(["one", "two"], 1)] * 2


def test_measurements_of_existing_files_are_rows(library: Library) -> None:
    publish(library)
    measure(library.folder, time_us=2.0)
    measure(library.folder, "gone")
    assert library.reindex() == 1
    found = {one.symbol: one for one in library.measurements()}
    assert {symbol: one.time_us for symbol, one in found.items()} == {"one": 2.0, "gone": 12.5}
    assert library.measurements("gone") == [found["gone"]] and found["gone"].device == "NVIDIA H200"
    (library.folder / "measurements" / f"{found['gone'].session}.jsonl").unlink()
    assert library.measurements() == [found["one"]]


def test_a_session_that_grows_is_read_again(library: Library) -> None:
    publish(library)
    writer = SessionWriter(library.folder, **measured.HEADER)
    for count in range(1, 4):
        writer.add(measured.problem(64 * count, 64, 64), "steady", measured.times({"one": 1.0 * count}))
        assert [found.time_us for found in library.measurements("one")] == [1.0, 2.0, 3.0][:count]
    writer.close()


def test_altered_session_is_reported_and_skipped(library: Library, caplog) -> None:
    publish(library)
    measure(library.folder)
    (path,) = (library.folder / "measurements").iterdir()
    path.write_bytes(path.read_bytes().replace(b"12.5", b"12.4"))
    assert library.measurements() == [] and "line 3 was changed (its hash differs)" in caplog.text


def test_measured_kernels_are_no_garbage(library: Library) -> None:
    publish(library)
    measure(library.folder)
    measure(library.folder, "gone")
    leaving = library.folder / "measurements" / f".tmp-{DEAD_PID}-{'0' * 16}"
    leaving.write_text("")
    before = library.measurements()
    assert [removal.name for removal in collect_garbage(library)] == [leaving.name]
    assert library.measurements() == before and len(before) == 2


# Tests may run as root, whom no permission stops: so SQLite's and the system's answers are made up.
@pytest.mark.parametrize(
    "refusal",
    [sqlite3.OperationalError("attempt to write a readonly database"), sqlite3.OperationalError("database is locked")]
    + [OSError(errno.EROFS, "Read-only file system"), PermissionError(errno.EACCES, "Permission denied")],
)
def test_without_an_index_folders_are_read_and_one_line_is_logged(library, monkeypatch, caplog, refusal) -> None:
    publish(library, registers=100)
    publish(library, "two", registers=200)

    def refuse(*_: object) -> None:
        raise refusal

    monkeypatch.setattr(library_module, "open_index", refuse)
    assert symbols(library) == ["one", "two"]
    assert [row["symbol"] for row in library.rows(parse_where("registers<=128"))] == ["one"]
    assert "registers" in library.field_names()
    assert library.measurements() == []
    assert all("reading the folders instead" in line.message for line in caplog.records if line.levelname == "WARNING")
    assert caplog.text.count("\n") == len(caplog.records)
    publish(library, "three")
    assert symbols(library) == ["one", "three", "two"]
    with pytest.raises(LibraryError) as caught:
        library.reindex()
    assert str(caught.value).isprintable()


def test_an_old_index_of_a_read_only_library_needs_no_warning(library: Library, monkeypatch, caplog) -> None:
    publish(library)

    def refuse(*_: object) -> None:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(library_module, "open_index", refuse)
    monkeypatch.setattr(library_module, "is_writable", lambda folder: False)
    assert symbols(library) == ["one"] and not caplog.records


def test_an_index_that_cannot_be_written_is_still_read(library: Library, monkeypatch) -> None:
    publish(library)
    connect = sqlite3.connect

    def refuse_writing(database: str, **named: object) -> sqlite3.Connection:
        if "immutable" not in str(database):
            raise sqlite3.OperationalError("unable to open database file")
        return connect(database, **named)

    monkeypatch.setattr(index_module.sqlite3, "connect", refuse_writing)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with open_index(library.folder) as index:
        assert [row["symbol"] for row in index.rows()] == ["one"]
    assert symbols(library) == ["one"]


def test_library_path_may_have_special_characters(tmp_path: Path) -> None:
    library = Library(tmp_path / "a b?c#d%20é")
    publish(library)
    assert symbols(library) == ["one"] and (library.folder / "index.db").exists()


def test_index_handles_two_thousand_kernels(library: Library, monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the disk's speed is not what is tested
    for number in range(2000):
        write_stored(library.folder, *make_record(f"kernel_{number:04}", registers=number % 256))
    assert len(library.rows()) == 2000
    assert len(library.rows(parse_where("registers<=128 and symbol like '*7'"))) == sum(
        number % 256 <= 128 for number in range(7, 2000, 10)
    )


# ==== --where =========================================================================================================

FLAT = {
    "registers": 128,
    "occupancy": 0.25,
    "layout": "tn",
    "spilled": False,
    "cta_tile": "128x128x32",
    "nvrtc": "13.0",
    "mma": "m64n256k16",
}
NAMES = ("registers", "occupancy", "layout", "cta_tile", "spilled")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("registers<=128 and occupancy>=0.25 or layout='nn'", True),
        ("registers<128 or occupancy>0.25", False),
        ("layout=nn or layout=tn and registers=1", False),
        ("(layout=nn or layout=tn) and registers=128", True),
        ("not layout = nn", True),
        ("not spilled and registers", True),
        ("spilled = false", True),
        ("spilled=no and spilled=off and spilled='no' and spilled!=yes", True),
        ("spilled=on or spilled=YES", False),
        ("registers != 128", False),
        ("registers <> 127", True),
        ("registers == 1.28e2", True),
        ("tile=128x128x32", True),
        ("CTA_TILE like '128x*x32'", True),
        ("cta_tile like 128x", False),
        ("nvrtc = 13.0", True),
        ("missing = 1", False),
        ("missing != 1", True),
        ("missing < 1 or missing >= 1", False),
        ("layout < 5 or layout >= 5", False),
        ("occupancy>-1", True),
        ("mma=wgmma", True),
        ("mma='WGMMA'", True),
        ("mma!=wgmma or mma=m16n8k16", False),
        ("mma=m64n256k16", True),
        ("layout!=wgmma", True),
    ],
)
def test_condition_selects_matching_kernels(text: str, expected: bool) -> None:
    node = parse_where(text)
    assert matches(node, FLAT) is expected


def test_condition_accepts_short_architecture_names() -> None:
    for text in ("arch=90a", "arch='sm_90a'", "arch = 9.0a"):
        assert parse_where(text) == Compare("arch", "=", Literal("sm_90a"))
    with pytest.raises(RequestError, match="did you mean sm_75"):
        parse_where("arch=76")


@pytest.mark.parametrize(
    "text",
    ["", "registers<", "<3", "registers 3", "(registers", "registers)", "registers<=128 and", "'registers'=3"]
    + ["registers=3; drop table kernels", "registers=1e999", "registers=" + "9" * 30, "registers like", "layout='tn"]
    + ["not", "((((", "registers < and", "layout='\x00'", "layout='\udcff'", "(" * 1000 + "registers", "x" * 5000]
    + [" or ".join(["registers"] * (MAX_COMPARISONS + 1)), "not " * 900 + "registers"],
)
def test_malformed_condition_gives_a_one_line_error(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_where(text)
    assert "\n" not in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["registers>'abc'", "occupancy=half", "not stages='3'", "threads!=128x"])
def test_a_number_is_not_compared_with_a_text(text: str) -> None:
    with pytest.raises(RequestError, match="--where compares the number [a-z]+ with the text '.*'"):
        parse_where(text)


def test_unknown_field_suggests_the_nearest() -> None:
    with pytest.raises(RequestError, match="unknown field 'regs'.*registers"):
        parse_where("regs<3", known=NAMES)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_any_condition_is_parsed_or_rejected(text: str) -> None:
    try:
        node = parse_where(text)
    except RequestError:
        return
    assert matches(node, FLAT) in (True, False)


def test_the_longest_expression_is_evaluated() -> None:
    text = " or ".join(["a=2"] * (MAX_COMPARISONS - 1)) + " or " + "not " * 29 + "a=2"
    assert matches(parse_where(text), {"a": 1})
