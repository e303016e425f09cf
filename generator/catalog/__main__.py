"""`python -m generator.catalog FOLDER` writes the text of every shipped kernel there; `make catalog` calls it."""

import sys
from pathlib import Path

from generator.catalog import catalog_kernels, write_sources

if __name__ == "__main__":
    kernels = catalog_kernels()
    written = write_sources(Path(sys.argv[1] if len(sys.argv) > 1 else "emitted"), kernels)
    print(f"catalog: {len(kernels)} kernels, {len(written)} of their texts written", *written, sep="\n  ")
