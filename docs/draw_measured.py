"""Draw docs/rates_h200.svg and docs/ratios_h200.svg from benchmarks/data, with the functions of `hgemm report`; needs matplotlib.

python docs/draw_measured.py [--out docs]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from generator.report.charts import Figure, rates, ratios
from generator.report.points import kinds_of, read_bench

HERE = Path(__file__).resolve().parent
MEASURED = HERE.parent / "benchmarks" / "data" / "dispatched_h200.json"


def pictures() -> list[Figure]:
    squares_and_rectangles = [point for point in read_bench(MEASURED) if point.work.group in ("square", "rectangular")]
    ((kind, points),) = kinds_of(squares_and_rectangles).items()
    return [rates("rates_h200", kind, points), ratios("ratios_h200", kind, points)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE)
    folder = parser.parse_args().out
    for figure in pictures():
        (folder / f"{figure.name}.svg").write_text(figure.svg())


if __name__ == "__main__":
    main()
