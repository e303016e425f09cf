"""`python -m generator.catalog FOLDER` writes the lock file and the golden kernels. `make catalog` runs it."""

import sys
from pathlib import Path

from generator.catalog import LOCK, catalog_kernels, golden_kernels, write_lock, write_sources

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "emitted")
    kernels, golden = catalog_kernels(), golden_kernels(folder)
    written = [*([folder / LOCK] if write_lock(folder, kernels) else []), *write_sources(folder, golden)]
    print(f"catalog: {len(kernels)} kernels, {len(golden)} golden; {len(written)} files written", *written, sep="\n  ")
