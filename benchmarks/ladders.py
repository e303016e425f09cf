"""Verifies every recipe on this machine's GPU, then climbs all ladders: the data behind the README's table.

    python benchmarks/ladders.py --library LIBRARY --json-dir DIR [--systems 's*'] [--arch ARCH]

Writes DIR/ladders.json, which `hgemm ladder --from` prints and draws, and DIR/ladders_verify.json. What LIBRARY holds from
`generate --recipe '*' --arch ARCH --library LIBRARY` is not compiled again; about three minutes for all on an H200.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHAPES = "256x512x160,257x129x97,130x70x100@2,1x1x1,33x65x17"
"""Whole tiles and ragged ones, more than one k-tile, a batch; aligned operands as each variant needs them."""


def hgemm(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a verb; its progress goes to this process's stderr."""
    code = "from generator.cli.main import hgemm_main; hgemm_main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--json-dir", type=Path, required=True)
    parser.add_argument("--systems", default="s*", help="names or globs, separated by commas")
    parser.add_argument("--arch", default="", help="the device's, if not given")
    parser.add_argument("--shapes", default=SHAPES, help="what is verified; '' for each variant's own shapes")
    parser.add_argument("--jobs", type=int, default=8, help="processes that verify")
    parser.add_argument("--seconds", type=float, default=2.0, help="of rounds a ladder")
    args = parser.parse_args()
    args.json_dir.mkdir(parents=True, exist_ok=True)
    arch = ("--arch", args.arch) if args.arch else ()
    kept = args.json_dir / "ladders.json"
    kept.unlink(missing_ok=True)
    began = time.monotonic()
    options = ("--library", args.library, "--keep", kept, "--seconds", args.seconds, *arch)
    climbed = hgemm("ladder", *args.systems.split(","), *options)
    print(climbed.stdout, flush=True)
    print(f"ladders: exit {climbed.returncode}, {time.monotonic() - began:.0f} s", flush=True)
    document = json.loads(kept.read_text()) if kept.exists() else {"device": None}
    if document["device"] is None:
        print("nothing was measured, and nothing is verified", file=sys.stderr)
        return 1
    steps = [step for ladder in document["ladders"] for step in ladder["steps"]]
    symbols = sorted({step["symbol"] for step in steps if not step["symbol"].startswith("rival_")})
    began = time.monotonic()
    shapes = ("--shapes", args.shapes) if args.shapes else ()
    verified = hgemm("verify", "--device", *symbols, "--library", args.library, "-j", args.jobs, "--json", *shapes)
    (args.json_dir / "ladders_verify.json").write_text(verified.stdout)
    print(f"verify: {len(symbols)} variants, exit {verified.returncode}, {time.monotonic() - began:.0f} s")
    return climbed.returncode or verified.returncode


if __name__ == "__main__":
    sys.exit(main())
