"""`hgemm run`: one variant on one problem, timed and checked on the GPU."""

from __future__ import annotations

import json
import math
from pathlib import Path

import click

from generator.commands.common_options import SIZE, Symbol, json_option, library_option
from generator.commands.device_check import CODES, open_kernel
from generator.errors import RequestError
from generator.store.library import Library
from generator.store.selection import resolve_one
from hgemm.cases import Case, Shape
from hgemm.device import open_device

_HELP = """Run a variant on random data and print its time, its rate and its largest error.

SYMBOL is a variant's symbol or alias, or a unique beginning of one. The time is the median of samples taken by CUDA
events, launches one after the other, operands in cache. The error is checked on all of D, or on some rows where D is
large, against a float64 reference and what the variant's arithmetic allows.

\b
Example:
  hgemm run hgemm_sm90_tn_f16_f32_f16_128x128x32 --m 4096 --n 4096 --k 4096
"""


@click.command("run", help=_HELP)
@click.argument("symbol", type=Symbol())
@library_option
@click.option("--m", type=SIZE, metavar="N", required=True, help="Rows of A and D.")
@click.option("--n", type=SIZE, metavar="N", required=True, help="Columns of B and D.")
@click.option("--k", type=SIZE, metavar="N", required=True, help="Columns of A, rows of B.")
@click.option("--batch", type=SIZE, metavar="N", default=1, show_default=True, help="Problems of this size.")
@click.option("--alpha", type=float, default=1.0, show_default=True, help="Factor of A B.")
@click.option("--beta", type=float, default=0.0, show_default=True, help="Factor of C; the variant must have beta on.")
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", default=0, show_default=True, help="Of the random operands."
)
@click.option(
    "--repeat", type=click.IntRange(1, 10000), metavar="N", default=20, show_default=True, help="Samples of the time."
)
@click.option(
    "--code", type=click.Choice(CODES), default="auto", help="What is loaded; auto: PTX where the cubin does not run."
)
@click.option("--no-check", is_flag=True, help="Do not compare with the reference.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    symbol: str,
    library: Path,
    m: int,
    n: int,
    k: int,
    batch: int,
    alpha: float,
    beta: float,
    seed: int,
    repeat: int,
    code: str,
    no_check: bool,
    as_json: bool,
) -> None:
    opened = Library(library)
    name = resolve_one(opened, symbol)
    kernel = open_kernel(opened, name, code)
    if not (math.isfinite(alpha) and math.isfinite(beta)):
        raise RequestError("alpha and beta must be finite")
    if beta and not kernel.facts.beta:
        raise RequestError(f"{name} does not add C: leave --beta, or run a variant generated with beta on")
    device = open_device()
    from hgemm.once import run  # NumPy, 0.1 s, that a machine without a GPU has no use for

    found = run(kernel, Case(Shape(m, n, k, batch), alpha, beta), device, seed, repeat, not no_check)
    answer = {
        "symbol": name,
        "device": device.name,
        "m": m,
        "n": n,
        "k": k,
        "batch": batch,
        "time_us": found.time_us,
        "tflops": found.tflops,
    }
    if found.check:
        ratio = found.check.max_bound_ratio
        answer["checked_rows"] = found.checked_rows
        answer["max_error"] = found.check.max_error if math.isfinite(found.check.max_error) else None
        answer["max_bound_ratio"] = ratio if math.isfinite(ratio) else None
        answer["passed"], answer["reason"] = found.check.passed, found.check.reason
    click.echo(json.dumps(answer, indent=1) if as_json else _text(answer))
    ctx.exit(int(found.check is not None and not found.check.passed))


def _text(answer: dict) -> str:
    lines = [f"{answer['symbol']} on {answer['device']}", f"{answer['time_us']:.2f} us  {answer['tflops']:.1f} TFLOP/s"]
    if answer.get("passed"):
        rows = f"{answer['checked_rows']} of {answer['m']} rows checked"
        lines.append(
            f"max error {answer['max_error']:.3g}, {answer['max_bound_ratio']:.2f} of what is possible; {rows}"
        )
    elif "passed" in answer:
        lines.append(f"WRONG: {answer['reason']}")
    return "\n".join(lines)
