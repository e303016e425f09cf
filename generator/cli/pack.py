"""The verb pack: the kernels of a model's linear layers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from generator.arch import ARCHS, parse_arch_list
from generator.build.pipeline import Outcome, Settings
from generator.build.toolchain import templates_folder
from generator.build.workers import cores
from generator.cli.options import json_option
from generator.cli.output import OnOutcome, progress
from generator.errors import HgemmError, RequestError
from generator.pack.kernels import DEFAULT_DTYPE, MAX_LOSS, Pack, PackedKernels, choosers_of, dtypes_of, pack
from generator.pack.models import MODELS, Layer, Model, distinct, model_of_sizes, read_model
from generator.spec import symbol_of
from generator.store.files import reject_export
from generator.store.library import Library
from generator.tables import counted, to_text
from hgemm.library import reject_file
from hgemm.locations import library_suffix
from hgemm.options import FOLDER, INPUTS, FiniteRange, NonEmptyPath, kind_option
from hgemm.packed import ROWS
from hgemm.problem import ACTIVATIONS, BIASES, LAYOUTS, MAX_EXTENT

_HELP = f"""Build the kernels of a model's linear layers, for {ROWS[0]} to {ROWS[1]:,} rows (tokens). No GPU is needed.

MODEL is a config.json of Hugging Face, or its folder. It is read as data, and nothing in it is executed. Known values of
model_type: {", ".join(MODELS)}. For any other model, --nk lists n and k of its layers.

The cost model estimates each candidate for each layer and number of rows. The pack is a small set of kernels that is
predicted to be within --loss of the best candidate everywhere. It contains q, k and v, and gate and up, both as separate
layers and fused. Layers that are followed by an activation get kernels with the activation, and kernels without
it for programs that apply it themselves, such as `hgemm.torch.patch` without `fuse`. --activation-only leaves these out.

With --invariant, all kernels of a layer sum k in one order, for products whose bits do not depend on the number of rows.

The result is a library: `hgemm export`, `hgemm.open` and `hgemm tune` take it as it is.

\b
Examples:
  hgemm pack llama/config.json --arch sm_90a --to build/llama
  hgemm pack llama --arch 80,90a --dtype f16 --to build/llama
  hgemm pack --nk 4096x14336,14336x4096 --dtype bf16 --bias row --arch 90a --to build/mlp
  hgemm pack llama --arch 90a --rows 1:512 --to build/llama
  hgemm pack llama --arch 90a --dry-run
  hgemm pack llama --arch 90a --invariant --to build/llama
"""
_SIZES_ONLY = ("layout", "bias", "activation")
_CHECK_SHAPE = "8x128x256"
"""The product of --check: a few rows, and more k-tiles than one."""


@click.command("pack", help=_HELP)
@click.argument("model", required=False, type=NonEmptyPath(), metavar="[MODEL]")
@click.option("--nk", default="", metavar="SIZES", help="n and k of layers, instead of MODEL: 4096x14336,14336x4096.")
@click.option("--arch", required=True, metavar="ARCHS", help="Architectures of the kernels: 90a, or 80,90a.")
@click.option("-o", "--to", type=FOLDER, metavar="DIR", help="The library's folder.")
@kind_option("--dtype", INPUTS, "Type of A, B and D", "Default: the config's.", several=True)
@kind_option("--layout", LAYOUTS, "With --nk: A and B in BLAS letters", default="tn", show_default=True)
@kind_option("--bias", BIASES[:2], "With --nk: bias", default="none", show_default=True)
@kind_option("--activation", ACTIVATIONS, "With --nk: activation", default="none", show_default=True)
@click.option(
    "--rows",
    default=f"{ROWS[0]}:{ROWS[1]}",
    show_default=True,
    metavar="FIRST:LAST",
    callback=lambda context, option, text: _rows(text),
    help="Fewest and most rows (tokens). Fewer rows need fewer kernels.",
)
@click.option(
    "--loss",
    type=FiniteRange(0, 100),
    default=100 * MAX_LOSS,
    show_default=True,
    metavar="PERCENT",
    help="Largest predicted loss of time to the best candidate. A larger one needs fewer kernels.",
)
@click.option("--activation-only", is_flag=True, help="Layers with an activation: only kernels that compute it.")
@click.option("--invariant", is_flag=True, help="Only kernels that sum k in one order, without splits.")
@click.option("--dry-run", is_flag=True, help="Print the layers and the number of kernels. Build nothing.")
@click.option("--explain", is_flag=True, help="Also print which kernel serves which rows of a layer. Build nothing.")
@click.option("--check", is_flag=True, help="Also run one kernel on this machine's CPU and check its result.")
@click.option("-j", "--jobs", type=click.IntRange(1), metavar="N", help="Processes. Default: all cores.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@json_option
@click.pass_context
def pack_command(
    ctx: click.Context,
    model: Path | None,
    nk: str,
    arch: str,
    to: Path | None,
    dtype: str | None,
    layout: str,
    bias: str,
    activation: str,
    rows: tuple[int, int],
    loss: float,
    activation_only: bool,
    invariant: bool,
    dry_run: bool,
    explain: bool,
    check: bool,
    jobs: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    if (model is None) == (not nk):
        raise RequestError(
            "name a config.json, or list the layers with --nk" if not nk else "--nk replaces MODEL: give one"
        )
    _reject_options_of_sizes(ctx, nk)
    if check and (dry_run or explain):
        raise RequestError(f"--check runs a kernel, and --{'explain' if explain else 'dry-run'} builds none: give one")
    began = time.perf_counter()
    archs = parse_arch_list(arch)
    read = model_of_sizes(nk, layout, bias != "none", activation) if nk else read_model(model or Path())
    dtypes = dtypes_of(read, dtype or "")
    _note(read, archs, dtype or "")
    layers = distinct(read.layers)
    choosers = choosers_of(read, archs, dtypes, invariant, rows, activation_only)
    if dry_run or explain:
        choices = [chooser.choose(loss / 100) for chooser in choosers]
        if as_json:
            click.echo(json.dumps(_document(read, dtypes, layers, choices), indent=1))
        else:
            click.echo(_plan(layers, choices, explain), nl=False)
        more = "" if explain or as_json else "; --explain also prints which kernel serves which rows"
        click.echo(f"hgemm: nothing was built; a build replaces kernels whose registers spill{more}", err=True)
        return
    if to is None:
        raise RequestError("--to is missing: name the folder of the library, or add --dry-run")
    reject_file(to)
    reject_export(to)
    settings = Settings(Library(to, "--to"), templates_folder())
    workers = jobs or cores()

    @contextmanager
    def started(choices: Sequence[PackedKernels], count: int) -> Iterator[OnOutcome]:
        if not quiet:
            for choice in choices:
                click.echo(f"hgemm: {_chosen(choice)}, in {time.perf_counter() - began:.1f} s", err=True)
        failed: list[Outcome] = []
        with progress(count, quiet, workers) as tell:

            def told(outcome: Outcome) -> None:
                tell(outcome)
                failed.extend([outcome] if outcome.record is None else [])

            yield told
        for outcome in failed:
            reason = outcome.error.rpartition(": ")[2].partition(". Try ")[0]
            click.echo(f"hgemm: {outcome.symbol} failed ({reason}): other kernels replace it", err=True)

    done = pack(choosers, settings, loss / 100, workers, started)
    checked = _checked(settings.library, done) if check else {}
    seconds = time.perf_counter() - began
    if as_json:
        found = {
            "folder": str(to),
            "symbols": done.symbols,
            "bytes": done.bytes,
            "seconds": round(seconds, 2),
            "dropped": dict(done.dropped),
            **checked,
        }
        click.echo(json.dumps(_document(read, dtypes, layers, done.choices) | found, indent=1))
        return
    click.echo(_layer_table(layers, done.choices), nl=False)
    size = f"{done.bytes:,} B of cubins and PTX"
    total = len(settings.library.rows())
    whole = f"; the library has {total} kernels" if total > len(done.symbols) else ""
    click.echo(f"{to}: {counted(len(done.symbols), 'kernel')} for {', '.join(archs)}, {size}, {seconds:.1f} s{whole}")
    if checked:
        click.echo(f"{checked['checked']}: {_CHECK_SHAPE} is correct on the CPU, {checked['check_seconds']:.1f} s")
    if not quiet:
        _next_commands(to, invariant)


def _rows(text: str) -> tuple[int, int]:
    """Parse FIRST:LAST. Raises RequestError if it is malformed, or out of range."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        raise RequestError(f"--rows {text!a} is malformed: use FIRST:LAST, such as 1:4096")
    if not 1 <= int(first) <= int(last) <= MAX_EXTENT:
        raise RequestError(f"--rows {text!a} is out of range: use FIRST:LAST with 1 <= FIRST <= LAST <= {MAX_EXTENT}")
    return int(first), int(last)


def _reject_options_of_sizes(ctx: click.Context, nk: str) -> None:
    """Raise RequestError if an option of --nk is given without it: the layers of a model have values of their own."""
    given = [name for name in _SIZES_ONLY if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if given and not nk:
        flags, verb = " and ".join(f"--{name}" for name in given), "applies" if len(given) == 1 else "apply"
        raise RequestError(
            f"{flags} {verb} to --nk only, since MODEL says what each layer has: omit {'it' if len(given) == 1 else 'them'}, "
            "or list n and k of the layers with --nk instead of MODEL"
        )


def _note(model: Model, archs: Sequence[str], dtype: str) -> None:
    if not (dtype or model.dtype):
        click.echo(f"hgemm: no type is given: packing {DEFAULT_DTYPE}; --dtype bf16 chooses another", err=True)
    for note in model.notes:
        click.echo(f"hgemm: {model.name}: {note}", err=True)
    for arch in archs:
        if f"{arch}a" in ARCHS and f"{arch}a" not in archs:
            click.echo(f"hgemm: {arch}a, for the same GPUs, has wgmma: --arch {arch}a is faster", err=True)


def _chosen(choice: PackedKernels) -> str:
    count = len(choice.plans)
    losses = f"{100 * choice.mean_loss:.1f} % on average, {100 * choice.worst_loss:.1f} % at worst"
    return f"chose {count} of {choice.candidates} kernels for {choice.arch}: predicted loss {losses}"


# ==== The answer ====


def _layer_table(layers: Sequence[Layer], choices: Sequence[PackedKernels]) -> str:
    """Return a table of the layers, with the number of kernels that each uses on each architecture.

    A layer that an activation follows has a row for the kernels with it, and one for those without it if the pack has such kernels.
    """
    archs = list(dict.fromkeys(choice.arch for choice in choices))
    columns = {arch: f"kernels {arch}" if len(archs) > 1 else "kernels" for arch in archs}
    rows = []
    for layer in layers:
        used = {
            (choice.arch, one.kind.activation, one.symbol)
            for choice in choices
            for one in choice.ranges
            if one.layer == layer.name
        }
        packed = {activation for _, activation, _ in used}
        for activation in [one for one in dict.fromkeys(("none", layer.activation)) if one in packed]:
            rows.append(
                {
                    "layer": layer.name,
                    "n": layer.n,
                    "k": layer.k,
                    "layout": layer.layout,
                    "bias": "row" if layer.bias else "none",
                    "activation": activation,
                    **{
                        column: sum((arch, activation) == (its, applied) for its, applied, _ in used)
                        for arch, column in columns.items()
                    },
                }
            )
    return to_text(rows, ["layer", "n", "k", "layout", "bias", "activation", *columns.values()])


def _plan(layers: Sequence[Layer], choices: Sequence[PackedKernels], with_rows: bool) -> str:
    """Return the tables of a dry run: the layers, and `with_rows` also the rows of each layer that each kernel serves."""
    parts = [_layer_table(layers, choices)]
    if not with_rows:
        return "".join([*parts, *(f"{_chosen(choice)}\n" for choice in choices)])
    for choice in choices:
        default, other = _ranges(choice, True), _ranges(choice, False)
        differing = [one for key, its in other.items() if its != default[key] for one in its]
        text = f"{choice.arch}, calls with a workspace, as by default\n" + _range_table(sum(default.values(), []))
        if differing:
            text += f"\n{choice.arch}, calls without a workspace, where kernels differ\n" + _range_table(differing)
        parts.append(text + _chosen(choice) + "\n")
    return "\n".join(parts)


def _ranges(choice: PackedKernels, workspace: bool) -> dict[Any, list[dict[str, Any]]]:
    """Return the table's rows for calls with, or without, a workspace, by layer and kind."""
    found: dict[Any, list[dict[str, Any]]] = {}
    for one in choice.ranges:
        if one.workspace == workspace:
            row = {
                "layer": one.layer,
                "activation": one.kind.activation,
                "rows": f"{one.first} to {one.last}" if one.first < one.last else str(one.first),
                "symbol": one.symbol,
            }
            found.setdefault((one.layer, one.kind), []).append(row)
    return found


def _range_table(rows: list[dict[str, Any]]) -> str:
    return to_text(rows, ["layer", "activation", "rows", "symbol"])


def _document(
    model: Model, dtypes: Sequence[str], layers: Sequence[Layer], choices: Sequence[PackedKernels]
) -> dict[str, Any]:
    return {
        "model": model.name,
        "dtypes": list(dtypes),
        "notes": list(model.notes),
        "layers": [asdict(layer) for layer in layers],
        "choices": [
            {
                "arch": choice.arch,
                "candidates": choice.candidates,
                "kernels": len(choice.plans),
                "mean_loss": round(choice.mean_loss, 4),
                "worst_loss": round(choice.worst_loss, 4),
                "ranges": [{**asdict(one), "kind": str(one.kind)} for one in choice.ranges],
            }
            for choice in choices
        ],
    }


def _checked(library: Library, done: Pack) -> dict[str, Any]:
    """Run the smallest kernel on the CPU. Return its symbol and the seconds. Raises: HgemmError if its result is wrong."""
    from generator.proof.jobs import Emulation, host_toolchain  # slow to import

    began = time.perf_counter()
    tiles = {plan.spec.cta_tile.m * plan.spec.cta_tile.n: plan for choice in done.choices for plan in choice.plans}
    symbol = symbol_of(tiles[min(tiles)].spec)
    outcome = next(Emulation(library, host_toolchain(), _CHECK_SHAPE).outcomes([symbol]))
    if not outcome.passed:
        raise HgemmError(f"{symbol} fails its check on the CPU: {outcome.reason}")
    return {"checked": symbol, "check_seconds": round(time.perf_counter() - began, 2)}


def _next_commands(to: Path, invariant: bool) -> None:
    export = " --invariant" if invariant else ""
    matmul = ".matmul(x, w.T, batch_invariant=True)" if invariant else ""
    lines = (
        f"hgemm export{library_suffix(to)} --to {to}-c{export}    # a C library",
        f'hgemm.open("{to}"){matmul}    # in Python',
        f"hgemm verify{library_suffix(to)} --emulate    # check all kernels on the CPU",
        f"hgemm verify{library_suffix(to)} --device    # check all kernels on the GPU",
        f"hgemm tune{library_suffix(to)}    # measure the layers on the GPU, for selection",
    )
    click.echo("hgemm: next:\n  " + "\n  ".join(lines), err=True)
