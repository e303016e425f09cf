"""The verbs for programs that use a library: select, cover, export."""

from __future__ import annotations

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from generator import epilogue
from generator.arch import parse_arch, parse_arch_list
from generator.build.pipeline import Settings
from generator.build.toolchain import templates_folder
from generator.build.workers import cores
from generator.cli.options import (
    SIZE,
    SMS,
    Extents,
    filter_options,
    json_option,
    kind_from,
    kind_options,
    library_option,
)
from generator.cli.output import OnOutcome, note_incomplete, note_left_out, planning, progress
from generator.errors import HgemmError, ProofError, RequestError, unknown_word
from generator.export.c_library import ExportOptions, compiler_failure, export
from generator.export.selection import (
    COLUMNS,
    SORTS,
    DenseProblem,
    Hole,
    alternatives,
    close_holes,
    computes,
    holes,
    kinds_of,
    promised_types,
    selected,
)
from generator.store.library import Library
from generator.store.proofs import NO_PROOF
from generator.store.proofs import unproved as why_unproved
from generator.store.query import KernelFilter, nothing_matches, select_rows
from generator.tables import counted, to_text
from hgemm.device import open_device
from hgemm.disk import disk_errors
from hgemm.dispatch_table import DispatchTable
from hgemm.dtypes import DTYPES, OUTPUTS, VECTOR_BYTES
from hgemm.epilogue import NONE
from hgemm.errors import DeviceError, UnsupportedError, deprecated
from hgemm.gpus import TYPICAL
from hgemm.growth import locked
from hgemm.library import open_library
from hgemm.locations import library_suffix
from hgemm.model.cards import card_named
from hgemm.options import INPUTS, NonEmptyPath, kind_option
from hgemm.packed import pack_command, read_pack
from hgemm.problem import ACTIVATIONS, BIASES, LAYOUTS
from hgemm.selection import WGMMA_CAPABILITY, Selector
from hgemm.selection_query import ANY_WORKSPACE, SelectionQuery, Target

_ALIGNS = ("8", "4", "2", "1")

# ==== select ====

_SELECT_HELP = """Print the kernel that a library selects for a problem. Exported libraries and `hgemm.open` select the same.

Operands are assumed dense. For example, rows of 4095 elements have an alignment of 1 element. --align overrides this.

Kernels for the GPU's own architecture are preferred, then machine code for an older one, then PTX. Among these, the column
"rule" shows how the kernel was selected:

\b
  measured   the fastest kernel that `hgemm tune` measured on this problem
  near       the kernel with the smallest estimate; measurements of `hgemm tune` on similar problems have corrected it
  shipped    the kernel with the smallest estimate; measurements that ship with hgemm have calibrated it
  estimated  the kernel with the smallest estimate of the cost model alone

Estimates are clocks of an SM, by the cost model. They rank kernels. On an H100 or H200, about 1,500 of them take a microsecond.

With --invariant, the bits of a row of D do not depend on m or the batch. All m have one accumulation order, which the line below
the table names.

With --epilogue, the kernels of an expression are candidates. Its matrices are assumed dense. For a gated pair, n counts the
columns of B.

--m, --n and --k take lists and ranges, as in `hgemm tune`. For several problems, the table has one row for each, or with --all
one for each kernel. --json prints all rows as one array, and the reason with each selected kernel. A problem without a kernel has a
row without a symbol, and the exit status is 1.

\b
Examples:
  hgemm select --arch 90 --m 4096 --layout tt
  hgemm select --arch 90 --m 1,37,777,1024:4096:1024 --n 4096 --k 4096
  hgemm select --arch 89 --m 1 --n 4096 --k 4096 --all
  hgemm select --arch 90 --m 1 --n 4096 --k 4096 --invariant
  hgemm select --arch 90 --m 512 --n 28672 --k 4096 --epilogue "silu(gate) * up"
"""


@click.command("select", help=_SELECT_HELP)
@library_option
@click.option(
    "--m", type=Extents(), required=True, metavar="RANGE", help="Rows of A and D: 4096, 1,37,777 or 1024:4096:256."
)
@click.option("--n", type=Extents(), metavar="RANGE", help="Columns of B and D. Default: equal to --m.")
@click.option("--k", type=Extents(low=0), metavar="RANGE", help="Columns of A, rows of B. Default: equal to --m.")
@click.option("--batch", type=SIZE, default=1, show_default=True, metavar="N", help="Number of products.")
@kind_options
@click.option(
    "--epilogue",
    "epilogue_text",
    default="",
    metavar="EPILOGUE",
    help="Select a kernel of this epilogue: a formula or FILE.py:FUNCTION, as for `generate`.",
)
@click.option("--pointer-arrays", is_flag=True, help="Select a kernel that reads the addresses of a batch on the GPU.")
@click.option("--beta", is_flag=True, help="Add beta * C. Requires a kernel with --beta on.")
@click.option("--align", type=click.Choice(_ALIGNS), help="Alignment of all operands, in elements. Default: dense.")
@click.option("--workspace", type=click.IntRange(0), metavar="BYTES", help="Largest workspace. Default: no limit.")
@click.option("--invariant", is_flag=True, help="Select a kernel whose order of k is that of all m and batches.")
@click.option("--cublas-order", is_flag=True, help="Prefer the order of k of cuBLASLt's unsplit kernels.")
@click.option("--arch", default="", metavar="ARCH", help="The GPU: 86, or 'RTX 3090'. Default: this machine's.")
@click.option(
    "--sms",
    type=SMS,
    metavar="N",
    help="SMs of that GPU, at most 1024. Default: those of the card, or of a common one.",
)
@click.option("--all", "show_all", is_flag=True, help="Print every kernel that supports the problem, best first.")
@json_option
@click.pass_context
def select_command(
    ctx: click.Context,
    library: Path,
    m: tuple[int, ...],
    n: tuple[int, ...] | None,
    k: tuple[int, ...] | None,
    batch: int,
    epilogue_text: str,
    pointer_arrays: bool,
    beta: bool,
    align: str | None,
    workspace: int | None,
    invariant: bool,
    cublas_order: bool,
    arch: str,
    sms: int | None,
    show_all: bool,
    as_json: bool,
    **words: str,
) -> None:
    from hgemm.bench.work import combinations  # takes 0.1 s

    problems = combinations(m, n or (), k or ())
    if sms and not arch:
        raise RequestError("--sms needs --arch: without --arch, this machine's GPU is used")
    workspace_bytes = ANY_WORKSPACE if workspace is None else workspace
    kind, expression = replace(kind_from(**words), pointer_arrays=pointer_arrays), None
    if epilogue_text:
        from hgemm.epilogue_language import as_epilogue  # imports `ast` and `inspect`

        if (kind.bias, kind.activation) != ("none", "none"):
            raise RequestError("--epilogue excludes --bias and --activation: write them in the epilogue")
        expression = as_epilogue(epilogue.resolved(epilogue_text, Path()))
        kind = replace(kind, epilogue=expression.hash if expression else NONE)
    dense = (
        DenseProblem(*extents, batch, beta, int(align) if align else None, workspace_bytes) for extents in problems
    )
    orders = {"batch_invariant": invariant, "cublas_order": cublas_order}
    queries = [replace(problem.query(kind, expression), **orders) for problem in dense]
    if arch and not sms:
        with suppress(RequestError):  # --arch names an architecture, or a card without a table
            sms = card_named(arch).sms
    target = Target.typical(parse_arch(arch, "--arch"), sms or 0) if arch else _this_machine()
    selector = open_library(library).selector(target)
    if len(queries) > 1:
        rows = [row for query in queries for row in _rows_of(selector, query, show_all)]
        if as_json:
            click.echo(json.dumps(rows, indent=1))
        else:
            options = ["options"] if any("options" in row for row in rows) else []
            click.echo(to_text(rows, ("m", "n", "k", *COLUMNS, *options)), nl=False)
            _note_assumed(target, arch, sms)
            _note_loose(queries, align)
        unsupported = Counter(row["why"] for row in rows if row["symbol"] is None)
        for why, count in unsupported.items():
            click.echo(f"hgemm: error: {counted(count, 'problem')}: {why}", err=True)
        ctx.exit(int(bool(unsupported)))
    (query,) = queries
    best = selected(selector, query)
    rows = [best, *(alternatives(selector, query) if show_all else ())]
    if as_json:
        click.echo(json.dumps(rows if show_all else best, indent=1))
    else:
        click.echo(to_text(rows, COLUMNS) + f"{best['rule']}: {best['why']}")
        _note_assumed(target, arch, sms)
        if _note_loose(queries, align):
            suffix = "a" if target.number == WGMMA_CAPABILITY else ""
            extents = query.m, query.n, query.k
            command = pack_command(kind, *extents, f"{target.number}{suffix}") if batch == 1 and query.k else ""
            if command and not any(layer.serves(kind, *extents) for layer in read_pack(library)):
                command += f"{' --invariant' if invariant else ''} --to {shlex.quote(str(library))}"
                click.echo(f"hgemm: if you cannot, this adds kernels for this size:\n  {command}", err=True)


def _rows_of(selector: Selector, query: SelectionQuery, show_all: bool) -> list[dict[str, Any]]:
    """Return the rows of one problem of several. If no kernel supports it, one row without a symbol says why."""
    try:
        rows = [selected(selector, query), *(alternatives(selector, query) if show_all else ())]
    except UnsupportedError as error:
        rows = [{"symbol": None, "why": str(error)}]
    return [{"m": query.m, "n": query.n, "k": query.k, **row} for row in rows]


def _note_assumed(target: Target, arch: str, sms: int | None) -> None:
    """Note the number of SMs, if the user names an architecture and neither a card nor a number."""
    if arch and not sms:
        note = f"assumes an {target.name} GPU with {target.sms} SMs ({TYPICAL[target.number].name})"
        click.echo(f"hgemm: {note}: --sms sets another number", err=True)


def _note_loose(queries: list[SelectionQuery], align: str | None) -> bool:
    """Note dense operands that the fastest kernels do not take. Return whether there are any."""
    loose = [] if align else list(filter(None, map(_loose_operands, queries)))
    if loose:
        several = f"operands are not in {len(loose)} of {len(queries)} problems"
        which = several if len(queries) > 1 else loose[0]
        note = f"the fastest kernels require A and B aligned to {VECTOR_BYTES} bytes, but dense {which}"
        enough = VECTOR_BYTES // DTYPES[queries[0].kind.dtype_a].bytes
        click.echo(f"hgemm: {note}. If you can pad their rows, add --align {enough}", err=True)
    return bool(loose)


def _loose_operands(query: SelectionQuery) -> str:
    """Return which of A and B are aligned to less than a vector of 16 bytes, as text. Empty if none is."""
    aligned = (("A", query.align_a, query.kind.dtype_a), ("B", query.align_b, query.kind.dtype_b))
    sizes = {name: align * DTYPES[dtype].bytes for name, align, dtype in aligned}
    return " and ".join(f"{name} is aligned to {size}" for name, size in sizes.items() if size < VECTOR_BYTES)


def _this_machine() -> Target:
    try:
        return Target.of(open_device())
    except DeviceError as error:
        raise DeviceError(f"{error}: name a GPU with --arch") from None


# ==== cover ====

_COVER_HELP = """Print the problems that no kernel of a library supports on a GPU.

Each row is a hole: a layout, types, an epilogue, alignments, and the unsupported sorts of problems (whole tiles, ragged, one
row, one column, k of 1, k of 0, a batch). The default request is what the shipped catalog promises: f16 and bf16 (and tf32 if
the library has it), f32 accumulation, all four layouts, alpha and beta, every alignment, any m, n, k and batch, no workspace.

With --no-fallback, problems that a GPU with wgmma computes on mma.sync are holes, too.

--add builds the kernels that close the holes. It also builds what these kinds lack for aligned operands: kernels for a few
rows, and for small, medium and large problems. Exit status 1: holes are left.

\b
Examples:
  hgemm cover --arch 80,86,89,90,120
  hgemm cover --arch 90 --dtype f16 --out f32 --bias none,row --activation none,gelu --add
  hgemm cover --arch 90 --dtype bf16 --layout nn --no-fallback --add
"""


@click.command("cover", help=_COVER_HELP)
@library_option
@click.option(
    "--arch", required=True, metavar="ARCHS", help="GPUs: 80,89,90. Kernels for sm_90a count as kernels for sm_90."
)
@kind_option("--dtype", INPUTS, "Type of A and B", "Default: f16,bf16, and tf32 if the library has it.", several=True)
@kind_option("--out", OUTPUTS, "Type of C and D", "Default: as A and B; f32 with tf32.", several=True)
@click.option("--types", default="", hidden=True)
@kind_option("--layout", LAYOUTS, "A and B in BLAS letters", several=True, default=",".join(LAYOUTS))
@kind_option("--bias", BIASES, "Bias", several=True, default="none", show_default=True)
@kind_option("--activation", ACTIVATIONS, "Activation", several=True, default="none", show_default=True)
@click.option(
    "--align",
    default=",".join(_ALIGNS),
    show_default=True,
    metavar="N",
    help="Alignments of all operands, in elements.",
)
@click.option("--no-beta", is_flag=True, help="Do not require beta * C.")
@click.option("--no-empty", is_flag=True, help="Do not require a k of 0, which no kernel with TMA supports.")
@click.option("--no-fallback", is_flag=True, help="Count problems that fall back to mma.sync as holes.")
@click.option(
    "--add", is_flag=True, help="Build the kernels that close the holes. Creates the library if it is missing."
)
@json_option
@click.pass_context
def cover_command(
    ctx: click.Context,
    library: Path,
    arch: str,
    dtype: str | None,
    out: str | None,
    types: str,
    layout: str,
    bias: str,
    activation: str,
    align: str,
    no_beta: bool,
    no_empty: bool,
    no_fallback: bool,
    add: bool,
    as_json: bool,
) -> None:
    asked = parse_arch_list(arch, "--arch")
    archs = dict.fromkeys(name.rstrip("af") for name in asked)
    for name in asked:
        if name not in archs:
            click.echo(f"hgemm: {name} is shown as {name.rstrip('af')}: its kernels run on the same GPUs", err=True)
    if types:
        deprecated("--types", "--dtype and --out")
    sorts = [sort for sort, extents in SORTS.items() if extents["k"] or not no_empty]
    creates = add and not library.exists()
    dtypes = _words(dtype or "") or promised_types(DispatchTable.of([]) if creates else open_library(library).table)
    pairs = [f"{word}:{other}" for word in dtypes for other in _words(out)] if out else dtypes
    for name, text in (("layout", layout), ("bias", bias), ("activation", activation), ("align", align)):
        if not _words(text):
            raise RequestError(f"--{name} has no value: write one, or several with commas")
    kinds = kinds_of(_words(types) or pairs, *map(_words, (layout, bias, activation)))
    for word in _words(align):
        if word not in _ALIGNS:
            raise unknown_word("--align", word, _ALIGNS)
    aligns = [*map(int, _words(align))]
    counts = {name: sum(computes(name, kind) for kind in kinds) for name in archs}
    _note_f16_only(counts, len(kinds))
    if creates:
        with disk_errors("create the library", library):
            library.mkdir(parents=True, exist_ok=True)

    def find() -> list[Hole]:
        opened = open_library(library)
        watch = opened.fallback_watch if no_fallback else None
        return list(holes(opened.table, archs, kinds, aligns, not no_beta, watch, sorts))

    found = find()
    if add and found:
        with locked(library):
            before = None
            # Again: with --no-fallback, problems that fall back to a new kernel on mma.sync are further holes.
            while (found := find()) and found != before:
                settings = Settings(Library(library), templates_folder())
                close_holes(found, settings, cores(), partial(planning, False), _building)
                before = found
    if as_json:
        click.echo(json.dumps([hole.to_dict() for hole in found], indent=1))
    elif found:
        rows = [row for hole in found for row in _hole_rows(hole, len(sorts))]
        click.echo(to_text(rows, ("arch", "kind", "beta", "align", "unsupported")), nl=False)
    else:
        supported = ", ".join(f"{name}: {counted(count, 'kind')}" for name, count in counts.items())
        click.echo(f"{supported} supported, at alignments {align}, for {', '.join(sorts)}")
    if found and not add:
        click.echo("hgemm: to build the kernels that close these holes, add --add", err=True)
    ctx.exit(int(bool(found)))


def _building(total: int) -> AbstractContextManager[OnOutcome]:
    return progress(total, False, min(total, cores()))


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _note_f16_only(counts: dict[str, int], kinds: int) -> None:
    """Note the architectures whose tensor instructions multiply f16 only. Raises: RequestError if no kind is left."""
    limited = [name for name, count in counts.items() if count < kinds]
    if limited and not any(counts.values()):
        raise RequestError(f"the tensor instructions of {' and '.join(limited)} multiply f16 only: use --dtype f16")
    for name in limited:
        click.echo(f"hgemm: {name} multiplies f16 only: {counted(kinds - counts[name], 'kind')} skipped", err=True)


def _hole_rows(hole: Hole, required: int) -> Iterator[dict[str, str]]:
    """Yield a row for all alignments that lack the same sorts of problems. `required` is the number of sorts asked for."""
    aligns = defaultdict(list)
    for align in sorted(hole.sorts, reverse=True):
        aligns[hole.sorts[align]].append(str(align))
    for sorts, of_sorts in aligns.items():
        yield {
            "arch": hole.arch,
            "kind": str(hole.kind),
            "beta": "yes" if hole.beta else "no",
            "align": ",".join(of_sorts),
            "unsupported": "all" if len(sorts) == required else ", ".join(sorts),
        }


# ==== export ====

_EXPORT_HELP = """Write a C library that embeds the kernels.

A program that links it needs the NVIDIA driver at run time. To build the program, any C compiler is enough: no GPU, no CUDA
toolkit. The folder contains include/hgemm.h, include/hgemm.hpp, lib/libhgemm.a and lib/libhgemm.so, the files for
find_package and pkg-config, and the sources with a CMakeLists.txt for add_subdirectory. The same kernels and the same
compiler give the same bytes.

\b
Examples:
  hgemm export --to build/hgemm
  hgemm export --to build/hgemm --where "proof_executor like '*'" --require-proof
  hgemm export --to third_party/mygemm --arch 90,90a --prefix mygemm
  hgemm export --to build/fused --epilogue mine.py:scaled
  hgemm export --to build/invariant --invariant
  hgemm export --to build/blas --blas
"""


@click.command("export", help=_EXPORT_HELP)
@library_option
@filter_options
@click.option(
    "-o",
    "--to",
    type=NonEmptyPath(file_okay=False),
    required=True,
    metavar="DIR",
    help="The folder to write.",
)
@click.option("--prefix", default="hgemm", show_default=True, metavar="NAME", help="Prefix of symbols and file names.")
@click.option("--invariant", is_flag=True, help="Make all products batch-invariant, as with HGEMM_BATCH_INVARIANT.")
@click.option("--blas", is_flag=True, help="Also build libhgemm_blas.so, which programs use instead of cuBLAS.")
@click.option("--source", is_flag=True, help="Also write the kernels' sources, to compile them into your own files.")
@click.option(
    "--require-proof", is_flag=True, help="Fail if the record of a kernel has no proof on the CPU by this version."
)
@click.option("--uncompressed", is_flag=True, help="Embed cubins and PTX uncompressed. This needs no nvFatbin.")
@click.option(
    "--cc", default="cc", envvar="CC", show_default=True, show_envvar=True, metavar="CC", help="The C compiler."
)
@json_option
@click.pass_context
def export_command(
    ctx: click.Context,
    library: Path,
    to: Path,
    prefix: str,
    invariant: bool,
    blas: bool,
    source: bool,
    require_proof: bool,
    uncompressed: bool,
    cc: str,
    as_json: bool,
    **filters: str,
) -> None:
    opened = Library(library)
    rows = select_rows(opened, KernelFilter(**filters))
    symbols = [str(row["symbol"]) for row in rows]
    note_left_out(opened, KernelFilter(**filters))
    note_incomplete(library)
    failure = compiler_failure(cc)
    if failure and ctx.get_parameter_source("cc") is not click.core.ParameterSource.DEFAULT:
        raise HgemmError(f"{failure}: choose another with --cc, or omit --cc and CC to write only sources")
    if not symbols:
        raise nothing_matches(opened)
    from generator.proof.jobs import executor_version  # slow to load, and needed only here

    runtime, version = open_library(library), executor_version()
    reasons = {symbol: why for symbol in symbols if (why := why_unproved(runtime.records[symbol].data, version))}
    unproved = [*reasons]
    warning = _unproved_warning(reasons, len(rows))
    if unproved and require_proof:
        raise ProofError(f"{warning}, and nothing was exported: {_how_to_prove(library)}")
    done = export(runtime, to, ExportOptions(symbols, prefix, source, not uncompressed, cc, invariant, blas))
    if not done.compiler:
        click.echo(f"hgemm: {failure}: wrote the sources; build lib/ with CMake", err=True)
    if unproved:
        click.echo(f"hgemm: {warning}: {_how_to_prove(library)}", err=True)
    if as_json:
        click.echo(json.dumps({**asdict(done), "folder": str(done.folder), "unproved": unproved}, indent=1))
        return
    kernels, archs = counted(done.kernels, "kernel"), ", ".join(done.archs)
    click.echo(f"{done.folder}: {kernels} for {archs}, {done.image_bytes:,} B of images")


def _unproved_warning(reasons: dict[str, str], total: int) -> str:
    """Return how many kernels have no proof that counts, and what is wrong with the first proof that does not count."""
    wrong = [f" ({symbol}: {reason})" for symbol, reason in reasons.items() if reason != NO_PROOF]
    proof = f"no valid proof{wrong[0]}" if wrong else "no proof"
    return f"{len(reasons)} of {counted(total, 'kernel')} {'has' if len(reasons) == 1 else 'have'} {proof}"


def _how_to_prove(library: Path) -> str:
    verify = f"hgemm verify{library_suffix(library)}"
    return f"`{verify} --emulate` proves them on the CPU; `{verify} --device` checks them on a GPU"
