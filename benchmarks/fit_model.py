"""Fit the model's constants to what was measured, and judge it by problems that it was not fitted to.

python -m benchmarks.fit_model                      judges, and writes benchmarks/data/model_h200.json
python -m benchmarks.fit_model --write              writes hgemm/model/fitted.json as well
python -m benchmarks.fit_model --starts 4 --seed 2  from other starting points, to see whether the same comes out

It needs SciPy. A figure is the time of the fastest variant that was measured over that of the fastest among the first one, or the
first four, of the model's ranking, as the geometric mean over problems: 1 is the best. The held-out ones are of problems that no
constant was fitted to: in folds, drawn once, by whole regions, and one data set by the other.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.dispatch_check import TRAITS
from hgemm.bench.protocol import geometric_mean, percentile
from hgemm.dispatch_table import clocks, kind_of, row_of
from hgemm.launch_traits import LaunchTraits
from hgemm.model.cards import Card, card
from hgemm.model.kernel import KTile, Size
from hgemm.model.predict import PATH, Constants, Shape, cycles_of, problem_of, terms
from hgemm.selection import row_serves
from hgemm.selection_query import ANY_WORKSPACE, SelectionQuery, Target

FOLDER = Path(__file__).parent / "data"
SUITE, DRAWN, DRAWN_SYNC = "screened_sm90a_h200", "drawn_sm90a_h200", "drawn_mma_sync_h200"
FRESH, FRESH_SYNC = "drawn_20261123_sm90a_h200", "drawn_20261123_mma_sync_h200"
UNSEEN = {"wgmma": ("drawn_20261124_sm90a_h200",), "mma_sync": ("drawn_20261124_mma_sync_h200",)}
"""Problems to which nothing is fitted, neither constants nor the model's form: they were measured when both were done."""
SETS = {"wgmma": (SUITE, DRAWN, FRESH), "mma_sync": (DRAWN_SYNC, FRESH_SYNC)}
CARD = "h200"
TOPS = (1, 4)
FOLDS = 10
REGIONS: dict[str, Callable[[int, int, int], bool]] = {
    "m <= 64": lambda m, n, k: m <= 64,
    "64 < m <= 512": lambda m, n, k: 64 < m <= 512,
    "m > 512": lambda m, n, k: m > 512,
    "k <= 2048": lambda m, n, k: k <= 2048,
}

FAR = 0.5
"""A variant that takes so much more, as a part, than the best of its problem says little of what is best: it has least weight."""
LEAST_WEIGHT = 0.03
OFFSET_WEIGHT = 0.5
"""Of what is wrong of all variants of a problem alike, which changes no ranking."""
TOWARDS_START = 0.05
"""How hard constants that the data say nothing of are held where they begin."""
SOFT = 0.03
"""Errors beyond this part count linearly."""

_BEGIN = {
    **{"dram_part": 0.9, "straddled_cost": 0.5, "again_bytes_per_cycle": 60.0, "watts_per_tflops": 2.5},
    **{"start_us": 1.5, "dram_start_us": 0.7, "watts_per_tbytes_s": 20.0, "watts_exponent": 2.0},
}
BEGIN = {
    "wgmma": {
        **_BEGIN,
        **{"l2_part": 1.2, "latency_cycles": 1600.0, "k_tile_cycles": 12.0, "tile_cycles": 100.0},
        **{"store_bytes_per_cycle": 22.0, "turn_cycles": 150.0, "cluster_us": 1.0},
        **{"cluster_k_cycles": 5000.0, "cluster_k_bytes_per_cycle": 10.0},
    },
    "mma_sync": {
        **_BEGIN,
        **{"l2_part": 0.7, "latency_cycles": 1400.0, "k_tile_cycles": 30.0, "tile_cycles": 800.0},
        **{"store_bytes_per_cycle": 12.0, "shown_part": 0.6, "split_us": 4.0},
    },
}
"""Where the search for each family's constants begins; those that are not named stay as Constants has them."""


@dataclass(frozen=True)
class Data:
    """One file of times: problems by variants, in microseconds."""

    name: str
    records: Sequence[dict[str, Any]]
    problems: Sequence[tuple[int, int, int]]
    times_us: np.ndarray
    shape: Shape
    size: Size
    sms: np.ndarray

    @classmethod
    def read(cls, name: str, its: Card) -> Data:
        """Read a file of benchmarks/data."""
        document = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        records, problems = document["records"], [tuple(one) for one in document["problems"]]
        specs = [record["spec"] for record in records]
        shapes = [Shape.of(one["spec"], its, one["resources"]["ctas_per_sm"]) for one in records]
        sizes = [problem_of(specs[0], *one) for one in problems]
        sms = np.array([[its.sms_in_clusters(shape.together) for shape in shapes]], float)
        size = Size(*(np.array([[getattr(s, f.name)] for s in sizes], float) for f in fields(Size)))
        return cls(name, records, problems, np.array(document["screened_us"]), _stacked(shapes), size, sms)

    @property
    def weights(self) -> np.ndarray:
        beyond = self.times_us / self.times_us.min(1, keepdims=True) - 1
        return np.clip(1 - beyond / FAR, LEAST_WEIGHT, 1)

    def predicted_us(self, constants: Constants, its: Card) -> np.ndarray:
        """Return the model's times of all problems and variants."""
        wgmma = self.records[0]["spec"]["copy"] == "tma"
        cycles = cycles_of(self.shape, wgmma, self.size.straddling, constants, its["sm_mhz"], np.maximum)
        return terms(self.shape, cycles, self.size, self.sms, constants, its, np.maximum).time_us

    def estimated(self) -> np.ndarray:
        """Return what selection estimates where it has only numbers of its table to go by, in clocks."""
        rows = [row_of(LaunchTraits.of(one), one) for one in ({**record, "traits": TRAITS} for record in self.records)]
        target, kind = Target.typical("sm_90"), kind_of(LaunchTraits.of({**self.records[0], "traits": TRAITS}))
        found = np.full(self.times_us.shape, np.inf)
        for at, (m, n, k) in enumerate(self.problems):
            wanted = SelectionQuery(
                kind, m, n, k, workspace_bytes=ANY_WORKSPACE, straddling=int(2 * self.size.straddling[at, 0])
            )
            for place, row in enumerate(rows):
                if row_serves(row, wanted, target):
                    found[at, place] = clocks(row, wanted, target)
        return found


def _stacked(shapes: Sequence[Shape]) -> Shape:
    """Return shapes as one of arrays, a column for each."""

    def column(values: list[float]) -> np.ndarray:
        return np.array([values], float)

    names = [field.name for field in fields(KTile) if field.type == "float" or field.name == "l2"]
    part = SimpleNamespace(**{name: column([getattr(shape.part, name) for shape in shapes]) for name in names})
    others = [field.name for field in fields(Shape) if field.name != "part"]
    return Shape(part=part, **{name: column([getattr(shape, name) for shape in shapes]) for name in others})


# ---- Fitting ----------------------------------------------------------------------------------------------------------

Rows = Sequence[np.ndarray]
"""Of each data set, the problems that count."""


def fitted(
    family: str, sets: Sequence[Data], rows: Rows, its: Card, begin: dict[str, float] | None = None
) -> Constants:
    """Return the constants that fit some problems of the data sets best: least squares of logarithms, outliers softened."""
    from scipy.optimize import least_squares

    start = begin or BEGIN[family]
    origin = np.log([*start.values()])

    def residuals(x: np.ndarray) -> np.ndarray:
        constants = _constants(start, x)
        found = [TOWARDS_START * (x - origin)]
        for data, chosen in zip(sets, rows):
            weights = data.weights[chosen]
            wrong = (np.log(data.predicted_us(constants, its)) - np.log(data.times_us))[chosen]
            offset = (wrong * weights).sum(1, keepdims=True) / weights.sum(1, keepdims=True)
            found += [((wrong - offset) * weights).ravel(), (OFFSET_WEIGHT * offset * weights).ravel()]
        return np.concatenate(found)

    return _constants(start, least_squares(residuals, origin, loss="soft_l1", f_scale=SOFT, max_nfev=200).x)


def _constants(start: dict[str, float], x: np.ndarray) -> Constants:
    return Constants(**{name: float(value) for name, value in zip(start, np.exp(x))})


# ---- Judging ----------------------------------------------------------------------------------------------------------


def shares(times_us: np.ndarray, predicted: np.ndarray, top: int) -> np.ndarray:
    """Return by problem the time of the fastest over that of the fastest of the first `top` of a ranking."""
    order = np.argsort(predicted, axis=1, kind="stable")[:, :top]
    return times_us.min(1) / np.take_along_axis(times_us, order, 1).min(1)


def judged(times_us: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return the shares of the first one and of the first four, and the tenth percentile of the former."""
    found = {top: [float(one) for one in shares(times_us, predicted, top)] for top in TOPS}
    return {
        "problems": len(times_us),
        **{f"top{top}": round(geometric_mean(found[top]), 4) for top in TOPS},
        "top1_p10": round(percentile(found[1], 10), 4),
    }


def errors(sets: Sequence[Data], constants: Constants, its: Card) -> dict[str, float]:
    """Return the errors of the logarithms of times, of variants within `FAR` of the best of their problem."""
    wrong: list[float] = []
    for data in sets:
        near = data.times_us <= (1 + FAR) * data.times_us.min(1, keepdims=True)
        wrong += np.abs(np.log(data.predicted_us(constants, its) / data.times_us))[near].tolist()
    return {"median_error": round(percentile(wrong, 50), 4), "p90_error": round(percentile(wrong, 90), 4)}


Out = Callable[[Data, int], bool]
"""Whether a problem of a data set, by its place, is held out."""


def held_out(family: str, sets: Sequence[Data], out: Out, its: Card) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Fit to what is not held out, and return the times and the predictions of what is, for each data set."""
    masks = [np.array([out(data, at) for at in range(len(data.problems))], bool) for data in sets]
    constants = fitted(family, sets, [np.flatnonzero(~mask) for mask in masks], its)
    times = [data.times_us[mask] for data, mask in zip(sets, masks)]
    return times, [data.predicted_us(constants, its)[mask] for data, mask in zip(sets, masks)]


def in_folds(family: str, sets: Sequence[Data], its: Card, seed: int) -> dict[str, dict[str, float]]:
    """Judge each problem by constants that were fitted without it: all data sets' problems, drawn into folds."""
    problems = sorted({problem for data in sets for problem in data.problems})
    random.Random(seed).shuffle(problems)
    fold_of = {problem: place % FOLDS for place, problem in enumerate(problems)}
    together: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {data.name: [] for data in sets}
    for fold in range(FOLDS):
        times, predicted = held_out(family, sets, lambda data, at, fold=fold: fold_of[data.problems[at]] == fold, its)
        for data, one, other in zip(sets, times, predicted):
            together[data.name].append((one, other))
    return {name: _judged_all(parts) for name, parts in together.items()}


def _judged_all(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    return judged(np.concatenate([one for one, _ in parts]), np.concatenate([other for _, other in parts]))


def by_region(family: str, sets: Sequence[Data], its: Card) -> dict[str, dict[str, dict[str, float]]]:
    """Judge each region's problems by constants that were fitted to the others alone."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, inside in REGIONS.items():
        times, predicted = held_out(family, sets, lambda data, at, inside=inside: inside(*data.problems[at]), its)
        found[name] = {data.name: judged(*pair) for data, *pair in zip(sets, times, predicted) if len(pair[0])}
    return found


def by_set(family: str, sets: Sequence[Data], its: Card) -> dict[str, dict[str, float]]:
    """Judge each data set by constants that were fitted to the others."""
    found = {}
    for one in sets:
        times, predicted = held_out(family, sets, lambda data, at, one=one: data is one, its)
        place = sets.index(one)
        found[one.name] = judged(times[place], predicted[place])
    return found


def report(family: str, sets: Sequence[Data], its: Card, seed: int) -> dict[str, Any]:
    """Fit a family to all that there is, and judge it in every way."""
    everything = [np.arange(len(data.problems)) for data in sets]
    constants = fitted(family, sets, everything, its)
    figures: dict[str, Any] = {
        "constants": {name: _short(value) for name, value in asdict(constants).items()},
        **errors(sets, constants, its),
        "fitted": {data.name: judged(data.times_us, data.predicted_us(constants, its)) for data in sets},
        f"held_out_{FOLDS}_folds": in_folds(family, sets, its, seed),
        "held_out_region": by_region(family, sets, its),
        "estimate_of_selection": {data.name: judged(data.times_us, data.estimated()) for data in sets},
    }
    unseen = [Data.read(name, its) for name in UNSEEN[family]]
    figures["unseen"] = {
        data.name: {
            "model": judged(data.times_us, data.predicted_us(constants, its)),
            "estimate_of_selection": judged(data.times_us, data.estimated()),
            **errors([data], constants, its),
        }
        for data in unseen
    }
    if len(sets) > 1:
        figures["held_out_set"] = by_set(family, sets, its)
    return figures


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _document(its: Card, sets: dict[str, Sequence[Data]], found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    families = {
        family: {
            "constants": figures["constants"],
            "card": its.key,
            "device": its.name,
            "date": date.today().isoformat(),
            "problems": len({problem for data in sets[family] for problem in data.problems}),
            "variants": len({record["symbol"] for data in sets[family] for record in data.records}),
            **{name: figures[name] for name in ("median_error", "p90_error")},
        }
        for family, figures in found.items()
    }
    return {"schema": 1, "source": "python -m benchmarks.fit_model --write", "families": families}


def scattered(family: str, rng: random.Random) -> dict[str, float]:
    """Return a starting point within a factor of two of the usual one."""
    return {name: value * math.exp(rng.uniform(-0.7, 0.7)) for name, value in BEGIN[family].items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the folds")
    parser.add_argument(
        "--starts", type=int, default=0, help="fit from so many other starting points, and print the errors"
    )
    parser.add_argument("--write", action="store_true", help="write hgemm/model/fitted.json")
    parser.add_argument("--json", type=Path, default=FOLDER / "model_h200.json", help="where the figures go")
    arguments = parser.parse_args()
    its, rng = card(CARD), random.Random(arguments.seed)
    sets = {family: [Data.read(name, its) for name in names] for family, names in SETS.items()}
    if arguments.starts:
        for family, ours in sets.items():
            for _ in range(arguments.starts):
                rows = [np.arange(len(data.problems)) for data in ours]
                constants = fitted(family, ours, rows, its, scattered(family, rng))
                print(family, errors(ours, constants, its), {k: _short(v) for k, v in asdict(constants).items()})
        return 0
    found = {family: report(family, ours, its, arguments.seed) for family, ours in sets.items()}
    # Of wgmma no kernel that splits k through a workspace was measured: its counters are zeroed as those of mma.sync are.
    found["wgmma"]["constants"]["split_us"] = found["mma_sync"]["constants"]["split_us"]
    head = {"device": its.name, "fitted_on": date.today().isoformat(), "targets": {"top1": 0.95, "top4": 0.99}}
    arguments.json.write_text(json.dumps({**head, **found}, indent=1) + "\n", encoding="utf-8")
    if arguments.write:
        PATH.write_text(json.dumps(_document(its, sets, found), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
