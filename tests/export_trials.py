"""`python export_trials.py EXPORT LIBRARY`: trials of hgemm_run where the driver is tests/fake_libcuda.c.

Each case is checked as a device's is: numbers against the float64 reference, guard bands and poison around every operand.
Prints what fails, and how many kernels were launched.
"""

from __future__ import annotations

import sys
from pathlib import Path

from exports import ByC, loaded

from generator.proof.machine import HostMemory
from hgemm.cases import Case, Shape
from hgemm.launch_traits import LaunchTraits
from hgemm.library import open_library
from hgemm.verification import CheckOptions, Trial

CASES = (
    Case(Shape(33, 17, 41)),
    Case(Shape(1, 40, 9), -0.5, 1.0),
    Case(Shape(40, 1, 8), 2.0, 0.25, loose=True),
    Case(Shape(30, 25, 19, 3), 1.0, -1.0, loose=True),
    Case(Shape(30, 25, 19, 3), broadcast="a"),
    Case(Shape(16, 24, 32, 2), 1.0, 1.0, loose=True, broadcast="b,c,bias"),
    Case(Shape(20, 21, 22, 2), -0.5, 1.0, loose=True, in_place=True),
)


def trials(traits: LaunchTraits, kernel: ByC) -> list[str]:
    """Return what is wrong with the products of a kernel's kind, at its alignments."""
    wrong = []
    for case in CASES:
        trial = Trial(kernel, case, HostMemory(), CheckOptions(), "normal")
        check = trial.check()
        trial.free()
        if not check.passed:
            wrong.append(f"{kernel.chosen} {check}")
    return wrong


def main() -> None:
    exported, library = loaded(Path(sys.argv[1])), open_library(sys.argv[2])
    chosen: set[str] = set()
    seen = set()
    for symbol in library.symbols:
        traits = LaunchTraits.of(library.records[symbol].data)
        sort = (traits.layout, traits.dtype_a, traits.dtype_d, traits.bias, traits.activation, traits.epilogue)
        sort = (*sort, traits.pointer_arrays)
        aligned = (traits.align_a, traits.align_b, traits.align_d)
        # A trial of a split-K kernel has a workspace, which C need not use.
        if (
            traits.arch in ("sm_80", "sm_90")
            and traits.takes_beta
            and traits.splits == 1
            and (*sort, *aligned) not in seen
        ):
            seen.add((*sort, *aligned))
            kernel = ByC(exported, traits)
            print("".join(line + "\n" for line in trials(traits, kernel)), end="")
            chosen.add(kernel.chosen)
            kernel.close()
    print(f"{len(seen)} sorts, {len(chosen)} kernels")


if __name__ == "__main__":
    main()
