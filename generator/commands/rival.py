"""Rivals: kernels written by hand that a ladder runs beside ours, made for an architecture and held by no library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from generator.binary.ptxas_log import parse_ptxas_log
from generator.catalog.recipes import FOLDER, Hand
from generator.compile import compile_kernel
from generator.emit import Kernel
from generator.plan import Plan
from generator.toolchain import headers, templates_folder
from hgemm import kernel as launched

ROOT = "hgemm/problem.cuh"
"""What its text includes."""


@dataclass(frozen=True)
class Rival:
    """A hand-written kernel beside the plan of one of ours, whose problem and architecture it shares."""

    hand: Hand
    beside: Plan

    @property
    def symbol(self) -> str:
        return f"rival_{self.hand.source.partition('.')[0]}"

    @property
    def source(self) -> str:
        return (FOLDER / self.hand.source).read_text(encoding="utf-8")

    def planned(self) -> dict[str, Any]:
        """Return the sections of a record that a launch and a proof read."""
        spec, tile = self.beside.spec, self.hand.tile
        problem = {name: getattr(spec, name) for name in ("layout", "dtype_d")}
        return {
            "symbol": self.symbol,
            "alias": "",
            "arch": spec.arch,
            "spec": {
                **problem,
                "dtype_a": "f32",
                "dtype_b": "f32",
                "acc": "f32",
                "beta": False,
                "bias": "none",
                "activation": "none",
                "cta_tile": str(tile),
                "stages": 1,
                "copy": "by_hand",
            },
            "launch": {
                "threads": self.hand.threads,
                "smem_bytes": self.hand.smem_bytes,
                "cluster": [1, 1, 1],
                "grid": {"rule": "one_tile", "tile_m": tile.m, "tile_n": tile.n, "splits": 1},
            },
            "traits": {"min_align": {"a": 1, "b": 1, "d": 1}, "workspace": {}},
            "proof": {"mma_per_tile": 0},
        }

    def made(self) -> Made:
        """Compile it. Raises BuildError with the compiler's log."""
        compiled = compile_kernel(Kernel(self.beside, self.symbol, "", self.source), headers(ROOT, templates_folder()))
        return Made(self, compiled.cubin, compiled.ptx, parse_ptxas_log(compiled.ptxas_log)[self.symbol].registers)


@dataclass(frozen=True)
class Made:
    """A compiled rival."""

    rival: Rival
    cubin: bytes
    ptx: bytes
    registers: int

    def kernel(self) -> launched.Kernel:
        """Return what launches it."""
        return launched.Kernel(self.rival.planned(), self.cubin, self.ptx)
