"""`hgemm.generate`: kernels from Python, by the plug-in of the generator."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import shutil
from pathlib import Path

import pytest

import hgemm
from generator.proof.executor import HostToolchain
from hgemm import plugin
from hgemm.errors import GenerationError, LibraryError, RequestError, VerificationError

pytestmark = pytest.mark.usefixtures("builds_once")

SMALL = {"arch": "sm_80", "tile": "32x32x16", "warp_tile": "32x16", "stages": 2}


def test_options_give_kernels_in_the_order_of_the_request(tmp_path: Path) -> None:
    seen: list[hgemm.Progress] = []
    fields = {**SMALL, "tile": ["32x32x32", "32x32x16"]}
    kernels = hgemm.generate(library=tmp_path, jobs=1, progress=seen.append, **fields)
    assert [kernel.record["spec"]["cta_tile"] for kernel in kernels] == fields["tile"]
    assert [(one.done, one.total, one.status) for one in seen] == [(1, 2, "built"), (2, 2, "built")]
    assert [kernels[one.place].symbol for one in seen] == [one.symbol for one in seen]
    again: list[hgemm.Progress] = []
    hgemm.generate(library=tmp_path, jobs=1, progress=again.append, **fields)
    assert [one.status for one in again] == ["cached", "cached"]


def test_a_spec_is_a_file_or_options_or_a_record_and_fields_override_it(tmp_path: Path) -> None:
    file = tmp_path / "kernel.toml"
    file.write_text("\n".join(f"{name} = {str(value)!r}" for name, value in SMALL.items()))
    (from_file,) = hgemm.generate(file, library=tmp_path / "kernels")
    (from_options,) = hgemm.generate(SMALL, library=tmp_path / "kernels")
    (from_record,) = hgemm.generate(from_file.record["spec"], library=tmp_path / "kernels")
    assert from_file.symbol == from_options.symbol == from_record.symbol
    other = hgemm.generate([SMALL, file], stages=3, library=tmp_path / "kernels")
    assert [kernel.record["spec"]["stages"] for kernel in other] == [3]


def test_an_epilogue_may_be_a_function_and_an_open_library_sees_the_kernel(tmp_path: Path) -> None:
    def doubled(acc: object) -> object:
        return 2 * acc  # type: ignore[operator]

    library = hgemm.open(tmp_path, build=True)
    (kernel,) = hgemm.generate(SMALL, epilogue=doubled, library=library)
    assert kernel.record["spec"]["epilogue"] != "none"
    assert library.symbols == (kernel.symbol,) and library.kernel(kernel.symbol) is kernel


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "arch is missing"),
        ({"arch": "sm_80", "tiles": "32x32x32"}, "did you mean 'tile'"),
        ({**SMALL, "tile": "1000x32x16"}, "is illegal, it violates"),
        ({**SMALL, "jobs": 0}, "jobs is 0"),
        ({**SMALL, "stages": 2.5}, "'stages' is a float"),
    ],
)
def test_illegal_requests_give_one_error(tmp_path: Path, fields: dict, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        hgemm.generate(library=tmp_path, **fields)
    assert not [*tmp_path.iterdir()]


def test_skipped_combinations_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hgemm"):
        hgemm.generate(library=tmp_path, **{**SMALL, "tile": ["32x32x16", "1000x32x16"]})
    assert "1 of 2 combinations is illegal and skipped" in caplog.text


def test_kernels_that_fail_are_an_error_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def generate(self, request: plugin.GenerateRequest):
            yield plugin.Progress(1, 1, 0, "hgemm_one", "failed", 0.1, "hgemm_one does not compile")

    monkeypatch.setattr(plugin, "load", lambda *purpose: Failing())
    with pytest.raises(GenerationError, match="hgemm_one does not compile") as caught:
        hgemm.generate(SMALL, library=tmp_path)
    assert caught.value.failed == {"hgemm_one": "hgemm_one does not compile"} and caught.value.kernels == []


def test_kernels_are_checked_on_the_cpu(tmp_path: Path, host_toolchain: HostToolchain) -> None:
    (kernel,) = hgemm.generate(SMALL, library=tmp_path, jobs=1)
    seen: list[hgemm.Verified] = []
    (result,) = hgemm.verify(kernel, library=tmp_path, shapes="33x17x20", jobs=1, progress=seen.append)
    assert result.passed and result.symbol == kernel.symbol and result.cases and 0 < result.worst_ratio <= 1
    assert seen == [result] and not result.reused
    assert hgemm.verify([], library=tmp_path) == []
    damaged = shutil.copytree(tmp_path / kernel.symbol, tmp_path / "hgemm_damaged")
    (damaged / "record.json").write_text("{")
    with pytest.raises(LibraryError, match="hgemm_damaged/record.json"):
        hgemm.verify(library=tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "gpu"}, "device 'gpu' is unknown"),
        ({"device": "cuda", "force": True}, "force is for device"),
        ({"shapes": "33x17"}, "shape '33x17' is malformed"),
        ({"jobs": 0}, "jobs is 0"),
        ({"seed": -1}, "seed is -1: pass 0 to"),
        ({"seed": 2**63}, "seed is 9223372036854775808: pass 0 to"),
        ({"kernels": "hgemm_sm75"}, "hgemm_sm75"),
    ],
)
def test_illegal_checks_are_rejected(tmp_path: Path, options: dict, words: str) -> None:
    hgemm.generate(SMALL, library=tmp_path, jobs=1)
    with pytest.raises((RequestError, LibraryError), match=words):
        hgemm.verify(library=tmp_path, **options)


def test_kernels_that_fail_their_check_are_an_error_with_all_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = plugin.Verified("hgemm_one", True, False, ("1x1x1",), 0.5, 0.1)
    bad = plugin.Verified("hgemm_two", False, False, ("1x1x1",), 9.0, 0.1, "1x1x1: wrong")
    skipped = plugin.Verified("hgemm_three", False, True, (), 0.0, 0.1, "needs another GPU")

    class Failing:
        def verify(self, request: plugin.VerifyRequest):
            yield from (good, bad, skipped)

    monkeypatch.setattr(plugin, "load", lambda *purpose: Failing())
    with pytest.raises(VerificationError, match="hgemm_two: 1x1x1: wrong") as caught:
        hgemm.verify(library=tmp_path)
    assert caught.value.failed == {"hgemm_two": "1x1x1: wrong"} and caught.value.results == [good, bad, skipped]


def test_an_empty_path_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (
        lambda: hgemm.open(""),
        lambda: hgemm.generate(SMALL, library=""),
        lambda: hgemm.verify(library=""),
        lambda: hgemm.tune("64x64x64", library=""),
    ):
        with pytest.raises(RequestError, match="the path of the library is empty"):
            use()
    assert not any(tmp_path.iterdir())


def test_the_generator_registers_an_entry_point() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11

    text = (Path(hgemm.__file__).parents[1] / "pyproject.toml").read_text()
    assert tomllib.loads(text)["project"]["entry-points"][plugin.GROUP] == {plugin.NAME: plugin.MODULE}


def test_missing_generator_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name, name=name)

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **named: ())
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(LibraryError, match="hgemm.generate needs the package hgemm-generator"):
        plugin.load("hgemm.generate")


def test_library_is_a_collection(tmp_path: Path) -> None:
    hgemm.generate({**SMALL, "tile": ["32x32x16", "32x32x32"]}, library=tmp_path, jobs=1)
    library = hgemm.open(tmp_path)
    assert len(library) == 2 and [kernel.symbol for kernel in library] == [*library.symbols]
    first = library.symbols[0]
    assert first in library and "hgemm" not in library
    assert library[first] is library[first[:-4]] is library[first[-8:]] is library.kernel(first)
    for prefix, words in (("hgemm_sm80", "2 symbols"), ("hgemm_sm75", "no symbol in .* begins with")):
        with pytest.raises(RequestError, match=words):
            library[prefix]


def test_the_package_lists_its_public_names_and_has_a_version_and_types() -> None:
    import generator

    public = {name for name in dir(hgemm) if not name.startswith("__")}
    assert public == {*hgemm.__all__} and hgemm.__version__ == generator.__version__
    assert Path(hgemm.__file__).with_name("py.typed").is_file()
