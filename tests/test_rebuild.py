"""Rebuilding a library's kernels, and proofs that are valid only for the files that they name."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import SMALL, call
from records import make_record

from generator.build.pipeline import Settings, cached, prepare
from generator.build.toolchain import templates_folder
from generator.device_check import CheckOutcome
from generator.errors import LibraryError
from generator.proof.executor import HostToolchain
from generator.proof.jobs import Emulation, executor_version
from generator.rebuild import rebuilt
from generator.store.library import Library
from generator.store.maintenance import merge
from generator.store.proofs import NO_PROOF, unproved, with_proof
from generator.sweep import sweep

PROOF = {"executor": "0123456789abcdef", "shapes": ["8x8x8"], "races": 0}
Change = Callable[[dict[str, Any], dict[str, bytes]], object]


@pytest.fixture
def library(small_library: Library, tmp_path: Path) -> Library:
    """One kernel of the shared library, to be written to."""
    (symbol,) = (row["symbol"] for row in small_library.rows() if "_tn_" in row["symbol"])
    shutil.copytree(small_library.folder / symbol, tmp_path / "lib" / symbol)
    return Library(tmp_path / "lib")


def forge(library: Library, change: Change) -> str:
    """Change the record and the files of the one kernel, and write all hashes anew. Return its symbol."""
    (symbol,) = (path.name for path in library.folder.glob("hgemm_*"))
    kernel = library.load(symbol)
    record, files = json.loads(json.dumps(kernel.record.data)), dict(kernel.artefacts)
    change(record, files)
    for name, content in files.items():
        record["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    library.publish(record, files)
    return symbol


def flip(name: str) -> Change:
    return lambda record, files: files.update({name: files[name][:-1] + bytes([files[name][-1] ^ 1])})


def add_text(text: str) -> Change:
    return lambda record, files: files.update({"kernel.cu": files["kernel.cu"] + text.encode()})


# ---- Text that this version would not write -------------------------------------------------------------------------


def test_foreign_source_needs_trust_and_gets_no_proof(library: Library, host_toolchain: HostToolchain) -> None:
    symbol = forge(library, add_text("// mine\n"))
    (outcome,) = Emulation(library, host_toolchain, "8x8x8").outcomes([symbol])
    assert outcome.failed and not outcome.checks
    assert outcome.reason.startswith("its kernel.cu is not what this version writes for its spec, so it is not run: ")
    (outcome,) = Emulation(library, host_toolchain, trust=True).outcomes([symbol])
    assert outcome.passed and outcome.proof
    assert unproved(library.load(symbol).record.data) == NO_PROOF


def of_other_inputs(record: dict[str, Any], files: dict[str, bytes]) -> None:
    record["key"], record["toolchain"]["nvrtc"] = "0" * 64, "13.0.1"


@pytest.mark.parametrize(
    "change, reason",
    [
        (flip("kernel.ptx"), "its kernel.ptx is not what its source compiles to"),
        (of_other_inputs, "its kernel.ptx was compiled from other inputs (nvrtc 13.0.1 there, 13.0."),
    ],
)
def test_foreign_ptx_needs_trust(library: Library, host_toolchain: HostToolchain, change: Change, reason: str) -> None:
    symbol = forge(library, change)
    (outcome,) = Emulation(library, host_toolchain, "8x8x8").outcomes([symbol])
    assert outcome.failed and not outcome.checks and outcome.reason.startswith(reason)
    (outcome,) = Emulation(library, host_toolchain, "8x8x8", trust=True).outcomes([symbol])
    assert outcome.checks and not unproved(library.load(symbol).record.data) == ""


def test_output_of_a_constructor_is_no_verdict(library: Library, host_toolchain: HostToolchain) -> None:
    """Only the PTX is run, and only what the translation wrote for it."""
    answer = {"symbol": "x", "checks": [{"case": "8x8x8", "passed": True, "max_error": 0, "max_bound_ratio": 0}]}
    text = f"#include <cstdio>\n#include <unistd.h>\nstruct X {{ X() {{ puts({json.dumps(json.dumps(answer))}); fflush(stdout); "
    symbol = forge(library, add_text(f"{text}_exit(0); }} }} x;\n"))
    (outcome,) = Emulation(library, host_toolchain, "8x8x8", trust=True).outcomes([symbol])
    assert outcome.passed and outcome.checks[0]["case"] == "8x8x8 alpha=1" and not outcome.proof
    assert unproved(library.load(symbol).record.data) == NO_PROOF


def test_altered_source_is_not_used(library: Library) -> None:
    (plan,) = sweep([{**SMALL, "layout": "tn"}]).plans
    settings = Settings(library, templates_folder())
    assert cached(prepare(plan, settings.templates), settings).status == "cached"
    forge(library, add_text("// mine\n"))
    assert cached(prepare(plan, settings.templates), settings) is None


# ---- Building again -------------------------------------------------------------------------------------------------


def test_rebuilt_kernels_are_identical(library: Library) -> None:
    (symbol,) = (path.name for path in library.folder.glob("hgemm_*"))
    (outcome,) = rebuilt(library, [symbol], templates_folder(), 1)
    assert outcome.passed and [check["case"] for check in outcome.checks] == [
        "source and launch",
        "kernel.ptx",
        "kernel.cubin",
    ]


def test_records_without_newer_fields_rebuild_identically(library: Library) -> None:
    symbol = forge(library, lambda record, files: record["spec"].pop("serial_parts"))
    (outcome,) = rebuilt(library, [symbol], templates_folder(), 1)
    assert outcome.passed


@pytest.mark.parametrize("name", ["kernel.ptx", "kernel.cubin", "kernel.cu"])
def test_files_not_built_from_the_spec_are_found(library: Library, name: str) -> None:
    forge(library, flip(name) if name != "kernel.cu" else add_text("//\n"))
    done = call("hgemm", "verify", "--rebuild", "--library", library.folder)
    assert done.returncode == 1 and f"{name} is not what " in done.stdout
    assert done.stdout.endswith("0 kernels built the same again, 1 not\n")


def test_kernels_of_other_compilers_are_compared_by_their_instructions(library: Library) -> None:
    symbol = forge(library, of_other_inputs)
    (outcome,) = rebuilt(library, [symbol], templates_folder(), 1)
    assert outcome.passed and outcome.checks[1]["case"].startswith("instruction counts (nvrtc 13.0.1 there, 13.0.")
    forge(library, lambda record, files: record["sass"].update(LDL=1))
    (outcome,) = rebuilt(library, [symbol], templates_folder(), 1)
    assert "the cubin has other instructions than its record states" in outcome.reason


# ---- Proofs that count ----------------------------------------------------------------------------------------------


def test_proof_is_bound_to_files_launch_and_executor() -> None:
    record, _ = make_record("one")
    assert unproved(record) == NO_PROOF
    proved = with_proof(record, PROOF)
    assert unproved(proved) == unproved(proved, PROOF["executor"]) == ""
    assert unproved(proved, "another") == "its proof is of another executor ('0123456789abcdef')"
    about = "its proof is about other files or another launch"
    for name in proved["files"]:
        files = {**proved["files"], name: {**proved["files"][name], "sha256": "0" * 64}}
        assert unproved({**proved, "files": files}) == about
    assert unproved({**proved, "launch": {**proved["launch"], "threads": 1}}) == about
    assert unproved({**record, "proof": {**record["proof"], **PROOF}}) == about
    assert unproved(with_proof(record, {**PROOF, "shapes": []})) == "its proof is not complete"


def test_invented_executor_version_is_rejected_by_export(library: Library, tmp_path: Path) -> None:
    forge(library, lambda record, files: record["proof"].update(executor="forged"))
    command = ["export", "--library", library.folder, "--to", tmp_path / "out", "--require-proof", "--uncompressed"]
    done = call("hgemm", *command)
    assert done.returncode == 1 and "1 of 1 kernel has no valid proof (hgemm_" in done.stderr
    assert not (tmp_path / "out").exists()


def test_merge_copies_a_proof_and_keeps_files(tmp_path: Path) -> None:
    plain, proved, other = (Library(tmp_path / name) for name in ("plain", "proved", "other"))
    record, files = make_record("one")
    plain.publish(record, files)
    proved.publish(with_proof(record, {**PROOF, "executor": executor_version()}), files)
    assert merge([proved.folder], plain.folder, lambda *messages: None, executor_version()).replaced == 1
    files = {**files, "kernel.cubin": b"forged"}
    forged = {"sha256": hashlib.sha256(b"forged").hexdigest(), "bytes": 6}
    record = {**record, "files": {**record["files"], "kernel.cubin": forged}}
    other.publish(with_proof(record, {**PROOF, "executor": executor_version()}), files)
    with pytest.raises(LibraryError, match="one: one key, other files in .*other, .*plain"):
        merge([other.folder], plain.folder, lambda *messages: None, executor_version())


def test_a_proof_of_another_version_is_not_preferred(tmp_path: Path) -> None:
    plain, proved = (Library(tmp_path / name) for name in ("plain", "proved"))
    record, files = make_record("one")
    plain.publish(record, files)
    proved.publish(with_proof(record, PROOF), files)
    assert merge([proved.folder], plain.folder, lambda *messages: None, executor_version()).present == 1


def test_a_proof_is_stored_only_for_the_files_that_were_run(library: Library, host_toolchain: HostToolchain) -> None:
    """Another process may replace a kernel between the run and the moment when the proof is stored."""
    (symbol,) = (path.name for path in library.folder.glob("hgemm_*"))
    emulation = Emulation(library, host_toolchain)
    emulation._outcome(library.load(symbol), lambda kernel: "", SimpleNamespace(check=lambda request: (None, "")))
    forge(library, flip("kernel.cubin"))
    emulation._store(CheckOutcome(symbol, proof=PROOF))
    assert unproved(library.load(symbol).record.data) == NO_PROOF
