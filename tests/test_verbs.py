"""The verbs about a library and the verbs that run kernels: their output, their errors and their exit status."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import simulated
from click.testing import CliRunner, Result
from exports import FAST_CC
from fake_driver import FakeDriver, installed
from records import make_record

import hgemm.device
from generator import device_check
from generator.cli.library import separating_first
from generator.cli.main import hgemm_command
from generator.device_check import CheckOutcome, CheckRequest, CheckWorkers, check_here, junit_suite
from generator.errors import HgemmError, LibraryError, RequestError
from generator.store.library import Library
from generator.store.query import FIELDS, KernelFilter, condition_of, resolve
from generator.tables import fitted
from hgemm import DeviceError
from hgemm.device import open_device
from hgemm.dispatch_table import default_options, row_of
from hgemm.epilogue_language import epilogue_of
from hgemm.errors import DeprecatedWord
from hgemm.junit import write_junit
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import BY_GPC, Kind, LaunchOptions, Problem
from hgemm.selection_query import SelectionQuery, Target
from hgemm.workspace import DEFAULT_WORKSPACE_BYTES

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    library = Library(tmp_path / "lib")
    library.publish(*make_record("hgemm_sm89_tn_big", registers=200, cta_tile="256x128x32"))
    library.publish(*make_record("hgemm_sm89_tn_small", registers=90, cta_tile="64x64x64", occupancy=0.5))
    library.publish(*make_record("hgemm_sm80_nn", registers=128, arch="sm_80", layout="nn", alias="cutlass_nn"))
    return library.folder


def call(verb: str, *arguments: object) -> Result:
    result = CliRunner().invoke(hgemm_command, [verb, *(str(argument) for argument in arguments)])
    if isinstance(result.exception, Exception) and not isinstance(result.exception, HgemmError):
        raise result.exception
    return result


def listed(folder: Path, *arguments: str) -> list[str]:
    result = call("list", "--library", folder, "--csv", "--columns", "symbol", *arguments)
    assert result.exit_code == 0, result.exception
    return result.stdout.split()[1:]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "sm80_nn sm89_tn_big sm89_tn_small"),
        (["--arch", "89"], "sm89_tn_big sm89_tn_small"),
        (["--arch", "sm_80,8.9", "--layout", "NN"], "sm80_nn"),
        (["--tile", "64x64x64,256x128"], "sm89_tn_big sm89_tn_small"),
        (["--kernels", "*_small,cutlass_nn"], "sm80_nn sm89_tn_small"),
        (["--kernels", "small"], ""),
        (["--where", "registers<=128 and occupancy>=0.25"], "sm80_nn sm89_tn_small"),
        (["--where", "registers<=128", "--arch", "89"], "sm89_tn_small"),
        (["--sort", "registers"], "sm89_tn_small sm80_nn sm89_tn_big"),
        (["--sort", "-registers", "--limit", "2"], "sm89_tn_big sm80_nn"),
        (["--sort", "tile"], "sm80_nn sm89_tn_big sm89_tn_small"),
        (["--limit", "0"], ""),
    ],
)
def test_list_filters_and_sorts(folder: Path, arguments: list[str], expected: str) -> None:
    assert listed(folder, *arguments) == ["hgemm_" + name for name in expected.split()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "77"], "arch '77' is unknown"),
        (["--tile", "128"], "tile '128' is malformed.*128x128x32"),
        (["--layout", "xx"], "layout 'xx' is unknown: use tn, nn, nt, tt"),
        (["--where", "regs<1"], "unknown field 'regs': did you mean registers"),
        (["--where", "registers<"], "--where expects a number"),
        (
            ["--sort", "registres"],
            "--sort names an unknown field 'registres': did you mean registers.*`hgemm list --fields` lists them",
        ),
        (["--columns", "symbol,lay"], "--columns names an unknown field 'lay': did you mean layout"),
        (["--csv", "--json"], "exclude each other"),
    ],
)
def test_list_gives_one_line_errors(folder: Path, arguments: list[str], message: str) -> None:
    error = call("list", "--library", folder, *arguments).exception
    assert isinstance(error, RequestError) and str(error).isprintable()
    with pytest.raises(RequestError, match=message):
        raise error


def test_list_prints_whole_records_as_json(folder: Path) -> None:
    result = call("list", "--library", folder, "--json", "--arch", "80")
    assert json.loads(result.stdout) == [
        make_record("hgemm_sm80_nn", registers=128, arch="sm_80", layout="nn", alias="cutlass_nn")[0]
    ]
    assert json.loads(call("list", "--library", folder, "--json", "--arch", "90").stdout) == []


def test_list_prints_the_columns_that_are_named_as_json(folder: Path) -> None:
    words = ["--library", folder, "--json", "--columns", "symbol,registers,proof_races", "--arch", "80"]
    expected = [{"symbol": "hgemm_sm80_nn", "registers": 128, "proof_races": None}]
    assert json.loads(call("list", *words).stdout) == expected


def test_list_prints_aligned_text_without_colour(folder: Path) -> None:
    lines = call("list", "--library", folder).stdout.splitlines()
    assert len(lines) == 4 and "\x1b" not in "".join(lines)
    assert lines[0].split()[0] == "registers" and lines[0].split()[-1] == "symbol"
    assert {line.index("hgemm_sm8") for line in lines[1:]} == {lines[0].index("symbol")}
    chosen = call("list", "--library", folder, "--columns", "symbol,spilled,occupancy").stdout.splitlines()
    assert chosen[1].split() == ["hgemm_sm80_nn", "no", "0.25"]
    rows = [*csv.DictReader(io.StringIO(call("list", "--library", folder, "--csv").stdout))]
    assert [row["registers"] for row in rows] == ["128", "200", "90"]


def test_a_damaged_record_is_warned_of_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Though the library is asked for its fields, for its rows, and for those that --arch leaves out."""
    (folder / "hgemm_sm80_nn" / "record.json").write_text("{")
    assert listed(folder, "--arch", "89,90", "--where", "registers > 100") == ["hgemm_sm89_tn_big"]
    assert len(caplog.records) == 1 and "hgemm_sm80_nn/record.json" in caplog.text


def test_a_kernel_with_an_unknown_word_does_not_stop_the_others(
    small_library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The index still has a kernel whose activation no longer exists."""
    library = tmp_path / "lib"
    shutil.copytree(small_library.folder, library)
    Library(library).publish(*make_record("hgemm_trial", activation="gelu_trial"))
    for words in (
        ("select", "--arch", "90", "--m", "512"),
        ("cover", "--arch", "90", "--layout", "tn", "--align", "8", "--dtype", "f16", "--no-beta"),
        ("export", "--to", tmp_path / "c", "--cc", FAST_CC),
        ("list", "--csv", "--columns", "symbol"),
    ):
        result = call(*words, "--library", library)
        assert result.exception is None or isinstance(result.exception, SystemExit), words
        assert "hgemm_trial" not in result.stdout
    (warning,) = (record.getMessage() for record in caplog.records if "gelu_trial" in record.getMessage())
    assert f"{library / 'hgemm_trial'} is not used" in warning and f"hgemm gc --library {library}" in warning
    assert "hgemm_trial" not in (tmp_path / "c" / "MANIFEST.json").read_text()
    output = call("doctor", "--library", library).stdout
    assert "hgemm_trial is not used" in output and "remove it with `hgemm gc" in output
    assert "hgemm_trial" in call("gc", "--library", library).stdout
    assert not (library / "hgemm_trial" / "record.json").exists()
    assert "hgemm_trial" not in call("doctor", "--library", library).stdout


def test_a_kernel_with_the_former_workspace_does_not_stop_the_others(
    small_library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library = tmp_path / "lib"
    shutil.copytree(small_library.folder, library)
    record, files = make_record("hgemm_former")
    record["traits"]["workspace"] = {"counter_bytes_per_tile": 4, "partial_bytes_per_tile": 65536}
    Library(library).publish(record, files)
    assert call("select", "--arch", "90", "--m", "512", "--library", library).exit_code == 0
    (warning,) = {record.getMessage() for record in caplog.records if "hgemm_former" in record.getMessage()}
    assert "this version has no workspace with counters per tile: remove it with `hgemm gc" in warning
    assert "hgemm_former" in call("gc", "--library", library).stdout


def test_empty_list_prints_a_note(folder: Path) -> None:
    result = call("list", "--library", folder, "--arch", "90")
    assert result.exit_code == 0 and result.stdout == "" and "no kernel" in result.stderr


def test_arch_sm_90_notes_the_kernels_of_sm_90a(folder: Path) -> None:
    Library(folder).publish(*make_record("hgemm_sm90_tn", arch="sm_90"))
    Library(folder).publish(*make_record("hgemm_sm90a_tn", arch="sm_90a"))
    note = "hgemm: 1 kernel for sm_90a left out: use --arch 90,90a\n"
    words = ["list", "--library", folder, "--columns", "symbol", "--arch"]
    assert call(*words, "90").stderr == note
    for arch in ("90,90a", "90a", "89"):
        assert call(*words, arch).stderr == ""
    assert call("list", "--library", folder, "--columns", "symbol", "--arch", "90", "--kernels", "*sm90_*").stderr == ""
    assert call("export", "--library", folder, "--arch", "90", "--to", "/dev/null/x").stderr == note
    for verb, words in (("verify", ["--emulate"]), ("bench", [])):
        output = call(verb, *words, "--library", folder, "--arch", "90", "hgemm_sm90a_tn")
        assert output.stderr == note and isinstance(output.exception, LibraryError)  # that is all that was named


def test_unmatched_filters_and_empty_libraries_have_their_own_errors(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for verb, words in (
        ("export", ["--to", tmp_path / "x"]),
        ("report", ["--to", tmp_path / "x.html"]),
        ("verify", ["--emulate"]),
    ):
        for library, message in (
            (folder, "no kernel in .* matches the filters: `hgemm list --lib"),
            (tmp_path / "empty", "`generate --catalog"),
        ):
            error = call(verb, *words, "--where", "registers<10", "--library", library).exception
            assert isinstance(error, LibraryError) and re.search(message, str(error)) and not [*tmp_path.glob("x*")]


def test_fields_that_separate_kernels_with_similar_symbols_come_first() -> None:
    rows = [
        {"symbol": "hgemm_a_0001", "smem_a": "x", "schedule": "one_tile"},
        {"symbol": "hgemm_a_0002", "smem_a": "x", "schedule": "persistent"},
        {"symbol": "hgemm_b_0003", "smem_a": "y", "schedule": "one_tile"},
    ]
    assert separating_first(rows, ["smem_a", "schedule"]) == ["schedule", "smem_a"]


def test_a_table_fits_a_line_with_the_symbol_last() -> None:
    rows = [{"a": "xxxx", "b": 12, "c": "\x1b[0m", "symbol": "hgemm_sm89_tn_7f3a91c2"}]
    wide = fitted(rows, ["a"], ["b", "c"], 100)
    assert wide.text.split() == ["a", "b", "c", "symbol", "xxxx", "12", r"'\x1b[0m'", "hgemm_sm89_tn_7f3a91c2"]
    assert wide.note(["b", "c"], "use --columns") == ""
    narrow = fitted(rows, ["a"], ["c", "b"], 32)
    assert narrow.text.split() == ["a", "b", "symbol", "xxxx", "12", "hgemm_sm89_tn_7f3a91c2"]
    assert (
        narrow.note(["c"], "use --columns") == "the table has no room for the column c: use --columns"
        and narrow.note(["b"], "use --columns") == ""
    )
    short = fitted(rows, ["a", "c"], ["b"], 35)
    assert short.text.split()[-1] == "7f3a91c2" and short.left_out == ()
    assert fitted(rows, ["a"], [], 1).text.split()[-1] == "7f3a91c2"


def test_list_shows_the_columns_of_its_filter_and_its_order(folder: Path) -> None:
    words = ["--where", "smem_b='xor:2,3,3' and not align_d=4", "--sort", "-stages", "--library", folder]
    shown = call("list", *words)
    header = shown.stdout.splitlines()[0].split()
    assert header[:3] == ["smem_b", "align_d", "stages"] and header[-1] == "symbol"
    assert max(map(len, shown.stdout.splitlines())) <= 100
    assert shown.stderr == ""  # all fields in which the kernels differ are shown


def test_list_distinguishes_formulas_by_hash(tmp_path: Path) -> None:
    library = Library(tmp_path / "lib")
    formulas = {f"hgemm_sm89_tn_{number}": epilogue_of(f"relu(acc - {number})") for number in (1, 2)}
    for symbol, found in formulas.items():
        library.publish(*make_record(symbol, epilogue=found.text, beta=False))
    header, *rows = (line.split() for line in call("list", "--library", library.folder).stdout.splitlines())
    assert header[0] == "epilogue_hash" and [row[0] for row in rows] == [found.hash for found in formulas.values()]
    assert listed(library.folder, "--where", f"epilogue_hash='{rows[1][0]}'") == ["hgemm_sm89_tn_2"]


def test_old_words_in_a_condition_are_read_with_a_note(folder: Path) -> None:
    with pytest.warns(DeprecatedWord, match="field swapped is deprecated: use swap_ab"):
        assert call("list", "--where", "not swapped", "--library", folder).exit_code == 0
    with pytest.warns(DeprecatedWord, match="copy vector is deprecated: use ldg_sts"):
        assert call("list", "--where", "copy=vector", "--library", folder).exit_code == 0


def test_types_filter_in_any_spelling(folder: Path) -> None:
    assert len(listed(folder, "--dtype", "float16", "--acc", "fp32", "--out", "half")) == 3
    assert listed(folder, "--dtype", "bf16") == []


def test_missing_library_gives_a_one_line_error(tmp_path: Path) -> None:
    tune = ("tune", ["--no-generate", "--shapes", "8x8x8"])
    for verb, arguments in (("list", []), ("show", ["x"]), ("reindex", []), ("gc", []), tune):
        error = call(verb, *arguments, "--library", tmp_path / "none").exception
        assert isinstance(error, LibraryError) and "does not exist: run `generate` first" in str(error)


def test_the_library_is_taken_from_the_environment(folder: Path) -> None:
    result = CliRunner().invoke(hgemm_command, ["list", "--columns", "symbol"], env={"HGEMM_LIBRARY": str(folder)})
    assert "hgemm_sm80_nn" in result.stdout


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hgemm_sm80_nn", ["hgemm_sm80_nn"]),
        ("cutlass_nn", ["hgemm_sm80_nn"]),
        ("hgemm_sm80", ["hgemm_sm80_nn"]),
        ("*_tn_*", ["hgemm_sm89_tn_big", "hgemm_sm89_tn_small"]),
        ("?gemm*big", ["hgemm_sm89_tn_big"]),
    ],
)
def test_a_kernel_is_named_by_symbol_alias_beginning_or_glob(folder: Path, name: str, expected: list[str]) -> None:
    assert resolve(Library(folder), name) == expected


def test_a_kernel_is_named_by_the_hash_of_its_symbol(tmp_path: Path) -> None:
    library = Library(tmp_path)
    for symbol in ("paper_sm80_s3_7f3a91c2", "paper_sm80_s3_7f3ab000", "paper_sm80_s3_beef0001_long"):
        library.publish(*make_record(symbol))
    assert resolve(library, "7f3a91c2") == resolve(library, "7F3A9") == ["paper_sm80_s3_7f3a91c2"]
    assert listed(tmp_path, "--kernels", "7f3a") == ["paper_sm80_s3_7f3a91c2", "paper_sm80_s3_7f3ab000"]
    for name, message in {"7f3a": "matches 2 kernels", "beef0001": "no kernel", "7f3": "no kernel"}.items():
        with pytest.raises(RequestError, match=message):
            resolve(library, name)


def test_ambiguous_name_lists_five_candidates(tmp_path: Path) -> None:
    for place in range(8):
        Library(tmp_path).publish(*make_record(f"hgemm_{place}"))
    with pytest.raises(RequestError, match=r"matches 8 kernels(.|\n)*\n  hgemm_4\n  and 3 more$"):
        resolve(Library(tmp_path), "hgemm")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hgemm_sm89", "matches 2 kernels: write a longer prefix, or 'hgemm_sm89\\*' for all\n  hgemm_sm89_tn_big\n"),
        ("hgemm_sm80_tn", "did you mean"),
        ("xx", "`hgemm list --library .*/lib` lists its kernels"),
        ("*x*y", "no kernel"),
        ("../lib", "no kernel"),
    ],
)
def test_ambiguous_name_is_rejected(folder: Path, name: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        resolve(Library(folder), name)


def test_show_prints_a_summary_and_the_sections(folder: Path) -> None:
    card = call("show", "hgemm_sm80_nn", "--library", folder).stdout
    for words in ("hgemm_sm80_nn", "cta_tile            128x128x32", "registers           128", "deterministic"):
        assert words in card
    assert call("show", "hgemm_sm80_nn", "--library", folder, "--source").stdout == "kernel.cu of hgemm_sm80_nn\n"
    assert call("show", "hgemm_sm80_nn", "--library", folder, "--ptx").stdout == "kernel.ptx of hgemm_sm80_nn\n"
    paths = call("show", "*_tn_*", "--library", folder, "--paths").stdout.split()
    assert len(paths) == 6 and all(Path(path).exists() for path in paths)
    records = json.loads(call("show", "*_tn_*", "--library", folder, "--json").stdout)
    assert [record["symbol"] for record in records] == ["hgemm_sm89_tn_big", "hgemm_sm89_tn_small"]
    for views in (["--ptx", "--json"], ["--source", "--sass"]):
        error = call("show", "hgemm_sm80_nn", "--library", folder, *views).exception
        assert isinstance(error, RequestError) and str(error) == f"{' and '.join(views)} exclude each other: give one"
    sass = call("show", "hgemm_sm80_nn", "--library", folder, "--sass").exception
    assert isinstance(sass, HgemmError) and str(sass).isprintable()  # the made-up cubin is none


def test_summary_separates_planned_and_proved_values(folder: Path) -> None:
    planned = {"mma_per_k_tile": 64, "bank_conflicts": 0}
    plan = "plan\n  bank_conflicts      0\n  mma_per_k_tile      64\n\n"
    for proof, message in (
        ({}, f"none yet            hgemm verify --emulate --library {folder}"),
        ({"races": 0}, "races               0"),
    ):
        Library(folder).publish(*make_record("hgemm_one", proof={**planned, **proof}))
        assert f"{plan}proof\n  {message}\n\n" in call("show", "hgemm_one", "--library", folder).stdout


def test_show_checks_hashes_first(folder: Path) -> None:
    (folder / "hgemm_sm80_nn" / "kernel.cubin").write_bytes(b"?")
    for arguments in ([], ["--source"], ["--json"]):
        result = call("show", "hgemm_sm80_nn", "--library", folder, *arguments)
        assert result.stdout == "" and "hgemm_sm80_nn/kernel.cubin is not the file" in str(result.exception)


def test_reindex_and_gc_print_counts(folder: Path) -> None:
    assert call("reindex", "--library", folder).stdout == f"3 kernels indexed in {folder}\n"
    assert json.loads(call("reindex", "--library", folder, "--json").stdout)["kernels"] == 3
    assert call("gc", "--library", folder).stdout == "0 removed, 0 B freed\n"
    (folder / "hgemm_sm80_nn" / "kernel.ptx").write_bytes(b"?")
    planned = call("gc", "--library", folder, "--dry-run").stdout
    assert "hgemm_sm80_nn: " in planned and "1 would be removed" in planned and len(listed(folder)) == 3
    done = json.loads(call("gc", "--library", folder, "--json").stdout)
    assert [removal["name"] for removal in done["removed"]] == ["hgemm_sm80_nn"] and done["freed_bytes"] > 0
    assert len(listed(folder)) == 2


def test_every_verb_has_help_with_an_example() -> None:
    for verb in ("list", "show", "reindex", "gc"):
        result = call(verb, "--help")
        assert result.exit_code == 0 and "Example" in result.stdout and "hgemm " in result.stdout


def test_field_names_do_not_depend_on_the_library(paper_library: Library) -> None:
    assert {name for name in paper_library.field_names() if not name.startswith("sass_")} <= FIELDS
    assert {"proof_executor", "proof_races", "proof_unproved", "cutlass_dsl", "py_bytes"} <= FIELDS


def test_fields_are_listed_and_completed_without_a_library(folder: Path, tmp_path: Path) -> None:
    lines = call("list", "--library", folder, "--fields").stdout.splitlines()
    assert all(len(line.split()) > 1 for line in lines)
    named = [line.split()[0] for line in lines]
    assert {*named} == FIELDS | {"sass_NAME"} and named == sorted(named)
    meanings = [line.split(maxsplit=1)[1] for line in lines if line.startswith(("arch ", "spec_arch "))]
    assert len({*meanings}) == 2
    counts = {*json.loads(call("list", "--library", folder, "--fields", "--json").stdout)} - FIELDS
    assert counts == {"sass_hmma", "sass_ldsm", "sass_ldgsts"}
    assert {*json.loads(call("list", "--library", tmp_path / "none", "--fields", "--json").stdout)} == FIELDS
    (columns,) = (option for option in hgemm_command.get_command(None, "list").params if option.name == "columns")
    found = columns.type.shell_complete(None, columns, "symbol,spill")
    assert [item.value for item in found] == ["symbol,spill_bytes", "symbol,spilled"]
    assert [item.value for item in columns.type.shell_complete(None, columns, "-spill")][0] == "-spill_bytes"


@pytest.mark.parametrize("where", ["proof_races=0", "proof_executor like '*'", "sass_hgmma>0", "swap_ab"])
def test_absent_field_matches_no_kernel(folder: Path, where: str) -> None:
    assert listed(folder, "--where", where) == []
    assert len(listed(folder, "--where", f"not ({where})", "--sort", "proof_races")) == 3


def test_empty_filter_matches_everything() -> None:
    assert condition_of(KernelFilter()).items == ()


def test_listing_loads_nothing_slow() -> None:
    code = "import sys; import generator.cli.library; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {
        "rich",
        "numpy",
        "cuda",
        "filelock",
        "jinja2",
        "pycute",
        "generator.build.inspect",
    } & {*found}


# ==== hgemm verify and hgemm run ======================================================================================

SHAPES = "33x49x17,8x8x8@2"


def document(symbol: str, arch: str = "sm_80", **spec) -> tuple[dict, dict]:
    return make_record(symbol, arch=arch, cta_tile="32x48x16", **spec)


@pytest.fixture
def device_folder(tmp_path: Path) -> Path:
    library = Library(tmp_path / "lib")
    library.publish(*document("hgemm_good"))
    library.publish(*document("hgemm_other", layout="nt"))
    library.publish(*document("hgemm_unfit", arch="sm_120"))
    return library.folder


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    # Kernels are checked in this process, for the fake driver lives here.
    monkeypatch.setattr(CheckWorkers, "check", lambda self, request: (_here(fake, request), ""))
    with installed(fake, monkeypatch):
        yield fake


def _here(fake: FakeDriver, request: CheckRequest) -> CheckOutcome:
    traits = LaunchTraits.of(Library(Path(request.library)).load(request.symbol).record.data)
    faults = frozenset({"drops an element of k"} if "bad" in request.symbol else ())
    fake.kernel = lambda problem: simulated.launch(traits, problem, faults)
    return check_here(request)


def call_on_device(verb: str, *arguments: object) -> Result:
    result = CliRunner().invoke(hgemm_command, [verb, *(str(argument) for argument in arguments)])
    if isinstance(result.exception, Exception) and not hasattr(result.exception, "exit_code"):
        raise result.exception
    return result


# ---- verify ---------------------------------------------------------------------------------------------------------


def test_verify_prints_a_line_a_kernel(driver: FakeDriver, device_folder: Path) -> None:
    result = call_on_device("verify", "--device", "--library", device_folder, "--shapes", SHAPES)
    good, other, unfit, summary = result.stdout.splitlines()
    assert good.startswith("ok    hgemm_good  2/2 shapes; largest error ") and other.startswith("ok    hgemm_other")
    assert unfit.startswith("skip  hgemm_unfit  kernels for sm_120 do not run on sm_90")
    assert summary == "2 kernels passed, 0 failed, 1 skipped; 4 shapes passed" and result.exit_code == 0


def test_verify_fails_if_a_kernel_is_wrong(driver: FakeDriver, device_folder: Path, tmp_path: Path) -> None:
    Library(device_folder).publish(*document("hgemm_bad"))
    report = tmp_path / "junit.xml"
    result = call_on_device("verify", "--device", "--library", device_folder, "--shapes", SHAPES, "--junit", report)
    assert result.exit_code == 1 and "FAIL  hgemm_bad  0/2 shapes  33x49x17 alpha=1: integer: " in result.stdout
    assert result.stderr == f"hgemm: wrote {report}\n"
    suites = {suite.get("name"): suite for suite in ElementTree.parse(report).getroot()}
    assert suites["hgemm_bad"].get("failures") == "2" and suites["hgemm_good"].get("failures") == "0"
    assert suites["hgemm_unfit"].get("skipped") == "1"
    answer = json.loads(
        call_on_device("verify", "--device", "--library", device_folder, "--shapes", SHAPES, "--json").stdout
    )
    assert [len(outcome["checks"]) for outcome in answer] == [2, 2, 2, 0]
    assert [all(check["passed"] for check in outcome["checks"]) for outcome in answer[:3]] == [False, True, True]


def test_verify_takes_names_and_filters(driver: FakeDriver, device_folder: Path) -> None:
    for arguments, expected in (
        (["hgemm_o*"], ["hgemm_other"]),
        (["hgemm_good", "hgemm_other"], ["hgemm_good", "hgemm_other"]),
        (["--layout", "nt"], ["hgemm_other"]),
        (["--where", "layout=tn and arch=sm_80"], ["hgemm_good"]),
    ):
        result = call_on_device("verify", "--device", "--library", device_folder, "--shapes", "8x8x8", *arguments)
        assert [line.split()[1] for line in result.stdout.splitlines()[:-1]] == expected and result.exit_code == 0


def test_verify_fails_if_nothing_runs(driver: FakeDriver, device_folder: Path) -> None:
    assert call_on_device("verify", "--device", "--library", device_folder, "hgemm_unfit").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message", "exit_code"),
    [
        ([], "no place to verify is given: use --device", 2),
        (["--device", "--shapes", "12"], "shape '12' is malformed", 2),
        (["--device", "--shapes", "4x6x0"], "shape '4x6x0' is out of range: k is 0, use 1 to 2147482624", 2),
        (["--device", "--shapes", "8x8x8@4000000000"], "batch is 4000000000, use 1 to 2147482624", 2),
        (["--device", "nothing_such"], "no kernel in .* is named 'nothing_such'", 2),
        (["--device", "--layout", "tt"], "no kernel in .* matches", 1),
    ],
)
def test_verify_gives_one_line_errors(device_folder: Path, arguments: list[str], message: str, exit_code: int) -> None:
    error = call_on_device("verify", "--library", device_folder, *arguments).exception
    assert error.exit_code == exit_code and str(error).isprintable()
    with pytest.raises(type(error), match=message):
        raise error


def test_missing_gpu_gives_a_one_line_error(device_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver()
    fake.status = FakeDriver.CUresult.CUDA_ERROR_NO_DEVICE
    monkeypatch.setattr(hgemm.device, "driver", lambda: fake)
    hgemm.device._open.cache_clear()
    sizes = ["--m", "8", "--n", "8", "--k", "8"]
    for verb, arguments in (("verify", ["--device"]), ("run", ["hgemm_good", *sizes])):
        error = call_on_device(verb, "--library", device_folder, *arguments).exception
        assert isinstance(error, DeviceError) and error.exit_code == 1
        assert str(error) == "no NVIDIA GPU here: the driver returned CUDA_ERROR_NO_DEVICE"


# ---- run ------------------------------------------------------------------------------------------------------------


def test_run_prints_time_rate_and_error(driver: FakeDriver, device_folder: Path, tmp_path: Path) -> None:
    traits = LaunchTraits.of(Library(device_folder).load("hgemm_good").record.data)
    driver.kernel = lambda problem: simulated.launch(traits, problem)
    arguments = ["hgemm_good", "--library", device_folder, "--m", 40, "--n", 56, "--k", 24]
    result = call_on_device("run", *arguments)
    first, second, third = result.stdout.splitlines()
    assert first == "hgemm_good on Fake GPU" and second == "250.00 us  0.0 TFLOP/s"
    assert third.startswith("max error 0.0") and third.endswith("of the error bound; 40 of 40 rows checked")
    answer = json.loads(call_on_device("run", *arguments, "--batch", 2, "--alpha", 0.5, "--json").stdout)
    assert answer["passed"] and answer["batch"] == 2 and answer["device"] == "Fake GPU" and answer["time_us"] == 250
    assert "passed" not in json.loads(call_on_device("run", *arguments, "--no-check", "--json").stdout)
    square = json.loads(call_on_device("run", *arguments[:3], "--m", 24, "--no-check", "--json").stdout)
    assert (square["m"], square["n"], square["k"]) == (24, 24, 24)
    report = tmp_path / "run.xml"
    assert call_on_device("run", *arguments, "--junit", report).exit_code == 0
    (suite,) = ElementTree.parse(report).getroot()
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("hgemm_good", "1", "0")
    driver.kernel = lambda problem: simulated.launch(traits, problem, frozenset({"leaves an element"}))
    result = call_on_device("run", *arguments, "--junit", report)
    (suite,) = ElementTree.parse(report).getroot()
    assert suite.get("failures") == "1" and "not written" in suite[0][0].get("message")
    assert result.exit_code == 1 and "WRONG: 1 elements of D were not written" in result.stdout


def decided_by_launches(
    driver: FakeDriver, device_folder: Path, tmp_path: Path, **fields: str
) -> tuple[Path, dict[str, Any], list[Problem]]:
    """Return a library with a kernel that leaves `fields` to each launch, its record, and the problems that launches will get."""
    library = tmp_path / "decided"
    shutil.copytree(device_folder, library)
    record, files = make_record("hgemm_decided", cta_tile="32x48x16", **fields)
    Library(library).publish(record, files)
    given: list[Problem] = []
    driver.kernel = given.append
    return library, record, given


def test_run_passes_the_splits_of_a_launch(driver: FakeDriver, device_folder: Path, tmp_path: Path) -> None:
    library, _, given = decided_by_launches(driver, device_folder, tmp_path, schedule="launch")
    arguments = ["hgemm_decided", "--library", library, "--m", 96, "--n", 96, "--k", 640, "--no-check"]
    call_on_device("run", *arguments, "--splits", 3, "--whole-tiles", 2)
    assert given and {(one.options.splits, one.options.whole_tiles) for one in given} == {(3, 2)}
    assert all(one.workspace for one in given)


def test_run_takes_the_options_of_the_librarys_launches(
    driver: FakeDriver, device_folder: Path, tmp_path: Path
) -> None:
    library, record, given = decided_by_launches(driver, device_folder, tmp_path, schedule="launch", raster="launch")
    arguments = ["hgemm_decided", "--library", library, "--m", 96, "--n", 96, "--k", 64000, "--no-check"]
    answer = json.loads(call_on_device("run", *arguments, "--json").stdout)
    (options,) = {one.options for one in given}
    traits, query = LaunchTraits.of(record), SelectionQuery.dense(Kind(), (96, 96, 64000, 1), DEFAULT_WORKSPACE_BYTES)
    assert options == default_options(row_of(traits, record), query, Target.of(open_device())) != LaunchOptions()
    assert answer["options"] == str(options)
    given.clear()
    first = call_on_device("run", *arguments, "--raster", "-3").stdout.splitlines()[0]
    assert {one.options for one in given} == {LaunchOptions(raster_tiles=-3)} and first.endswith(", splits=1 raster=-3")


@pytest.mark.parametrize("order", [1, -3, BY_GPC + 2, -BY_GPC - 1])
def test_run_passes_the_order_of_tiles_that_select_prints(
    driver: FakeDriver, device_folder: Path, tmp_path: Path, order: int
) -> None:
    library, _, given = decided_by_launches(driver, device_folder, tmp_path, raster="launch")
    printed = str(LaunchOptions(raster_tiles=order)).rpartition("raster=")[2]
    arguments = ["hgemm_decided", "--library", library, "--m", 96, "--no-check", "--raster", printed]
    call_on_device("run", *arguments)
    assert given and {one.options for one in given} == {LaunchOptions(raster_tiles=order)}
    for word in ("0", "-0", "65536", "03", "row", "-1-by-GPC", "0-by-gpc"):
        error = call_on_device("run", *arguments[:-1], word).exception
        assert error.exit_code == 2 and f"raster '{word}' is no order of tiles: use 8, -3 or -1-by-gpc" in str(error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hgemm_*"], "3 kernels: narrow"),
        (["hgemm_good", "--beta", "1"], "hgemm_good does not add beta"),
        (["hgemm_good", "--alpha", "nan"], "alpha and beta must be finite"),
        (["hgemm_good", "--splits", "2"], "hgemm_good has its own schedule: omit --splits"),
        (["hgemm_good", "--raster", "8"], "hgemm_good has its own order of tiles: omit --raster"),
    ],
)
def test_run_gives_one_line_errors(device_folder: Path, arguments: list[str], message: str) -> None:
    error = call_on_device("run", *arguments, "--library", device_folder, "--m", 8, "--n", 8, "--k", 8).exception
    assert error.exit_code == 2 and message in str(error)


def test_failed_launch_is_reported_with_its_case(driver: FakeDriver, device_folder: Path) -> None:
    launched = driver.cuLaunchKernelEx

    def fail(*arguments):
        fault = FakeDriver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        return (fault,) if len(driver.launches) >= 4 else launched(*arguments)

    driver.cuLaunchKernelEx = fail
    result = call_on_device(
        "verify", "--device", "--library", device_folder, "hgemm_good", "--shapes", "33x49x17,8x8x8"
    )
    assert result.exit_code == 1 and not driver.memory
    assert (
        "FAIL  hgemm_good  1/1 shape  8x8x8 alpha=-0.5 loose: cannot launch hgemm_good: CUDA_ERROR_I" in result.stdout
    )


def test_a_case_without_memory_is_skipped_and_named(driver: FakeDriver, device_folder: Path, tmp_path: Path) -> None:
    allocate = driver.cuMemAlloc
    lack = FakeDriver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
    driver.cuMemAlloc = lambda size: lack if size > 100_000 else allocate(size)
    report = tmp_path / "junit.xml"
    words = ["verify", "--device", "--library", device_folder, "hgemm_good", "--shapes", "8x8x8,256x8x256"]
    result = call_on_device(*words, "--junit", report)
    line, summary = result.stdout.splitlines()
    assert result.exit_code == 0 and not driver.memory
    assert "  1/1 shape; skipped 256x8x256 alpha=-0.5 loose: cannot allocate" in line and "OUT_OF_MEMORY" in line
    assert summary == (
        "1 kernel passed, 0 failed, 0 skipped; 1 shape passed, 1 skipped for lack of memory: "
        "256x8x256 alpha=-0.5 loose of hgemm_good"
    )
    assert ElementTree.parse(report).getroot()[0].get("skipped") == "1"
    (answer,) = json.loads(call_on_device(*words, "--json").stdout)
    assert [case["case"] for case in answer["skipped_cases"]] == ["256x8x256 alpha=-0.5 loose"]
    driver.cuMemAlloc = lambda size: lack
    assert call_on_device(*words).exit_code == 1


# ---- Processes ------------------------------------------------------------------------------------------------------

SERVER = """
import json, os, sys, time

for line in sys.stdin:
    symbol = json.loads(line)["symbol"]
    if symbol == "dies":
        print("broken", file=sys.stderr)
        sys.exit(9)
    if symbol == "hangs":
        time.sleep(60)
    check = {"case": "1x1x1", "max_bound_ratio": 0.0, "passed": symbol != "bad", "reason": "", "max_error": 0.0}
    print(json.dumps({"symbol": symbol, "checks": [check], "skipped_cases": [], "seconds": os.getpid()}), flush=True)
"""


def served(symbols: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> list[CheckOutcome]:
    """Return the outcomes of a process whose check is a script. Their seconds are the number of the process."""
    (tmp_path / "stub_of_checks.py").write_text(SERVER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("generator.device_check._MODULE", "stub_of_checks")
    workers = CheckWorkers(timeout_s=timeout_s, module="stub_of_checks")
    return [outcome for outcome, _ in workers.check_all(CheckRequest("", symbol) for symbol in symbols.split())]


def test_a_worker_checks_kernels_until_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, bad, third, dead, last = served("a b bad c dies d", tmp_path, monkeypatch, timeout_s=60)
    assert first.seconds == second.seconds == bad.seconds != third.seconds != last.seconds
    assert first.passed and bad.failed and last.passed
    assert dead.error == "its process ended with status 9: broken"


@pytest.mark.slow
def test_a_worker_of_several_kernels_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, hung, last = served("a hangs b", tmp_path, monkeypatch, timeout_s=5)
    assert first.passed and "no answer within 5 s" in hung.error and last.passed


def test_cases_that_need_much_memory_wait_for_a_turn_and_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Filled:
        free = [0, 99, 100]

        @property
        def free_bytes(self) -> int:
            return device_check.SPARE_BYTES + (self.free.pop(0) if len(self.free) > 1 else self.free[0])

    device = Filled()
    monkeypatch.setattr(device_check, "TURN_WAIT_S", 0.02)
    with device_check.free_memory(device, 100):
        assert device.free == [100]
        began = time.monotonic()
        with device_check.free_memory(device, 100):
            assert time.monotonic() - began >= 0.02, "another one has its turn"
    monkeypatch.setattr(device_check, "MEMORY_WAIT_S", 0.05)
    began = time.monotonic()
    with device_check.free_memory(device, 101):
        assert time.monotonic() - began >= 0.05, "there is not enough"


def test_a_worker_without_a_gpu_answers(device_folder: Path) -> None:
    if _has_gpu():
        pytest.skip("this machine has a GPU")
    outcome, _ = CheckWorkers().check(CheckRequest(str(device_folder), "hgemm_good"))
    assert outcome.failed and outcome.error.startswith("no NVIDIA GPU here")


def _has_gpu() -> bool:
    try:
        return bool(hgemm.device.open_device())
    except DeviceError:
        return False


def test_a_worker_that_hangs_is_killed_with_its_children(device_folder: Path) -> None:
    began = time.monotonic()
    workers = CheckWorkers(jobs=2, timeout_s=0.5, wrapper=("/bin/sh", "-c", "sleep 60 & sleep 60; :"))
    outcomes = [outcome for outcome, _ in workers.check_all([CheckRequest(str(device_folder), "hgemm_good")] * 2)]
    assert time.monotonic() - began < 20
    assert all(
        outcome.failed and "no answer within 0.5 s: the kernel may hang" in outcome.error for outcome in outcomes
    )


def test_dead_worker_is_reported(device_folder: Path) -> None:
    dying = CheckWorkers(wrapper=(sys.executable, "-c", "import os, sys; sys.stderr.write('broken\\n'); os._exit(9)"))
    outcome, log = dying.check(CheckRequest(str(device_folder), "hgemm_good"))
    assert outcome.error == "its process ended with status 9: broken" and log == "broken\n"


def test_no_check_starts_after_the_budget(device_folder: Path) -> None:
    spent = CheckWorkers(budget_s=1, began=time.monotonic() - 2)
    assert "not started within 1 s" in spent.check(CheckRequest(str(device_folder), "hgemm_good"))[0].error


def test_outcomes_know_whether_they_passed(tmp_path: Path) -> None:
    good = {"case": "1x1x1", "max_error": 0.0, "max_bound_ratio": 0.25, "passed": True, "reason": ""}
    passed = CheckOutcome("a", (good,))
    assert passed.passed and not passed.failed and passed.worst_ratio == 0.25
    failed = replace(passed, checks=(good, {**good, "passed": False, "reason": "off"}))
    assert failed.failed and failed.reason == "1x1x1: off"
    assert (
        CheckOutcome("b", error="gone").failed
        and not CheckOutcome("b", skipped="unfit").failed
        and CheckOutcome("b").failed
    )
    write_junit(tmp_path / "x.xml", "hgemm verify", map(junit_suite, [passed, failed, CheckOutcome("b", error="gone")]))
    assert [suite.get("errors") for suite in ElementTree.parse(tmp_path / "x.xml").getroot()] == ["0", "0", "1"]


# ==== Messages of libraries without kernels, damaged kernels and architectures ========================================


def test_empty_library_error_mentions_no_filters(tmp_path: Path, folder: Path) -> None:
    assert call("list", "--library", tmp_path).stderr == f"{tmp_path} has no kernels\n"
    assert "matches" in call("list", "--arch", "75", "--library", folder).stderr


def test_gc_names_a_damaged_kernel_once(folder: Path) -> None:
    (folder / "hgemm_sm80_nn" / "kernel.cubin").write_bytes(b"")
    (line, _) = call("gc", "--dry-run", "--library", folder).stdout.splitlines()
    assert line.startswith("hgemm_sm80_nn: kernel.cubin is not the file") and line.count("hgemm_sm80_nn") == 1


def test_cover_notes_that_sm_90a_is_shown_as_sm_90(small_library: Library) -> None:
    words = ("--layout", "tn", "--dtype", "f16", "--align", "8", "--library", small_library.folder)
    assert "sm_90a is shown as sm_90" in call("cover", "--arch", "90a", *words).stderr
    assert "is shown as" not in call("cover", "--arch", "90", *words).stderr


@pytest.mark.parametrize("option", ["layout", "bias", "activation", "align"])
def test_cover_of_nothing_is_rejected(small_library: Library, option: str) -> None:
    done = call("cover", "--arch", "90", f"--{option}", "", "--library", small_library.folder)
    assert isinstance(done.exception, RequestError) and f"--{option} has no value" in str(done.exception)


def test_pack_checks_only_what_it_builds() -> None:
    done = call("pack", "--nk", "64x64", "--arch", "90", "--dry-run", "--check")
    assert isinstance(done.exception, RequestError) and "--dry-run builds none" in str(done.exception)
