"""`python -m generator.catalog FOLDER` writes the lock file and the golden kernels. `make catalog` runs it."""

import sys
from pathlib import Path

from generator.catalog import LOCK, catalog_kernels, golden_kernels, load_catalog, read_lock, write_lock, write_sources
from generator.sweep import sweep
from generator.tables import counted

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "emitted")
    lock = folder / LOCK
    kernels, golden = catalog_kernels(), golden_kernels(folder)
    before, after = set(read_lock(lock.read_text()) if lock.is_file() else ()), {kernel.symbol for kernel in kernels}
    written = [*([lock] if write_lock(folder, kernels) else []), *write_sources(folder, golden)]
    if illegal := sweep(load_catalog()).summary("and left out"):
        print(f"catalog: {illegal}; `generate --catalog --explain` shows the reasons", file=sys.stderr)
    changes = f"{len(after - before)} added, {len(before - after)} removed"
    counts = f"{counted(len(kernels), 'kernel')} ({changes}), {len(golden)} golden"
    print(f"catalog: {counts}; {counted(len(written), 'file')} written", *written, sep="\n  ")
