"""A library at run time: a folder of variants that is read, checked and never written; no generator is needed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hgemm.kernel import Kernel
from hgemm.kinds import Kind
from hgemm.measured.session import read_sessions
from hgemm.problem import Problem
from hgemm.record import CUBIN_NAME, PTX_NAME, Record
from hgemm.select import Choice, Selector
from hgemm.table import Table
from hgemm.target import Target
from hgemm.variants import read_variant, require, scan
from hgemm.wanted import Wanted

if TYPE_CHECKING:  # what only calls need is imported by the first of them
    from hgemm.calls import Calls
    from hgemm.plan import Plan


def open_library(path: str | PathLike[str]) -> Library:
    """Open the library in a folder. Raises LibraryError where there is none."""
    folder = Path(path)
    require(folder)
    return Library(folder)


class Library:
    """The library in `folder`. Records are read when first asked for, code when a kernel is, each after its checks.

    What is read stays as it was, whatever becomes of the folder: open it again for what was added since. Threads may
    share it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kernels: dict[str, Kernel] = {}
        self._selectors: dict[Target, Selector] = {}

    def __repr__(self) -> str:
        return f"Library({str(self.folder)!r})"

    @cached_property
    def _calls(self) -> Calls:
        from hgemm.calls import Calls
        from hgemm.matmul import Options, launcher_of

        return Calls(lambda views, device, options: launcher_of(self, views, device, Options(*options)))

    @cached_property
    def records(self) -> dict[str, Record]:
        """Return the record of each variant by symbol. Raises LibraryError where one cannot be trusted."""
        return {symbol: read_variant(self.folder, symbol, verify=False).record for symbol in sorted(scan(self.folder))}

    @property
    def symbols(self) -> Sequence[str]:
        """Return the variants' symbols in alphabetical order."""
        return tuple(self.records)

    @cached_property
    def table(self) -> Table:
        """Return the table that selection reads: the variants, and what was measured of them."""
        return Table.of((record.data for record in self.records.values()), read_sessions(self.folder))

    def kernel(self, symbol: str) -> Kernel:
        """Return a variant that can be called, always the same one; schema and hashes are checked when it is read.

        Raises: RequestError for a malformed symbol, LibraryError where there is none or it cannot be trusted.
        """
        if symbol not in self._kernels:
            variant = read_variant(self.folder, symbol)
            code = variant.artefacts
            self._kernels.setdefault(symbol, Kernel(variant.record.data, code[CUBIN_NAME], code[PTX_NAME]))
        return self._kernels[symbol]

    def select(self, wanted: Wanted, target: Target) -> Choice:
        """Return the variant for a problem on a device. Raises UnfitError, saying why, where there is none."""
        return self.selector(target).choose(wanted)

    def selector(self, target: Target) -> Selector:
        """Return this library's selection on a device, made once for each."""
        if target not in self._selectors:
            self._selectors.setdefault(target, Selector(self.table, target, self.folder))
        return self._selectors[target]

    def matmul(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        bias: Any = None,
        activation: str | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        c: Any = None,
        workspace: Any = None,
        stream: Any = None,
        precision: str = "",
    ) -> Any:
        """Launch out = activation(alpha * a b + beta * c + bias) by the variant that serves it, and return `out` without waiting.

        Without `out` one is made, of the type of `a`; without `stream`, the current one of the library that `out` is of (torch,
        CuPy) is taken, and the legacy default one of others. Variants that split k are chosen only where a `workspace` is
        given, any array of as many bytes, used by one call at a time. The first call of a geometry chooses and loads:
        capture later ones in graphs, or a Plan's. Arrays of f32 are multiplied with `precision="tf32"` only, which says what is
        lost: 13 of their 24 significant bits.

        Shapes: a (m, k), b (k, n), out and c (m, n), bias (n,) or (m,) (where m is n, one for each column), each with or
            without a leading batch; of each matrix one of the last two axes is contiguous, of out and c the last.
        Raises: ProblemError where the arrays make no product, UnfitError where no variant serves it, DeviceError where the
            driver refuses.
        """
        if out is None:
            from hgemm.matmul import empty_product

            out = empty_product(a, b)
        return self._calls.run(a, b, out, bias, c, workspace, stream, (alpha, beta, activation or "none", precision))

    def plan(self, problem: Problem, kind: Kind = Kind(), *, device: int = 0, workspace_bytes: int = 0) -> Plan:  # noqa: B008
        """Choose the variant for a problem and load it.

        Of `problem`, addresses may be 0: then arrays are thought to begin as allocations do. So may leading dimensions be:
        then rows follow one another without gaps. `workspace_bytes` is what each call will bring.

        Raises: UnfitError, saying why, where no variant serves it, DeviceError where there is no such device.
        """
        from hgemm.plan import make_plan

        return make_plan(self, problem, kind, device, workspace_bytes)
