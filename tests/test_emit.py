"""Emitting: templates use exactly the given values, and the text is stable, ASCII and checked by static_assert."""

from __future__ import annotations

import os
import subprocess
import sys

import jinja2
import pytest
from conftest import ROOT
from jinja2 import meta, nodes
from refusals import assert_refused_by_the_compiler

from generator.build.emit import EmittedKernel, _template, emit
from generator.build.toolchain import templates_folder
from generator.families.base import Plan
from generator.families.mma_sync.emit import FORMS
from generator.planner import violations
from generator.spec import Smem, symbol_of
from generator.sweep import sweep

TEMPLATES = templates_folder()
TEMPLATE, values = FORMS["atoms"].template, FORMS["atoms"].values
SMALL = {"arch": "sm_80", "tile": "32x32x16", "stages": "2"}
MAX_LINES = 65


def plan_of(**texts: str) -> Plan:
    (plan,) = sweep([{**SMALL, **texts}]).plans
    return plan


def values_of(plan: Plan) -> dict:
    return values(plan, "a_symbol")


# ---- Placeholders ---------------------------------------------------------------------------------------------------

COPIES = ({}, {"align": "1"}, {"arch": "sm_75"}, {"schedule": "stream_k"}, {"schedule": "launch"})
"""Kernels that name all fields of a Policy among them."""


def template_tree() -> nodes.Template:
    environment = jinja2.Environment()
    return environment.parse((TEMPLATES / TEMPLATE).read_text())


def test_template_uses_exactly_its_values() -> None:
    assert meta.find_undeclared_variables(template_tree()) == {*values_of(plan_of())}


@pytest.mark.parametrize("operand", ["a", "b"])
def test_template_uses_exactly_the_values_of_an_operand(operand: str) -> None:
    found = template_tree().find_all(nodes.Getattr)
    used = {node.attr for node in found if isinstance(node.node, nodes.Name) and node.node.name == operand}
    assert used == {*values_of(plan_of())[operand]}


def test_the_template_computes_nothing() -> None:
    """The template leaves out fields that a kernel does not read."""
    forbidden = (nodes.For, nodes.Macro, nodes.Filter, nodes.Call, nodes.Include, nodes.CondExpr, nodes.BinExpr)
    assert not [*template_tree().find_all(forbidden)]


@pytest.mark.parametrize("name", sorted(values_of(plan_of())))
def test_a_missing_value_is_an_error(name: str) -> None:
    found = [_missing({other: value for other, value in _rendered(texts).items() if other != name}) for texts in COPIES]
    assert f"'{name}' is undefined" in found


@pytest.mark.parametrize("name", sorted(values_of(plan_of())["a"]))
def test_a_missing_value_of_an_operand_is_an_error(name: str) -> None:
    found = []
    for texts in COPIES:
        given = _rendered(texts)
        del given["a"][name]
        found.append(_missing(given))
    assert any(f"no attribute '{name}'" in error for error in found)


def _rendered(texts: dict[str, str]) -> dict:
    return values_of(plan_of(**texts))


def _missing(given: dict) -> str:
    try:
        _template(TEMPLATES, TEMPLATE).render(given)
    except jinja2.UndefinedError as error:
        return str(error)
    return ""


# ---- The text -------------------------------------------------------------------------------------------------------

KINDS = (
    {},
    {"layout": "nt", "dtype": "bf16", "schedule": "persistent", "raster": "row"},
    {"layout": "tt", "acc": "f16", "align": "1", "store": "direct", "beta": "off", "smem": "pad:8"},
    {"layout": "nn", "out": "f32", "align_d": "4", "schedule": "split_k:4", "bias": "row", "activation": "gelu"},
    {"arch": "sm_75", "tile": "64x64x32", "smem_alloc": "static"},
)


@pytest.mark.parametrize("texts", KINDS, ids=lambda texts: texts.get("layout", "tn"))
def test_source_is_short_ascii_and_names_its_kernel(texts: dict[str, str]) -> None:
    kernel = emit(plan_of(**texts), TEMPLATES)
    lines = kernel.source.splitlines()
    assert kernel.source.isascii() and kernel.source.endswith("}\n") and "\r" not in kernel.source
    assert len(lines) <= MAX_LINES
    assert not [line for line in lines if line != line.rstrip() or "\t" in line or "{{" in line or "}}" in line]
    assert [line for line in lines if line.startswith("#")] == [f"#include <{kernel.entry_header}>"]
    assert lines[0] == f"// {kernel.symbol}" and kernel.source.count(f" {kernel.symbol}(") == 1
    assert str(TEMPLATES) not in kernel.source


def test_source_is_the_same_in_every_process() -> None:
    code = (
        "from test_emit import *\n"
        "import hashlib\n"
        "print(hashlib.sha256(''.join(emit(plan_of(**texts), TEMPLATES).source for texts in KINDS).encode()).hexdigest())"
    )
    hashes = set()
    for seed in ("1", "2"):
        path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path, "LC_ALL": "C", "TZ": f"UTC{seed}"}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        hashes.add(done.stdout)
    assert len(hashes) == 1


def test_source_depends_on_the_spec_only() -> None:
    assert emit(plan_of(), TEMPLATES) == emit(plan_of(), TEMPLATES)
    assert emit(plan_of(), TEMPLATES).source != emit(plan_of(raster="row"), TEMPLATES).source


# ---- Assertions across the border -----------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", KINDS, ids=lambda texts: texts.get("layout", "tn"))
def test_source_asserts_the_numbers_of_the_plan(texts: dict[str, str]) -> None:
    plan = plan_of(**texts)
    source = emit(plan, TEMPLATES).source
    assert f"static_assert(sizeof(hgemm::SharedStorage<Policy>) == {plan.smem_bytes});" in source
    assert f"static_assert(sizeof(hgemm::Mainloop<Policy>::Shared) == {plan.spec.stages * plan.stage_bytes});" in source
    assert f"static_assert(hgemm::Mainloop<Policy>::mma_per_k_tile == {plan.mma_per_k_tile});" in source


WRONG = (
    ("SharedStorage<Policy>) == ", "SharedStorage<Policy>) == 1"),
    ("Mainloop<Policy>::Shared) == ", "Mainloop<Policy>::Shared) == 1"),
    ("mma_per_k_tile == ", "mma_per_k_tile == 1"),
    ("warps_m = ", "warps_m = 3"),
    ("tile_m = ", "tile_m = 6"),
    ("pitch = ", "pitch = 1"),
)


@pytest.mark.parametrize("right, wrong", WRONG, ids=[right.strip(" =") for right, _ in WRONG])
def test_mismatched_constants_do_not_compile(right: str, wrong: str) -> None:
    assert_refused_by_the_compiler(emit(plan_of(), TEMPLATES), right, wrong)


# ---- Names ----------------------------------------------------------------------------------------------------------

OTHERS = {
    "arch": "sm_86",
    "dtype": "bf16",
    "acc": "f16",
    "out": "f32",
    "layout": "nn",
    "tile": "64x32x16",
    "warp_tile": "16x16",
    "mma": "m16n8k8",
    "stages": "3",
    "fragment_stages": "1",
    "smem_a": "pad:8",
    "smem_b": "pad_alternate:16",
    "mma_order": "row",
    "raster": "panel:64",
    "schedule": "persistent",
    "ctas_per_sm": "1",
    "beta": "off",
    "bias": "column",
    "activation": "silu",
    "store": "direct",
    "align_a": "4",
    "align_b": "2",
    "align_d": "1",
}


def kernel_of(**texts: str) -> EmittedKernel:
    return emit(
        plan_of(**{"align_d": "4", "warp_tile": "32x16", "ctas_per_sm": "2", "fragment_stages": "2", **texts}),
        TEMPLATES,
    )


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_changed_field_changes_symbol_and_source(name: str) -> None:
    pinned, other = kernel_of(), kernel_of(**{name: OTHERS[name]})
    assert other.symbol != pinned.symbol
    assert other.source.replace(other.symbol, pinned.symbol) != pinned.source


def test_no_two_legal_placements_share_a_symbol() -> None:
    xors = [Smem("xor", (bits, base, shift)) for bits in range(1, 4) for base in range(3, 14) for shift in range(1, 14)]
    pads = [Smem(kind, (elements,)) for kind in ("pad", "pad_alternate") for elements in range(8, 65, 8)]
    plans = [plan_of().replace(smem_a=smem) for smem in (Smem("none"), *xors, *pads)]
    legal = [plan for plan in plans if not {violation.rule for violation in violations(plan)} & {"swizzle", "padding"}]
    assert len({symbol_of(plan.spec) for plan in legal}) == len(legal) > 40
