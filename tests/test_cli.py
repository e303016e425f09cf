"""The command lines: the answer on stdout, everything else on stderr, one line for an error, and the exit status."""

from __future__ import annotations

import importlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import ROOT, SMALL, hgemm, start

from generator import __version__
from generator.build import pipeline
from generator.build.pipeline import Outcome
from generator.cli import main as cli
from generator.cli import output as progress_module
from generator.cli.main import VERBS, generate_command, hgemm_command, main
from generator.cli.output import planning, progress, scratch_library
from generator.spec import SPEC_OPTIONS
from generator.store.library import Library
from hgemm.epilogue_language import epilogue_of
from hgemm.errors import LibraryError

ARGUMENTS = [word for name, text in SMALL.items() for word in ("--" + name, text)]
SUGGESTS = re.compile("Did you mean|Possible options")  # by version of click
TOO_LARGE = ["--arch", "sm_89", "--tile", "256x256x64", "--stages", "4"]


def generate(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run `generate` in this process; return its status, stdout and stderr."""
    status = main(generate_command, [*map(str, arguments)])
    return status, *capsys.readouterr()


# ---- Answers --------------------------------------------------------------------------------------------------------


def test_generate_prints_a_table_and_its_progress(capsys, tmp_path: Path) -> None:
    status, out, err = generate(capsys, *ARGUMENTS, "--library", tmp_path / "new" / "library")
    header, row = out.splitlines()
    assert status == 0 and header.split()[:3] == ["status", "registers", "spill_bytes"] and row.split()[0] == "built"
    assert header.split()[-1] == "symbol" and max(map(len, out.splitlines())) <= 100
    assert re.fullmatch(r"\[1/1\] built hgemm_sm80_tn_\S+, .*\n", err)


SPILLING = {"arch": "sm_90a", "layout": "tn", "acc": "f16", "tile": "192x208x64", "activation": "gelu", "bias": "row"}


@pytest.mark.slow
@pytest.mark.usefixtures("builds_once")
def test_a_kernel_that_spills_is_replaced_unless_every_field_is_set(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "compile_kernel", cache(pipeline.compile_kernel))  # the spilling one takes 2 s
    words = [word for name, text in SPILLING.items() for word in ("--" + name, text)]
    library = ["-q", "--library", tmp_path]
    status, out, err = generate(capsys, *words, *library)
    assert status == 0 and "spills registers: built it with --" in err and out.split()[-1] != err.split()[1]
    (row,) = Library(tmp_path).rows()
    assert not row["spilled"] and (row["cta_tile"], row["layout"], row["bias"]) == ("192x208x64", "tn", "row")
    planned = ["--raster", "group:16", "--schedule", "persistent", "--consumers", "3"]  # of the kernel that spilled
    status, out, err = generate(capsys, *words, *planned, *library)
    assert status == 1 and "registers spill" in err and "built it with" not in err
    status, out, err = generate(capsys, *words, "--allow-spills", *library)
    assert status == 0 and out.splitlines()[1].startswith("spilled") and "built it with" not in err


def test_json_is_one_list_of_records(capsys, small_library: Library) -> None:
    status, out, err = generate(
        capsys, *ARGUMENTS, "--layout", "nn,tn", "--json", "-q", "--library", small_library.folder
    )
    records = json.loads(out)
    assert (status, err) == (0, "") and [record["spec"]["layout"] for record in records] == ["nn", "tn"]
    assert records[0] == small_library.load(records[0]["symbol"]).record.data


def test_dry_run_builds_nothing_and_lists_cached_kernels(capsys, small_library: Library, tmp_path: Path) -> None:
    arguments = [*ARGUMENTS, "--layout", "tn", "--smem", "auto,pad:8", "--dry-run"]
    status, out, _ = generate(capsys, *arguments, "--library", small_library.folder)
    header, first, second = out.splitlines()
    assert status == 0 and header.split() == ["status", "smem_a", "smem_b", "symbol"]
    assert first.startswith("cached ") and second.startswith("to build  pad:8 ")
    status, out, _ = generate(capsys, *arguments, "--json", "--library", tmp_path / "none")
    assert [row["status"] for row in json.loads(out)] == ["to build"] * 2 and not (tmp_path / "none").exists()


def test_table_distinguishes_formulas_by_hash(capsys, tmp_path: Path) -> None:
    """By a hash if the formula is too long. People read formulas; JSON has the text of the spec."""
    long = "gelu(alpha * acc + bias) * 2 + minimum(acc, 3) * minimum(acc, 4) + relu(acc - 1)"
    expected = {text: epilogue_of(text) for text in ("relu(acc)", "-acc", long)}
    words = [*ARGUMENTS, "--layout", "tn", "--epilogue"]
    for texts in (["relu(acc)", "-acc", "none"], ["relu(acc)", long]):
        for mode in ("--dry-run", "--explain"):
            _, out, _ = generate(capsys, *words, ",".join(texts), mode, "--library", tmp_path)
            header, *rows = (line.split() for line in out.splitlines())
            assert header[1] == "epilogue_hash" and "{" not in out and (long in texts or "relu(acc)" in out)
            assert all(expected[text].hash in row for text, row in zip(texts, rows) if text != "none")
    _, out, _ = generate(capsys, *words, long, "--explain")
    assert str(expected[long]) in out and expected[long].hash in out and "{" not in out
    _, out, _ = generate(capsys, *words, long, "--explain", "--json")
    assert json.loads(out)[0]["spec"]["epilogue"] == expected[long].text


def test_dry_run_of_recipes_names_each_step(capsys) -> None:
    _, out, _ = generate(capsys, "--recipe", "s3", "--arch", "80", "--layout", "tn,nn", "--dry-run")
    header, *rows = (line.split() for line in out.splitlines())
    assert (*header[:2], header[-1]) == ("recipe", "status", "symbol")
    assert [row[0] for row in rows] == [f"s3/0{step}" for step in range(1, 9) for _ in "tn"]


def test_an_option_that_is_given_twice_adds_to_its_list(capsys) -> None:
    def planned(*arguments: str) -> tuple[int, str, str]:
        return generate(capsys, "--arch", "89", "--dry-run", *arguments)

    twice = planned("--tile", "128x128x32", "--tile", "64x64x32", "--stages", "2:3", "--stages", "4")
    assert twice == planned("--tile", "128x128x32,64x64x32", "--stages", "2:3,4") and len(twice[1].splitlines()) == 7
    assert planned("--recipe", "s3/01", "--recipe", "s3/02") == planned("--recipe", "s3/01,s3/02")


def test_explain_prints_the_plan_and_builds_nothing(capsys, tmp_path: Path) -> None:
    status, out, err = generate(capsys, *ARGUMENTS, "--explain", "--library", tmp_path / "none")
    assert (status, err) == (0, "") and not (tmp_path / "none").exists()
    for words in (
        "    cta_tile                  32x32x16",
        "  * layout                    tn",
        "bank_conflicts",
        "  legal",
    ):
        assert words in out


def test_explain_of_a_kernel_equals_explain_of_its_spec(capsys, small_library) -> None:
    (row,) = [row for row in small_library.rows() if row["layout"] == "nt"]
    asked = ["--library", small_library.folder, "--m", "512", "--json"]
    status, out, _ = hgemm(capsys, "explain", row["symbol"], *asked)
    (document,) = json.loads(out)
    assert (
        status == 0
        and document["planned"] == []
        and document["spec"] == small_library.load(row["symbol"]).record.data["spec"]
    )
    requested = [word for name, text in SMALL.items() for word in (f"--{name}", text)]
    _, out, _ = hgemm(capsys, "explain", *requested, "--layout", "nt", "--m", "512", "--json")
    assert json.loads(out) == [{**document, "planned": json.loads(out)[0]["planned"]}]
    for words in (["--stages", "3"], ["--spec", "sweep.toml"]):
        status, _, err = hgemm(capsys, "explain", row["symbol"], *asked, *words)
        assert status == 2 and f"with a complete spec: omit {words[0]}" in err


def test_explain_prints_every_rule_of_every_combination(capsys) -> None:
    status, out, _ = hgemm(capsys, "explain", *TOO_LARGE)
    assert (
        status == 2
        and "    shared_memory: tile 256x256x64 with 4 stages needs 262,144 B of shared memory; sm_89 allows 101,376 B. Try "
        in out
        and "    registers: " in out
    )
    status, out, _ = hgemm(capsys, "explain", *TOO_LARGE[:4], "--tile", "256x256x64,64x64x32", "--json")
    found = json.loads(out)
    assert status == 0 and [each["legal"] for each in found] == [False, True]
    assert {broken["rule"] for broken in found[0]["broken"]} >= {"registers"} and found[1]["planned"][0] == "dtype_a"


def test_explain_of_several_combinations_is_a_table_with_the_broken_rules(capsys) -> None:
    asked = ["--arch", "89", "--tile", "256x256x64,64x64x32", "--stages", "4", "--m", "512"]
    status, out, err = hgemm(capsys, "explain", *asked)
    table, _, broken = out.partition(" is illegal:\n")
    assert status == 0 and "legal  predicted_us" in table and len(out.splitlines()) < 10
    assert broken.startswith("    shared_memory: tile 256x256x64 with 4 stages needs")
    assert "One combination is explained in full" in err


def test_the_table_of_a_sweep_shows_in_which_fields_its_rows_differ(capsys) -> None:
    asked = ["--arch", "90a", "--tile", "128x256x64", "--stages", "3", "--cluster", "1x1,2x1", "--raster", "row,column"]
    table = hgemm(capsys, "explain", *asked, "--m", "4096")[1].splitlines()
    assert {"predicted_us", "cluster", "raster"} <= {*table[0].split()} and len({*table}) == 5


def test_the_catalog_of_one_gpu_counts_its_kernels(capsys, tmp_path: Path) -> None:
    _, _, err = generate(capsys, "--catalog", "tf32_hopper,small_m", "--arch", "89", "--dry-run", "--library", tmp_path)
    assert "illegal" not in err and re.search(r"\d+ specs? of the catalog suits? sm_89", err)


def test_the_catalog_of_one_type_counts_its_kernels(capsys, tmp_path: Path) -> None:
    asked = ["--catalog", "general,turing", "--dtype", "bf16", "--dry-run", "--library", tmp_path]
    status, out, err = generate(capsys, *asked)
    symbols = [line.split()[-1] for line in out.splitlines()[1:]]
    assert status == 0 and len(symbols) == 20 and all("_bf16_f32_bf16_" in symbol for symbol in symbols)
    assert "illegal" not in err and "20 specs of the catalog suit" in err and "sm_75" not in err


def test_sweep_skips_and_counts_illegal_combinations(capsys, tmp_path: Path) -> None:
    arguments = ["--arch", "89", "--tile", "32x32x16,256x256x64", "--stages", "4", "--dry-run", "--library", tmp_path]
    status, out, err = generate(capsys, *arguments)
    assert status == 0 and len(out.splitlines()) == 2
    assert err.startswith("generate: 1 of 2 combinations is illegal and skipped (violated rules: shared_memory 1")
    assert err.endswith("); --explain shows the reasons\n")
    for more in ([], ["--explain"]):
        status, out, err = generate(capsys, *arguments, "--require-legal", *more)
        assert status == 2 and out == ""
        assert err.startswith("generate: error: 1 of 2 combinations is illegal (violated rules: shared_memory 1")
        assert "; the first:\nsm_89 256x256x64 is illegal" in err
    assert generate(capsys, "--arch", "89", "--tile", "32x32x16", *arguments[4:], "--require-legal")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "sm_90", "--mma", "wgmma"], "wgmma needs sm_90a, so this builds for sm_90a instead of sm_90"),
        (["--arch", "sm_90"], "sm_90a has wgmma kernels for the same GPUs: use --arch sm_90a"),
        (["--arch", "sm_90", "--stages", "2,3,4"], "sm_90a has wgmma kernels for the same GPUs: use --arch sm_90a"),
        (["--arch", "sm_90", "--mma", "m16n8k16"], ""),
        (["--arch", "sm_90", "--align", "1"], ""),
        (["--arch", "sm_90", "--dtype", "tf32", "--layout", "nt"], ""),
        (["--arch", "90,90a", "--tile", "128x128x64"], ""),
        (
            ["--arch", "90a", "--warp-tile", "64x64"],
            "warning: --warp-tile selects mma_sync on sm_90a: omit it for wgmma",
        ),
        (["--arch", "90a", "--fragment-stages", "2"], "warning: --fragment-stages selects mma_sync on sm_90a"),
        (["--arch", "90a", "--warp-tile", "64x64", "--mma", "m16n8k16"], ""),
        (["--arch", "90a", "--copy", "tma"], ""),
        (["--arch", "90", "--copy", "ldg", "--tile", "8x16x1024"], ""),
    ],
)
def test_note_names_the_option_that_decides_the_family_once(capsys, tmp_path: Path, arguments, message: str) -> None:
    for run, program, words in (
        (generate, "generate", [*arguments, "--dry-run", "--library", tmp_path]),
        (hgemm, "hgemm", ["explain", *arguments]),
    ):
        status, _, err = run(capsys, *words)
        lines = [line for line in err.splitlines() if "no room for" not in line]
        assert status == 0 and len(lines) == bool(message)
        assert not message or lines[0].startswith(f"{program}: {message}")


def test_options_override_a_spec_file(capsys, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(
        'arch = "sm_80"\ntile = "32x32x16"\nstages = [2, 3]\n[[kernel]]\nlayout = "nn"\n'
    )
    arguments = ["--spec", tmp_path / "spec.toml", "--stages", "4", "--dry-run", "--library", tmp_path / "none"]
    _, out, _ = generate(capsys, *arguments)
    (row,) = out.splitlines()[1:]
    assert "_nn_" in row and "_32x32x16_s4_" in row


def test_python_m_hgemm_runs_hgemm() -> None:
    words = [sys.executable, "-m", "hgemm", "--version"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    missing = "comes with hgemm-generator, which is not installed" in done.stderr
    assert done.stdout == f"hgemm, version {__version__}\n" or (missing and done.returncode == 1)


def test_missing_torch_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "hgemm.torch", raising=False)
    with pytest.raises(ModuleNotFoundError, match="^hgemm.torch needs torch: pip install torch$"):
        importlib.import_module("hgemm.torch")


def test_python_m_generator_runs_generate() -> None:
    command = [sys.executable, "-m", "generator", "--version"]
    assert (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout == f"generate, version {__version__}\n"
    )


# ---- Errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "arch is missing: name one or more"),
        (["--arch", "sm_91"], "--arch 'sm_91' is unknown: did you mean sm_90"),
        (["--arch", "90", "--tile", "128x128"], "--tile '128x128' is malformed: write it as MxNxK"),
        (["--arch", "90", "--bias", "left"], "--bias 'left' is unknown: use none, row, column"),
        (["--arch", "90", "--bias", "rows"], "--bias 'rows' is unknown: did you mean row? use none, row, column"),
        (["--arch", "90", "--dtype", "fp17"], "--dtype 'fp17' is unknown: use f16, bf16, tf32"),
        (
            ["--arch", "90", "--schedule", "splitk:4"],
            "--schedule 'splitk:4' is unknown: did you mean split_k:S? use one",
        ),
        (
            ["--arch", "90", "--out", "build/out"],
            "--out 'build/out' is a path; use f16, bf16, f32. --library names the folder",
        ),
        (["--arch", "90", "--stages", "0"], "--stages '0' is not a whole number from 1 to 16"),
        (["--arch", "75", "--copy", "cp_async"], "copy: copy is cp_async; sm_75 copies through registers only"),
        (
            TOO_LARGE,
            "shared_memory: tile 256x256x64 with 4 stages needs 262,144 B of shared memory; sm_89 allows 101,376 B. Try ",
        ),
        (TOO_LARGE, "\n  registers: warp tile "),
        (["--spec", "/none.toml"], "spec file /none.toml cannot be read: No such file"),
    ],
)
def test_illegal_request_exits_with_2_and_writes_nothing(
    capsys, tmp_path: Path, arguments: list[str], message: str
) -> None:
    status, out, err = generate(capsys, *arguments, "--library", tmp_path / "library")
    assert status == 2 and out == "" and err.startswith("generate: error: ") and message in err
    assert "Traceback" not in err and not (tmp_path / "library").exists()


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--swizzle", "--smem"),
        ("--stream-k", "--schedule stream_k"),
        ("--cta-tile", "--tile"),
        ("--to", "--library"),
    ],
)
def test_option_names_of_other_projects_get_a_suggestion(capsys, flag: str, meant: str) -> None:
    status, _, err = generate(capsys, "--arch", "90", flag, "4")
    assert status == 2 and f"No such option '{flag}'. Did you mean '{meant}'?" in err


def test_old_options_are_accepted_with_one_note(capsys, small_library: Library) -> None:
    library = ["--library", small_library.folder]
    problem = ["--m", "64", "--arch", "80", "--layout", "tn"]
    for run, words, old, new in (
        (generate, ["--arch", "80", "--dtype-d", "fp32", "--dry-run"], "--dtype-d", "--out"),
        (generate, ["--arch", "90a", "--tile", "64x128x64", "--swapped=on", "--dry-run"], "--swapped", "--swap-ab"),
        (hgemm, ["select", *problem, *library, "--dtype-a", "half"], "--dtype-a", "--dtype"),
        (hgemm, ["select", *problem, *library, "--dtype-d", "f16"], "--dtype-d", "--out"),
        (hgemm, ["cover", "--arch", "80", *library, "--types", "f16:f16"], "--types", "--dtype and --out"),
    ):
        _, _, err = run(capsys, *words)
        assert err.count(f"note: {old} is deprecated: use {new}\n") == err.count("deprecated") == 1, err
        _, shown, _ = run(capsys, *([] if run is generate else words[:1]), "--help")
        assert f"{old} " not in shown


def test_suggestions_never_name_deprecated_options(capsys) -> None:
    status, _, err = hgemm(capsys, "select", "--arch", "90", "--m", "64", "--dtype-x", "f16")
    assert status == 2 and SUGGESTS.search(err) and "--dtype" in err and "--dtype-" not in SUGGESTS.split(err)[1]


def test_a_deprecated_word_of_a_spec_file_is_noted_once(capsys, tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text('arch = "sm_90a"\ntile = "64x128x64"\ncluster = "1x1"\nschedule = "cluster_k:2"\n')
    status, _, err = generate(capsys, "--spec", file, "--dry-run", "--library", tmp_path)
    assert status == 0 and err.count("deprecated") == err.count("schedule cluster_k:2 is deprecated") == 1


def test_every_verb_accepts_the_same_type_names(capsys) -> None:
    for words in (
        [],
        ["list"],
        ["export"],
        ["verify"],
        ["select"],
        ["bench"],
        ["tune"],
        ["explain"],
        ["compare"],
        ["report"],
    ):
        _, out, _ = (hgemm if words else generate)(capsys, *words, "--help")
        assert all(f"--{name} " in out for name in ("dtype", "acc", "out", "layout")), words


def test_misspelt_option_or_verb_exits_with_2(capsys) -> None:
    status, _, err = generate(capsys, "--arhc", "90")
    assert status == 2 and SUGGESTS.search(err) and "--arch" in err
    assert err.startswith("generate: error: No such option") and err.endswith(" (see `generate --help`)\n")
    assert err.count("\n") == 1
    status, _, err = hgemm(capsys, "show")
    assert (status, err) == (2, "hgemm: error: Missing argument 'SYMBOL' (see `hgemm show --help`)\n")
    for verb, message in (("lst", "No verb 'lst'. Did you mean 'list'?"), ("generate", "is a separate command")):
        status, _, err = hgemm(capsys, verb)
        assert status == 2 and message in err


def test_unusable_library_gives_a_one_line_error(capsys, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for run, arguments in ((generate, [*ARGUMENTS]), (hgemm, ["list"])):
        status, out, err = run(capsys, *arguments, "--library", tmp_path / "file")
        assert (
            status == 1
            and out == ""
            and err == f"{run.__name__}: error: library {tmp_path / 'file'} is a file: name a folder\n"
        )
    status, _, err = hgemm(capsys, "list", "--library", tmp_path / "none")
    assert status == 1 and "does not exist: run `generate` first" in err


@pytest.mark.parametrize("word", ["nan", "inf", "1e999"])
def test_numbers_of_options_are_finite(capsys, word: str) -> None:
    for words in (
        ["pack", "--nk", "64x64", "--arch", "89", "--dry-run", "--loss", word],
        ["bench", "--seconds", word],
        ["sanitize", "kernel.ptx", "--timeout", word],
    ):
        status, out, err = hgemm(capsys, *words)
        assert status == 2 and out == "" and re.search("is not (a finite number|in the range)", err), words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "--shapes", "64x64x64", "--n", "128"], "--n without --m"),
        (["bench", "--m", "64", "--group", "llm"], "--group selects groups of a suite"),
        (["ladder", "s1", "--static", "--m", "64", "--shapes", "64x64x64"], "--m and --shapes exclude each other"),
        (["ladder", "s1", "--static", "--k", "64"], "--k without --m"),
    ],
)
def test_options_without_effect_are_rejected(capsys, small_library: Library, words: list[str], message: str) -> None:
    status, out, err = hgemm(capsys, *words, "--library", small_library.folder)
    assert status == 2 and out == "" and message in err and err.count("\n") == 1


def test_empty_names_and_huge_seeds_are_rejected(capsys) -> None:
    status, _, err = generate(capsys, "--arch", "89", "--kernels", "", "--dry-run")
    assert status == 2 and "--kernels is empty" in err
    status, _, err = hgemm(capsys, "verify", "--emulate", "--seed", 2**63)
    assert status == 2 and "is not in the range" in err


def test_an_empty_path_is_not_the_current_folder(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for run, words in (
        (generate, [*ARGUMENTS, "--library", ""]),
        (generate, [*ARGUMENTS, "--junit", ""]),
        (hgemm, ["merge", "", "--to", "merged"]),
        (hgemm, ["export", "--to", ""]),
        (hgemm, ["bench", "--keep", ""]),
    ):
        status, out, err = run(capsys, *words)
        assert status == 2 and out == "" and "the path is empty" in err and err.count("\n") == 1, words
    assert not any(tmp_path.iterdir())


def test_a_loop_of_symbolic_links_gives_a_one_line_error(capsys, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    status, _, err = generate(capsys, *ARGUMENTS, "--library", loop)
    assert status == 1 and f"error: cannot write {loop}: " in err.splitlines()[-1]
    status, _, err = generate(capsys, *ARGUMENTS, "--library", tmp_path / "new", "--junit", loop)
    assert status == 1 and err.startswith(f"generate: error: cannot write {loop}: its symbolic links form a loop: ")
    assert loop.is_symlink() and not (tmp_path / "new").exists()


@pytest.mark.parametrize("closed", ["<&- >&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(tmp_path: Path, closed: str) -> None:
    library = tmp_path / "library"
    library.mkdir()
    command = f"{sys.executable} -m generator --arch 89 --dry-run --library {library} {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_internal_error_is_one_line_or_a_traceback_with_debug(capsys, monkeypatch) -> None:
    def fail(options):
        raise KeyError("surprise")

    monkeypatch.setattr("generator.cli.generate.run", fail)
    status, _, err = generate(capsys, *ARGUMENTS)
    assert (
        status == 1 and err == "generate: internal error (KeyError: 'surprise'): run again with --debug and report it\n"
    )
    status, _, err = generate(capsys, *ARGUMENTS, "--debug")
    assert status == 1 and "Traceback" in err and "in fail" in err


def test_every_verb_accepts_debug(capsys, tmp_path: Path) -> None:
    status, _, err = hgemm(capsys, "list", "--library", tmp_path / "none", "--debug")
    assert status == 1 and "Traceback" in err and err.splitlines()[-1].startswith("hgemm: error: library")


def test_missing_compiler_gives_a_one_line_error(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    status, _, err = generate(capsys, *ARGUMENTS, "-q", "--library", tmp_path / "library")
    assert status == 1 and err.startswith("generate: error: wheel cuda-python is missing: run 'make setup'")


def test_missing_wheel_gives_a_one_line_error(capsys, monkeypatch, tmp_path: Path) -> None:
    from generator.build import toolchain

    def missing(wheel: str) -> str:
        raise toolchain.metadata.PackageNotFoundError(wheel)

    toolchain.version_of.cache_clear()
    monkeypatch.setattr(toolchain.metadata, "version", missing)
    status, _, err = generate(capsys, *ARGUMENTS, "-q", "--library", tmp_path / "library")
    assert status == 1 and "wheel nvidia-cuda-nvrtc is missing: run 'make setup'" in err


# ---- Help, completion, loading --------------------------------------------------------------------------------------


def test_help_names_every_option_in_groups(capsys) -> None:
    _, out, _ = generate(capsys, "--help")
    assert all(f"  {option.flag}" in out for option in SPEC_OPTIONS)
    assert {"Target:", "Epilogue:", "Run:", "Options:"} <= {*out.splitlines()}
    assert "Examples:\n    generate --arch sm_89 --tile 128x128x32\n" in out


def test_help_lists_every_verb_without_loading_it(capsys) -> None:
    code = (
        "import sys; from generator.cli.main import hgemm_command, main; main(hgemm_command, ['--help']);"
        "loaded = {name for name in sys.modules if name.startswith('generator.cli.')};"
        "print(sorted(loaded - {'generator.cli.main', 'generator.cli.options'}))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    *help_lines, loaded = out.splitlines()
    verbs = list(VERBS)
    assert loaded == "[]" and len(verbs) >= 7
    for verb in verbs:
        assert any(line.split()[:1] == [verb] and len(line.split()) > 2 for line in help_lines), verb
        result = CliRunner().invoke(hgemm_command, [verb, "--help"])
        assert result.exit_code == 0 and "\\b" not in result.output


HEAVY = ("cuda", "jinja2", "pycute", "rich", "numpy", "sqlite3", "email", "multiprocessing")


@pytest.mark.parametrize("command", ["generate", "hgemm"])
def test_help_loads_nothing_heavy(command: str) -> None:
    code = (
        f"import sys; from generator.cli.main import {command}_command, main; main({command}_command, ['--help']);"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        ("generate", "generate --arch sm_9", ["sm_90", "sm_90a"]),
        ("generate", "generate --layout tn,n", ["tn,nn", "tn,nt"]),
        ("generate", "generate --sta", ["--stages"]),
        ("generate", "generate --sha", ["--shard"]),
        ("generate", "generate --executor d", ["dask"]),
        ("generate", "generate --recipe s1/3.0,s1/3.1", ["s1/3.0,s1/3.1"]),
        ("hgemm", "hgemm ladder s1", ["s1"]),
        ("hgemm", "hgemm expl", ["explain"]),
    ],
)
def test_shells_complete_options_values_and_verbs(command: str, words: str, expected: list[str]) -> None:
    assert complete(command, words) == expected


def complete(command: str, words: str) -> list[str]:
    """Return what bash is offered for the last word."""
    environment = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        f"_{command.upper()}_COMPLETE": "bash_complete",
    }
    code = f"from generator.cli.main import {command}_main; {command}_main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_shell_completes_symbols_of_the_named_library(small_library: Library) -> None:
    folder = small_library.folder
    symbols = sorted(path.name for path in folder.iterdir() if (path / "record.json").is_file())
    for words in ([f"--library={folder}"], ["--library", str(folder)]):
        done = complete("hgemm", " ".join(["hgemm", "show", *words, "hgemm_sm80_n"]))
        assert sorted(done) == [symbol for symbol in symbols if symbol.startswith("hgemm_sm80_n")] != []


def test_missing_choice_gives_a_one_line_error(capsys) -> None:
    status, _, err = hgemm(capsys, "completion")
    assert status == 2 and err.count("\n") == 1 and "bash, zsh, fish" in err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_both_commands(capsys, shell: str) -> None:
    status, out, _ = hgemm(capsys, "completion", shell)
    assert status == 0 and "_GENERATE_COMPLETE" in out and "_HGEMM_COMPLETE" in out


# ---- The terminal, and the environment ------------------------------------------------------------------------------


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_progress_is_one_moving_line_or_plain_lines_on_a_dumb_terminal(tmp_path: Path, terminal: str) -> None:
    ours, theirs = pty.openpty()
    code = "from generator.cli.main import generate_main; generate_main()"
    command = [sys.executable, "-c", code, *ARGUMENTS, "--layout", "tn,nn", "--library", str(tmp_path), "-j", "1"]
    env = {**os.environ, "TERM": terminal}
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, text=True, env=env)
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 4096):
            shown += data
    except OSError:
        pass  # the end of a terminal
    out, _ = process.communicate()
    assert process.returncode == 0 and len(out.splitlines()) == 3
    assert "kernels/s" in shown.decode() and "2 kernels in" in shown.decode()
    assert ("[1/2]" in shown.decode()) == (terminal == "dumb")


def test_the_library_is_taken_from_the_environment(small_library: Library) -> None:
    environment = {**os.environ, "HGEMM_LIBRARY": str(small_library.folder)}
    code = "from generator.cli.main import generate_main; generate_main()"
    command = [sys.executable, "-c", code, *ARGUMENTS, "--dry-run"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=True).stdout
    assert out.splitlines()[1].split()[0] == "cached"


# ==== Progress ========================================================================================================


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which tests set."""
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "perf_counter", lambda: now[0])
    return now


def test_cached_kernels_do_not_raise_the_rate(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress(1000, quiet=False) as tell:
        for number in range(396):
            clock[0] += 0.001
            tell(Outcome(f"old{number}", "cached"))
        for number in range(4):
            clock[0] += 0.5
            tell(Outcome(f"new{number}", "built", 0.9))
    lines = capsys.readouterr().err.splitlines()
    assert lines[395] == "[ 396/1000] cached old395, 0.00 s"
    assert lines[399] == "[ 400/1000] built new3, 0.90 s (2 kernels/s, 5 min left)"
    assert lines[400] == "1000 kernels in 2.4 s: 396 cached, 4 built"


@pytest.mark.parametrize(
    ("seconds_each", "message"), [(0.02, "50 kernels/s, 20 s left"), (8.0, "0.125 kernels/s, 2 h 13 min left")]
)
def test_time_left_has_readable_units(clock, capsys, seconds_each: float, message: str) -> None:
    with progress(1001, quiet=False) as tell:
        clock[0] += seconds_each
        tell(Outcome("one", "built", seconds_each))
    assert capsys.readouterr().err.splitlines()[0].endswith(f" ({message})")


def test_batched_results_have_the_rate_of_all_workers(clock, capsys) -> None:
    with progress(16, quiet=False, workers=2) as tell:
        clock[0] += 4.0
        for number in range(8):
            tell(Outcome(f"new{number}", "built", 1.0))
    messages = [line.partition(" (")[2] for line in capsys.readouterr().err.splitlines()]
    assert messages[0] == "2 kernels/s, 8 s left)" and messages[7] == "2 kernels/s, 4 s left)"


def test_interrupt_prints_a_summary_of_finished_kernels(clock: list[float], capsys) -> None:
    with pytest.raises(KeyboardInterrupt), progress(1000, quiet=False) as tell:
        tell(Outcome("one", "built", 0.5))
        clock[0] += 2.0
        raise KeyboardInterrupt
    assert capsys.readouterr().err.splitlines()[-1] == "1 of 1000 kernels in 2.0 s: 1 built"


def plan_slowly(clock: list[float], quiet: bool = False) -> None:
    """Plan 40 combinations, one in 0.5 s."""
    with planning(quiet) as planned:
        for done in range(1, 41):
            clock[0] += 0.5
            planned(done, 40)


def test_long_planning_shows_progress_every_ten_seconds(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    plan_slowly(clock)
    assert capsys.readouterr().err.splitlines() == [
        "[20/40] planned (2 plans/s, 10 s left)",
        "[40/40] planned (2 plans/s, 0 s left)",
    ]
    plan_slowly(clock, quiet=True)
    assert capsys.readouterr().err == ""


def test_terminal_shows_a_line_during_long_planning(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[dict] = []

    @contextmanager
    def bar(console: object, total: int):
        yield lambda **fields: messages.append(fields)

    monkeypatch.setattr(progress_module, "_bar", bar)
    monkeypatch.setattr(progress_module.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plan_slowly(clock)
    assert messages[0] == {"completed": 2, "pace": "2 plans/s, 19 s left"} and len(messages) == 39


def test_dumb_terminal_shows_plain_lines_during_planning(clock, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    plan_slowly(clock)
    assert capsys.readouterr().err.splitlines() == [
        "[ 2/40] planned (2 plans/s, 19 s left)",
        "[22/40] planned (2 plans/s, 9 s left)",
    ]


# ==== hgemm doctor ====================================================================================================


def test_doctor_reports_the_installation_and_fixes(capsys, small_library: Library) -> None:
    status, out, _ = hgemm(capsys, "doctor", "--library", small_library.folder, "--json")
    checks = {check["name"]: check for check in json.loads(out)}
    assert status == 0 and {check["state"] for check in checks.values()} <= {"ok", "warn"}
    assert {"python", "nvidia-cuda-nvrtc", "nvrtc", "nvdisasm", "templates", "gpu", "library"} <= {*checks}
    assert "4 kernels" in checks["library"]["found"]


def test_doctor_counts_unusable_kernels_and_folders_without_a_record(
    capsys, tmp_path: Path, small_library: Library
) -> None:
    folder = tmp_path / "lib"
    shutil.copytree(small_library.folder, folder)
    corrupt, incomplete, *_ = sorted(path.parent for path in folder.glob("*/record.json"))
    (incomplete / "record.json").unlink()
    (folder / "source_only").mkdir()
    (folder / "source_only" / "kernel.cu").touch()

    def library_lines() -> list[list[str]]:
        _, out, _ = hgemm(capsys, "doctor", "--library", folder, "--json")
        return [[check["state"], check["found"]] for check in json.loads(out) if check["name"] == "library"]

    missing = ["warn", f"1 folder has kernel.cubin but no record.json ({incomplete.name})"]
    assert library_lines() == [["ok", f"{folder}: 3 kernels, all hashes correct"], missing]
    (corrupt / "record.json").write_text("{}")
    first, second, third = library_lines()
    assert first == ["fail", f"{folder}: 1 of 3 kernels cannot be used"] and second == missing
    assert third[0] == "fail" and corrupt.name in third[1]
    shutil.rmtree(folder)
    folder.mkdir()
    assert library_lines() == [["warn", f"{folder} has no kernels"]]


def test_doctor_fails_if_something_is_broken(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(cli.sys.modules, "cuda.bindings", None)
    status, out, _ = hgemm(capsys, "doctor", "--library", tmp_path)
    failed = [line for line in out.splitlines() if line.startswith("fail")]
    assert status == 1 and any("nvrtc" in line for line in failed)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("/nowhere/g++", "CXX is /nowhere/g++, which is not installed: "),
        ("/bin/true", "/bin/true does not build a C++17 shared"),
    ],
)
def test_doctor_and_verify_agree_on_a_host_compiler(
    capsys, monkeypatch, small_library: Library, named: str, found: str
) -> None:
    monkeypatch.setenv("CXX", named)
    status, out, _ = hgemm(capsys, "doctor", "--library", small_library.folder)
    (line,) = (line for line in out.splitlines() if "host compiler" in line)
    assert status == 1 and line.startswith("fail") and found in line
    status, _, err = hgemm(capsys, "verify", "--emulate", "--library", small_library.folder)
    assert (
        status == 1 and err.startswith("hgemm: error: ") and line.endswith(err.removeprefix("hgemm: error: ").strip())
    )


# ==== Temporary libraries =============================================================================================


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
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and "Traceback" not in errors
    assert [*tmp_path.glob("hgemm-*")] == []  # a host compiler that still runs removes its own files


def test_library_that_is_a_file_is_rejected_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LibraryError, match="is a file: name a folder"), scratch_library(tmp_path / "file"):
        pytest.fail("the library was opened")


def test_sigterm_handler_is_restored_and_threads_keep_it(tmp_path: Path) -> None:
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
