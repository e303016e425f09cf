"""The dispatch table as C: table.h has its sizes, table.c the numbers of hgemm.table and what a launch needs beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

from generator.export.images import Code, Images
from hgemm.facts import Facts, MapRule
from hgemm.table import Group, Measured, Row, Table
from hgemm.tensor_maps import OPERANDS

MAX_CLOCKS = 2**24
"""The estimate's products stay below 2^63 while a variant's own numbers stay below this."""


def table_h(table: Table, version: str) -> str:
    """Return the header that says how large the table is."""
    sizes = {
        "GROUP_COUNT": len(table.groups),
        "ROW_COUNT": len(table.rows),
        "MEASURED_COUNT": len(table.measured),
        "ORDER_COUNT": sum(len(entry.rows) for entry in table.measured),
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
    orders = [row for entry in table.measured for row in entry.rows]
    return "\n".join(
        [
            "/* Written by the HGEMM generator: this library's kernels, in the order of its table.json. */",
            '#include "internal.h"',
            "",
            *_array("hgemm_group", "groups", "GROUP_COUNT", map(_group, table.groups)),
            *_array("hgemm_row", "rows", "ROW_COUNT", (_row(row, facts[row.symbol], images) for row in table.rows)),
            *_array("hgemm_measured", "measurements", "MEASURED_COUNT + 1", [*_measurements(table), "{0}"]),
            *_array("uint32_t", "orders", "ORDER_COUNT + 1", [*map(str, orders), "0"]),
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
    for name in ("k_tile_clocks", "tile_clocks", "launch_clocks"):
        if getattr(row, name) >= MAX_CLOCKS:
            raise ValueError(f"{row.symbol}: {name} {getattr(row, name)} is not below {MAX_CLOCKS}")
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


def _measurements(table: Table) -> list[str]:
    lines, first = [], 0
    for entry in table.measured:
        lines.append(_measured(entry, first))
        first += len(entry.rows)
    return lines


def _measured(entry: Measured, first: int) -> str:
    numbers = f"{entry.m}, {entry.n}, {entry.k}, {entry.batch}, {first}, {len(entry.rows)}"
    return f"{{{entry.capability}, 0x{entry.kind:07x}, {numbers}}}"
