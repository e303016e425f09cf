"""`python -m hgemm` runs the `hgemm` command. The generator package installs it."""

import sys
from importlib.metadata import entry_points

if __name__ == "__main__":
    commands = entry_points(group="console_scripts", name="hgemm")
    if not commands:
        sys.exit(
            "hgemm: the command is not installed: install hgemm-generator, or use `python -m hgemm.bench` to measure"
        )
    next(iter(commands)).load()()
