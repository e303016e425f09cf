"""Names of CUTLASS's library: a kernel's alias equals the name, and names without a spec are rejected with the reason."""

from __future__ import annotations

from collections import Counter

import pytest
from click.testing import CliRunner

from generator.catalog import load_catalog
from generator.cli.main import generate_command
from generator.cutlass_names import MAX_REASONS, library_names, library_operations, requests_named, texts_of_name
from generator.errors import RequestError
from generator.families import alias_of
from generator.families.wgmma import exchanged_layout
from generator.planner import plan_of, resolve, rules_of
from generator.spec import Spec, parse_field
from generator.sweep import sweep

OLDER = "cutlass_tensorop_h16816gemm_128x128_32x4_tn_align8"
NEWER = (
    "cutlass3x_sm90_tensorop_gemm_f16_f16_f32_f16_f16_128x256x64_2x1x1_0_nnn_align8_warpspecialized_cooperative_epi_tma"
)


def spec_of(name: str) -> Spec:
    """Return the spec of a name, legal or not."""
    [candidate] = sweep([texts_of_name(name)]).candidates
    return candidate.plan.spec


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (OLDER, "sm_80 f16 f16 f16 tn 128x128x32 m16n8k16 4 8"),
        ("cutlass_tensorop_s16816gemm_bf16_64x256_64x3_nt_align4", "sm_80 bf16 f32 f32 nt 64x256x64 m16n8k16 3 4"),
        ("cutlass_wmma_tensorop_s161616gemm_f16_128x64_32x2_tt_align8", "sm_80 f16 f32 f32 tt 128x64x32 wmma16 2 8"),
        ("cutlass_tensorop_f16_s16816gemm_f16_64x64_32x10_nn_align2", "sm_80 f16 f32 f16 nn 64x64x32 m16n8k16 10 2"),
        ("cutlass_tensorop_f16_s1688gemm_f16_256x64_32x2_nn_align1", "sm_75 f16 f32 f16 nn 256x64x32 m16n8k8 2 1"),
        ("cutlass_tensorop_s1688gemm_tf32_128x128_16x4_tn_align4", "sm_80 tf32 f32 f32 tn 128x128x16 m16n8k8 4 4"),
    ],
)
def test_name_gives_types_layout_tile_instruction_stages_and_alignment(name: str, fields: str) -> None:
    spec = spec_of(name)
    said = "arch dtype_a acc dtype_d layout cta_tile mma stages align_a".split()
    assert [str(getattr(spec, field)) for field in said] == fields.split()
    assert (spec.dtype_b, spec.align_b) == (spec.dtype_a, spec.align_a)
    assert alias_of(spec) == name


def test_column_major_d_is_the_exchanged_product() -> None:
    spec = spec_of(NEWER)
    assert (spec.layout, str(spec.cta_tile), str(spec.cluster), spec.swap_ab) == ("tt", "256x128x64", "1x2", True)
    row_major = spec_of(NEWER.replace("nnn", "nnt"))
    assert (row_major.layout, str(row_major.cta_tile), row_major.swap_ab) == ("nn", "128x256x64", False)
    assert "column-major D" in requests_named(NEWER).remarks[0]


def test_names_of_cp_async_kernels_round_trip() -> None:
    name = NEWER.replace("2x1x1_0_nnn_align8_", "1x1x1_4_ntt_align2_cpasync_").replace("epi_tma", "epi_nosmem")
    spec = spec_of(name)
    assert (spec.copy, spec.align_a, spec.store) == ("cp_async", 2, "direct")
    assert alias_of(spec) == name


def test_names_of_stream_k_round_trip() -> None:
    name = NEWER.replace("nnn_align8_", "tnt_align8_stream_k_").replace("x1_0_", "x1_4_")
    spec = spec_of(name)
    assert str(spec.schedule) == "stream_k" and spec.cooperation == "cooperative"
    assert alias_of(spec) == name


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_exchanged_layout_transposes_the_operands(layout: str) -> None:
    """A is k-contiguous where its letter is t, B where it is n; transposing moves nothing in memory."""
    assert exchanged_layout(exchanged_layout(layout)) == layout
    k_contiguous = (layout[0] == "t", layout[1] == "n")
    assert (exchanged_layout(layout)[0] == "t", exchanged_layout(layout)[1] == "n") == k_contiguous[::-1]


def test_aliases_of_shipped_kernels_round_trip() -> None:
    for spec in (plan.spec for plan in sweep(load_catalog()).plans):
        texts = {name: text for name, text in texts_of_name(alias_of(spec)).items() if name not in ("arch", "out")}
        named = resolve({"arch": spec.arch, "dtype_d": spec.dtype_d} | fields_of(texts))
        assert alias_of(named) == alias_of(spec)


def fields_of(texts: dict[str, str]) -> dict:
    """Return the fields of a request that name each one field, `tile` and the like by theirs."""
    return {name: parse_field(name, text) for name, text in ({"cta_tile": texts.pop("tile")} | texts).items()}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cutlass_tensorop_s16832spgemm_f16_128x128_64x3_tn_align8", "sparse"),
        ("cutlass_tensorop_h16816gemm_planar_complex_64x64_64x3_tn_align8", "planar complex"),
        ("cutlass_tensorop_h16816gemm_grouped_64x64_64x5_tn_align2_scheduleDevice", "group of products"),
        ("cutlass_simt_sgemm_128x128_8x2_nn_align1", "no tensor cores"),
        ("cutlass_tensorop_s16816gemm_f16_s8_128x128_64x3_tn_align8", "8 bits: a spec has inputs of f16, bf16 or tf32"),
        ("cutlass_tensorop_d884gemm_128x128_16x3_nn_align1", "f64 inputs"),
        ("cutlass_tensorop_i8816gemm_s8_128x128_64x2_tn_align16", "types of 8 bits"),
        ("cutlass_tensorop_gz884gemm_32x64_8x4_cc_align1", "complex numbers"),
        ("cutlass_tensorop_tf32_s1688gemm_tf32_128x128_16x3_nn_align1", "a D of tf32"),
        ("cutlass_tensorop_s1688gemm_128x128_16x3_tn_align4", "f32 inputs that the kernel converts"),
        (NEWER.replace("f32_f16_f16", "f32_f32_f16"), "a C of another type than D"),
        (NEWER.replace("f16_f16", "e4m3_e4m3", 1), "types of 8 bits"),
        (OLDER.replace("32x4", "32x99"), "stages '99'"),
        (OLDER.replace("align8", "align8x"), "no matrix product"),
        (OLDER.replace("16816", "161616"), "no matrix product"),
        (OLDER.replace("tensorop", "wmma_tensorop"), "no matrix product"),
        ("128x128", "write one as cutlass_tensorop_"),
    ],
)
def test_names_without_a_spec_are_rejected_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as raised:
        requests_named(name)
    assert name in str(raised.value)


def test_glob_requests_every_match_and_lists_skipped_names() -> None:
    named = requests_named("cutlass_tensorop_h16816gemm*_64x64_*_tn_align8*")
    assert [texts["tile"] for texts in named.requests] == ["64x64x32", "64x64x64"]
    assert any("planar complex" in remark and "group" in remark for remark in named.remarks)
    for glob in ("no_such_*", "cutlass_*planar*", " , "):
        with pytest.raises(RequestError, match="names|is empty"):
            requests_named(glob)


def test_reasons_are_listed_by_frequency_up_to_a_limit() -> None:
    [left_out, _] = requests_named("*").remarks
    lines = left_out.splitlines()
    counts = [int(line.split()[0].replace(",", "")) for line in lines[1:-1]]
    assert len(counts) == MAX_REASONS and counts == sorted(counts, reverse=True)
    assert "more reasons" in lines[-1] and "did you mean" not in left_out and max(map(len, lines)) < 120
    with pytest.raises(RequestError) as error:
        requests_named("cutlass_tensorop_d884*")
    [header, reason] = str(error.value).splitlines()
    assert "none of which is supported" in header and reason.split(maxsplit=1)[1] == "f64 inputs"


def test_every_cutlass_name_has_a_spec_or_a_known_reason() -> None:
    reasons = {str(error) for error in map(refusal, library_names()) if error}
    assert not [reason for reason in reasons if "no matrix product" in reason or "an unsupported value" in reason]


def refusal(name: str) -> RequestError | None:
    try:
        texts_of_name(name)
    except RequestError as error:
        return error
    return None


def test_options_override_cutlass_names() -> None:
    done = CliRunner().invoke(
        generate_command, ["--kernels", OLDER, "--arch", "89", "--stages", "3", "--dry-run", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert "listing" not in done.stderr
    assert "hgemm_sm89_tn_f16_f16_f16_128x128x32_s3_" in done.stdout


def test_glob_prints_a_note_that_listing_takes_time() -> None:
    done = CliRunner().invoke(generate_command, ["--kernels", "cutlass_tensorop_d884*", "--dry-run"])
    assert "listing the names of CUTLASS's library" in done.stderr


# ---- The installed library, whole -----------------------------------------------------------------------------------


def verdict(name: str) -> str:
    """Return why no legal spec has this name: the reason or the rules; nothing where one has."""
    try:
        texts = texts_of_name(name)
    except RequestError as error:
        return str(error).partition(": ")[2] or str(error)
    request_ = fields_of({"dtype_d" if name == "out" else name: text for name, text in texts.items()})
    plan = plan_of(resolve(request_))
    return " ".join(rule.name for rule in rules_of(plan) if rule.check(plan))


@pytest.mark.slow
def test_plain_f16_names_have_a_spec_or_a_known_reason(capsys: pytest.CaptureFixture) -> None:
    """Plain are those of f16 with f16 that are neither sparse, planar complex nor grouped, by CUTLASS's own description."""
    from cutlass_library.library import DataType, GemmKind

    kinds = (GemmKind.Universal, GemmKind.Universal3x)
    names = {
        operation.procedural_name(): operation.arch
        for operation in library_operations()
        if operation.gemm_kind in kinds and operation.A.element == operation.B.element == DataType.f16
    }
    counts = Counter((arch, verdict(name)) for name, arch in names.items())
    table = [f"sm_{arch} {count:5} {why or 'expressed'}" for (arch, why), count in sorted(counts.items())]
    with capsys.disabled():
        print("", *table, sep="\n")
    totals = {arch: sum(count for key, count in counts.items() if key[0] == arch) for arch in (75, 80, 90)}
    least = {75: 0.90, 80: 0.99, 90: 0.78}
    assert {arch: counts[arch, ""] / total >= least[arch] for arch, total in totals.items()} == dict.fromkeys(
        least, True
    )
    rules = {"", "alignment", "consumers", "cooperation", "family", "fixed_fields", "registers"}
    assert all(rules.issuperset(why.split()) for _, why in counts)


def test_older_names_round_trip_as_aliases() -> None:
    names = [name for name in library_names() if name.startswith("cutlass_tensorop_")]
    counts = Counter(alias_of(resolve(request_)) == name for name, request_ in map(request_of, names) if request_)
    assert counts[True] >= 1260 and not counts[False]


def request_of(name: str) -> tuple[str, dict]:
    try:
        texts = texts_of_name(name)
    except RequestError:
        return name, {}
    texts = {"dtype_d" if option == "out" else option: text for option, text in texts.items()}
    return name, fields_of(
        {**texts, "warp_tile": "64x64"}
    )  # which the alias leaves out, and planning takes longest to find
