"""Generate the kernels for sm_90a among which the benchmarks of benchmarks/LOG.md choose.

python benchmarks/sm90a_library.py --library build/sm90a [--group large,small,half,layouts] [-j 2]
"""

from __future__ import annotations

import argparse
import subprocess
import sys

COOPERATIVE = "64,96,112,128,144,160,176,192,224,256"
IN_TURN = "96,112,128,144,160,176,192"

SWEEPS = {
    "large": [
        ("--tile", ",".join(f"128x{n}x64" for n in COOPERATIVE.split(",")), "--cluster", "1x1,2x1"),
        (
            "--tile",
            ",".join(f"128x{n}x64" for n in IN_TURN.split(",")),
            "--cluster",
            "1x1,2x1",
            "--cooperation",
            "pingpong",
        ),
        ("--tile", "64x192x64,64x256x64", "--cluster", "1x1,2x1", "--cooperation", "pingpong"),
        ("--tile", "192x96x64,192x128x64,192x160x64,192x192x64", "--consumers", "3", "--cluster", "1x1"),
        ("--tile", "256x64x64,256x96x64,256x128x64,256x160x64,256x192x64", "--cluster", "1x1,1x2"),
        ("--tile", "64x64x64,64x96x64,64x128x64,64x192x64,64x256x64", "--consumers", "1", "--cluster", "1x1,2x1"),
    ],
    "small": [
        (
            "--swapped",
            "on",
            "--tile",
            "8x64x128,16x64x64,16x64x128,32x64x128,64x64x64,128x64x64",
            "--cooperation",
            "cooperative,pingpong",
        ),
        ("--swapped", "on", "--tile", "16x128x64,64x128x64,128x128x64"),
        (
            "--swapped",
            "on",
            "--tile",
            "8x64x128,16x64x128,32x64x128,64x64x128",
            "--cooperation",
            "pingpong",
            "--cluster",
            "1x2,2x1",
        ),
        ("--swapped", "on", "--tile", "16x64x128,32x64x128", "--consumers", "1", "--cluster", "1x2"),
        ("--swapped", "on", "--tile", "64x128x64,128x128x64", "--cooperation", "cooperative", "--cluster", "1x1,2x1"),
        ("--swapped", "on", "--tile", "128x192x64", "--consumers", "3", "--cluster", "1x1,2x1"),
        (
            "--swapped",
            "on",
            "--tile",
            "16x64x128,64x64x64,64x128x64,128x64x64,128x128x64",
            "--schedule",
            "cluster_k:2,cluster_k:4",
        ),
    ],
    "half": [
        ("--acc", "f16", "--tile", "128x256x64,256x128x64,256x192x64,192x256x64", "--cluster", "1x1,2x1,1x2"),
        ("--acc", "f16", "--tile", "128x128x64,128x192x64", "--cluster", "1x1,2x1", "--cooperation", "pingpong"),
    ],
    "layouts": [
        ("--layout", "nn,nt,tt,tn", "--tile", "128x256x64,256x128x64", "--cluster", "1x1,2x1"),
        ("--layout", "nn,nt,tt,tn", "--tile", "128x128x64", "--cluster", "1x1,2x1", "--cooperation", "pingpong"),
    ],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="the library's folder")
    parser.add_argument("--group", default=",".join(SWEEPS), help=f"of {', '.join(SWEEPS)}")
    parser.add_argument("-j", "--jobs", default="2")
    arguments = parser.parse_args()
    status = 0
    for group in arguments.group.split(","):
        for sweep in SWEEPS[group]:
            command = [sys.executable, "-m", "generator", "--arch", "sm_90a", "--library", arguments.library]
            status |= subprocess.run([*command, "-j", arguments.jobs, *sweep], stdout=subprocess.DEVNULL).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
