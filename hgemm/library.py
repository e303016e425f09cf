"""A library at run time: a folder of variants that is read, checked and never written; no generator is needed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path

from hgemm.kernel import Kernel
from hgemm.record import CUBIN_NAME, PTX_NAME, Record
from hgemm.select import Choice, Selector, Wanted
from hgemm.table import Table
from hgemm.target import Target
from hgemm.variants import read_variant, require, scan


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
    def records(self) -> dict[str, Record]:
        """Return the record of each variant by symbol. Raises LibraryError where one cannot be trusted."""
        return {symbol: read_variant(self.folder, symbol, verify=False).record for symbol in sorted(scan(self.folder))}

    @property
    def symbols(self) -> Sequence[str]:
        """Return the variants' symbols in alphabetical order."""
        return tuple(self.records)

    @cached_property
    def table(self) -> Table:
        """Return the table that selection reads."""
        return Table.of(record.data for record in self.records.values())

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
            self._selectors.setdefault(target, Selector(self.table, target))
        return self._selectors[target]
