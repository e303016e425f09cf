"""Fills the reference pages of the site from the code: command line, spec fields, record fields, Python and C API.

A line `<!-- generated: NAME -->` in a page is replaced by what the function of that name below returns.
A quoted line above it tells readers of the repository where to find this. The site omits the line.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

HEADER = ROOT / "templates" / "capi" / "include" / "hgemm.h.in"
WIDTH = 96
MARKER = re.compile(r"^(?:> .*\n\n)?<!-- generated: (\w+) -->$", re.MULTILINE)
OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)\)")
SHIM = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"></script>')


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the markers of a page, and copy files of the repository that it links to. mkdocs calls this for every page."""
    markdown = MARKER.sub(lambda match: GENERATED[match[1]](), markdown)
    folder = ROOT / "docs" / Path(page.file.src_uri).parent

    def in_site(match: re.Match[str]) -> str:
        source = (folder / match[1]).resolve()
        if source.is_relative_to(ROOT / "docs") or not source.is_file():
            return match[0]
        uri = f"files/{source.relative_to(ROOT).as_posix()}" + ".txt" * (source.suffix == ".md")
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(source)))
        return f"]({'../' * page.file.src_uri.count('/')}{uri})"

    return OUTSIDE.sub(in_site, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load the script that lets a site without a server be searched from the site itself, not from another host."""
    up = "../" * page.url.count("/")
    return SHIM.sub(f'<script src="{up}assets/file-search.js"></script>', output)


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# ---- Command line ----------------------------------------------------------------------------------------------------


def cli() -> str:
    """Return the help of `generate` and of every verb of `hgemm`, a section each."""
    return "\n".join(_help_section(name, command) for name, command in commands())


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield `generate`, and each verb as `hgemm VERB`, with its command."""
    from generator.cli.main import generate_command, hgemm_command

    yield "generate", generate_command
    context = click.Context(hgemm_command, info_name="hgemm")
    for verb in hgemm_command.list_commands(context):
        yield f"hgemm {verb}", hgemm_command.get_command(context, verb)


def _help_section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH)
    return f"## {name}\n\n```text\n{command.get_help(context)}\n```\n"


# ---- Spec fields -----------------------------------------------------------------------------------------------------


def spec_fields() -> str:
    """Return one table of spec options for each group of `generate --help`, from the field table."""
    from generator.spec import BY_FIELD, SPEC_OPTIONS

    sections = []
    for group in dict.fromkeys(option.group for option in SPEC_OPTIONS):
        rows = []
        for option in SPEC_OPTIONS:
            if option.group == group:
                field = BY_FIELD[option.fields[0]]
                families = ", ".join(f"`{name}`" for name in field.families) or "all"
                names = ", ".join(f"`{name}`" for name in option.fields)
                rows.append((f"`{option.flag}`", names, option.help, families))
        sections.append(f"### {group}\n\n" + table(("Option", "Record fields", "Meaning", "Families"), rows))
    return "\n\n".join(sections)


def architectures() -> str:
    """Return the table of architectures: limits and families."""
    from generator.arch import ARCHS
    from generator.families import supported_by

    rows = [
        (
            f"`{arch.name}`",
            f"{arch.limits.smem_bytes_per_cta:,}",
            f"{arch.limits.smem_bytes_per_sm:,}",
            str(arch.limits.warps_per_sm),
            str(arch.limits.ctas_per_sm),
            ", ".join(f"`{family.name}`" for family in supported_by(arch)),
        )
        for arch in ARCHS.values()
    ]
    header = ("Architecture", "Shared memory per CTA, B", "per SM, B", "Warps per SM", "CTAs per SM", "Families")
    return table(header, rows)


# ---- Records ---------------------------------------------------------------------------------------------------------


def record_fields() -> str:
    """Return a table of the fields that `hgemm list --fields` prints for every library."""
    from generator.store import schema

    return table(
        ("Field", "Meaning"), [(f"`{name}`", meaning) for name, meaning in sorted(schema.flat_fields().items())]
    )


def record_schema() -> str:
    """Return a table of the fields of each section of a record, from its JSON schema."""
    from generator.store import schema

    properties = schema.record_schema()["properties"]
    top = [(f"`{name}`", _json_type(item), "", item["description"]) for name, item in properties.items()]
    sections = [table(_SCHEMA_HEADER, top)]
    for name, item in properties.items():
        rows = [*_schema_rows(item)]
        if rows:
            sections.append(f"### {name}\n\n" + table(_SCHEMA_HEADER, rows))
    return "\n\n".join(sections)


_SCHEMA_HEADER = ("Field", "Type", "Unit", "Meaning")


def _schema_rows(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, ...]]:
    """Yield a row for each field of an object, with the fields of inner objects after it."""
    required = schema.get("required", ())
    for name, item in schema.get("properties", {}).items():
        type_ = _json_type(item) + ("" if name in required else ", optional")
        yield f"`{path}{name}`", type_, item.get("x-unit", ""), item["description"]
        yield from _schema_rows(item, f"{path}{name}.")
        yield from _schema_rows(item.get("items", {}), f"{path}{name}[].")


def _json_type(schema: dict[str, Any]) -> str:
    if schema.get("type") == "array":
        return f"array of {_json_type(schema['items'])}"
    return str(schema.get("type") or schema.get("const", "any"))


# ---- Emitted kernels -------------------------------------------------------------------------------------------------


def emitted_kernel() -> str:
    """Return the source of the golden kernel on mma.sync."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "emitted").glob("hgemm_sm89_*/kernel.cu"))]
    return "```c++\n" + next(text for text in texts if "<mma_sync/kernel.cuh>" in text) + "```"


# ---- APIs ------------------------------------------------------------------------------------------------------------


def python_api() -> str:
    """Return a mkdocstrings directive for everything that `import hgemm` offers: functions, classes, then exceptions."""
    import hgemm

    found = [(name, getattr(hgemm, name)) for name in hgemm.__all__]
    first = [*_FIRST_IN_PYTHON]
    found.sort(
        key=lambda item: (
            isinstance(item[1], type) and issubclass(item[1], Exception),
            first.index(item[0]) if item[0] in first else len(first),
        )
    )
    return "\n\n".join(_python_directive(name, item) for name, item in found)


_FIRST_IN_PYTHON = (
    *("open", "matmul", "linear", "generate", "verify", "tune", "interleave"),
    *("Library", "Kernel", "MatmulPlan", "Problem", "Kind", "LaunchOptions"),
)
"""The order of functions and classes on the page of the Python API. The others follow."""
_PYTHON_MEMBERS = {
    "Library": ("matmul", "linear", "plan", "kernel", "select", "symbols", "records", "refresh"),
    "Kernel": ("__call__", "symbol", "launch", "bind", "prepare", "workspace_bytes"),
    "Problem": (),
    "Kind": (),
    "LaunchOptions": (),
}
"""The members of a class on that page. The others are for the package itself."""


def _python_directive(name: str, item: Any) -> str:
    lines = [f"::: {item.__module__}.{item.__qualname__}", "    options:", f"      heading: hgemm.{name}"]
    lines += [f"      toc_label: {name}"]
    if name in _PYTHON_MEMBERS:
        lines += [f"      members: [{', '.join(_PYTHON_MEMBERS[name])}]"]
    return "\n".join(lines)


def c_api() -> str:
    """Return a section for each function of hgemm.h, with its comment, and the types after them."""
    from generator.export.c_sources import with_enums

    text = with_enums(HEADER.read_text(encoding="utf-8"))
    text = re.sub(r"HGEMM_FIELD\((\w+), (\w+), \w+\)", r"\1 \2", text)
    text = re.sub(r"; +/\*", "; /*", text)
    functions = re.findall(r"/\* ((?:(?!\*/).)*?) ?\*/\nHGEMM_API ([^;]*?(hgemm_\w+)\([^;]*\));", text, re.DOTALL)
    if not functions:
        raise RuntimeError(f"{HEADER} has no function with a comment")
    sections = [
        f"### {name}\n\n```c\n{_wrapped(code)};\n```\n\n{_plain(comment)}\n" for comment, code, name in functions
    ]
    types = re.findall(
        r"^((?:/\*(?:(?!\*/).)*\*/\n)?typedef (?:enum|struct) \w+ \{.*?^\} \w+;)", text, re.DOTALL | re.MULTILINE
    )
    blocks = "\n\n".join(f"```c\n{code}\n```" for code in types)
    return "## Functions\n\n" + "\n".join(sections) + "\n## Types\n\n" + blocks


def _wrapped(declaration: str) -> str:
    """Return a declaration with a line for each parameter if it is long."""
    if len(declaration) <= 80:
        return declaration
    begin, _, parameters = re.sub(r"\s+", " ", declaration).partition("(")
    return f"{begin}(\n    " + ",\n    ".join(parameters.rstrip(")").split(", ")) + ")"


def _plain(comment: str) -> str:
    """Return a C comment as Markdown: no leading stars, and a paragraph for each heading."""
    text = re.sub(r"\n \*? ?", "\n", comment).replace("*", r"\*").replace("_", r"\_")
    return re.sub(
        r"(?:^|(?<=\. )|\n)(Errors|Additional errors|CUDA graphs|Streams|Determinism|Units|Threads): ",
        r"\n\n**\1:** ",
        text,
    )


# ---- Measurements ----------------------------------------------------------------------------------------------------

BATCH_INVARIANCE = tuple(ROOT / "benchmarks" / "data" / f"batch_invariance_{card}.json" for card in ("h100", "h200"))
BATCH_INVARIANCE_COMMANDS = """\
    generate --catalog hopper,hopper_bias --dtype f16 --library build/invariant
    python -m benchmarks.batch_invariance --library build/invariant --json batch_invariance.json
"""


def batch_invariance() -> str:
    """Return the bits and the speed of batch-invariant products on each card, and the commands that measure them."""
    measured = [json.loads(path.read_text()) for path in BATCH_INVARIANCE if path.exists()]
    if not measured:
        return f"It is not measured yet. On a machine with a GPU, measure it with\n\n{BATCH_INVARIANCE_COMMANDS}"
    lines = (
        "The first columns count the numbers of rows m for which some row differs from the same row in a product of 8192 rows. "
        f"The others are speeds of batch-invariant products for {', '.join(map(str, measured[0]['pairs'][0]['m']))} rows: the "
        "geometric mean, and the minimum in parentheses. Triton is the faster of two batch-invariant kernels with one tile each.",
        *map(_batch_invariance_of, measured),
        f"Commands:\n\n{BATCH_INVARIANCE_COMMANDS}",
    )
    return "\n\n".join(lines)


def _batch_invariance_of(data: dict[str, Any]) -> str:
    bits = {(one["n"], one["k"]): one for one in data["bits"]}
    triton = [name for name in data["pairs"][0]["ratio"] if name.startswith("triton")]
    rows = []
    for pair in data["pairs"]:
        ratio, its = pair["ratio"], bits[pair["n"], pair["k"]]
        best_triton = [min(of) for of in zip(*(ratio[name] for name in triton))]
        speeds = (ratio["ordinary"], ratio["torch"], best_triton)
        differing = (f"{its[way]['m_differing']} of {its['m_compared']}" for way in ("invariant", "ordinary", "torch"))
        rows.append((f"{pair['n']}, {pair['k']}", *differing, *map(_mean_and_least, speeds)))
    header = ("n, k", "differing: invariant", "ordinary", "torch", "speed over ordinary", "over torch", "over Triton")
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    return f"{table(header, rows)}\n\n{data['device']}, {data['date']}, {versions}, f16, CUDA graphs."


def _mean_and_least(ratios: list[float]) -> str:
    return f"{geometric_mean(ratios):.2f} ({min(ratios):.2f})"


GENERATED: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        *(cli, spec_fields, architectures, record_fields, record_schema, emitted_kernel, python_api, c_api),
        batch_invariance,
    )
}
