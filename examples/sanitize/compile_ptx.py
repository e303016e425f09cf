"""Compile CUDA C++ to PTX without nvcc, by the NVRTC that is installed with `hgemm`.

python examples/sanitize/compile_ptx.py row_sum.cu sm_80

This writes row_sum.ptx, with the lines of the source.
"""

from __future__ import annotations

import sys
from pathlib import Path

from common import nvrtc


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(f"usage: {sys.argv[0]} FILE.cu sm_ARCH, for example sm_80 or sm_90a")
    file, arch = Path(sys.argv[1]), sys.argv[2]
    if not file.is_file():
        raise SystemExit(f"{file} does not exist")
    ptx = nvrtc(file.read_text(), arch, [file.parent], ["-lineinfo"], name=file.name)
    file.with_suffix(".ptx").write_text(ptx)


if __name__ == "__main__":
    main()
