"""Emitting: templates use exactly the given values, and the source is stable, ASCII and checked by static_assert."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import jinja2
import pytest
from conftest import ROOT
from jinja2 import meta, nodes
from refusals import assert_refused_by_the_compiler

from generator.build.emit import _template, emit
from generator.build.toolchain import templates_folder
from generator.families import mma_sync, wgmma
from generator.families.base import Family, Plan
from generator.planner import violations
from generator.spec import Smem, symbol_of
from generator.sweep import sweep

TEMPLATES = templates_folder()
MAX_LINES = 65


@dataclass(frozen=True)
class Emitter:
    """What the tests emit of a family, as options of `generate`.

    Fields: `small` is the base of all kernels. `fields` are kernels that name all fields of a Policy among them. `wrong` are
        numbers of a source and other ones, which do not compile. `pinned` is a kernel, `others` another value of each field, and
        `needed` further fields that must change with one.
    """

    family: Family
    small: dict[str, str]
    fields: tuple[dict[str, str], ...]
    kinds: tuple[dict[str, str], ...]
    wrong: tuple[tuple[str, str], ...]
    pinned: dict[str, str]
    others: dict[str, str]
    needed: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def template(self) -> str:
        return self.family.forms["atoms"].template

    def plan(self, **texts: str) -> Plan:
        (plan,) = sweep([{**self.small, **texts}]).plans
        return plan

    def values(self, **texts: str) -> dict:
        return self.family.forms["atoms"].values(self.plan(**texts), "a_symbol")

    def tree(self) -> nodes.Template:
        return jinja2.Environment().parse((TEMPLATES / self.template).read_text())

    def errors_without(self, name: str, operand: str = "") -> list[str]:
        """Return the errors of rendering kernels without one value, or without one of an operand."""
        found = []
        for texts in self.fields:
            given = self.values(**texts)
            del (given[operand] if operand else given)[name]
            try:
                _template(TEMPLATES, self.template).render(given)
            except jinja2.UndefinedError as error:
                found.append(str(error))
        return found


def options(text: str) -> dict[str, str]:
    return dict(word.split("=") for word in text.split())


MMA_SYNC = Emitter(
    family=mma_sync.FAMILY,
    small={"arch": "sm_80", "tile": "32x32x16", "stages": "2"},
    fields=({}, {"align": "1"}, {"arch": "sm_75"}, {"schedule": "stream_k"}, {"schedule": "launch"}),
    kinds=(
        {},
        {"layout": "nt", "dtype": "bf16", "schedule": "persistent", "raster": "row"},
        {"layout": "tt", "acc": "f16", "align": "1", "store": "direct", "beta": "off", "smem": "pad:8"},
        {"layout": "nn", "out": "f32", "align_d": "4", "schedule": "split_k:4", "bias": "row", "activation": "gelu"},
        {"arch": "sm_75", "tile": "64x64x32", "smem_alloc": "static"},
    ),
    wrong=(
        ("SharedStorage<Policy>) == ", "SharedStorage<Policy>) == 1"),
        ("Mainloop<Policy>::Shared) == ", "Mainloop<Policy>::Shared) == 1"),
        ("mma_per_k_tile == ", "mma_per_k_tile == 1"),
        ("warps_m = ", "warps_m = 3"),
        ("tile_m = ", "tile_m = 6"),
        ("pitch = ", "pitch = 1"),
    ),
    pinned={"align_d": "4", "warp_tile": "32x16", "ctas_per_sm": "2", "fragment_stages": "2"},
    others=options(
        "arch=sm_86 dtype=bf16 acc=f16 out=f32 layout=nn tile=64x32x16 warp_tile=16x16 mma=m16n8k8 stages=3 "
        "fragment_stages=1 smem_a=pad:8 smem_b=pad_alternate:16 mma_order=row raster=panel:64 "
        "schedule=persistent ctas_per_sm=1 beta=off bias=column activation=silu store=direct align_a=4 "
        "align_b=2 align_d=1"
    ),
)
WGMMA = Emitter(
    family=wgmma.FAMILY,
    small={"arch": "sm_90a", "tile": "64x16x32", "consumers": "1", "cooperation": "cooperative", "cluster": "1x1"},
    fields=(
        {},
        {"schedule": "stream_k"},
        {"schedule": "launch"},
        {"dtype": "tf32", "out": "f32"},
        {"copy": "cp_async", "mma": "wgmma", "store": "direct"},
    ),
    kinds=(
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
    ),
    wrong=(
        ("SharedStorage<Policy>) == ", "SharedStorage<Policy>) == 1"),
        ("Mainloop<Policy>::Shared) == ", "Mainloop<Policy>::Shared) == 1"),
        ("mma_per_k_tile == ", "mma_per_k_tile == 1"),
        ("consumer_m = ", "consumer_m = 1"),
        ("threads = ", "threads = 1"),
        ("swizzle_bytes = 64", "swizzle_bytes = 128"),
    ),
    pinned=options("tile=128x64x32 consumers=2 stages=4 raster=group:8 schedule=persistent align_d=8 store=tma"),
    others=options(
        "dtype=bf16 acc=f16 out=f32 layout=tt tile=128x128x32 stages=3 raster=panel:64 schedule=split_k:2 "
        "ctas_per_sm=2 beta=off bias=column activation=silu store=direct align_d=4 consumers=1 "
        "cooperation=pingpong cluster=2x1 swap_ab=on"
    ),
    needed={"out": {"align_d": "4"}, "align_d": {"store": "direct"}, "swap_ab": {"consumers": "1"}},
)
EMITTERS = (MMA_SYNC, WGMMA)


def family_name(value: object) -> str | None:
    return value.family.name if isinstance(value, Emitter) else None


def each(name: str, values_of: Callable[[Emitter], Iterable[object]]) -> pytest.MarkDecorator:
    """Return the mark that runs a test with each value of each family."""
    given = [(one, value) for one in EMITTERS for value in values_of(one)]
    return pytest.mark.parametrize(("emitter", name), given, ids=family_name)


# ---- Placeholders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("emitter", EMITTERS, ids=family_name)
def test_template_uses_exactly_its_values(emitter: Emitter) -> None:
    assert meta.find_undeclared_variables(emitter.tree()) == {*emitter.values()}


@each("operand", lambda emitter: ("a", "b"))
def test_template_uses_exactly_the_values_of_an_operand(emitter: Emitter, operand: str) -> None:
    found = emitter.tree().find_all(nodes.Getattr)
    used = {node.attr for node in found if isinstance(node.node, nodes.Name) and node.node.name == operand}
    assert used == {*emitter.values()[operand]}


@pytest.mark.parametrize("emitter", EMITTERS, ids=family_name)
def test_template_computes_nothing(emitter: Emitter) -> None:
    """The template leaves out fields that a kernel does not read."""
    forbidden = (nodes.For, nodes.Macro, nodes.Filter, nodes.Call, nodes.Include, nodes.CondExpr, nodes.BinExpr)
    assert not [*emitter.tree().find_all(forbidden)]


@each("name", lambda emitter: sorted(emitter.values()))
def test_missing_value_is_an_error(emitter: Emitter, name: str) -> None:
    assert f"'{name}' is undefined" in emitter.errors_without(name)


@each("name", lambda emitter: sorted(emitter.values()["a"]))
def test_missing_value_of_an_operand_is_an_error(emitter: Emitter, name: str) -> None:
    assert any(f"no attribute '{name}'" in error for error in emitter.errors_without(name, operand="a"))


# ---- The source -----------------------------------------------------------------------------------------------------


@each("texts", lambda emitter: emitter.kinds)
def test_source_is_short_ascii_and_names_its_kernel(emitter: Emitter, texts: dict[str, str]) -> None:
    kernel = emit(emitter.plan(**texts), TEMPLATES)
    lines = kernel.source.splitlines()
    assert kernel.source.isascii() and kernel.source.endswith("}\n") and "\r" not in kernel.source
    assert len(lines) <= MAX_LINES
    assert not [line for line in lines if line != line.rstrip() or "\t" in line or "{{" in line or "}}" in line]
    assert kernel.entry_header == emitter.family.forms["atoms"].entry_header
    assert [line for line in lines if line.startswith("#")] == [f"#include <{kernel.entry_header}>"]
    assert lines[0] == f"// {kernel.symbol}" and kernel.source.count(f" {kernel.symbol}(") == 1
    assert str(TEMPLATES) not in kernel.source


def test_source_is_the_same_in_every_process() -> None:
    code = (
        "from test_emit import *\n"
        "import hashlib\n"
        "sources = [emit(one.plan(**texts), TEMPLATES).source for one in EMITTERS for texts in one.kinds]\n"
        "print(hashlib.sha256(''.join(sources).encode()).hexdigest())"
    )
    hashes = set()
    for seed in ("1", "2"):
        path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path, "LC_ALL": "C", "TZ": f"UTC{seed}"}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        hashes.add(done.stdout)
    assert len(hashes) == 1


def test_source_depends_on_the_spec_only() -> None:
    assert emit(MMA_SYNC.plan(), TEMPLATES) == emit(MMA_SYNC.plan(), TEMPLATES)
    assert emit(MMA_SYNC.plan(), TEMPLATES).source != emit(MMA_SYNC.plan(raster="row"), TEMPLATES).source


# ---- Assertions across the border -----------------------------------------------------------------------------------


@each("texts", lambda emitter: emitter.kinds)
def test_source_asserts_the_numbers_of_the_plan(emitter: Emitter, texts: dict[str, str]) -> None:
    plan = emitter.plan(**texts)
    source, mainloop_bytes = emit(plan, TEMPLATES).source, plan.spec.stages * plan.stage_bytes
    if emitter is WGMMA:
        mainloop_bytes = plan.mainloop_bytes
    assert f"static_assert(sizeof(hgemm::SharedStorage<Policy>) == {plan.smem_bytes});" in source
    assert f"static_assert(sizeof(hgemm::Mainloop<Policy>::Shared) == {mainloop_bytes});" in source
    assert f"static_assert(hgemm::Mainloop<Policy>::mma_per_k_tile == {plan.mma_per_k_tile});" in source


@each("numbers", lambda emitter: emitter.wrong)
def test_mismatched_constants_do_not_compile(emitter: Emitter, numbers: tuple[str, str]) -> None:
    assert_refused_by_the_compiler(emit(emitter.plan(), TEMPLATES), *numbers)


# ---- Names ----------------------------------------------------------------------------------------------------------


@each("name", lambda emitter: sorted(emitter.others))
def test_changed_field_changes_symbol_and_source(emitter: Emitter, name: str) -> None:
    texts = {name: emitter.others[name], **emitter.needed.get(name, {})}
    pinned, other = (emit(emitter.plan(**{**emitter.pinned, **changed}), TEMPLATES) for changed in ({}, texts))
    assert other.symbol != pinned.symbol
    assert other.source.replace(other.symbol, pinned.symbol) != pinned.source


def test_no_two_legal_placements_share_a_symbol() -> None:
    xors = [Smem("xor", (bits, base, shift)) for bits in range(1, 4) for base in range(3, 14) for shift in range(1, 14)]
    pads = [Smem(kind, (elements,)) for kind in ("pad", "pad_alternate") for elements in range(8, 65, 8)]
    plans = [MMA_SYNC.plan().replace(smem_a=smem) for smem in (Smem("none"), *xors, *pads)]
    legal = [plan for plan in plans if not {violation.rule for violation in violations(plan)} & {"swizzle", "padding"}]
    assert len({symbol_of(plan.spec) for plan in legal}) == len(legal) > 40
