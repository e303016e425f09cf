"""The code of all variants as one file, images.bin: a compressed fat binary each, of its cubin and its PTX."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import accumulate

from generator.build.toolchain import INSTALL
from generator.errors import HgemmError
from generator.export.enums import COUNTS
from hgemm.dispatch_table import Group, Row, Table
from hgemm.launch import OPERANDS
from hgemm.launch_traits import LaunchTraits, MapRule
from hgemm.library import Library
from hgemm.measured import REGIONS, Listed, region_of
from hgemm.shortlists import Lists

ALIGN_BYTES = 64
_COMPRESS = ("-compress-all", "-compress-mode=size")


@dataclass(frozen=True)
class Code:
    """Where code lies in images.bin, and its CRC-32."""

    offset: int
    size: int
    crc32: int


@dataclass(frozen=True)
class Images:
    """The file, and by symbol where the code lies that a cubin's devices load, and that others load."""

    blob: bytes
    cubins: dict[str, Code]
    ptx: dict[str, Code]


def pack(library: Library, symbols: Iterable[str], compressed: bool = True) -> Images:
    """Read the code of variants, hashes checked, and pack it in the order given.

    Raises: LibraryError where a variant cannot be trusted, HgemmError where nvFatbin is missing.
    """
    blob = bytearray()
    cubins: dict[str, Code] = {}
    ptx: dict[str, Code] = {}
    for symbol in symbols:
        image = library.kernel(symbol).image
        text = image.ptx.rstrip(b"\0") + b"\0"
        if compressed:
            cubins[symbol] = ptx[symbol] = _append(blob, fat_binary(symbol, image.arch, image.cubin, text))
        else:
            cubins[symbol], ptx[symbol] = _append(blob, image.cubin), _append(blob, text)
    return Images(bytes(blob), cubins, ptx)


def _append(blob: bytearray, code: bytes) -> Code:
    blob.extend(bytes(-len(blob) % ALIGN_BYTES))
    blob.extend(code)
    return Code(len(blob) - len(code), len(code), zlib.crc32(code))


def fat_binary(symbol: str, arch: str, cubin: bytes, ptx: bytes) -> bytes:
    """Return a fat binary, from which the driver takes the cubin where it runs and the PTX elsewhere.

    Source: nvFatbin 13.0, "Supported Options".
    """
    try:
        from cuda.bindings import nvfatbin  # 0.05 s, and needed only where something is exported

        handle = nvfatbin.create(list(_COMPRESS), len(_COMPRESS))
    except (ImportError, RuntimeError) as missing:
        raise HgemmError(
            f"wheel nvidia-nvfatbin is missing ({missing}): {INSTALL}, or export with --uncompressed"
        ) from missing
    try:
        number = arch.removeprefix("sm_")
        nvfatbin.add_cubin(handle, cubin, len(cubin), number, symbol)
        nvfatbin.add_ptx(handle, ptx, len(ptx), number, symbol, "")
        code = bytearray(nvfatbin.size(handle))
        nvfatbin.get(handle, code)
        return bytes(code)
    except nvfatbin.nvFatbinError as error:
        raise HgemmError(
            f"{symbol}: nvFatbin cannot read its machine code or PTX ({error}): generate it again with --force"
        ) from error
    finally:
        nvfatbin.destroy(handle)


# ==== The dispatch table as C ====


MAX_LISTED_ROW = 2**16 - 1
HAS_MEASURED = 2**31
MAX_CLOCKS = 2**24
"""The estimate's products stay below 2^63 while a variant's own numbers stay below this."""


@dataclass(frozen=True)
class Shortlists:
    """The lists of all surveys' regions: `regions` has the place of each one's list among `lists`, which are all different.

    To a region's place HAS_MEASURED is added where a problem was measured there: only then is one looked for.
    """

    regions: tuple[int, ...]
    lists: tuple[Listed, ...]

    @classmethod
    def of(cls, table: Table) -> Shortlists:
        """Work them out, survey after survey. Raises ValueError where the table has more rows than they can name."""
        if len(table.rows) > MAX_LISTED_ROW:
            raise ValueError(
                f"{len(table.rows)} variants are more than the {MAX_LISTED_ROW} that lists of regions can name"
            )
        places: dict[Listed, int] = {}
        regions = []
        for survey in table.surveys:
            of_survey = Lists(table, survey)
            measured = {region_of(one.point, straddling) for one in survey.problems for straddling in (0, 1)}
            for region in range(REGIONS):
                place = places.setdefault(of_survey.at(region), len(places))
                regions.append(place | (HAS_MEASURED if region in measured else 0))
        return cls(tuple(regions), tuple(places))


def table_h(table: Table, shortlists: Shortlists, version: str) -> str:
    """Return the header that says how large the table is."""
    sizes = {
        "GROUP_COUNT": len(table.groups),
        "ROW_COUNT": len(table.rows),
        "SURVEY_COUNT": len(table.surveys),
        "MEASURED_COUNT": sum(len(survey.problems) for survey in table.surveys),
        "ORDER_COUNT": sum(len(problem.order) for survey in table.surveys for problem in survey.problems),
        "REGION_COUNT": REGIONS,
        "SHORTLIST_COUNT": len(shortlists.lists),
        "CANDIDATE_COUNT": sum(map(len, shortlists.lists)),
        **COUNTS,
    }
    lines = [f"#define HGEMM_{name} {size}" for name, size in sizes.items()]
    return "\n".join(
        [
            "/* Written by the HGEMM generator: the sizes of table.c. */",
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


def table_c(table: Table, shortlists: Shortlists, traits: Mapping[str, LaunchTraits], images: Images) -> str:
    """Return the source that holds the table. Raises ValueError where a number is too large for the estimate."""
    problems = [problem for survey in table.surveys for problem in survey.problems]
    orders = [str(row) for problem in problems for row in problem.order]
    candidates = [", ".join(f"{{{row}, {factor}}}" for row, factor in listed) for listed in shortlists.lists if listed]
    firsts = [str(first) for first in accumulate(map(len, shortlists.lists), initial=0)]
    return "\n".join(
        [
            "/* Written by the HGEMM generator: the kernels of this library, in the order of table.json. */",
            '#include "internal.h"',
            "",
            f'_Static_assert(HGEMM_HAS_MEASURED == {HAS_MEASURED}U, "the exporter marks regions with a different bit");',
            "",
            *_array("hgemm_group", "groups", "GROUP_COUNT", map(_group, table.groups)),
            *_array("hgemm_row", "rows", "ROW_COUNT", (_row(row, traits[row.symbol], images) for row in table.rows)),
            *_array("hgemm_survey", "surveys", "SURVEY_COUNT + 1", [*_surveys(table), "{0}"]),
            *_array("hgemm_measured", "measurements", "MEASURED_COUNT + 1", [*_measurements(table), "{0}"]),
            *_array("uint32_t", "orders", "ORDER_COUNT + 1", [*orders, "0"]),
            *_array(
                "uint32_t", "regions", "SURVEY_COUNT * HGEMM_REGION_COUNT + 1", [*map(str, shortlists.regions), "0"], 24
            ),
            *_array("uint32_t", "shortlists", "SHORTLIST_COUNT + 2", [*firsts, "0"], 24),
            *_array("hgemm_candidate", "candidates", "CANDIDATE_COUNT + 1", [*candidates, "{0}"]),
        ]
    )


def _array(kind: str, name: str, size: str, entries: Iterable[str], a_line: int = 1) -> list[str]:
    every = [*entries]
    lines = [f"    {', '.join(every[at : at + a_line])}," for at in range(0, len(every), a_line)]
    return [f"{kind} const hgemm_{name}[HGEMM_{size}] = {{", *lines, "};", ""]


def _group(group: Group) -> str:
    number = "".join(digit for digit in group.arch if digit.isdigit())
    own = int(not group.arch[-1].isdigit())
    return f'{{"{group.arch}", {number}, {own}, 0x{group.kind:07x}, {group.first}, {group.count}}}'


def _row(row: Row, traits: LaunchTraits, images: Images) -> str:
    for field in fields(row):
        if field.name.endswith("_clocks") and getattr(row, field.name) >= MAX_CLOCKS:
            raise ValueError(f"{row.symbol}: {field.name} {getattr(row, field.name)} is not below {MAX_CLOCKS}")
    rules = {rule.operand: rule for rule in traits.tensor_maps}
    numbers = [getattr(row, field.name) for field in fields(row)][1:]
    words = [
        f'"{row.symbol}"',
        *map(str, numbers),
        str(traits.threads),
        str(int(traits.grid_rule == "persistent")),
        str(int(traits.programmatic)),
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
    first = 0
    for survey in table.surveys:
        for problem in survey.problems:
            yield f"{{{', '.join(map(str, problem.extents))}, {first}, {len(problem.order)}}}"
            first += len(problem.order)
