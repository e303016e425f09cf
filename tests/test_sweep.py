"""Sweeps: lists, ranges and spec files give each combination once and in order, and shards partition them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from conftest import call
from hypothesis import given, settings
from hypothesis import strategies as st

from generator.errors import RequestError
from generator.spec import BY_FIELD, SPEC_OPTIONS, Texts, option_of, symbol_of
from generator.sweep import Shard, overridden, read_spec_file, sweep
from hgemm.errors import DeprecatedWord


def fields(*names: str, **texts: str) -> list[tuple[str, ...]]:
    """Return these fields of all candidates, as texts."""
    found = sweep([{"arch": "sm_90", **texts}])
    return [tuple(str(getattr(candidate.plan.spec, name)) for name in names) for candidate in found.candidates]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", ["3"]),
        ("2:4", ["2", "3", "4"]),
        ("2:6:2", ["2", "4", "6"]),
        ("2:5:2", ["2", "4"]),
        ("4:4", ["4"]),
        ("2, 4:5,", ["2", "4", "5"]),
        ("2,2:3,3", ["2", "3"]),
    ],
)
def test_ranges_include_their_end(text: str, expected: list[str]) -> None:
    assert fields("stages", stages=text) == [(stages,) for stages in expected]
    assert fields("schedule", split_k=text) == [(f"split_k:{parts}",) for parts in expected]


def test_placements_keep_their_commas() -> None:
    found = fields("smem_a", "smem_b", smem="xor:2,3,3,none,pad:8", tile="128x128x32")
    assert found == [("xor:2,3,3",) * 2, ("none",) * 2, ("pad:8",) * 2]
    assert fields("smem_b", smem_b="XOR:1,3,3,xor:2,3,3") == [("xor:1,3,3",), ("xor:2,3,3",)]


def test_combinations_come_in_the_order_of_the_options() -> None:
    found = fields("layout", "cta_tile", "stages", stages="3,2", tile="64x64x32,128x64x32", layout="nn,tn")
    assert found[:3] == [("nn", "64x64x32", "3"), ("nn", "64x64x32", "2"), ("nn", "128x64x32", "3")]
    assert len(found) == 8 and len({*found}) == 8


def test_a_specific_option_goes_before_the_general_one() -> None:
    names = ("align_a", "align_b", "align_d")
    assert fields(*names, align_b="2", align="4") == [("4", "2", "4")]
    assert fields(*names, align="4", align_b="2,1") == [("4", "2", "4"), ("4", "1", "4")]


def test_auto_leaves_a_field_to_be_planned() -> None:
    assert fields("smem_a", "stages", smem="auto", stages="auto") == fields("smem_a", "stages")
    planned = sweep([{"arch": "90", "stages": "auto,2"}]).candidates
    assert "stages" not in planned[0].request and "stages" in planned[1].request


def test_equal_specs_are_requested_once() -> None:
    assert len(sweep([{"arch": "sm_90,90,9.0", "dtype": "f16"}, {"arch": "90"}]).candidates) == 1


def test_illegal_combinations_are_counted_by_rule() -> None:
    found = sweep([{"arch": "sm_89", "tile": "128x128x32,256x256x64", "stages": "2,4"}])
    assert len(found.plans) == 2 and len(found.illegal) == 2
    assert (
        "2 of 4 combinations are illegal (violated rules: " in found.summary() and "shared_memory 2" in found.summary()
    )
    found.reject_empty()


def test_rules_are_counted_without_their_fixes() -> None:
    """Also if one rule is reported instead of all, because its fix mends the others."""
    found = sweep(
        [{"arch": "sm_80,sm_90a", "tile": "128x128x32,256x256x64", "mma": "m16n8k16,wgmma", "layout": "tn,nn"}]
    )
    rules = [tuple(violation.rule for violation in candidate.broken) for candidate in found.candidates]
    assert [candidate.rules for candidate in found.candidates] == rules
    assert ("family",) in rules and () in rules


def test_planning_reports_progress() -> None:
    messages: list[tuple[int, int]] = []
    sweep([{"arch": "sm_89", "stages": "2:4"}, {"arch": "sm_89"}], lambda done, total: messages.append((done, total)))
    assert messages == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"arch": "sm_89", "tile": "256x256x64", "stages": "4"}, "262,144 B of shared memory; sm_89 allows 101,376 B"),
        (
            {"arch": "sm_89", "tile": "256x256x64", "stages": "4,5"},
            "all 2 combinations are illegal .*the first:\n.*\n  shared_memory: tile",
        ),
        (
            {"arch": "sm_80", "copy": "tma"},
            "violates 1 rule:\n  family: .* Try --copy cp_async and leave the other fields open.$",
        ),
        (
            {"arch": "sm_80", "copy": "tma", "form": "dsl"},
            "violates 1 rule:\n  family: .* --copy cp_async .*and leave the other fields open.$",
        ),
        ({"arch": "sm_80", "copy": "tma", "tile": "512x128x64"}, "Try --copy cp_async --tile 128x128x32 and leave"),
        ({"arch": "sm_75", "copy": "tma"}, "family: .* Try --copy ldg_sts and leave the other fields open.$"),
        (
            {"arch": "sm_80", "mma": "wgmma", "stages": "40"},
            "family: .* Try --arch sm_90a.*\n  stages: stages is 40",
        ),
        (
            {"arch": "sm_90", "tile": "128x128x128"},
            "\n  sm_90a, for the same GPUs, supports it with wgmma. Try --arch sm_90a.$",
        ),
        ({"arch": "sm_90", "tile": "16x512x64"}, "Try --tile 16x256x64.\n.* Try --tile 16x256x64.$"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value.values()),
)
def test_sweep_without_legal_combinations_fails_with_the_rules(texts: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        sweep([texts]).reject_empty()


@pytest.mark.parametrize(
    ("texts", "advice"),
    [
        ({"arch": "sm_90a", "tile": "192x256x64"}, "Try --tile 192x192x64."),
        ({"arch": "sm_90a", "tile": "64x512x64"}, "Try --tile 64x256x64."),
        ({"arch": "sm_90a", "tile": "64x64x64", "ctas_per_sm": "16"}, "Try --ctas-per-sm 4."),
        ({"arch": "sm_90a", "cooperation": "pingpong", "consumers": "1"}, "Try --consumers 2."),
        ({"arch": "sm_89", "tile": "256x256x64", "stages": "4"}, "Try --tile 256x128x64 --stages 2."),
        (
            {"arch": "sm_90a", "mma": "wgmma", "align_a": "1", "stages": "40"},
            "Try --mma m16n8k16 --stages 4 and leave the other fields open.",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value.values()),
)
def test_one_fix_resolves_all_violations(texts: dict[str, str], advice: str) -> None:
    (candidate,) = sweep([texts]).illegal
    assert len(candidate.broken) > 1 and {violation.fix for violation in candidate.broken} == {advice}
    changed = {option_of(name).name: text for name, text in candidate.broken[0].change.items()}
    assert changed.keys() <= texts.keys() and sweep([{**texts, **changed}]).plans


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({}, "arch is missing"),
        ({"arch": "sm_91"}, "--arch 'sm_91' is unknown: did you mean sm_90"),
        ({"arch": "90", "tile": "128x128"}, "^--tile '128x128' is malformed: write it as MxNxK"),
        ({"arch": "90", "stages": "5:2"}, "range --stages 5:2 is empty"),
        ({"arch": "90", "stages": "2:5:0"}, "is empty"),
        ({"arch": "90", "stages": "two"}, "stages 'two' is not a whole number"),
        ({"arch": "90", "stages": "2-4"}, "--stages '2-4' is not a range: write 2:4$"),
        ({"arch": "90", "ctas_per_sm": "1..2"}, "--ctas-per-sm '1..2' is not a range: write 1:2$"),
        ({"arch": "90", "warp_tile": "64"}, "^--warp-tile '64' is malformed: write it as MxN"),
        ({"arch": "90", "smem_a": "x"}, "^--smem-a 'x' is unknown"),
        ({"arch": "90", "smem_b": "pad:x"}, "^--smem-b 'pad:x' is malformed: write it as pad:8"),
        ({"arch": "90", "smem": "none,xro:1,2,3"}, "^--smem 'xro:1,2,3' is unknown"),
        ({"arch": "90", "stages": " , "}, "--stages has no value"),
        ({"arch": "90", "layout": "tn,xx"}, "layout 'xx' is unknown: use tn, nn, nt, tt"),
        ({"arch": "90", "stagse": "2"}, "no 'stagse': did you mean 'stages'"),
        ({"arch": "90", "stream-k": "2"}, "no 'stream-k': did you mean 'schedule stream_k'"),
        ({"arch": "90", "stages": "1:64", "ctas_per_sm": "1:32", "tile": ",".join(["64x64x32"] * 30)}, "61,440 combin"),
    ],
)
def test_malformed_option_gives_a_one_line_error(texts: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        sweep([texts])
    assert "\n" not in str(refused.value)


# ---- Spec files ------------------------------------------------------------------------------------------------------


def read(folder: Path, text: str) -> list[dict[str, str]]:
    path = folder / "spec.toml"
    path.write_text(text)
    return [dict(texts) for texts in read_spec_file(path)]


def test_spec_file_accepts_command_line_options(tmp_path: Path) -> None:
    (texts,) = read(
        tmp_path, 'arch = "sm_89"\ntile = ["128x128x32", "64x64x32"]\nstages = [2, 3]\nbeta = [true, false]\n'
    )
    assert texts == {"arch": "sm_89", "tile": "128x128x32,64x64x32", "stages": "2,3", "beta": "on,off"}
    assert len(sweep([texts]).candidates) == 8


def test_spec_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert read(tmp_path, '\ufeffarch = "sm_89"\n') == [{"arch": "sm_89"}]


def test_spec_file_accepts_field_names(tmp_path: Path) -> None:
    (texts,) = read(tmp_path, 'arch = "89"\ncta_tile = "64x64x32"\ndtype_d = "f32"\nwarp-tile = "32x32"\nalign_d = 4\n')
    assert texts == {"arch": "89", "tile": "64x64x32", "out": "f32", "warp_tile": "32x32", "align_d": "4"}


def test_kernel_tables_override_the_file_and_options_override_both(tmp_path: Path) -> None:
    text = 'arch = "sm_90"\nalign = 8\nstages = "2:3"\n[[kernel]]\nalign_a = 4\n[[kernel]]\nstages = 4\nalign = 2\n'
    first, second = read(tmp_path, text)
    assert first == {"arch": "sm_90", "align": "8", "stages": "2:3", "align_a": "4"}
    assert second == {"arch": "sm_90", "align": "2", "stages": "4"}
    assert overridden(first, {"align": "1"}) == {"arch": "sm_90", "stages": "2:3", "align": "1"}


def test_variant_tables_are_read_but_not_beside_kernel_tables(tmp_path: Path) -> None:
    with pytest.warns(DeprecatedWord, match=r"use \[\[kernel\]\]"):
        assert read(tmp_path, "stages = 2\n[[variant]]\nalign = 4\n") == [{"stages": "2", "align": "4"}]
    with pytest.warns(DeprecatedWord), pytest.raises(RequestError, match="use one of them"):
        read(tmp_path, "[[variant]]\nalign = 4\n[[kernel]]\nalign = 8\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stagse = 2", "no 'stagse': did you mean 'stages'"),
        ("arch = ", "is not TOML"),
        ('library = "kernels"', "no 'library': write --library on the command line"),
        ("output_dir = 1", "no 'output_dir': write --library on the command line"),
        ("stages = 2.5", "'stages' is a float"),
        ("stages = [2, 99]", "spec.toml: stages '99' is not a whole number from 1 to 16$"),
        ('cta_tile = "128"', "spec.toml: cta_tile '128' is malformed"),
        ("kernel = 3", r"write each group as a table \[\[kernel\]\]"),
        ('tile = "64x64x32"\ncta_tile = "64x64x32"', "set tile twice"),
        ("[stages]\nx = 1", "'stages' is a table"),
        ("stages = [[2, 3]]", "'stages' is a list of lists"),
        ("[[kernels]]\nstages = 2", r"\[\[kernels\]\] is unknown: write each group as a table \[\[kernel\]\]"),
    ],
)
def test_a_spec_file_that_cannot_be_read_is_rejected_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        read(tmp_path, text)
    assert "spec.toml" in str(refused.value) and "\n" not in str(refused.value)


def test_a_missing_spec_file_is_rejected_by_name(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"none.toml cannot be read: No such file"):
        read_spec_file(tmp_path / "none.toml")


# ---- The table of options --------------------------------------------------------------------------------------------


def test_every_field_of_a_spec_has_an_option() -> None:
    assert {field for option in SPEC_OPTIONS for field in option.fields} == {*BY_FIELD}


def test_completed_values_are_legal() -> None:
    for option in SPEC_OPTIONS:
        for word in option.words:
            sweep([{"arch": "sm_80", option.name: word}])


# ---- Words of other projects -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ({"smem": "128B"}, {"smem": "xor:3,3,3"}),
        ({"smem": "64b"}, {"smem": "xor:2,3,3"}),
        ({"smem_a": "swizzle_32B"}, {"smem_a": "xor:1,3,3"}),
        ({"smem": "128B", "dtype": "tf32"}, {"smem": "xor:3,2,3", "dtype": "tf32"}),
        ({"warps": "2x4"}, {"warp_tile": "64x32"}),
        ({"warps": "2x2x1", "tile": "64x64x32"}, {"warp_tile": "32x32", "tile": "64x64x32"}),
        ({"split_k": "4"}, {"schedule": "split_k:4"}),
        ({"split_k": "1"}, {"schedule": "one_tile"}),
        ({"epilogue": "bias+gelu"}, {"bias": "row", "activation": "gelu"}),
        ({"epilogue": "bias"}, {"bias": "row"}),
        ({"epilogue": "relu"}, {"activation": "relu"}),
        ({"arch": "a100"}, {"arch": "sm_80"}),
    ],
)
def test_words_of_other_projects_are_accepted(words: Texts, same: Texts) -> None:
    usual = {"arch": "sm_80", "tile": "128x128x32"}
    (found,), (expected,) = sweep([{**usual, **words}]).candidates, sweep([{**usual, **same}]).candidates
    assert found.plan == expected.plan


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_120"])
@pytest.mark.parametrize("warps", ["1x1", "2x2", "1x4", "4x2", "4x4"])
def test_warps_without_a_tile_are_planned_as_asked(arch: str, warps: str) -> None:
    (found,) = sweep([{"arch": arch, "warps": warps}]).candidates
    spec = found.plan.spec
    assert not found.rules
    assert f"{spec.cta_tile.m // spec.warp_tile.m}x{spec.cta_tile.n // spec.warp_tile.n}" == warps


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"warps": "3x2"}, "--warps 3x2 does not divide tile 128x128x32"),
        ({"warps": "4"}, "--warps '4' is malformed: write the warps along m and n"),
        ({"warp_tile": "2x2"}, "smaller than any warp tile, .* write --warps 2x2"),
        ({"split_k": "two"}, "--split-k 'two' is not a number of splits"),
        ({"split_k": "0"}, "--split-k '0' is not a number of splits: write 2 to 64, or 1 for one_tile"),
        ({"split_k": "4", "schedule": "stream_k"}, "--split-k and --schedule set the same field: remove one of them"),
        ({"warps": "2x2", "warp_tile": "32x32"}, "--warps and --warp-tile set the same field: remove one of them"),
        ({"epilogue": "gelu+bias"}, "'gelu\\+bias' is not a bias with an activation after it"),
        ({"epilogue": "relu+gelu"}, "is not a bias with an activation after it"),
        ({"dtype": "fp8"}, "--dtype 'fp8' is not supported: no kernel multiplies fp8. Convert to f16"),
        ({"dtype": "int8"}, "'int8' is not supported: no kernel multiplies integers"),
    ],
)
def test_ambiguous_words_get_a_precise_error(texts: Texts, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        sweep([{"arch": "sm_80", "tile": "128x128x32", **texts}])


values = st.fixed_dictionaries(
    {"arch": st.sampled_from(["sm_80", "sm_89,sm_90", "sm_75"])},
    optional={
        "tile": st.from_regex(r"[0-9]{1,3}x[0-9]{1,3}x[0-9]{1,2}", fullmatch=True),
        "warp_tile": st.from_regex(r"[1-9][0-9]{1,2}x[0-9]{1,3}", fullmatch=True),
        "stages": st.sampled_from(["1", "2:3", "9", "64"]),
        "fragment_stages": st.sampled_from(["1", "2", "8"]),
        "smem": st.sampled_from(
            ["none", "pad:7", "pad:8", "pad_alternate:8", "xor:3,3,3", "xor:9,0,0", "xor:0,3,3", "xor:1,60,3"]
        ),
        "align": st.sampled_from(["8", "4", "2", "1"]),
        "layout": st.sampled_from(["tn", "nn", "nt", "tt"]),
        "raster": st.sampled_from(["row", "group:3", "panel:100"]),
        "schedule": st.sampled_from(["persistent", "split_k:1", "split_k:3"]),
        "ctas_per_sm": st.sampled_from(["1", "3", "32"]),
        "acc": st.sampled_from(["f32", "f16", "f16_promoted"]),
        "out": st.sampled_from(["f16", "bf16", "f32"]),
        "dtype": st.sampled_from(["f16", "bf16"]),
    },
)


@settings(max_examples=60, deadline=None)
@given(values)
def test_any_request_is_planned_or_rejected(texts: dict[str, str]) -> None:
    found = sweep([texts])
    assert found.candidates == sweep([texts]).candidates
    for candidate in found.illegal:
        assert all(violation.fix and "\n" not in str(violation) for violation in candidate.broken)


# ==== Shards ==========================================================================================================

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
def test_shards_partition_a_sweep(symbols: list[str], count: int) -> None:
    assert sorted(symbol for part in parts(symbols, count) for symbol in part) == sorted(symbols)


@given(SYMBOLS, st.integers(1, 16), st.data())
def test_an_added_kernel_moves_no_other(symbols: list[str], count: int, data: st.DataObject) -> None:
    fewer = data.draw(st.lists(st.sampled_from(symbols), unique=True)) if symbols else []
    for some, all_of_them in zip(parts(fewer, count), parts(symbols, count)):
        assert {*some} == {*all_of_them} & {*fewer}


def test_shards_ignore_the_order_of_a_sweep() -> None:
    """Of 648 kernels in 8 shards each has 81, give or take a fifth, and as many of each architecture."""
    specs = {symbol_of(plan.spec): plan.spec for plan in sweep([WIDE]).plans}
    assert len(specs) == 648
    for part in parts(list(specs), 8):
        archs = Counter(specs[symbol].arch for symbol in part)
        assert 65 <= len(part) <= 97 and all(15 <= archs[name] <= 40 for name in ("sm_80", "sm_86", "sm_89"))


def test_a_kernel_stays_in_its_shard_from_version_to_version() -> None:
    assert [Shard(number, 4).takes("hgemm_sm80_tn") for number in range(1, 5)] == [False, True, False, False]


@pytest.mark.parametrize("text", ["0/4", "5/4", "1/0", "-1/4", "1", "a/b", "", "1/4/2", "1,4", "¹/4"])
def test_malformed_shard_is_rejected(text: str) -> None:
    with pytest.raises(RequestError, match="write i/n with 1 <= i <= n"):
        Shard.parse(text)


def test_generate_builds_its_shard_only(tmp_path: Path) -> None:
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
        f"generate: shard {number}/3 has {len(part)} of 12 kernels\n" for number, part in enumerate(symbols, 1)
    ]


def test_a_shard_without_kernels_is_no_error(tmp_path: Path) -> None:
    words = ["--arch", "sm_80", "--tile", "32x32x16", "--library", tmp_path / "library"]
    made = [call("generate", *words, "--shard", f"{number}/2", "--dry-run", "--json") for number in (1, 2)]
    assert [done.returncode for done in made] == [0, 0]
    counts = [len(json.loads(done.stdout)) for done in made]
    assert sorted(counts) == [0, 1] and not (tmp_path / "library").exists()
    assert call("generate", *words, "--shard", f"{1 + counts.index(0)}/2").returncode == 0
    merged = call("hgemm", "merge", tmp_path / "library", "--to", tmp_path / "all")
    assert merged.returncode == 0 and "0 kernels added" in merged.stdout
