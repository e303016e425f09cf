"""Runs the variants of a library whose specs differ in nothing but their form, and prints what each took and whether D is the same.

What `hgemm compare` does where the compilers are; this needs a GPU and a library that has the variants:

    generate --spec benchmarks/forms.toml --library forms       # anywhere
    python -m benchmarks.compare_forms forms --m 4096 --json forms_h200.json
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from generator.commands.compare import Built, columns, run_on_device
from generator.pipeline import Settings
from generator.store.library import Library
from generator.toolchain import templates_folder

_SHOWN = ("form", "time_us", "tflops", "registers", "cubin_bytes", "compile_s", "passed", "max_bound_ratio", "result")


def groups(library: Library) -> list[list[Built]]:
    """Return the variants of each spec that is there in several forms, the atoms first."""
    found: dict[str, list[Built]] = defaultdict(list)
    for record in library.records():
        spec = {name: value for name, value in record.data["spec"].items() if name != "form"}
        found[json.dumps(spec, sort_keys=True)].append(Built(record.data["spec"].get("form", "atoms"), record))
    return [sorted(built, key=lambda one: one.form) for built in found.values() if len(built) > 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--m", type=int, default=4096, help="n and k are the same")
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    settings = Settings(Library(asked.library), templates_folder())
    written: list[list[dict[str, Any]]] = []
    for built in groups(settings.library):
        ran = [run_on_device(one, settings, (asked.m,) * 3, asked.samples) for one in built]
        written.append(columns(ran))
        print(written[-1][0]["symbol"])
        for column in written[-1]:
            print("  ", ", ".join(f"{name} {column[name]}" for name in _SHOWN))
    if asked.json:
        asked.json.write_text(json.dumps({"m": asked.m, "device": ran[0].ran.device, "specs": written}, indent=1))


if __name__ == "__main__":
    main()
