"""Specs and their fields: values read back as written, and invalid ones are rejected with a list of the valid ones."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import MISSING, fields

import pytest
import specs
from hypothesis import given, settings
from hypothesis import strategies as st

from generator.errors import RequestError
from generator.export.c_sources import ENUMS
from generator.families import alias_of, family_of
from generator.families.wgmma.rules import CLUSTER_SPLITS
from generator.planner import plan_of, resolve
from generator.spec import (
    BY_FIELD,
    BY_NAME,
    FIELDS,
    Raster,
    Schedule,
    Spec,
    Tile,
    option_of,
    parse_field,
    spec_hash,
    symbol_of,
)
from hgemm.errors import DeprecatedWord
from hgemm.problem import ACTIVATIONS, LAUNCH, Kind

VALUES = {
    "cta_tile": specs.any_tiles,
    "warp_tile": specs.warp_tiles,
    "smem_a": specs.any_smem,
    "raster": specs.rasters,
    "schedule": specs.schedules,
    "cluster": specs.clusters,
}


@pytest.mark.parametrize("name", VALUES)
def test_values_round_trip_through_text(name: str) -> None:
    @given(VALUES[name])
    def check(value: object) -> None:
        assert parse_field(name, str(value)) == value
        assert parse_field(name, f" {str(value).upper()} ") == value

    check()


@settings(max_examples=100, deadline=None)
@given(specs.requests)
def test_a_spec_reads_back_from_json_and_from_texts(request_: dict) -> None:
    spec = resolve(request_)
    plain = spec.to_dict()
    assert Spec.from_dict(json.loads(json.dumps(plain))) == spec
    assert {name: parse_field(name, str(text)) for name, text in plain.items()} == vars(spec)
    assert list(plain) == [field.name for field in fields(Spec)]


@settings(max_examples=100, deadline=None)
@given(specs.requests, specs.requests)
def test_different_specs_give_different_symbols(first: dict, second: dict) -> None:
    one, other = resolve(first), resolve(second)
    assert (symbol_of(one) == symbol_of(other)) == (one == other)
    assert symbol_of(one).isidentifier()
    assert len(symbol_of(one)) <= 64


@settings(max_examples=100, deadline=None)
@given(specs.requests, st.data())
def test_different_fields_give_different_symbols(request_: dict, data: st.DataObject) -> None:
    spec = resolve(request_)
    name = data.draw(st.sampled_from([*BY_FIELD]))
    others = [value for value in OTHERS[name] if str(value) != str(getattr(spec, name))]
    other = Spec.from_dict({**spec.to_dict(), name: data.draw(st.sampled_from(others))}) if others else spec
    assert (symbol_of(other) == symbol_of(spec)) == (other == spec)


def test_a_symbol_has_the_searchable_fields_and_the_hash_of_the_spec() -> None:
    spec = resolve({"arch": "sm_89", "cta_tile": Tile(128, 128, 32)})
    assert symbol_of(spec) == f"hgemm_sm89_tn_f16_f32_f16_128x128x32_s3_{spec_hash(spec)[:8]}" == PLAIN
    mixed = spec.replace(
        arch="sm_120a", dtype_a="bf16", dtype_b="tf32", acc="f16_promoted", cta_tile=Tile(10**5, 10**5, 10**5)
    )
    assert symbol_of(mixed).startswith("hgemm_sm120a_tn_bf16tf32_f16p_f16_") and len(symbol_of(mixed)) == 64


def test_default_fields_are_not_hashed() -> None:
    spec = resolve({"arch": "sm_89", "cta_tile": Tile(128, 128, 32)})
    required = [field.name for field in fields(Spec) if field.default is MISSING]
    values = {name: value for name, value in spec.to_dict().items() if name in required}
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    assert spec_hash(spec) == hashlib.sha256(canonical.encode()).hexdigest()
    assert spec_hash(spec.replace(form="cute")) != spec_hash(spec)


@pytest.mark.parametrize(
    ("field", "old", "new"),
    [
        ("copy", "vector", "ldg_sts"),
        ("copy", "scalar", "ldg_sts_scalar"),
        ("copy", "shifted", "ldg_sts_unaligned"),
        ("schedule", "cluster_k:4", "split_k_cluster:4"),
    ],
)
def test_old_words_are_read_with_a_note_that_names_the_new_ones(field: str, old: str, new: str) -> None:
    with pytest.warns(DeprecatedWord, match=f"{field} {old} is deprecated: use {new}"):
        assert parse_field(field, old) == parse_field(field, new)
    with pytest.warns(DeprecatedWord, match="--swapped is deprecated: use swap_ab"):
        assert option_of("--swapped").name == "swap_ab"


def test_specs_of_old_records_are_read_without_a_note() -> None:
    spec = resolve({"arch": "sm_90a", "cta_tile": Tile(64, 128, 64)})
    old = {**spec.to_dict(), "swapped": "true", "schedule": "cluster_k:4"}
    del old["swap_ab"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Spec.from_dict(old) == spec.replace(swap_ab=True, schedule=parse_field("schedule", "split_k_cluster:4"))


PLAIN = "hgemm_sm89_tn_f16_f32_f16_128x128x32_s3_1f3a4b39"

OTHERS: dict[str, list[str]] = {
    "arch": specs.SERVED,
    "epilogue": ["none", "relu(acc)"],
    "dtype_a": ["f16", "bf16"],
    "dtype_b": ["f16", "bf16"],
    "acc": ["f32", "f16", "f16_promoted"],
    "dtype_d": ["f16", "bf16", "f32"],
    "layout": ["tn", "nn", "nt", "tt"],
    "cta_tile": ["128x128x32", "12x8x128", "128x12x8"],
    "warp_tile": ["64x64", "6x464"],
    "mma": ["m16n8k16", "m16n8k8", "wmma16", "m64n128k16", "m64n256k16"],
    "stages": ["1", "11"],
    "fragment_stages": ["1", "2"],
    "copy": ["cp_async", "ldg_sts", "ldg_sts_scalar", "ldg_sts_unaligned", "tma"],
    "store_spacing": [0, 1, 5, 12],
    "prefetch": ["True", "False"],
    "smem_alloc": ["dynamic", "static"],
    "smem_a": ["none", "pad:8", "pad:16", "pad_alternate:8", "xor:1,3,3", "xor:2,3,3", "xor:1,10,2", "xor:1,3,9"],
    "smem_b": ["none", "pad:8", "pad:16", "pad_alternate:8", "xor:1,3,3", "xor:2,3,3", "xor:1,10,2", "xor:1,3,9"],
    "mma_order": ["row", "zigzag"],
    "raster": ["row", "column", "group:8", "panel:8"],
    "schedule": ["one_tile", "persistent", "split_k:2", "split_k_cluster:2"],
    "ctas_per_sm": ["1", "2"],
    "beta": ["True", "False"],
    "bias": ["none", "row", "column"],
    "activation": [*ACTIVATIONS],
    "store": ["direct", "smem", "tma"],
    "align_a": ["8", "4", "2", "1"],
    "align_b": ["8", "4", "2", "1"],
    "align_d": ["8", "4", "2", "1"],
    "consumers": ["0", "1", "2", "3"],
    "cooperation": ["cooperative", "pingpong"],
    "cluster": ["1x1", "2x1", "1x2", "12x1", "1x12"],
    "swap_ab": ["True", "False"],
    "serial_parts": ["True", "False"],
    "pointer_arrays": ["True", "False"],
    "form": ["atoms", "cute"],
}


def test_alias_is_the_cutlass_name() -> None:
    texts = {"arch": "sm_80", "cta_tile": "128x128x32", "stages": "3"}
    spec = resolve({name: parse_field(name, text) for name, text in texts.items()})
    assert alias_of(spec) == "cutlass_tensorop_f16_s16816gemm_f16_128x128_32x3_tn_align8"
    half = Spec.from_dict({**spec.to_dict(), "acc": "f16", "mma": "m16n8k8", "align_b": "2", "layout": "nt"})
    assert alias_of(half) == "cutlass_tensorop_h1688gemm_128x128_32x3_nt_align2"


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        ("cta_tile", "128x128", "128x128x32"),
        ("cta_tile", "128x128x-32", "128x128x32"),
        ("warp_tile", "64*64", "64x64"),
        ("smem_a", "xor:1,3", "xor:2,3,3"),
        ("smem_a", "pad", "pad:8"),
        ("smem_b", "pad_alternate:x", "pad_alternate:8"),
        ("smem_b", "swizzle", "xor:B,M,S"),
        ("raster", "group", "raster 'group': group takes 1 to 999,999 rows of tiles, as group:8"),
        ("raster", "group:0", "as group:8"),
        ("raster", "panel:x", "panel takes 1 to 999,999 columns of D, as panel:1024"),
        ("raster", "row:2", "row takes no number"),
        ("raster", "groups", "did you mean group:TILES? use row, column, launch, group:TILES, panel:COLUMNS"),
        ("schedule", "split_k", "split_k takes 2 to 64 parts, as split_k:4"),
        ("schedule", "split_k:-1", "split_k takes 2 to 64 parts, as split_k:4"),
        (
            "schedule",
            "split_k_cluster:0",
            f"split_k_cluster takes {CLUSTER_SPLITS[0]} to {CLUSTER_SPLITS[-1]} CTAs, as split_k_cluster:2",
        ),
        ("raster", "hilbert", "not supported: use group:TILES"),
        ("stages", "0", "1 to 16"),
        ("stages", "²", "1 to 16"),
        ("ctas_per_sm", "33", "1 to 32"),
        ("beta", "maybe", "use on, off"),
        ("mma", "m64n256k4", "wgmma"),
        ("cluster", "2", "2x1"),
        ("cluster", "0x1", "2x1"),
        ("consumers", "4", "0 to 3"),
        ("acc", "tf32", "f32, f16_promoted, f16"),
        ("align_a", "16", "8, 4, 2, 1"),
        ("align_b", "3", "8, 4, 2, 1"),
        ("colour", "red", "cta_tile"),
    ],
)
def test_illegal_value_gives_a_one_line_error_with_the_legal_ones(name: str, text: str, advice: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_field(name, text)
    assert advice in str(caught.value) and "\n" not in str(caught.value)


# ---- The table of fields ---------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_each_field() -> None:
    assert {row.name for row in FIELDS} == {field.name for field in fields(Spec)} and len(FIELDS) == len(BY_FIELD)
    assert all(row.parse(word, row.name) is not None for row in FIELDS for word in row.words if word != "auto")


def test_run_time_and_c_header_share_the_words_of_the_table() -> None:
    enums = {enum.name: enum.words for enum in ENUMS}
    known = {row.name: row for row in FIELDS if row.enum}
    assert known.keys() == {field.name for field in fields(Kind)} - {"epilogue", "pointer_arrays"} and {
        row.enum for row in known.values()
    } == enums.keys() - {"input_kind"}  # an input of an expression has no field of its own
    for row in known.values():
        words = tuple(word for word in row.words if word != LAUNCH)  # a kernel's value, which no problem has
        assert {*words} <= {*enums[row.enum]} and (row.enum == "dtype" or words == enums[row.enum])
        for word in row.words:
            assert getattr(Kind(**{row.name: word}), row.name) == word


@pytest.mark.parametrize(
    "request_",
    [
        {"arch": "sm_80", "copy": "ldg_sts", "stages": 2},
        {"arch": "sm_90", "copy": "tma"},
        {"arch": "sm_90a"},
    ],
    ids=lambda request_: str(request_["arch"]),
)
def test_families_fix_the_fields_they_do_not_use(request_: dict) -> None:
    plan = plan_of(resolve(request_))
    closed = {row.name for row in FIELDS if row.families and family_of(plan.spec).name not in row.families}
    assert {*plan.fixed_fields} - {"mma"} == closed


@pytest.mark.parametrize(
    ("field", "text", "word"),
    [
        *(("dtype_a", text, "f16") for text in ("fp16", "float16", "half", "FP16", " Half ")),
        *(("dtype_b", text, "bf16") for text in ("bfloat16", "BF16")),
        *(("dtype_d", text, "f32") for text in ("fp32", "float32", "float", "single")),
        ("acc", "float32", "f32"),
        ("acc", "fp16", "f16"),
    ],
)
def test_other_spellings_of_types_are_accepted(field: str, text: str, word: str) -> None:
    assert parse_field(field, text) == word


def test_help_and_errors_use_the_same_placeholders() -> None:
    for name, kind in (("raster", Raster), ("schedule", Schedule)):
        assert all(f"{word}:{number}" in BY_NAME[name].help for word, (number, _) in kind.sized.items())
        assert all(
            str(parse_field(name, example.split()[-1])) == example.split()[-1] for _, example in kind.sized.values()
        )


@settings(max_examples=100)
@given(st.sampled_from([*BY_FIELD]), st.text(max_size=12))
def test_any_text_is_a_value_or_a_one_line_error(name: str, text: str) -> None:
    try:
        parse_field(name, text)
    except RequestError as error:
        assert len(str(error).splitlines()) <= 1 + len(text.splitlines())


def test_spec_of_a_record_must_be_complete() -> None:
    plain = resolve({"arch": "sm_80"}).to_dict()
    del plain["layout"], plain["store"]
    with pytest.raises(RequestError, match="lacks layout, store"):
        Spec.from_dict(plain)
    with pytest.raises(RequestError, match="no field 'colour'"):
        Spec.from_dict({**resolve({"arch": "sm_80"}).to_dict(), "colour": "red"})
