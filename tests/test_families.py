"""The registry of kernel families, and the requirements of a new family."""

from __future__ import annotations

import json

import pytest

from generator import families
from generator.arch import ARCHS
from generator.build.emit import emit
from generator.build.toolchain import templates_folder
from generator.cli.main import generate_command, main
from generator.errors import RequestError
from generator.families.base import Family, Form, Plan, collector, problem_fields
from generator.planner import plan_of, resolve, violations
from generator.spec import Cluster, Raster, Request, Schedule, Smem, Spec, Tile, WarpTile

RULES: list = []


@collector(RULES)(lambda plan: [{"stages": "4"}])
def stages(plan: Plan) -> str | None:
    return None if plan.spec.stages <= 4 else f"stages is {plan.spec.stages}; tcgen05 supports 4"


class StubPlan(Plan):
    """The plan of a family without a kernel: numbers only."""

    instruction = "tcgen05.mma"
    fixed_fields = {"copy": "tma"}
    threads, accumulator_registers, needed_registers, max_registers = 256, 0, 64, 255
    mma_per_k_tile, mma_opcode, bank_conflicts = 4, "UTCHMMA", 0
    mma_k, k_order = 16, "k in order"

    @property
    def stage_bytes(self) -> int:
        tile = self.spec.cta_tile
        return (tile.m + tile.n) * tile.k * self.spec.operand_bytes

    @property
    def smem_bytes(self) -> int:
        return self.spec.stages * self.stage_bytes

    def numbers(self) -> dict:
        return {"threads": self.threads, "smem_bytes": self.smem_bytes}

    def placements(self) -> dict:
        return {}


def resolve_stub(request: Request) -> Spec:
    plain = {
        "cta_tile": Tile(128, 128, 64),
        "warp_tile": WarpTile(128, 128),
        "stages": 4,
        "fragment_stages": 1,
        "copy": "tma",
        "smem_a": Smem("none"),
        "smem_b": Smem("none"),
        "mma_order": "row",
        "raster": Raster("row"),
        "schedule": Schedule("persistent"),
        "ctas_per_sm": 1,
        "store": "direct",
        "cluster": Cluster(1, 1),
    }
    return Spec(**{**problem_fields(request), **plain, **request})


STUB = Family(
    name="tcgen05",
    mma=("tcgen05",),
    owns=lambda mma, copy: mma == "tcgen05",
    supports=lambda arch: arch.number == 100,
    plan=StubPlan,
    resolve=resolve_stub,
    rules=tuple(RULES),
    alias=lambda spec: "",
    expectation=lambda plan, allow_spills: None,
    claims={"mma": lambda mma: mma == "tcgen05"},
    missing="its kernel is not written",
)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Family:
    monkeypatch.setattr(families, "FAMILIES", [*families.FAMILIES, STUB])
    monkeypatch.setattr("generator.planner.FAMILIES", families.FAMILIES)
    return STUB


ARGUMENTS = ["--arch", "sm_100", "--mma", "tcgen05"]


def test_a_family_without_a_kernel_is_planned_and_explained(stub: Family, capsys) -> None:
    assert main(generate_command, [*ARGUMENTS, "--explain", "--json"]) == 0
    (explanation,) = json.loads(capsys.readouterr().out)
    assert explanation["plan"].items() >= {"threads": 256, "smem_bytes": 131_072}.items()


def test_a_family_without_a_kernel_is_not_generated(stub: Family, tmp_path, capsys) -> None:
    assert main(generate_command, [*ARGUMENTS, "--library", str(tmp_path / "library")]) == 2
    output = capsys.readouterr()
    assert output.out == "" and not [*tmp_path.iterdir()]
    assert output.err == "generate: error: family tcgen05 is not implemented yet: its kernel is not written\n"
    with pytest.raises(RequestError, match="not implemented yet"):
        emit(plan_of(resolve({"arch": "sm_100", "mma": "tcgen05"})), templates_folder())


def test_a_sweep_skips_a_family_without_a_kernel(stub: Family, tmp_path, capsys) -> None:
    arguments = ["--arch", "sm_100", "--mma", "tcgen05,m16n8k16", "--library", str(tmp_path), "--dry-run", "-q"]
    assert main(generate_command, arguments) == 0
    output = capsys.readouterr()
    assert "1 combination skipped: family tcgen05 is not implemented yet: its kernel is not written\n" in output.err
    assert output.out.count("to build") == 1


def test_rules_of_a_new_family_are_reported_with_a_fix_that_was_tried(stub: Family) -> None:
    request = {"arch": "sm_100", "mma": "tcgen05", "stages": 5}
    (violation,) = violations(plan_of(resolve(request)), request)
    assert str(violation) == "stages is 5; tcgen05 supports 4. Try --stages 4."


def test_a_new_family_is_no_default_and_changes_no_other(stub: Family) -> None:
    assert families.family_of(resolve({"arch": "sm_100"})).name == "mma_sync"


def test_unknown_instruction_error_lists_the_known_ones() -> None:
    with pytest.raises(RequestError, match="mma 'tcgen05' is unknown: use wgmma, .*m16n8k16, m16n8k8, wmma16"):
        resolve({"arch": "sm_100", "mma": "tcgen05"})


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: family.name)
def test_every_family_has_an_architecture_and_a_form_or_a_reason(family: Family) -> None:
    assert any(family.supports(arch) for arch in ARCHS.values())
    assert all(
        isinstance(form, Form) and (templates_folder() / form.template).is_file() for form in family.forms.values()
    )
    assert "atoms" in family.forms or (not family.forms and family.missing)
