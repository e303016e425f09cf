"""The JSON schema of records: the published file agrees with the checks, and records of this and older versions agree with it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from conftest import ROOT, hgemm
from hypothesis import given, settings
from hypothesis import strategies as st
from records import make_record

from generator.errors import LibraryError
from generator.proof.proving import Costs
from generator.spec import Spec
from generator.store.library import Library
from generator.store.schema import record_schema, schema_text
from hgemm.record import PROVED, Record, validate

Validator = pytest.importorskip(
    "jsonschema", reason="jsonschema is not installed: run 'make setup'"
).Draft202012Validator
VALIDATOR = Validator(record_schema())


def described(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, item in schema.get("properties", {}).items():
        yield f"{path}{name}", item
        yield from described(item, f"{path}{name}.")
        yield from described(item.get("items", {}), f"{path}{name}[].")


def test_published_schema_is_current(capsys) -> None:
    published = (ROOT / "hgemm" / "record.schema.json").read_text(encoding="utf-8")
    assert published == schema_text(), "run: python -m hgemm show --schema > hgemm/record.schema.json"
    assert hgemm(capsys, "show", "--schema") == (0, published, "")


def test_every_field_has_a_type_and_a_description_and_every_size_a_unit() -> None:
    Validator.check_schema(record_schema())
    found = dict(described(record_schema()))
    assert {"launch.tensor_maps[].box", "files.kernel.cu.sha256", "spec.swap_ab"} < {*found}
    for path, schema in found.items():
        assert schema["description"].endswith(".") and {"type", "const", "anyOf"} & {*schema}, path
        name = path.rpartition(".")[2]
        if "bytes" in name.split("_"):
            assert schema["x-unit"] == "B", path
        if "seconds" in path and schema["type"] == "number":
            assert schema["x-unit"] == "s", path


def test_written_records_match_the_schema(small_library: Library, paper_library: Library) -> None:
    known = {path for path, _ in described(record_schema())}
    records = [*small_library.records(), *paper_library.records()]
    assert len(records) > 140
    for record in records:
        VALIDATOR.validate(record.data)
        for section in ("spec", "launch", "resources", "toolchain", "traits", "seconds", "proof"):
            assert {f"{section}.{name}" for name in record.data[section]} <= known, record.symbol
    assert {field.name for field in fields(Costs)} - {"mma_beside_k_tiles"} < PROVED.keys()  # records leave it out
    assert {field.name for field in fields(Spec)} < {path.removeprefix("spec.") for path in known}


def test_old_records_match_the_schema_and_are_translated() -> None:
    old = make_record(
        "one", copy="shifted", schedule="cluster_k:2", proof={"mma_per_tile": 64, "least_sectors_per_request": 2}
    )[0]
    old["spec"]["swapped"] = True
    old["launch"]["cluster"] = [2, 1, 1]
    VALIDATOR.validate(old)
    new = Record.parse(json.dumps(old)).data
    VALIDATOR.validate(new)
    spec = new["spec"]
    assert (spec["copy"], spec["schedule"], spec["swap_ab"]) == ("ldg_sts_unaligned", "split_k_cluster:2", True)
    assert new["proof"] == {"mma_per_k_tile": 64, "ideal_sectors_per_request": 2}
    with pytest.raises(LibraryError, match="proof.mma_per_tile must be a whole number"):
        validate({**old, "proof": {"mma_per_tile": "64"}})


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield (*path, name)
        yield from leaves(item, (*path, name))


WHOLE = make_record(
    "one", proof={"races": 0, "shapes": ["1x1x1"], "seed": 1, "max_error": 0.5, "executor": "1", "other": None}
)[0]
WHOLE["launch"] |= {
    "cluster_shape": [1, 1],
    "tensor_maps": [{"operand": "a", "box": [1, 1, 1], "swizzle_bytes": 128, "element": "f16", "contiguous": "k"}],
    "programmatic": True,
}
JUNK = st.sampled_from(
    [None, -1, -1.5, 0, 7, [], [1], [1, 1, 1], {}, {"../x": 1}, {"a": {}}, "x", "x" * 5000, True, 2**64]
)


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from([path for path in leaves(WHOLE) if path[0] != "spec"]), junk=JUNK)
def test_the_schema_and_the_parser_accept_the_same_values(path: tuple[str | int, ...], junk: object) -> None:
    record = copy.deepcopy(WHOLE)
    inner: Any = record
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = junk
    try:
        validate(record)
        accepted = True
    except LibraryError as error:
        accepted = False
        assert "\n" not in str(error)
    assert VALIDATOR.is_valid(record) == accepted, (path, junk)
