"""Damaged and edited libraries: readers report the damage in one line, and never hang or crash."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
from contextlib import closing, suppress
from dataclasses import fields, replace
from pathlib import Path

import measured
import pytest
from exports import FAST_CC, export_paper, loaded
from record_mutations import judge, mutated, record_of, sound_records
from records import make_artefacts, make_record
from test_export_select import NO_KERNEL, drawn, in_c
from test_index import STATEMENTS

import hgemm
from generator.export.c_library import build
from generator.export.c_sources import MAX_CLOCKS, check_row
from generator.spec import Spec, spec_hash
from generator.store.files import remove_abandoned, replace_folder, temporary_name
from generator.store.library import Library
from generator.store.maintenance import collect_garbage, merge
from generator.sweep import sweep
from hgemm.consistency import contradiction
from hgemm.dispatch_table import Row, kind_of, row_of
from hgemm.errors import HgemmError, LibraryError
from hgemm.launch_traits import LaunchTraits
from hgemm.library import scan
from hgemm.measured import read_sessions
from hgemm.problem import Kind, Problem
from hgemm.record import HASH_FIELD, SPEC_DEFAULTS, Record, dump
from hgemm.selection import Selector
from hgemm.selection_query import SelectionQuery, Target

DEAD_PID = 2**22 + 1  # above the kernel's largest pid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    library = Library(tmp_path / "library")
    for name in ("one", "two"):
        library.publish(*make_record(name))
    return library.folder


def edit(folder: Path, **changes: object) -> Path:
    """Change numbers of a record's grid as an editor does. Its hash stays."""
    path = folder / "one" / "record.json"
    data = json.loads(path.read_bytes())
    data["launch"]["grid"] |= changes
    path.write_text(json.dumps(data))
    return path


def hash_again(folder: Path, **changes: object) -> Path:
    """Change numbers of a record's grid, and give it the hash that they have."""
    path = edit(folder, **changes)
    path.write_text(dump(json.loads(path.read_bytes())))
    return path


# ==== Records: their hash, their bounds, their consistency, their plan ================================================


def test_record_hash_ignores_the_json_layout() -> None:
    record = make_record("one")[0]
    text = dump(record)
    document = json.loads(text)
    assert len(document.pop(HASH_FIELD)) == 64 and document == record
    assert Record.parse(text).data == Record.parse(json.dumps(json.loads(text))).data == record


@pytest.mark.parametrize("change", [edit, hash_again])
@pytest.mark.parametrize("grid", [{"tile_n": 528}, {"tile_m": 2**32}, {"splits": 2}, {"rule": "persistent"}])
def test_an_edited_launch_is_rejected_by_every_reader(folder: Path, tmp_path: Path, change, grid: dict) -> None:
    place = change(folder, **grid)
    for read in (
        lambda: hgemm.open(folder).records,
        lambda: hgemm.open(folder).kernel("one"),
        lambda: Library(folder).load("one"),
        lambda: merge([folder], tmp_path / "merged", print),
    ):
        with pytest.raises(LibraryError, match=f"{place}: (launch.grid|the record was changed)"):
            read()
    assert [row["symbol"] for row in Library(folder).rows()] == ["two"]
    assert [removal.name for removal in collect_garbage(Library(folder))] == ["one"]


def test_old_records_need_no_hash_but_a_matching_symbol() -> None:
    record = record_of(*sweep([{"arch": "sm_80", "tile": "64x64x32"}]).plans)
    assert HASH_FIELD not in record and Record.parse(json.dumps(record)).data == record
    changed = {**record, "spec": {**record["spec"], "layout": "nn"}}
    with pytest.raises(LibraryError, match="the hash of its spec is not that of its symbol"):
        Record.parse(json.dumps(changed))


def test_a_merge_adds_hashes_to_old_records(folder: Path, tmp_path: Path) -> None:
    path = folder / "one" / "record.json"
    data = json.loads(path.read_bytes())
    path.write_text(json.dumps({name: value for name, value in data.items() if name != HASH_FIELD}))
    merge([folder], tmp_path / "new", lambda *messages: None)
    assert json.loads((tmp_path / "new" / "one" / "record.json").read_bytes()) == data


def test_spec_hash_omits_the_same_defaults_everywhere() -> None:
    assert {name: Spec.__dataclass_fields__[name].default for name in SPEC_DEFAULTS} | {
        "cluster": "1x1"
    } == SPEC_DEFAULTS
    for record in sound_records():
        assert record["symbol"].endswith(spec_hash(Spec.from_dict(record["spec"]))[:8])


def test_the_generator_compares_a_record_with_the_plan_of_its_spec(tmp_path: Path) -> None:
    record = record_of(*sweep([{"arch": "sm_90a", "tile": "128x128x64", "schedule": "stream_k"}]).plans)
    symbol = record["symbol"]
    record["launch"]["smem_bytes"] += 1024  # only the plan knows what the epilogue needs beside the stages
    record["resources"]["smem_bytes"] += 1024
    assert not contradiction(record)
    files = make_artefacts(symbol)
    record["files"] = make_record(symbol, files)[0]["files"]
    Library(tmp_path).publish(record, files)
    with pytest.raises(LibraryError, match="launch.smem_bytes is .*, but the plan of its spec has"):
        Library(tmp_path).load(symbol)
    record["toolchain"]["generator"] = "0.0.1"  # whose plans may differ
    Library(tmp_path).publish(record, files)
    assert Library(tmp_path).load(symbol)


def test_boxes_of_older_records_are_accepted() -> None:
    record = record_of(*sweep([{"arch": "sm_90a", "layout": "nt", "tile": "128x224x64"}]).plans)
    a, b, _ = record["launch"]["tensor_maps"]
    assert b["box"][0] == 64 and not contradiction(record)
    assert a.pop("edge") and contradiction(record).startswith("launch.tensor_maps is")
    assert b.pop("edge") and contradiction(record).startswith("launch.map_count is 7")
    assert record["launch"].pop("map_count") and not contradiction(record)
    b["box"], b["swizzle_bytes"] = [32, *b["box"][1:]], 64
    assert not contradiction(record)
    b["swizzle_bytes"] = 128
    assert contradiction(record).startswith("launch.tensor_maps is")


def test_every_planned_record_is_consistent() -> None:
    assert [wrong for record in sound_records() if (wrong := contradiction(record))] == []


def test_no_row_of_an_export_divides_by_zero_or_overflows() -> None:
    record = record_of(*sweep([{"arch": "sm_80", "tile": "64x64x32"}]).plans)
    row = row_of(LaunchTraits.of(record), record)
    check_row(row)
    for change in (
        {"tile_m": 0},
        {"tile_n": 2**32},
        {"tile_k": 0},
        {"cluster_m": 16, "tile_m": 128},
        {"cluster_ctas": 0},
        {"tiles_per_sm": 0},
        {"splits": 0},
        {"k_tile_clocks": MAX_CLOCKS},
        {"partial_bytes": 2**31},
    ):
        with pytest.raises(LibraryError, match="cannot be exported"):
            check_row(replace(row, **change))


@pytest.mark.parametrize(
    ("count", "seed"),
    [(400, 0), *(pytest.param(5000, seed, marks=[pytest.mark.slow, pytest.mark.sampled(4)]) for seed in range(1, 5))],
)
def test_mutated_records_never_change_an_accepted_launch(count: int, seed: int) -> None:
    tally = judge(count, seed)
    assert tally.failures == []
    assert tally.counts["one bit", "rejected"] == count // 4


@pytest.mark.slow
def test_python_and_c_agree_on_records_that_contradict_their_plans(tmp_path: Path, monkeypatch) -> None:
    """A hand may edit numbers alike and hash the record again. Selection must neither crash nor differ between Python and C."""
    library, rng = Library(tmp_path / "library"), random.Random(7)
    for at, record in enumerate(sound_records() * 5):
        files = make_artefacts(f"edited_{at}")
        described = make_record(f"edited_{at}", files)[0]
        record = {**record, "symbol": f"edited_{at}", "files": described["files"], "key": described["key"]}
        launch, resources = dict(record["launch"]), dict(record["resources"])
        launch["smem_bytes"] = rng.choice((launch["smem_bytes"], 100 * 1024, 227 * 1024))
        ctas_per_sm = rng.choice((0, 1, 7, 32))
        resources |= {
            "registers": rng.choice((0, 1, 255)),
            "occupancy": rng.random(),
            "spill_bytes": rng.choice((0, 2**62)),
            "ctas_per_sm": ctas_per_sm,
            "warps_per_sm": ctas_per_sm * launch["threads"] // 32,
            "smem_bytes": launch["smem_bytes"] + launch.get("static_smem_bytes", 0),
        }
        record |= {"launch": launch, "resources": resources}
        with suppress(LibraryError):  # what no record or no row of a table may have
            Record.parse(dump(record))
            check_row(row_of(LaunchTraits.of(record), record))
            library.publish(record, files)
    monkeypatch.setattr("generator.export.c_library.require_planned", lambda record, place: None)
    folder = export_paper(library, tmp_path / "export")
    in_python, in_c_library = hgemm.open(library.folder), loaded(folder)
    table, rng = in_python.table, random.Random(0)
    assert len(table.rows) > 100
    kinds = sorted({kind_of(LaunchTraits.of(record.data)) for record in in_python.records.values()}, key=str)
    found = 0
    for _ in range(3_000):
        target, kind, problem, workspace_bytes = drawn(rng, kinds, table)
        expected = Selector(table, target).find(SelectionQuery.of(kind, problem, workspace_bytes))
        status, choice = in_c(in_c_library, target, kind, problem, workspace_bytes)
        assert (choice.symbol.decode() if choice.symbol else None) == (expected.symbol if expected else None)
        assert not expected or (status, choice.estimated_clocks) == (0, expected.clocks)
        found += bool(expected)
    assert found > 1_000


@pytest.mark.slow
def test_zeroed_dispatch_tables_never_divide_by_zero(tmp_path: Path) -> None:
    library = Library(tmp_path / "library")
    for number in range(8):
        library.publish(*make_record(f"kernel_{number}"))
    folder = export_paper(library, tmp_path / "export")
    table = folder / "src" / "table.c"
    names = [field.name for field in fields(Row)]
    lines = table.read_text().splitlines()
    rows = [at for at, line in enumerate(lines) if '{"kernel_' in line]
    zeroed = ("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "cluster_ctas", "tiles_per_sm", "splits")
    for at, name in zip(rows, zeroed, strict=True):
        words = lines[at].split(", ")
        words[names.index(name)] = "0"
        lines[at] = ", ".join(words)
    table.write_text("\n".join(lines))
    build(folder, "hgemm", FAST_CC)
    status, choice = in_c(
        loaded(folder),
        Target.typical("sm_89"),
        Kind(),
        Problem(64, 64, 64, a=1 << 56, b=2 << 56, d=3 << 56, lda=64, ldb=64, ldd=64),
        0,
    )
    assert status == NO_KERNEL and not choice.symbol


# ==== Files that are no files, or too large ===========================================================================


@pytest.fixture
def measured_folder(folder: Path) -> Path:
    measured.write(folder, [(measured.problem(64, 64, 64), {"one": 12.5})])
    return folder


def replaced(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))
    else:  # 2^40 bytes without a line, and without taking any space
        with path.open("wb") as file:
            file.truncate(2**40)


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "socket", "huge"])
@pytest.mark.parametrize("name", ["measurements", "record.json", "kernel.cubin", "MANIFEST.json"])
def test_oversized_and_special_files_are_rejected_unread(
    measured_folder: Path, tmp_path: Path, monkeypatch, caplog, name: str, kind: str
) -> None:
    folder = measured_folder
    monkeypatch.chdir(folder)
    where = {"measurements": Path("measurements"), "MANIFEST.json": Path(".")}.get(name, Path("one"))
    place = where / ("20261123t000000000000z_00000000.jsonl" if name == "measurements" else name)
    replaced(place, kind)
    library = Library(folder)
    symbols = [str(row["symbol"]) for row in library.rows()]
    assert symbols == (["two"] if name == "record.json" else ["one", "two"])
    assert [found.time_us for found in library.measurements("one")] == [12.5]
    if name == "kernel.cubin":
        with pytest.raises(LibraryError, match="kernel.cubin"):
            hgemm.open(folder).kernel("one")
    elif name != "record.json":
        assert hgemm.open(folder).table.rows
    library.publish(*make_record("three"))
    removed = [removal.name for removal in collect_garbage(library)]
    assert removed == (["one"] if where == Path("one") and kind != "folder" else removed)


def test_linked_measurements_are_not_followed(measured_folder: Path, tmp_path: Path, caplog) -> None:
    (measured_folder / "measurements").rename(tmp_path / "elsewhere")
    (measured_folder / "measurements").symlink_to(tmp_path / "elsewhere")
    assert Library(measured_folder).measurements() == [] and "is a symbolic link" in caplog.text


def test_records_with_huge_sizes_are_rejected_and_removed(folder: Path) -> None:
    path = folder / "one" / "record.json"
    data = json.loads(path.read_bytes())
    data["files"]["kernel.cubin"]["bytes"] = 2**62
    path.write_text(dump(data))
    with pytest.raises(LibraryError, match="files.kernel.cubin.bytes must be a whole number from 0 to 67108864"):
        hgemm.open(folder).kernel("one")
    assert [removal.name for removal in collect_garbage(Library(folder))] == ["one"]


# ==== Hostile libraries ===============================================================================================


PLACES = (
    "index.db",
    "index.db-wal",
    "index.db-shm",
    "index.db-journal",
    "index.db.lock",
    "MANIFEST.json",
    "failed",
    "measurements",
)
MESSAGE = b"not what belongs here\n"


OUTSIDE = "outside"
"""A folder beside the library. Links of the library lead there."""


def spoil(folder: Path, rng: random.Random) -> str:
    """Damage one to three things of a library as a disk or a hostile hand may, and return what was done.

    Nothing outside the library is damaged: a link that an earlier damage made is not followed.
    """
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        measurements = folder / "measurements"
        sessions = [] if measurements.is_symlink() else sorted(measurements.glob("*"))
        place = rng.choice([*files, *(folder / name for name in PLACES), *sessions])
        kind = rng.choice(("fifo", "device", "folder", "huge", "bit", "cut", "text", "view", "record", "link out"))
        done.append(f"{kind} {place.relative_to(folder)}")
        if kind in ("fifo", "device", "folder", "huge", "link out") and place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        if kind == "link out":
            place.unlink(missing_ok=True)
            place.symlink_to(rng.choice((folder.parent / OUTSIDE, "/dev/urandom", "/proc/self/mem", "..", place.name)))
        elif kind in ("fifo", "device", "folder", "huge"):
            replaced(place, kind)
        elif kind == "view":
            spoil_index(folder / "index.db", rng)
        elif kind == "record" and place.name == "record.json" and place.is_file():
            place.write_text(dump(mutated(json.loads(place.read_bytes()), rng)))
        elif place.is_file() and not place.is_symlink() and place.stat().st_size < 2**20:
            content = bytearray(place.read_bytes()) or bytearray(1)
            if kind == "bit":
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            place.write_bytes(
                content[: rng.randrange(len(content))] if kind == "cut" else MESSAGE if kind == "text" else content
            )
    return ", ".join(done)


def spoil_index(path: Path, rng: random.Random) -> None:
    if not all(one.is_file() and not one.is_symlink() for one in path.parent.glob("index.db*")):
        return  # SQLite would wait for a pipe
    with suppress(sqlite3.Error, OSError), closing(sqlite3.connect(path)) as database:
        database.executescript(rng.choice([*STATEMENTS.values()]))


def use_all(folder: Path, target: Path) -> list[Exception]:
    """Use a library as every verb does, and return the errors of each use."""
    library = Library(folder)
    uses = (
        library.rows,
        library.measurements,
        library.field_names,
        lambda: [library.load(symbol) for symbol in scan(folder)],
        lambda: hgemm.open(folder).table,
        lambda: [hgemm.open(folder).kernel(symbol) for symbol in hgemm.open(folder).symbols],
        lambda: read_sessions(folder),
        lambda: merge([folder], target, lambda *messages: None),
        lambda: library.publish(*make_record("more")),
        library.reindex,
        lambda: collect_garbage(library, dry_run=True),
        lambda: collect_garbage(library),
        library.rows,
    )
    errors = []
    for use in uses:
        try:
            use()
        except Exception as error:
            errors.append(error)
    return errors


def peak_kib() -> int:
    """Return the largest resident memory of this process. Units: KiB."""
    return int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1])


@pytest.mark.parametrize(
    "seeds",
    [
        range(5),
        *(
            pytest.param(range(start, start + 100), marks=[pytest.mark.slow, pytest.mark.sampled(4)])
            for start in (5, 105, 205, 305)
        ),
    ],
)
def test_a_hostile_library_neither_hangs_nor_crashes(
    measured_folder: Path, tmp_path: Path, monkeypatch, seeds: range
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # the disk's speed is not what is tested
    monkeypatch.chdir(tmp_path)  # sockets have short paths
    Library(measured_folder).rows()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: other tests of this process do not count
    before_kib = peak_kib()
    (tmp_path / OUTSIDE).mkdir()
    for name in ("20261123t000000000000z_00000000.jsonl", "kept"):
        (tmp_path / OUTSIDE / name).write_text("not of the library")
    for seed in seeds:
        rng, place, target = random.Random(seed), tmp_path / "hostile", tmp_path / "target"
        shutil.copytree(measured_folder, place)
        done = spoil(place, rng)
        signal.alarm(30)
        try:
            errors = use_all(place, target)
        finally:
            signal.alarm(0)
        internal = [error for error in errors if not isinstance(error, HgemmError)]
        assert not internal, (seed, done, internal)
        assert not any(len(str(error).splitlines()) > 8 for error in errors), (seed, done)
        for folder in (place, target):
            shutil.rmtree(folder, ignore_errors=True)
        kept = {path.name: path.read_text() for path in (tmp_path / OUTSIDE).iterdir()}
        assert len(kept) == 2 and {*kept.values()} == {"not of the library"}, (seed, done, kept)
    assert peak_kib() - before_kib < 2**20, "more than 1 GiB"


# ==== Exports =========================================================================================================


def test_exports_are_replaced_atomically(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    replace_folder(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "file").read_text() == "new" and os.listdir(tmp_path) == ["old"]


def test_killed_export_leaves_a_complete_one(tmp_path: Path, monkeypatch) -> None:
    def die(folder: Path) -> None:
        raise KeyboardInterrupt

    place = tmp_path / "export"
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "old").rename(place)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("generator.store.files.shutil.rmtree", die)
        replace_folder(tmp_path / "new", place)
    assert (place / "file").read_text() == "new" and (tmp_path / "new" / "file").read_text() == "old"
    dead, alive = tmp_path / f".tmp-{DEAD_PID}-{'0' * 16}", tmp_path / temporary_name()
    aside = tmp_path / f".tmp-{DEAD_PID}-{'1' * 16}.one"  # the only copy of a kernel
    for path in (dead, alive, aside, tmp_path / ".tmp-mine"):
        path.mkdir()
    remove_abandoned(tmp_path)
    assert not dead.exists() and alive.exists() and aside.exists() and (tmp_path / ".tmp-mine").exists()
