"""`hgemm compare`: the forms that support a spec, and the output for those that were built and run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import simulated
from click.testing import CliRunner, Result
from fake_driver import FakeDriver, installed
from records import make_record

from generator.build.pipeline import Settings
from generator.build.toolchain import templates_folder
from generator.cli import inspect as compare
from generator.cli.generate import requested
from generator.compare import BuiltForm, RunResult, buildable, columns, plan_every_form, run_on_device, side_by_side
from generator.errors import RequestError
from generator.families import family_of
from generator.spec import FORMS
from generator.store.library import Library
from hgemm.launch_traits import LaunchTraits
from hgemm.record import Record


def forms_of(**texts: str) -> list:
    return plan_every_form(lambda form: requested({"spec_file": None, **texts, "form": form}).candidates)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(compare.compare_command, [str(argument) for argument in arguments])


# ---- The spec in every form -----------------------------------------------------------------------------------------


def test_help_has_all_spec_options_except_form() -> None:
    words = call("--help").stdout.split()
    assert "--stages" in words and "--form" not in words


def test_forms_share_one_spec() -> None:
    forms = forms_of(arch="sm_80", acc="f16")
    assert [one.form for one in forms] == [*FORMS] and not any(one.violations for one in forms)
    assert len({one.plan.replace(form="atoms") for one in forms}) == 1


def test_unsupported_fields_of_a_form_are_reported() -> None:
    atoms, cute, dsl = forms_of(arch="sm_80", schedule="split_k:2")
    assert not atoms.violations and [violation.rule for violation in cute.violations] == ["cute_schedule"]
    assert [violation.rule for violation in dsl.violations] == ["dsl_schedule"]
    atoms, cute, dsl = forms_of(arch="sm_90a", schedule="split_k_cluster:4")
    assert family_of(atoms.plan.spec).name == "wgmma" and not atoms.violations
    assert "form cute" in cute.violations[0].message and "form is dsl" in dsl.violations[0].message


def test_form_without_a_compiler_is_reported_and_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("generator.build.dsl.WHEEL", "no-such-wheel-anywhere")
    *others, dsl = forms_of(arch="sm_80")
    assert "no-such-wheel-anywhere is missing" in dsl.missing and not any(one.missing for one in others)
    assert buildable([dsl]) == [] and buildable(others) == others


@pytest.mark.parametrize("texts", [{"tile": "64x64x32,128x64x32"}, {"tile": "300x300x32"}])
def test_several_specs_a_form_or_an_illegal_spec_are_rejected(texts: dict) -> None:
    with pytest.raises(RequestError):
        forms_of(arch="sm_80", **texts)


def test_form_option_is_rejected() -> None:
    result = call("--arch", "sm_80", "--form", "cute")
    assert isinstance(result.exception, RequestError) and "--form" in str(result.exception)


# ---- What came of them ----------------------------------------------------------------------------------------------


def built(form: str, digest: str = "", hmma: int = 64) -> BuiltForm:
    document, _ = make_record(f"hgemm_{form}")
    ran = RunResult("GPU", True, 0.5, digest, {"time_us": 10.0, "tflops": 400.0}) if digest else None
    return BuiltForm(form, Record({**document, "sass": {"HMMA": hmma, "BAR": 2}}), ran)


def test_each_form_is_a_column_with_figures_instructions_and_results() -> None:
    found = columns([built("atoms", "a1"), built("cute", "b2", hmma=65)])
    assert [column["result"] for column in found] == ["same bits", "bits differ from atoms"]
    rows = {row[""]: row for row in side_by_side(found)}
    assert (rows["sass HMMA"]["atoms"], rows["sass HMMA"]["cute"]) == (64, 65)
    assert {"compile_s", "registers", "smem_bytes", "tflops", "result"} <= {*rows}
    assert [name for name in rows if name.startswith("sass")] == ["sass HMMA", "sass BAR"]


def test_forms_that_did_not_run_have_no_result() -> None:
    (column,) = columns([built("atoms")])
    assert "result" not in column and column["registers"] > 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    with installed(fake, monkeypatch):
        yield fake


def test_kernels_that_compute_the_same_have_the_same_bits(driver: FakeDriver, tmp_path: Path) -> None:
    settings, ran = Settings(Library(tmp_path / "lib"), templates_folder()), {}
    for name, faults in (("right", ()), ("alike", ()), ("wrong", ("drops an element of k",))):
        document, files = make_record(f"hgemm_{name}", arch="sm_80", cta_tile="32x48x16")
        settings.library.publish(document, files)
        traits = LaunchTraits.of(document)
        driver.kernel = lambda problem, traits=traits, faults=faults: simulated.launch(
            traits, problem, frozenset(faults)
        )
        ran[name] = run_on_device(BuiltForm(name, Record(document)), settings, (40, 50, 60), samples=2).result
    assert ran["right"].passed and ran["right"].digest == ran["alike"].digest and ran["right"].speed["tflops"] > 0
    assert not ran["wrong"].passed and ran["wrong"].digest != ran["right"].digest


# ---- The verb -------------------------------------------------------------------------------------------------------


def test_compare_runs_supported_forms_and_reports_the_rest(tmp_path: Path) -> None:
    options = ("--arch", "sm_80", "--tile", "32x32x16", "--library", tmp_path / "lib", "--emulate", "--json")
    done = call(*options)
    assert done.exit_code == 0, done.output
    (column,) = json.loads(done.stdout)
    assert (column["form"], column["device"], column["passed"]) == ("atoms", "CPU", True)
    assert "form cute is skipped, cute_k_blocks: " in done.stderr and "[1/1] built hgemm_" in done.stderr
    assert "[1/1]" not in call(*options, "--quiet", "--junit", tmp_path / "forms.xml").stderr
    (suite,) = ElementTree.parse(tmp_path / "forms.xml").getroot()
    assert [test.get("name") for test in suite] == ["atoms"] and suite.get("failures") == "0"
