"""A baseline kernel: a hand-written kernel that a ladder runs as one of its steps. No library holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from generator.build.compile import compile_kernel
from generator.build.emit import Kernel
from generator.build.inspect import parse_ptxas_log
from generator.build.toolchain import headers, templates_folder
from generator.families.base import Plan
from generator.ladders.recipes import FOLDER, BaselineSource
from hgemm import kernel as run_time

ENTRY_HEADER = "common/problem.cuh"
"""The header that its source includes."""


@dataclass(frozen=True)
class BaselineKernel:
    """A hand-written kernel. It computes the problem of `like`, a plan of the same ladder, on the same architecture."""

    hand_written: BaselineSource
    like: Plan

    @property
    def symbol(self) -> str:
        return f"baseline_{self.hand_written.source.partition('.')[0]}"

    @property
    def source(self) -> str:
        return (FOLDER / self.hand_written.source).read_text(encoding="utf-8")

    def planned(self) -> dict[str, Any]:
        """Return the sections of a record that a launch and a proof read."""
        spec, tile = self.like.spec, self.hand_written.tile
        return {
            "symbol": self.symbol,
            "alias": "",
            "arch": spec.arch,
            "spec": {
                "layout": spec.layout,
                "dtype_a": "f32",
                "dtype_b": "f32",
                "dtype_d": spec.dtype_d,
                "acc": "f32",
                "beta": False,
                "bias": "none",
                "activation": "none",
                "cta_tile": str(tile),
                "stages": 1,
                "copy": "by_hand",
            },
            "launch": {
                "threads": self.hand_written.threads,
                "smem_bytes": self.hand_written.smem_bytes,
                "cluster": [1, 1, 1],
                "grid": {"rule": "one_tile", "tile_m": tile.m, "tile_n": tile.n, "splits": 1},
            },
            "traits": {"min_align": {"a": 1, "b": 1, "d": 1}, "workspace": {}},
            "proof": {"mma_per_k_tile": 0},
        }

    def compile(self) -> CompiledBaseline:
        """Compile the kernel. Raises: BuildError with the compiler's log."""
        kernel = Kernel(self.like, self.symbol, "", self.source)
        compiled = compile_kernel(kernel, headers(ENTRY_HEADER, templates_folder()))
        registers = parse_ptxas_log(compiled.ptxas_log)[self.symbol].registers
        return CompiledBaseline(self, compiled.cubin, compiled.ptx, registers)


@dataclass(frozen=True)
class CompiledBaseline:
    """A compiled baseline kernel. Units: `registers` are of a thread."""

    baseline: BaselineKernel
    cubin: bytes
    ptx: bytes
    registers: int

    def load(self) -> run_time.Kernel:
        """Return the kernel that the run time launches."""
        return run_time.Kernel(self.baseline.planned(), self.cubin, self.ptx)
