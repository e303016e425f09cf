"""Shards: together they are the whole, no two share a variant, and one that is added moves no other."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from conftest import call
from hypothesis import given
from hypothesis import strategies as st

from generator.errors import RequestError
from generator.naming import symbol_of
from generator.sweep import Shard, sweep

WIDE = {
    "arch": "sm_80,sm_86,sm_89",
    "tile": "64x64x32,64x128x32,128x64x32",
    "layout": "tn,nn,nt,tt",
    "stages": "2:4",
    "raster": "row,column,group:8",
    "mma_order": "row,zigzag",
}
SYMBOLS = st.lists(st.from_regex(r"[a-z0-9_]{1,60}", fullmatch=True), unique=True, max_size=40)


def parts(symbols: list[str], count: int) -> list[list[str]]:
    return [list(filter(Shard(number, count).takes, symbols)) for number in range(1, count + 1)]


@given(SYMBOLS, st.integers(1, 64))
def test_shards_are_disjoint_and_together_the_whole(symbols: list[str], count: int) -> None:
    assert sorted(symbol for part in parts(symbols, count) for symbol in part) == sorted(symbols)


@given(SYMBOLS, st.integers(1, 16), st.data())
def test_an_added_variant_moves_no_other(symbols: list[str], count: int, data: st.DataObject) -> None:
    fewer = data.draw(st.lists(st.sampled_from(symbols), unique=True)) if symbols else []
    for some, all_of_them in zip(parts(fewer, count), parts(symbols, count)):
        assert {*some} == {*all_of_them} & {*fewer}


def test_the_order_of_a_sweep_is_nothing_to_its_shards() -> None:
    """Of 648 kernels in 8 shards each has 81, give or take a fifth, and as many of each architecture."""
    specs = {symbol_of(plan.spec): plan.spec for plan in sweep([WIDE]).plans}
    assert len(specs) == 648
    for part in parts(list(specs), 8):
        archs = Counter(specs[symbol].arch for symbol in part)
        assert 65 <= len(part) <= 97 and all(15 <= archs[name] <= 40 for name in ("sm_80", "sm_86", "sm_89"))


def test_a_variant_stays_in_its_shard_from_version_to_version() -> None:
    assert [Shard(number, 4).takes("hgemm_sm80_tn") for number in range(1, 5)] == [False, True, False, False]


@pytest.mark.parametrize("text", ["0/4", "5/4", "1/0", "-1/4", "1", "a/b", "", "1/4/2", "1,4", "¹/4"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="write i/n with 1 <= i <= n"):
        Shard.parse(text)


def test_generate_makes_only_its_shard(tmp_path: Path) -> None:
    words = [
        "--arch",
        "sm_80",
        "--tile",
        "32x32x16",
        "--stages",
        "2:4",
        "--layout",
        "tn,nn,nt,tt",
        "--dry-run",
        "--json",
    ]
    made = [call("generate", *words, "--shard", f"{number}/3", cwd=tmp_path) for number in (1, 2, 3)]
    symbols = [[row["symbol"] for row in json.loads(done.stdout)] for done in made]
    whole = [row["symbol"] for row in json.loads(call("generate", *words, cwd=tmp_path).stdout)]
    assert len(whole) == 12 and sorted(sum(symbols, [])) == sorted(whole)
    assert [done.stderr for done in made] == [
        f"generate: shard {number}/3 has {len(part)} of 12 variants\n" for number, part in enumerate(symbols, 1)
    ]


def test_a_shard_without_variants_is_no_error(tmp_path: Path) -> None:
    words = ["--arch", "sm_80", "--tile", "32x32x16", "--library", tmp_path / "library"]
    made = [call("generate", *words, "--shard", f"{number}/2", "--dry-run", "--json") for number in (1, 2)]
    assert [done.returncode for done in made] == [0, 0]
    counts = [len(json.loads(done.stdout)) for done in made]
    assert sorted(counts) == [0, 1] and not (tmp_path / "library").exists()
    assert call("generate", *words, "--shard", f"{1 + counts.index(0)}/2").returncode == 0
    merged = call("hgemm", "merge", tmp_path / "library", "--to", tmp_path / "all")
    assert merged.returncode == 0 and "0 variants added" in merged.stdout
