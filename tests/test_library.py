"""Folders of a library: written completely or not at all, and used only after checks of schema and hashes."""

from __future__ import annotations

import copy
import errno
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import make_record

import hgemm.disk
from generator.errors import BuildError, HgemmError, LibraryError, RequestError
from generator.store import maintenance
from generator.store.files import temporary_name
from generator.store.library import Library
from generator.store.maintenance import collect_garbage
from hgemm.disk import require_writable, write_atomically
from hgemm.library import scan
from hgemm.record import MAX_RECORD_BYTES, Record, dump, flatten, validate

ROOT = Path(__file__).resolve().parent.parent
DEAD_PID = 2**22 + 1  # above the kernel's largest pid
PUBLISHER = """
import sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
from records import make_record
from generator.store.library import Library
print("ready", flush=True)
for turn in range(10**9):
    for name in ("one", "two"):
        Library(Path(sys.argv[3])).publish(*make_record(name, registers=turn % 200))
"""


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "lib")


def publish(library: Library, symbol: str = "one", **overrides: object) -> Path:
    return library.publish(*make_record(symbol, **overrides))


def one_line(error: BaseException) -> str:
    assert str(error).isprintable(), str(error)
    return str(error)


def test_a_kernel_of_another_spec_with_the_same_symbol_is_rejected(tmp_path: Path) -> None:
    library = Library(tmp_path)
    library.publish(*make_record("hgemm_same", registers=64))
    library.publish(*make_record("hgemm_same", registers=65))
    with pytest.raises(LibraryError, match="another spec with the same symbol .stages 3 and 4.: use another --library"):
        library.publish(*make_record("hgemm_same", stages=4))


def test_old_words_of_a_record_are_translated(tmp_path: Path) -> None:
    record, files = make_record("hgemm_old", copy="vector", schedule="cluster_k:2")
    record["spec"]["swapped"] = True
    record["launch"]["grid"]["rule"] = "cluster_k"
    record["launch"]["cluster"] = [2, 1, 1]
    record["toolchain"]["generator"] = "0.0.1"  # whose plans may differ
    Library(tmp_path).publish(record, files)
    (row,) = Library(tmp_path).rows()
    read = (row["copy"], row["schedule"], row["swap_ab"], row["grid"])
    assert read == ("ldg_sts", "split_k_cluster:2", True, "split_k_cluster") and "swapped" not in row


def test_published_kernel_is_loaded(library: Library) -> None:
    record, files = make_record("one")
    folder = library.publish(record, files)
    kernel = library.load("one")
    assert sorted(path.name for path in folder.iterdir()) == sorted([*files, "record.json"])
    assert kernel.artefacts == files
    assert kernel.record.data == record
    assert library.get("two") is None
    assert [found.symbol for found in library.records()] == ["one"]
    assert pickle.loads(pickle.dumps(library)) == library


def test_publishing_again_replaces_the_kernel(library: Library) -> None:
    publish(library, registers=100)
    publish(library, registers=101)
    assert library.load("one").record.data["resources"]["registers"] == 101
    assert [row["registers"] for row in library.rows()] == [101]
    assert not [path for path in library.folder.iterdir() if path.name.startswith(".tmp-")]


def test_source_without_a_record_is_no_kernel(library: Library) -> None:
    folder = library.folder / "one"
    folder.mkdir(parents=True)
    (folder / "kernel.cu").write_text("// committed")
    (folder / "notes.txt").write_text("mine")
    assert library.rows() == [] and library.get("one") is None
    assert collect_garbage(library) == []
    with pytest.raises(LibraryError, match="has no record.json: .*`generate`"):
        library.load("one")
    publish(library)
    assert library.load("one").record.symbol == "one"
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "symbol", ["", ".", "..", "../one", "/etc", "a/b", "A", "a.b", "a b", "a\n", "a\x00", "x" * 201, "é"]
)
def test_symbols_with_path_separators_are_rejected(library: Library, symbol: str) -> None:
    publish(library)
    with pytest.raises(RequestError) as caught:
        library.load(symbol)
    one_line(caught.value)
    with pytest.raises(HgemmError):
        publish(library, symbol)
    assert sorted(scan(library.folder)) == ["one"]


@pytest.mark.parametrize("name", ["kernel.cu", "kernel.cubin", "kernel.ptx"])
def test_altered_file_is_rejected_by_name(library: Library, name: str) -> None:
    path = publish(library) / name
    content = path.read_bytes()
    for changed in (content[:-1] + b"?", content + b"?", b""):
        path.write_bytes(changed)
        with pytest.raises(
            LibraryError,
            match=rf"one/{name} is not the file .*: build it again, or remove it with `hgemm gc --lib",
        ):
            library.load("one")
    path.unlink()
    with pytest.raises(LibraryError, match=rf"one/{name} is missing"):
        library.load("one")
    assert library.load("one", verify=False).record.symbol == "one"


@pytest.mark.parametrize("name", ["kernel.cubin", "record.json"])
def test_links_and_pipes_are_rejected(library: Library, tmp_path: Path, name: str) -> None:
    path = publish(library) / name
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    with pytest.raises(LibraryError, match=f"{name}: it is a symbolic link"):
        library.load("one")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(LibraryError, match="not a regular file"):
        library.load("one")


def test_a_linked_folder_is_rejected(library: Library, tmp_path: Path) -> None:
    elsewhere = publish(library).rename(tmp_path / "elsewhere")
    (library.folder / "one").symlink_to(elsewhere)
    assert library.rows() == []
    with pytest.raises(LibraryError, match="symbolic link"):
        library.load("one")
    with pytest.raises(LibraryError, match="a file is in the place of a folder"):
        publish(library)


@pytest.mark.parametrize(
    "document",
    [b"", b"{", b"[]", b"\xff", b"null", b"[" * 100_000, b'{"schema": NaN}', b'{"a": 1, "a": 1}', b"9" * 5000]
    + [b" " * (MAX_RECORD_BYTES + 1)],
)
def test_corrupt_record_gives_one_line_and_hides_no_other(library: Library, document: bytes, caplog) -> None:
    publish(library, "two")
    (publish(library) / "record.json").write_bytes(document)
    with pytest.raises(LibraryError, match="one/record.json.*hgemm gc") as caught:
        library.load("one")
    one_line(caught.value)
    assert [row["symbol"] for row in library.rows()] == ["two"]
    assert library.field_names() and library.rows() and caplog.text.count("one/record.json") == 1


def test_a_record_of_another_symbol_is_rejected(library: Library) -> None:
    publish(library, "two").rename(library.folder / "one")
    with pytest.raises(LibraryError, match="symbol is two, not its folder's name"):
        library.load("one")


LEAVES = [
    path for path in (["schema"], ["symbol"], ["key"], ["arch"], ["alias"], ["spec"], ["spec", "stages"], ["spilled"])
]
LEAVES += [["toolchain", "options"], ["inputs"], ["files", "kernel.cu", "sha256"], ["files", "kernel.cubin", "bytes"]]
LEAVES += [["launch", "threads"], ["launch", "cluster"], ["launch", "grid", "splits"], ["resources", "registers"]]
LEAVES += [["resources", "occupancy"], ["sass", "HMMA"], ["traits", "deterministic"], ["traits", "min_align", "a"]]
LEAVES += [["seconds", "emit"], ["proof"], ["traits", "workspace"], ["files"]]
JUNK = st.sampled_from(
    [None, -1, -1.5, [], [1], {"../x": 1}, {"a": {}}, "\x1b[0m", "x" * 5000, float("inf"), 2**64, "é\n"]
)


@settings(max_examples=200, deadline=None)
@given(path=st.sampled_from(LEAVES), junk=JUNK)
def test_every_field_is_checked_and_named(path: list[str], junk: object) -> None:
    record = copy.deepcopy(make_record("one")[0])
    inner = record
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = junk
    if path in (["spec"], ["proof"], ["inputs"], ["toolchain", "options"], ["traits", "workspace"]) and junk == []:
        return
    if path == ["spec", "stages"] and junk in (-1, -1.5):
        return  # a spec holds any finite scalar; its meaning is the spec's own affair
    if path == ["proof"] and junk == {"a": {}}:
        return
    with pytest.raises(LibraryError, match="the file") as caught:
        validate(record, "the file")
    assert path[-1] in one_line(caught.value)


@pytest.mark.parametrize("name", sorted(make_record("one")[0]))
def test_missing_and_additional_fields_are_rejected(name: str) -> None:
    record = make_record("one")[0]
    with pytest.raises(LibraryError, match=f"{name} is missing"):
        validate({key: value for key, value in record.items() if key != name})
    with pytest.raises(LibraryError, match="more is not a field"):
        validate({**record, "more": 1})


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1e6), st.integers(0, 255))
def test_records_are_written_canonically(seconds: float, registers: int) -> None:
    record = make_record("one", seconds={"emit": seconds, "compile": 1, "inspect": 0.0}, registers=registers)[0]
    text = dump(record)
    assert dump(json.loads(text)) == text and text.endswith("}\n")
    assert dump(dict(reversed(record.items()))) == text
    assert Record.parse(text).dump() == text


def test_flat_field_names_are_short_and_complete() -> None:
    flat = flatten(make_record("one", smem_bytes=1, ctas_per_sm=3)[0])
    assert flat["registers"] == 128 and flat["cta_tile"] == "128x128x32" and flat["sass_hmma"] == 128
    assert flat["smem_bytes"] == 1 and flat["launch_smem_bytes"] == 49152 and flat["cluster"] == "1x1x1"
    assert flat["ctas_per_sm"] == flat["spec_ctas_per_sm"] == 3 and flat["nvrtc"] == "13.0"
    assert flat["deterministic"] is True and flat["min_align_a"] == 8 and flat["cubin_bytes"] > 0
    assert all(isinstance(value, (str, int, float)) for value in flat.values())


def test_a_record_that_does_not_describe_its_files_is_not_published(library: Library) -> None:
    record, files = make_record("one")
    with pytest.raises(LibraryError, match="SHA-256 .* kernel.cu"):
        library.publish(record, {**files, "kernel.cu": b"other"})
    with pytest.raises(LibraryError, match="record names"):
        library.publish(record, {name: content for name, content in files.items() if name != "kernel.ptx"})
    with pytest.raises(LibraryError, match="spec"):
        library.publish({**record, "spec": 1}, files)
    assert not library.folder.exists()


# Tests may run as root, whom no permission stops: so the system calls themselves are made to fail.
@pytest.mark.parametrize("call", ["mkdir", "open", "fsync", "rename"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_failed_write_gives_one_line_and_keeps_the_old_kernel(
    library: Library, monkeypatch, call: str, code: int
) -> None:
    publish(library, registers=100)

    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(LibraryError, match="choose another --library") as caught:
            publish(library, registers=101)
    one_line(caught.value)
    assert library.load("one").record.data["resources"]["registers"] == 100
    assert collect_garbage(library) == []


@pytest.mark.parametrize("exchanges", [True, False])
def test_failed_replacement_restores_the_old_folder(library: Library, monkeypatch, exchanges: bool) -> None:
    publish(library, registers=100)
    rename, is_aside = os.rename, []

    def refuse_the_new_one(source: object, target: object) -> None:
        if is_aside and target == library.folder / "one":
            is_aside.clear()
            raise OSError(errno.ENOSPC, "full")
        if source == library.folder / "one":
            is_aside.append(True)
        rename(source, target)

    def exchange(one: Path, other: Path) -> bool:
        if exchanges:
            raise OSError(errno.ENOSPC, "full")
        return False

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse_the_new_one)
        patch.setattr(hgemm.disk, "exchange", exchange)
        with pytest.raises(LibraryError, match="no space"):
            publish(library, registers=101)
    assert library.load("one").record.data["resources"]["registers"] == 100
    assert sorted(scan(library.folder)) == ["one"] and collect_garbage(library) == []


def test_replacement_always_leaves_a_complete_folder(library: Library, monkeypatch) -> None:
    (publish(library, registers=100) / "notes.txt").write_text("mine")
    steps = []

    def observed(call):
        def wrapped(*arguments: object, **named: object) -> object:
            steps.append(library.load("one").record.data["resources"]["registers"])
            return call(*arguments, **named)

        return wrapped

    with monkeypatch.context() as patch:
        for name in ("mkdir", "rename", "unlink", "rmdir", "fsync"):
            patch.setattr(os, name, observed(getattr(os, name)))
        publish(library, registers=101)
    assert steps == sorted(steps) and steps[0] == 100 and steps[-1] == 101
    assert (library.folder / "one" / "notes.txt").read_text() == "mine"


def test_missing_and_misplaced_libraries_give_one_line_errors(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="does not exist: run `generate` first"):
        Library(tmp_path / "none").rows()
    (tmp_path / "file").write_text("")
    with pytest.raises(LibraryError, match="is a file: name a folder"):
        Library(tmp_path / "file").rows()
    with pytest.raises(LibraryError, match="a file is in the place of a folder"):
        publish(Library(tmp_path / "file"))
    (tmp_path / "one").write_text("")
    with pytest.raises(LibraryError, match="a file is in the place of a folder"):
        publish(Library(tmp_path))


def test_killed_publisher_leaves_a_usable_library(library: Library) -> None:
    command = [sys.executable, "-c", PUBLISHER, str(ROOT), str(ROOT / "tests"), str(library.folder)]
    publish(library, "two")
    for seed in range(6):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            time.sleep(random.Random(seed).uniform(0, 0.05))
            os.kill(process.pid, signal.SIGKILL)
        assert {row["symbol"] for row in library.rows()} <= {"one", "two"}
        for symbol in scan(library.folder):
            library.load(symbol)
        collect_garbage(library)
        assert not [path for path in library.folder.iterdir() if path.name.startswith(".tmp-")]
        for symbol in ("one", "two"):
            publish(library, symbol)
            library.load(symbol)
        assert [row["symbol"] for row in library.rows()] == ["one", "two"]


@pytest.mark.parametrize("name", ["record.json", "kernel.cu", "kernel.cubin"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.EMFILE, errno.ESTALE])
def test_unreadable_kernels_are_neither_garbage_nor_replaced(
    library: Library, tmp_path: Path, monkeypatch, caplog, name: str, code: int
) -> None:
    folder, opened = publish(library), os.open
    publish(other := Library(tmp_path / "other"))

    def refuse(path: object, *arguments: object, **named: object) -> int:
        if path == name and os.path.samestat(os.fstat(named["dir_fd"]), folder.stat()):
            raise OSError(code, os.strerror(code))
        return opened(path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        removals = collect_garbage(library)
        with pytest.raises(LibraryError, match=f"cannot read .*one/{name}"):
            maintenance.merge([other.folder], library.folder, lambda *messages: None)
    assert removals == [] and "one stays: cannot read" in caplog.text
    assert {path.name for path in folder.iterdir()} == {"record.json", "kernel.cu", "kernel.ptx", "kernel.cubin"}


def test_concurrently_removed_garbage_is_no_error(library: Library, monkeypatch) -> None:
    publish(library)
    for number in range(2):
        (library.folder / f".tmp-{DEAD_PID}-{number:016}").mkdir()
    is_stale = maintenance.is_stale

    def then_removed(path: Path) -> bool:
        found = is_stale(path)
        if path.name.endswith("0"):
            path.rmdir()
        return found

    monkeypatch.setattr(maintenance, "is_stale", then_removed)
    assert [removal.name for removal in collect_garbage(library)] == [f".tmp-{DEAD_PID}-{1:016}"]


def test_garbage_is_leftovers_and_untrusted_files(library: Library, tmp_path: Path) -> None:
    publish(library, "sound")
    (publish(library, "changed") / "kernel.ptx").write_bytes(b"?")
    (publish(library, "other_source") / "kernel.cu").write_bytes(b"?")
    (publish(library, "corrupt") / "record.json").write_bytes(b"?")
    dead, alive = library.folder / f".tmp-{DEAD_PID}-{'0' * 16}", library.folder / temporary_name()
    for folder in (dead, alive, library.folder / ".tmp-mine", library.folder / "drafts"):
        folder.mkdir()
        (folder / "kernel.cu").write_text("x" * 100)
    (library.folder / "sound" / "notes.txt").write_text("mine")
    planned = collect_garbage(library, dry_run=True)
    assert dead.exists() and (library.folder / "changed" / "record.json").exists()
    removals = {removal.name: removal for removal in collect_garbage(library)}
    assert sorted(removals) == sorted(removal.name for removal in planned)
    assert sorted(removals) == sorted([dead.name, "changed", "other_source", "corrupt"])
    assert removals[dead.name].freed_bytes == 100 and "kernel.ptx" in removals["changed"].reason
    assert alive.exists() and (library.folder / ".tmp-mine").exists() and (library.folder / "drafts/kernel.cu").exists()
    assert (library.folder / "sound" / "notes.txt").exists() and not (library.folder / "other_source").exists()
    assert os.listdir(library.folder / "changed") == ["kernel.cu"] == os.listdir(library.folder / "corrupt")
    assert [row["symbol"] for row in library.rows()] == ["sound"]
    assert collect_garbage(library) == []


def test_folder_moved_by_a_dead_process_is_restored(library: Library) -> None:
    aside = library.folder / f".tmp-{DEAD_PID}-{'0' * 16}.one"
    publish(library, registers=100).rename(aside)
    assert library.rows() == []
    assert "restored" in collect_garbage(library)[0].reason
    assert [row["registers"] for row in library.rows()] == [100]
    (library.folder / "one").rename(aside)
    publish(library, registers=101)
    assert collect_garbage(library)[0].freed_bytes > 0
    assert [row["registers"] for row in library.rows()] == [101] and not aside.exists()


def test_compilation_error_names_kernel_files_and_first_error(tmp_path: Path) -> None:
    log = "In file x.cuh:\nx.cuh(3): warning: w\nx.cuh(7): error:  no such   thing\nx.cuh(9): error: more\n"
    error = BuildError("one", log, tmp_path / "one.cu", tmp_path / "one.log")
    assert one_line(error) == (
        f"one does not compile: x.cuh(7): error: no such thing (source {tmp_path}/one.cu, log {tmp_path}/one.log)"
    )
    again = pickle.loads(pickle.dumps(error))
    assert (again.symbol, again.log, again.source_path, again.exit_code) == ("one", log, tmp_path / "one.cu", 1)
    assert "the compiler left no log" in str(BuildError("one", ""))
    assert RequestError("x").exit_code == 2


# ==== Writing files ===================================================================================================


def test_files_are_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    for content in (b"first", b"2"):
        write_atomically(path, content, "--keep")
        assert path.read_bytes() == content and [*tmp_path.iterdir()] == [path]


def test_writing_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", b"new", "--to")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"new"


def test_writing_to_a_pipe_keeps_the_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(path, b"through", "--to")
        assert os.read(reader, 100) == b"through" and path.is_fifo()
    finally:
        os.close(reader)


def test_unwritable_path_gives_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, message in (("none", "none/out: No such file"), ("file", "file/out: .* choose another --csv")):
        for attempt in (require_writable, lambda path, option: write_atomically(path, b"x", option)):
            with pytest.raises(LibraryError, match=f"cannot write .*{message}"):
                attempt(tmp_path / place / "out", "--csv")
