"""The dispatch table as C: table.h has its sizes, table.c the numbers of hgemm.table and what a launch needs beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields

from generator.export.images import Code, Images
from hgemm.facts import Facts, MapRule
from hgemm.table import Group, Row, Table
from hgemm.tensor_maps import OPERANDS

MAX_CLOCKS = 2**24
"""The estimate's products stay below 2^63 while a variant's own numbers stay below this."""


def table_h(table: Table, version: str) -> str:
    """Return the header that says how large the table is."""
    sizes = {
        "GROUP_COUNT": len(table.groups),
        "ROW_COUNT": len(table.rows),
        "SURVEY_COUNT": len(table.surveys),
        "MEASURED_COUNT": sum(len(survey.problems) for survey in table.surveys),
        "ORDER_COUNT": sum(len(problem.order) for survey in table.surveys for problem in survey.problems),
        "NEAR_COUNT": sum(len(problem.near) for survey in table.surveys for problem in survey.problems),
    }
    lines = [f"#define HGEMM_{name} {size}" for name, size in sizes.items()]
    return "\n".join(
        [
            "/* Written by the HGEMM generator: the size of this library's table. */",
            "#ifndef HGEMM_TABLE_H",
            "#define HGEMM_TABLE_H",
            "",
            *lines,
            f'#define HGEMM_VERSION_TEXT "{version}"',
            "",
            "#endif",
            "",
        ]
    )


def table_c(table: Table, facts: Mapping[str, Facts], images: Images) -> str:
    """Return the source that holds the table. Raises ValueError where a number is too large for the estimate."""
    problems = [problem for survey in table.surveys for problem in survey.problems]
    orders = [str(row) for problem in problems for row in problem.order]
    nears = [f"{{{row}, {factor}}}" for problem in problems for row, factor in problem.near]
    return "\n".join(
        [
            "/* Written by the HGEMM generator: this library's kernels, in the order of its table.json. */",
            '#include "internal.h"',
            "",
            *_array("hgemm_group", "groups", "GROUP_COUNT", map(_group, table.groups)),
            *_array("hgemm_row", "rows", "ROW_COUNT", (_row(row, facts[row.symbol], images) for row in table.rows)),
            *_array("hgemm_survey", "surveys", "SURVEY_COUNT + 1", [*_surveys(table), "{0}"]),
            *_array("hgemm_measured", "measurements", "MEASURED_COUNT + 1", [*_measurements(table), "{0}"]),
            *_array("uint32_t", "orders", "ORDER_COUNT + 1", [*orders, "0"]),
            *_array("hgemm_near", "nears", "NEAR_COUNT + 1", [*nears, "{0}"]),
        ]
    )


def _array(kind: str, name: str, size: str, entries: Iterable[str]) -> list[str]:
    lines = [f"    {entry}," for entry in entries]
    return [f"{kind} const hgemm_{name}[HGEMM_{size}] = {{", *lines, "};", ""]


def _group(group: Group) -> str:
    number = "".join(digit for digit in group.arch if digit.isdigit())
    own = int(not group.arch[-1].isdigit())
    return f'{{"{group.arch}", {number}, {own}, 0x{group.kind:07x}, {group.first}, {group.count}}}'


def _row(row: Row, facts: Facts, images: Images) -> str:
    for field in fields(row):
        if field.name.endswith("_clocks") and getattr(row, field.name) >= MAX_CLOCKS:
            raise ValueError(f"{row.symbol}: {field.name} {getattr(row, field.name)} is not below {MAX_CLOCKS}")
    rules = {rule.operand: rule for rule in facts.tensor_maps}
    numbers = [getattr(row, field.name) for field in fields(row)][1:]
    words = [
        f'"{row.symbol}"',
        *map(str, numbers),
        str(facts.threads),
        str(int(facts.grid_rule == "persistent")),
        str(int(facts.programmatic)),
        "{" + ", ".join(_map_rule(rules.get(name)) for name in OPERANDS) + "}",
        _code(images.cubins[row.symbol]),
        _code(images.ptx[row.symbol]),
    ]
    return "{" + ", ".join(words) + "}"


def _map_rule(rule: MapRule | None) -> str:
    return f"{{{{{', '.join(map(str, rule.box))}}}, {rule.swizzle_bytes}}}" if rule else "{{0}, 0}"


def _code(code: Code) -> str:
    return f"{{{code.offset}, {code.size}, 0x{code.crc32:08x}}}"


def _surveys(table: Table) -> Iterator[str]:
    first = 0
    for survey in table.surveys:
        yield f"{{{survey.capability}, {survey.sms}, 0x{survey.kind:07x}, {first}, {len(survey.problems)}}}"
        first += len(survey.problems)


def _measurements(table: Table) -> Iterator[str]:
    first_order = first_near = 0
    for survey in table.surveys:
        for problem in survey.problems:
            places = f"{first_order}, {len(problem.order)}, {first_near}, {len(problem.near)}"
            octaves = f"{{{', '.join(map(str, problem.point))}}}"
            yield f"{{{', '.join(map(str, problem.extents))}, {octaves}, {places}}}"
            first_order += len(problem.order)
            first_near += len(problem.near)
