"""Runs the commands of github.yml on this machine, except for the installation.

    python examples/ci/run_here.py [FOLDER]

FOLDER is created if it is missing, and kept: the second run finds its kernels, as a job finds those of its cache. The commands
`generate` and `hgemm` must be on the path. Exit status: that of the first command that fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def commands(workflow: str) -> list[list[str]]:
    """Return the commands of a workflow for GitHub or GitLab, except for the installation."""
    lines = re.findall(r"^ *- (?:run: )?((?:pip|generate|hgemm) .*)$", workflow, re.MULTILINE)
    return [shlex.split(line) for line in lines if not line.startswith("pip ")]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/ci"), help="default: build/ci")
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "kernels.toml", folder)
    environment = {**os.environ, "HGEMM_CACHE_DIR": ".hgemm"}
    for command in commands((HERE / "github.yml").read_text()):
        print(f"$ {shlex.join(command)}", flush=True)
        began = time.perf_counter()
        status = subprocess.run(command, cwd=folder, env=environment).returncode
        print(f"# exit code {status}, {time.perf_counter() - began:.1f} s", flush=True)
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
