"""Twins, kernels that differ only in types or architecture: when they are twins, and what is run of the further ones."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from conftest import SMALL, ptx_of, subject_of
from simulated import record

from benchmarks.faults import FAULTS, faulty_templates
from generator.build.emit import emit
from generator.build.toolchain import templates_folder
from generator.proof import proving
from generator.proof.bits import require_order
from generator.proof.executor import HostToolchain
from generator.proof.jobs import ProofSource, prove_texts
from generator.proof.machine import default_cases, number_cases
from generator.proof.proving import check_numbers
from generator.proof.twins import twin_key
from generator.ptx.parser import PtxError, parse, parse_like
from generator.ptx.translate import translate
from generator.sweep import sweep
from hgemm.cases import KINDS
from hgemm.launch_traits import LaunchTraits

EDGE = next(fault for fault in FAULTS if fault.name == "row past the edge of D")


def text_of(**fields: str) -> ProofSource:
    (plan,) = sweep([{**SMALL, "layout": "tn", **fields}]).plans
    return ProofSource.of(emit(plan, templates_folder()))


def key_of(text: ProofSource, ptx: str = "") -> str:
    return twin_key(text.symbol, ptx or ptx_of(text.kernel).decode(), text.record)


@pytest.fixture(scope="module")
def twins() -> tuple[ProofSource, ProofSource]:
    return text_of(dtype="f16"), text_of(dtype="bf16")


# ---- Which kernels are twins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields", [{}, {"arch": "sm_90a", "tile": "64x32x64"}, {"bias": "row"}], ids=["mma", "wgmma", "bias"]
)
def test_kernels_of_both_types_are_twins(fields: dict[str, str]) -> None:
    first, second = text_of(dtype="f16", **fields), text_of(dtype="bf16", **fields)
    assert key_of(first) and key_of(first) == key_of(second)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_kernels_of_two_architectures_are_twins(twins: tuple[ProofSource, ProofSource], dtype: str) -> None:
    assert {key_of(text_of(dtype=dtype, arch=arch)) for arch in ("sm_80", "sm_89", "sm_90")} == {key_of(twins[0])}


@pytest.mark.parametrize("fields", [{"stages": "3"}, {"layout": "nn"}, {"beta": "off"}, {"tile": "32x64x16"}])
def test_kernels_with_other_differences_are_no_twins(
    twins: tuple[ProofSource, ProofSource], fields: dict[str, str]
) -> None:
    assert key_of(twins[0]) != key_of(text_of(dtype="bf16", **fields))


@pytest.mark.parametrize("fields", [{"dtype": "tf32"}, {"dtype": "f16", "dtype-d": "f32"}])
def test_other_types_have_no_twins(fields: dict[str, str]) -> None:
    assert key_of(text_of(**fields)) == ""


@pytest.mark.parametrize("at", (0, 1), ids=["f16", "bf16"])
def test_any_other_changed_line_makes_no_twins(twins: tuple[ProofSource, ProofSource], at: int) -> None:
    text = twins[at]
    lines, key = ptx_of(text.kernel).decode().splitlines(), key_of(text)
    body = [i for i, line in enumerate(lines) if line.strip().endswith((";", ";}", "; }")) and "%" in line]
    assert len(body) > 100
    for i in body:
        assert key_of(text, "\n".join([*lines[:i], *lines[i + 1 :]])) != key, lines[i]


def test_an_instruction_of_the_other_type_makes_no_twins(twins: tuple[ProofSource, ProofSource]) -> None:
    for text, own, other in zip(twins, ("f16", "bf16"), ("bf16", "f16")):
        ptx = ptx_of(text.kernel).decode()
        places = [found.start() for found in re.finditer(rf"(?<=\.){own}", ptx)]
        assert len(places) > 4
        for at in places:
            assert key_of(text, ptx[:at] + other + ptx[at + len(own) :]) == ""


def test_f16_numbers_read_as_bf16_make_no_twins(twins: tuple[ProofSource, ProofSource]) -> None:
    ptx = ptx_of(twins[0].kernel).decode()
    wrong, count = re.subn(r"cvt\.f32\.f16 (%f\d+), (%rs\d+);", r"mov.b32 \1, {0,\2};", ptx, count=1)
    assert count == 1 and key_of(twins[0], wrong) == ""


def test_different_records_make_no_twins(twins: tuple[ProofSource, ProofSource]) -> None:
    first, second = twins
    for section, name, value in (("launch", "smem_bytes", 1), ("spec", "stages", 9), ("traits", "graph_safe", False)):
        changed = {**second.record, section: {**second.record[section], name: value}}
        assert key_of(replace(second, record=changed)) != key_of(first)


# ---- What the second one runs ---------------------------------------------------------------------------------------


def test_the_second_twin_runs_the_cases_of_numbers(
    host_toolchain: HostToolchain, twins: tuple[ProofSource, ProofSource]
) -> None:
    first, second = prove_texts(twins, host_toolchain, 1)
    assert first.passed and first.proof and not first.twin
    assert second.passed and second.twin == first.symbol == twins[0].symbol and not second.proof
    assert 0 < len(second.shapes) < len(first.shapes) / 4
    (alone,) = prove_texts(twins[1:], host_toolchain, 1)
    assert len(alone.shapes) == len(first.shapes) and alone.proof
    both = [*prove_texts(twins, host_toolchain, 1, twins=False)]
    assert all(outcome.proof and not outcome.twin for outcome in both)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_second_twin_runs_its_own_instructions(host_toolchain: HostToolchain, arch: str) -> None:
    fields = {"arch": arch, **({"tile": "64x32x64"} if arch == "sm_90a" else {})}
    first, second = (subject_of(text_of(dtype=dtype, **fields).kernel) for dtype in ("f16", "bf16"))
    assert all(check.passed for check in check_numbers(first, second, host_toolchain))
    for right, wrong in ((r"cvt\.rn\.(bf16\w*)", r"cvt.rz.\1"), (r"(w?g?mma\S*)\.bf16\.bf16", r"\1.f16.f16")):
        ptx, count = re.subn(right, wrong, second.ptx, count=1)
        assert count == 1
        assert not all(check.passed for check in check_numbers(first, replace(second, ptx=ptx), host_toolchain))


def test_twins_of_another_architecture_run_the_cases_of_numbers(host_toolchain: HostToolchain) -> None:
    texts = [text_of(dtype=dtype, arch=arch) for arch in ("sm_90", "sm_80", "sm_89") for dtype in ("bf16", "f16")]
    outcomes = [*prove_texts(texts, host_toolchain, 1)]
    assert [outcome.symbol for outcome in outcomes] == [text.symbol for text in texts]
    assert all(outcome.passed for outcome in outcomes)
    assert [bool(outcome.proof) for outcome in outcomes] == [False, True, False, False, False, False]
    assert {outcome.twin for outcome in outcomes} == {"", texts[1].symbol}


def test_a_twin_of_another_architecture_has_its_own_arithmetic(
    host_toolchain: HostToolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (subject_of(text_of(dtype="f16", arch=arch).kernel) for arch in ("sm_80", "sm_90"))
    assert all(check.passed for check in check_numbers(first, second, host_toolchain))
    monkeypatch.setattr(proving, "require_order", lambda record, arch: require_order(record, 80))
    assert not all(check.passed for check in check_numbers(first, second, host_toolchain))


@pytest.mark.parametrize("fields", [{"stages": "3"}, {"layout": "nn"}, {"beta": "off"}])
def test_other_kernels_are_not_built_as_twins(twins: tuple[ProofSource, ProofSource], fields: dict[str, str]) -> None:
    one, other = subject_of(twins[0].kernel), subject_of(text_of(dtype="bf16", **fields).kernel)
    with pytest.raises(PtxError, match="the kernels are no twins"):
        translate(parse(one.ptx), one.symbol, (parse(other.ptx), other.symbol))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_twin_translation_equals_a_separate_parse(arch: str) -> None:
    fields = {"arch": arch, **({"tile": "64x32x64"} if arch == "sm_90a" else {})}
    pair = [subject_of(text_of(dtype=dtype, **fields).kernel) for dtype in ("f16", "bf16")]
    for one, other in (pair, reversed(pair)):
        shared = parse_like(other.ptx, other.symbol, one.ptx, one.symbol)
        alone = parse(other.ptx)
        assert (
            shared.target == alone.target and shared.kernel(other.symbol).cluster == alone.kernel(other.symbol).cluster
        )
        found, expected = (translate(parse(one.ptx), one.symbol, (two, other.symbol)) for two in (shared, alone))
        assert found == expected


def test_texts_with_other_operands_are_parsed_separately(twins: tuple[ProofSource, ProofSource]) -> None:
    one, other = (subject_of(text.kernel) for text in twins)
    lines = other.ptx.splitlines()
    body = [i for i, line in enumerate(lines) if re.search(r"%r\d+[,;\]]", line) and ".reg" not in line]
    for i in body[::20]:
        changed = "\n".join([*lines[:i], re.sub(r"%r\d+(?=[,;\]])", "%r0", lines[i]), *lines[i + 1 :]])
        found = parse_like(changed, other.symbol, one.ptx, one.symbol)
        assert found.kernel(other.symbol).body == parse(changed).kernel(other.symbol).body
    fewer = "\n".join(lines[: body[0]] + lines[body[0] + 1 :])
    assert parse_like(fewer, other.symbol, one.ptx, one.symbol) == parse(fewer)


def test_faults_of_both_twins_are_found_in_both(
    host_toolchain: HostToolchain, twins: tuple[ProofSource, ProofSource]
) -> None:
    with faulty_templates(EDGE) as templates:
        outcomes = [*prove_texts(twins, replace(host_toolchain, templates=templates), 1)]
    assert all(outcome.failed and not outcome.twin and "bounds at " in outcome.reason for outcome in outcomes)


@pytest.mark.parametrize("rule", ["one_tile", "split_k", "persistent", "stream_k"])
@pytest.mark.parametrize("beta", (True, False))
def test_number_cases_cover_whole_and_ragged_shapes(rule: str, beta: bool) -> None:
    traits = LaunchTraits.of(record(rule, **({"splits": 3} if rule == "split_k" else {}), beta=beta))
    whole, ragged, *_ = number_cases(traits, stages=3)
    assert not whole.numbers and not ragged.numbers and len(KINDS) == 2
    extents = [(traits.tile_m, "m"), (traits.tile_n, "n"), (traits.tile_k, "k")]
    assert all(getattr(whole.shape, name) % tile == 0 for tile, name in extents)
    assert all(getattr(ragged.shape, name) % tile and getattr(ragged.shape, name) > tile for tile, name in extents)
    assert bool(ragged.beta) == beta and ragged.loose


def test_number_cases_cover_the_options_of_a_launch() -> None:
    traits = LaunchTraits.of(record("launch", bias="launch"))
    default = default_cases(traits, stages=3)
    found = number_cases(traits, stages=3)
    assert {case.bias for case in found} == {case.bias for case in default}
    assert any(case.options and case.options.splits > 1 for case in found)
