"""`hgemm select`: the answer on the command line is the library's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import measured
from conftest import call

from generator.store.library import Library


def test_it_prints_the_variant_and_with_all_the_others(small_library: Library) -> None:
    words = ["select", "--library", small_library.folder, "--m", 64, "--n", 64, "--k", 64]
    done = call("hgemm", *words, "--arch", "80", "--layout", "nt", "--json")
    (symbol,) = (row["symbol"] for row in small_library.rows() if "_nt_" in row["symbol"])
    found = json.loads(done.stdout)
    assert (found["symbol"], found["code"], found["workspace_bytes"]) == (symbol, "cubin", 0) and found["clocks"] > 0
    done = call("hgemm", *words, "--arch", "sm_90", "--all")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["symbol", "code", "rule", "clocks", "workspace_bytes"]
    assert len(lines) == 3 and lines[1].split()[1:3] == ["ptx", "estimated"]
    assert lines[2].startswith("estimated: smallest estimate") and "was measured on sm_90" in lines[2]


def test_it_says_why(small_library: Library, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_library.folder, tmp_path / "library"))
    (record,) = (record for record in small_library.records() if "_tn_" in record.symbol)
    result = measured.problem(4096, 4096, 4096), {record.symbol: 250.0}
    measured.write(folder, [result], {record.symbol: record.key}, capability=80, sms=108, device="NVIDIA A100")
    words = ["select", "--library", folder, "--arch", "80", "--n", 4096, "--k", 4096]
    found = json.loads(call("hgemm", *words, "--m", 4096, "--json").stdout)
    assert (found["rule"], found["near"]) == ("measured", [4096, 4096, 4096, 1])
    assert found["why"] == "fastest of 1 variant measured on this problem on NVIDIA A100"
    last = call("hgemm", *words, "--m", 1024).stdout.splitlines()[-1]
    assert last.startswith("near: smallest of 1 corrected estimate")
    assert "4096x4096x4096, 4.0 octaves away" in last and last.endswith("correction 1.00")


def test_it_says_what_goes_before_a_smaller_estimate(paper_library: Library) -> None:
    words = ["select", "--library", paper_library.folder, "--arch", "89", "--m", 4096, "--n", 4096, "--k", 4096]
    best, *others = json.loads(call("hgemm", *words, "--all", "--json").stdout)
    assert "_sm89_" in best["symbol"] and min(other["clocks"] for other in others) < best["clocks"]
    assert best["why"].startswith("smallest estimate") and "own architecture" in best["why"].split("; ")[-1]


def test_unsupported_and_misspelt_requests_are_reported(small_library: Library) -> None:
    words = ["select", "--library", small_library.folder, "--m", 64, "--n", 64, "--k", 64]
    done = call("hgemm", *words, "--arch", "80", "--align", "1")
    assert done.returncode == 1 and "need more alignment (A, B and D have 1, 1 and 1 elements)" in done.stderr
    done = call("hgemm", *words, "--arch", "80", "--dtype", "f12")
    assert done.returncode == 2 and "--dtype 'f12' is unknown: use f16, bf16, tf32" in done.stderr
    done = call("hgemm", *words, "--arch", "70")
    assert done.returncode == 2 and "arch '70' is unknown" in done.stderr
    for flag in ("--m", "--batch"):
        done = call("hgemm", *words, "--arch", "80", flag, 2**31 - 1)
        assert done.returncode == 2 and f"'{flag}': 2147483647 is not in the range 1<=x<=2147482624" in done.stderr
    done = call("hgemm", *words, "--sms", "10")
    assert done.returncode == 2 and "--sms needs --arch" in done.stderr


def test_what_would_serve_it_is_made_in_the_library_that_was_asked(small_library: Library) -> None:
    words = ["--library", small_library.folder, "--m", 64, "--n", 64, "--k", 64, "--arch", 80, "--activation", "gelu"]
    assert (
        f"--activation gelu --add --library {small_library.folder}` makes one" in call("hgemm", "select", *words).stderr
    )


def test_operands_are_taken_to_lie_dense_unless_an_alignment_is_given(small_library: Library) -> None:
    words = ["select", "--library", small_library.folder, "--m", 64, "--n", 64, "--arch", "80"]
    done = call("hgemm", *words, "--k", 63)
    assert done.returncode == 1 and "alignment (A, B and D have 1, 1 and 8 elements)" in done.stderr
    assert call("hgemm", *words, "--k", 63, "--align", "8").returncode == 0
    assert call("hgemm", *words, "--k", 63, "--layout", "nt").returncode == 0  # no row of A or B is k long
    done = call("hgemm", *words, "--k", 64, "--n", 63, "--beta", "--json")
    assert done.returncode == 1 and "alignment (A, B and D have 8, 8 and 1 elements)" in done.stderr
    # A row of A, and of B, alone begins where its pointer says; a second one on an odd element.
    row = [*words, *"--m 1 --n 1 --k 4097".split()]
    assert call("hgemm", *row).returncode == 0
    assert "alignment (A, B and D have 1, 1 and " in call("hgemm", *row, "--batch", 2).stderr
