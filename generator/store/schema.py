"""The published JSON schema of a record: the checks of `hgemm.record`, and the field table of the spec."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any

from generator.spec import FIELDS, Field, IntegerParser, Spec, WordParser
from hgemm.record import RENAMED_FIELDS, RENAMED_WORDS, flatten, json_schema

_TYPES = {"int": "integer", "bool": "boolean"}
_ANNOTATIONS = {field.name: str(field.type) for field in fields(Spec)}


def record_schema() -> dict[str, Any]:
    """Return the JSON schema of a record, draft 2020-12. Old words and names are part of it."""
    schema = json_schema()
    rows = {row.name: _spec_field(row) for row in FIELDS}
    old = {
        name: {**rows[new], "description": f"Old name of {new}.", "deprecated": True}
        for name, new in RENAMED_FIELDS.items()
    }
    spec = schema["properties"]["spec"]
    spec["properties"] = {**rows, **old}
    spec["required"] = [field.name for field in fields(Spec) if field.default is MISSING]
    return schema


def schema_text() -> str:
    """Return the text of the published file, hgemm/record.schema.json."""
    return json.dumps(record_schema(), indent=1) + "\n"


def _spec_field(row: Field) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _TYPES.get(_ANNOTATIONS[row.name], "string")}
    if isinstance(row.parse, WordParser):
        schema["enum"] = [*row.parse.words, *RENAMED_WORDS.get(row.name, ())]
    if isinstance(row.parse, IntegerParser):
        schema |= {"minimum": row.parse.low, "maximum": row.parse.high}
    units = {"x-unit": row.unit} if row.unit else {}
    return {**schema, "description": row.meaning or row.help, **units}


def flat_fields() -> dict[str, str]:
    """Return the short name and the meaning of all described fields that hold one word or number."""
    meanings = {name: str(meaning) for name, meaning in flatten(_meanings(record_schema())).items()}
    return {
        **meanings,
        "epilogue_hash": "Hash of an expression, which C programs pass. Missing if the epilogue is none.",
    }


def _meanings(schema: dict[str, Any]) -> Any:
    """Return a record whose values are the meanings of its fields, old names left out."""
    if schema.get("type") == "object":
        described = schema.get("properties", {}).items()
        return {name: _meanings(item) for name, item in described if not item.get("deprecated")}
    meaning = schema["description"] + (f" Unit: {schema['x-unit']}." if "x-unit" in schema else "")
    return [meaning] if schema.get("type") == "array" else meaning
