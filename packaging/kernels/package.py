"""The compiled kernels of the catalog, and a C library of them. The package hgemm finds the kernels by itself."""

from pathlib import Path

LIBRARY = Path(__file__).parent / "library"
"""The folder of the kernels, as `hgemm.open` takes it."""
C_LIBRARY = Path(__file__).parent / "c"
"""The folder with include/hgemm.h and lib/libhgemm.so."""
