"""`python -m hgemm` is `hgemm`, which the generator brings."""

import sys
from importlib.metadata import entry_points

if __name__ == "__main__":
    commands = entry_points(group="console_scripts", name="hgemm")
    if not commands:
        sys.exit(
            "hgemm: the command comes with hgemm-generator, which is not installed; `python -m hgemm.bench` measures"
        )
    next(iter(commands)).load()()
