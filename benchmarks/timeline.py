"""Show where launches on wgmma spend their time: each CTA writes the clock at the ends of its phases.

\b
    python -m benchmarks.timeline --spec FILE --problems 202x2048x1024,646x768x768 --json OUT.json

The kernels are built from templates with stamps in them, which cost about 0.1 us each. Kernels need form `atoms`, copies by TMA,
and no workspace. A memory-bound kernel runs before each launch, as in the state `model`, and cuBLASLt is timed beside them.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.anchors import At, Program
from benchmarks.faults import templates_with
from generator.build.emit import emit
from generator.build.pipeline import Settings, make
from generator.build.toolchain import templates_folder
from generator.device_check import open_kernel
from generator.store.library import Library
from generator.sweep import read_spec_file, sweep
from hgemm.bench.baselines import CublasLt
from hgemm.bench.device import Watchdog
from hgemm.bench.measure import BASELINE, OURS, KernelContender, open_context, open_race
from hgemm.bench.operands import Operands
from hgemm.bench.protocol import Protocol
from hgemm.bench.work import Work
from hgemm.cases import Shape
from hgemm.device import open_device

PHASES = ("barriers", "previous grid", "first stage", "mainloop", "epilogue", "last store")
"""What ends with stamps 1 to 6. Stamp 0 is the start of the CTA."""
SLOTS = 8
MAX_CTAS = 1 << 14
STAMP = """
HGEMM_DEVICE void stamp(hgemm::Problem const& problem, int slot) {
  if (threadIdx.x != 0) return;
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  static_cast<uint64_t*>(problem.workspace)[blockIdx.x * 8 + slot] = now;
}
"""
EDITS = (
    At("", "template <class Policy> inline constexpr bool is_stream_k").insert_before(STAMP),
    At("gemm", "Place const place;").insert_before("stamp(problem, 0);"),
    At("gemm", "wait_on_dependent_grids()").insert_before("stamp(problem, 1);"),
    At("gemm", "wait_on_dependent_grids()").insert_after("stamp(problem, 2);"),
    At("gemm", "mainloop.multiply(...)").insert_before("mainloop.consumer_wait(); stamp(problem, 3);"),
    At("gemm", "mainloop.multiply(...)").insert_after("stamp(problem, 4);"),
    At("gemm", "epilogue.finish()").insert_before("stamp(problem, 5);"),
    At("gemm", "epilogue.finish()").insert_after("stamp(problem, 6);"),
)
PROTOCOL = Protocol(screen_ms=1.0, screen_samples=5, sets_max=48, l2_multiple=2.0)


@dataclass
class Stamped(KernelContender):
    """A kernel whose workspace takes the stamps."""

    def bind(self, operands: Operands, stream: int) -> list[Any]:
        if not self.workspace:
            self.workspace = self.device.allocate(MAX_CTAS * SLOTS * 8)
        return [
            self.kernel.bind(replace(operands.problem(at), workspace=self.workspace), stream=stream)
            for at in range(operands.sets)
        ]


def phases(stamps: np.ndarray) -> dict[str, float]:
    """Return the median time of each phase, and the times from the first start to the last start and end.

    Shapes: stamps (CTA, SLOTS). Units: microseconds.
    """
    first = stamps[:, 0].min()
    found = {name: np.median(stamps[:, at + 1] - stamps[:, at]) for at, name in enumerate(PHASES)}
    found |= {"last start": stamps[:, 0].max() - first, "last end": stamps[:, len(PHASES)].max() - first}
    return {name: round(float(value) * 1e-3, 2) for name, value in found.items()}


@click.command(help=__doc__)
@click.option("--spec", type=click.Path(path_type=Path, exists=True), required=True, help="The kernels.")
@click.option("--problems", required=True, help="Shapes such as 202x2048x1024, separated by commas.")
@click.option("--json", "path", type=click.Path(path_type=Path), default=None, help="Where to write the times.")
def main(spec: Path, problems: str, path: Path | None) -> None:
    plans = sweep(read_spec_file(spec)).plans
    edited = Program.of(emit(plans[0], templates_folder()).source, templates_folder())
    texts = edited.edited(EDITS).changes_from(edited)
    device, rows = open_device(), []
    with templates_with(texts) as templates, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        store = Library(Path(folder))
        outcomes = [outcome for _, outcome in make(plans, Settings(store, templates, allow_spills=True), processes=8)]
        symbols = [outcome.symbol for outcome in outcomes if outcome.record]
        context = open_context(device, PROTOCOL, 1, Watchdog(None, 120.0), stack)
        baseline = CublasLt(device)
        for shape in Shape.parse_list(problems):
            work = Work(shape.m, shape.n, shape.k)
            with open_race(work, context) as (race, own):
                found = [own(Stamped(open_kernel(store, symbol), device)) for symbol in symbols]
                for one in [*found, *own(baseline.propose(work, 8)).contenders]:
                    race.add(one)
                race.alternate(own(context.memory_kernel(work)))
                ours, theirs = race.screen(OURS), race.screen(BASELINE)
                for one in found:
                    if one.name not in ours:
                        click.echo(f"{shape} {one.name}: {race.rejected.get(one.name)}")
                        continue
                    stamps = np.zeros((MAX_CTAS, SLOTS), np.uint64)
                    device.upload(one.workspace, stamps.ctypes.data, stamps.nbytes)
                    race.launches[one.name][0]()
                    context.stream.synchronize()
                    device.download(stamps.ctypes.data, one.workspace, stamps.nbytes)
                    of_ctas = stamps[stamps[:, 0] > 0].astype(np.int64)
                    row = {"problem": str(shape), "symbol": one.name, "us": round(1e3 * ours[one.name], 2)}
                    row |= {
                        "cublaslt_us": round(1e3 * min(theirs.values()), 2),
                        "ctas": len(of_ctas),
                        **phases(of_ctas),
                    }
                    rows.append(row)
                    click.echo(" ".join(f"{name}={value}" for name, value in row.items()))
    if path:
        path.write_text(json.dumps({"device": device.name, "rows": rows}, indent=1) + "\n")
    if rows:
        click.echo(f"median last end {statistics.median(row['last end'] for row in rows):.2f} us")


if __name__ == "__main__":
    main()
