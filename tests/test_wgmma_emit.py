"""Emitting kernels on wgmma: the template and the values name the same things, the text is plain and ties its numbers down."""

from __future__ import annotations

import jinja2
import pytest
from jinja2 import meta, nodes
from refusals import assert_refused_by_the_compiler

from generator.build.emit import Kernel, _template, emit
from generator.build.toolchain import templates_folder
from generator.families.wgmma.emit import FORMS
from generator.families.wgmma.plan import WgmmaPlan
from generator.sweep import sweep

TEMPLATES = templates_folder()
TEMPLATE, ENTRY_HEADER, values = FORMS["atoms"].template, FORMS["atoms"].entry_header, FORMS["atoms"].values
SMALL = {"arch": "sm_90a", "tile": "64x16x32", "consumers": "1", "cooperation": "cooperative", "cluster": "1x1"}
MAX_LINES = 65


def plan_of(**texts: str) -> WgmmaPlan:
    (plan,) = sweep([{**SMALL, **texts}]).plans
    return plan


def tree() -> nodes.Template:
    return jinja2.Environment().parse((TEMPLATES / TEMPLATE).read_text())


def test_the_template_uses_every_value_and_no_other() -> None:
    assert meta.find_undeclared_variables(tree()) == {*values(plan_of(), "a_symbol")}


@pytest.mark.parametrize("operand", ["a", "b"])
def test_the_template_uses_every_value_of_an_operand_and_no_other(operand: str) -> None:
    found = tree().find_all(nodes.Getattr)
    used = {node.attr for node in found if isinstance(node.node, nodes.Name) and node.node.name == operand}
    assert used == {*values(plan_of(), "a_symbol")[operand]}


def test_the_template_computes_nothing() -> None:
    forbidden = (nodes.For, nodes.Macro, nodes.Filter, nodes.Call, nodes.Include, nodes.CondExpr, nodes.BinExpr)
    assert not [*tree().find_all(forbidden)]


FIELDS = (
    {},
    {"schedule": "stream_k"},
    {"dtype": "tf32", "out": "f32"},
    {"copy": "cp_async", "mma": "wgmma", "store": "direct"},
)
"""Kernels that name all fields of a Policy among them."""


@pytest.mark.parametrize("name", sorted(values(plan_of(), "a_symbol")))
def test_a_missing_value_is_an_error(name: str) -> None:
    found = []
    for texts in FIELDS:
        given = {other: value for other, value in values(plan_of(**texts), "a_symbol").items() if other != name}
        try:
            _template(TEMPLATES, TEMPLATE).render(given)
        except jinja2.UndefinedError as error:
            found.append(str(error))
    assert f"'{name}' is undefined" in found


KINDS = (
    {},
    {"layout": "nt", "dtype": "bf16", "schedule": "one_tile", "raster": "row"},
    {
        "layout": "tt",
        "acc": "f16",
        "align_d": "1",
        "beta": "off",
        "cluster": "2x2",
        "tile": "128x64x64",
        "consumers": "2",
    },
    {"layout": "nn", "out": "f32", "schedule": "split_k:4", "bias": "row", "activation": "gelu"},
    {"tile": "16x64x64", "swap_ab": "on", "bias": "column"},
    {"tile": "64x64x64", "cooperation": "pingpong", "consumers": "2"},
)


@pytest.mark.parametrize("texts", KINDS, ids=lambda texts: texts.get("layout", "tn"))
def test_the_text_is_plain_short_and_names_its_kernel(texts: dict[str, str]) -> None:
    kernel = emit(plan_of(**texts), TEMPLATES)
    lines = kernel.source.splitlines()
    assert kernel.source.isascii() and kernel.source.endswith("}\n") and "\r" not in kernel.source
    assert len(lines) <= MAX_LINES
    assert not [line for line in lines if line != line.rstrip() or "\t" in line or "{{" in line or "}}" in line]
    assert [line for line in lines if line.startswith("#")] == [f"#include <{ENTRY_HEADER}>"]
    assert lines[0] == f"// {kernel.symbol}" and kernel.source.count(f" {kernel.symbol}(") == 1
    assert kernel.entry_header == ENTRY_HEADER


@pytest.mark.parametrize("texts", KINDS, ids=lambda texts: texts.get("layout", "tn"))
def test_the_numbers_of_the_plan_are_asserted(texts: dict[str, str]) -> None:
    plan = plan_of(**texts)
    source = emit(plan, TEMPLATES).source
    assert f"static_assert(sizeof(hgemm::SharedStorage<Policy>) == {plan.smem_bytes});" in source
    assert f"static_assert(sizeof(hgemm::Mainloop<Policy>::Shared) == {plan.mainloop_bytes});" in source
    assert f"static_assert(hgemm::Mainloop<Policy>::mma_per_k_tile == {plan.mma_per_k_tile});" in source


WRONG = (
    ("SharedStorage<Policy>) == ", "SharedStorage<Policy>) == 1"),
    ("Mainloop<Policy>::Shared) == ", "Mainloop<Policy>::Shared) == 1"),
    ("mma_per_k_tile == ", "mma_per_k_tile == 1"),
    ("consumer_m = ", "consumer_m = 1"),
    ("threads = ", "threads = 1"),
    ("swizzle_bytes = 64", "swizzle_bytes = 128"),
)


@pytest.mark.parametrize("right, wrong", WRONG, ids=[right.strip(" =") for right, _ in WRONG])
def test_a_number_that_differs_across_the_border_does_not_compile(right: str, wrong: str) -> None:
    assert_refused_by_the_compiler(emit(plan_of(), TEMPLATES), right, wrong)


OTHERS = {
    "dtype": "bf16",
    "acc": "f16",
    "out": "f32",
    "layout": "tt",
    "tile": "128x128x32",
    "stages": "3",
    "raster": "panel:64",
    "schedule": "split_k:2",
    "ctas_per_sm": "2",
    "beta": "off",
    "bias": "column",
    "activation": "silu",
    "store": "direct",
    "align_d": "4",
    "consumers": "1",
    "cooperation": "pingpong",
    "cluster": "2x1",
    "swap_ab": "on",
}


NEEDED = {"out": {"align_d": "4"}, "align_d": {"store": "direct"}, "swap_ab": {"consumers": "1"}}
"""Fields that must change with another one."""


def kernel_of(**texts: str) -> Kernel:
    pinned = {"tile": "128x64x32", "consumers": "2", "stages": "4", "raster": "group:8", "schedule": "persistent"}
    return emit(plan_of(**{**pinned, "align_d": "8", "store": "tma", **texts}), TEMPLATES)


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_another_value_of_a_field_is_another_symbol_and_another_text(name: str) -> None:
    texts = {name: OTHERS[name], **NEEDED.get(name, {})}
    pinned, other = kernel_of(), kernel_of(**texts)
    assert other.symbol != pinned.symbol
    assert other.source.replace(other.symbol, pinned.symbol) != pinned.source
