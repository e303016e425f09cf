"""Fit the cost model to measured times, and judge it on problems that it was not fitted to.

\b
    python -m benchmarks.cost_model fit                      # judges, and writes benchmarks/data/model_h200.json
    python -m benchmarks.cost_model fit --write              # also writes hgemm/model/fitted.json
    python -m benchmarks.cost_model fit --starts 4 --seed 2  # from other starting points
    python -m benchmarks.cost_model heuristics --python other/bin/python

A figure is the geometric mean over problems of the best measured time over the best time among the first one, or the first four,
of the ranking. 1 is perfect. `fit` needs SciPy. `heuristics` needs an interpreter with nvidia-matmul-heuristics, which is optional
and proprietary.
"""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np

from benchmarks.selection import TRAITS
from hgemm.bench.protocol import geometric_mean, percentile
from hgemm.dispatch_table import estimate_clocks, kind_of, row_of
from hgemm.errors import LibraryError
from hgemm.launch_traits import LaunchTraits
from hgemm.model.cards import Card, card
from hgemm.model.kernel import KTile, Size, extents
from hgemm.model.predict import PATH, Constants, KernelShape, cycles_of, fits, problem_of, terms
from hgemm.record import current_spec
from hgemm.selection import row_supports
from hgemm.selection_query import ANY_WORKSPACE, SelectionQuery, Target

FOLDER = Path(__file__).parent / "data"
SUITE, DRAWN, DRAWN_SYNC = "screened_sm90a_h200", "drawn_sm90a_h200", "drawn_mma_sync_h200"
FRESH, FRESH_SYNC = "drawn_20261123_sm90a_h200", "drawn_20261123_mma_sync_h200"
UNSEEN = {"wgmma": ("drawn_20261124_sm90a_h200",), "mma_sync": ("drawn_20261124_mma_sync_h200",)}
"""Problems that were measured after the model was finished: neither its constants nor its form know them."""
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
"""A kernel that is slower than the best of its problem by this part has the least weight."""
LEAST_WEIGHT = 0.03
OFFSET_WEIGHT = 0.5
"""Weight of the error that all kernels of a problem share: it changes no ranking."""
TOWARDS_START = 0.05
"""Pull of each constant towards its start, for constants that the data do not determine."""
SOFT = 0.03
"""Errors above this part count linearly, not squared."""

_BEGIN = {
    **{"dram_part": 0.9, "straddled_cost": 0.5, "again_bytes_per_cycle": 60.0, "watts_per_tflops": 2.5},
    **{"start_us": 1.5, "dram_start_us": 0.7, "watts_per_tbytes_s": 20.0, "watts_exponent": 2.0},
}
BEGIN = {
    "wgmma": {
        **_BEGIN,
        **{"l2_part": 1.2, "latency_cycles": 1600.0, "k_tile_cycles": 12.0, "tile_cycles": 100.0},
        **{"store_bytes_per_cycle": 22.0, "turn_cycles": 150.0, "cluster_us": 1.0},
        **{"split_k_cluster_cycles": 5000.0, "split_k_cluster_bytes_per_cycle": 10.0},
    },
    "mma_sync": {
        **_BEGIN,
        **{"l2_part": 0.7, "latency_cycles": 1400.0, "k_tile_cycles": 30.0, "tile_cycles": 800.0},
        **{"store_bytes_per_cycle": 12.0, "shown_part": 0.6, "split_us": 4.0},
    },
}
"""Start of the search for the constants of each family. Other constants keep their defaults."""


@dataclass(frozen=True)
class Data:
    """One file of times: problems by kernels, in microseconds."""

    name: str
    records: Sequence[dict[str, Any]]
    problems: Sequence[tuple[int, int, int]]
    times_us: np.ndarray
    shape: KernelShape
    size: Size
    sms: np.ndarray

    @classmethod
    def read(cls, name: str, gpu: Card) -> Data:
        """Read a file of benchmarks/data."""
        document = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        records = [{**record, "spec": current_spec(record["spec"])} for record in document["records"]]
        problems = [tuple(one) for one in document["problems"]]
        specs = [record["spec"] for record in records]
        shapes = [KernelShape.of(one["spec"], gpu, one["resources"]["ctas_per_sm"]) for one in records]
        sizes = [problem_of(specs[0], *one) for one in problems]
        sms = np.array([[gpu.sms_in_clusters(shape.cluster_ctas) for shape in shapes]], float)
        size = Size(*(np.array([[getattr(s, f.name)] for s in sizes], float) for f in fields(Size)))
        return cls(name, records, problems, np.array(document["screened_us"]), _stacked(shapes), size, sms)

    @property
    def weights(self) -> np.ndarray:
        beyond = self.times_us / self.times_us.min(1, keepdims=True) - 1
        return np.clip(1 - beyond / FAR, LEAST_WEIGHT, 1)

    def predicted_us(self, constants: Constants, gpu: Card) -> np.ndarray:
        """Return the model's times of all problems and kernels."""
        wgmma = self.records[0]["spec"]["copy"] == "tma"
        cycles = cycles_of(self.shape, wgmma, self.size.straddling, constants, gpu["sm_mhz"], np.maximum)
        return terms(self.shape, cycles, self.size, self.sms, constants, gpu, np.maximum).time_us

    def estimated(self) -> np.ndarray:
        """Return the estimates of selection, which knows only the numbers in its table. Units: clocks."""
        rows = [row_of(LaunchTraits.of(one), one) for one in ({**record, "traits": TRAITS} for record in self.records)]
        target, kind = Target.typical("sm_90"), kind_of(LaunchTraits.of({**self.records[0], "traits": TRAITS}))
        found = np.full(self.times_us.shape, np.inf)
        for at, (m, n, k) in enumerate(self.problems):
            wanted = SelectionQuery(
                kind, m, n, k, workspace_bytes=ANY_WORKSPACE, straddling=int(2 * self.size.straddling[at, 0])
            )
            for place, row in enumerate(rows):
                if row_supports(row, wanted, target):
                    found[at, place] = estimate_clocks(row, wanted, target)
        return found


def _stacked(shapes: Sequence[KernelShape]) -> KernelShape:
    """Return shapes as one of arrays, a column for each."""

    def column(values: list[float]) -> np.ndarray:
        return np.array([values], float)

    names = [field.name for field in fields(KTile) if field.type == "float" or field.name == "l2"]
    part = SimpleNamespace(**{name: column([getattr(shape.part, name) for shape in shapes]) for name in names})
    others = [field.name for field in fields(KernelShape) if field.name != "part"]
    return KernelShape(part=part, **{name: column([getattr(shape, name) for shape in shapes]) for name in others})


# ---- Fitting ----------------------------------------------------------------------------------------------------------

Rows = Sequence[np.ndarray]
"""The indices of the problems that count, per data set."""


def fitted(
    family: str, sets: Sequence[Data], rows: Rows, gpu: Card, begin: dict[str, float] | None = None
) -> Constants:
    """Return the constants that fit the chosen problems best: least squares of logarithms, with outliers softened."""
    from scipy.optimize import least_squares

    start = begin or BEGIN[family]
    origin = np.log([*start.values()])

    def residuals(x: np.ndarray) -> np.ndarray:
        constants = _constants(start, x)
        found = [TOWARDS_START * (x - origin)]
        for data, chosen in zip(sets, rows):
            weights = data.weights[chosen]
            wrong = (np.log(data.predicted_us(constants, gpu)) - np.log(data.times_us))[chosen]
            offset = (wrong * weights).sum(1, keepdims=True) / weights.sum(1, keepdims=True)
            found += [((wrong - offset) * weights).ravel(), (OFFSET_WEIGHT * offset * weights).ravel()]
        return np.concatenate(found)

    return _constants(start, least_squares(residuals, origin, loss="soft_l1", f_scale=SOFT, max_nfev=200).x)


def _constants(start: dict[str, float], x: np.ndarray) -> Constants:
    return Constants(**{name: float(value) for name, value in zip(start, np.exp(x))})


# ---- Judging ----------------------------------------------------------------------------------------------------------


def shares(times_us: np.ndarray, predicted: np.ndarray, top: int) -> np.ndarray:
    """Return for each problem the best time over the best time among the first `top` of a ranking."""
    order = np.argsort(predicted, axis=1, kind="stable")[:, :top]
    return times_us.min(1) / np.take_along_axis(times_us, order, 1).min(1)


def judged(times_us: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return the geometric means for the first choice and the first four, and the tenth percentile of the first."""
    found = {top: [float(one) for one in shares(times_us, predicted, top)] for top in TOPS}
    return {
        "problems": len(times_us),
        **{f"top{top}": round(geometric_mean(found[top]), 4) for top in TOPS},
        "top1_p10": round(percentile(found[1], 10), 4),
    }


def errors(sets: Sequence[Data], constants: Constants, gpu: Card) -> dict[str, float]:
    """Return the errors of the logarithms of times, for kernels within `FAR` of the best of their problem."""
    wrong: list[float] = []
    for data in sets:
        near = data.times_us <= (1 + FAR) * data.times_us.min(1, keepdims=True)
        wrong += np.abs(np.log(data.predicted_us(constants, gpu) / data.times_us))[near].tolist()
    return {"median_error": round(percentile(wrong, 50), 4), "p90_error": round(percentile(wrong, 90), 4)}


Out = Callable[[Data, int], bool]
"""Return whether a problem of a data set, by index, is held out."""


def held_out(family: str, sets: Sequence[Data], out: Out, gpu: Card) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Fit to the other problems. Return times and predictions of the problems held out, per data set."""
    masks = [np.array([out(data, at) for at in range(len(data.problems))], bool) for data in sets]
    constants = fitted(family, sets, [np.flatnonzero(~mask) for mask in masks], gpu)
    times = [data.times_us[mask] for data, mask in zip(sets, masks)]
    return times, [data.predicted_us(constants, gpu)[mask] for data, mask in zip(sets, masks)]


def in_folds(family: str, sets: Sequence[Data], gpu: Card, seed: int) -> dict[str, dict[str, float]]:
    """Judge each problem by constants that were fitted without it, in folds over all data sets."""
    problems = sorted({problem for data in sets for problem in data.problems})
    random.Random(seed).shuffle(problems)
    fold_of = {problem: place % FOLDS for place, problem in enumerate(problems)}
    together: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {data.name: [] for data in sets}
    for fold in range(FOLDS):
        times, predicted = held_out(family, sets, lambda data, at, fold=fold: fold_of[data.problems[at]] == fold, gpu)
        for data, one, other in zip(sets, times, predicted):
            together[data.name].append((one, other))
    return {name: _judged_all(parts) for name, parts in together.items()}


def _judged_all(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    return judged(np.concatenate([one for one, _ in parts]), np.concatenate([other for _, other in parts]))


def by_region(family: str, sets: Sequence[Data], gpu: Card) -> dict[str, dict[str, dict[str, float]]]:
    """Judge the problems of each region by constants that were fitted to the other regions."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, inside in REGIONS.items():
        times, predicted = held_out(family, sets, lambda data, at, inside=inside: inside(*data.problems[at]), gpu)
        found[name] = {data.name: judged(*pair) for data, *pair in zip(sets, times, predicted) if len(pair[0])}
    return found


def by_set(family: str, sets: Sequence[Data], gpu: Card) -> dict[str, dict[str, float]]:
    """Judge each data set by constants that were fitted to the other data sets."""
    found = {}
    for one in sets:
        times, predicted = held_out(family, sets, lambda data, at, one=one: data is one, gpu)
        place = sets.index(one)
        found[one.name] = judged(times[place], predicted[place])
    return found


def report(family: str, sets: Sequence[Data], gpu: Card, seed: int) -> dict[str, Any]:
    """Fit a family to all its data, and judge it in every way."""
    everything = [np.arange(len(data.problems)) for data in sets]
    constants = fitted(family, sets, everything, gpu)
    figures: dict[str, Any] = {
        "constants": {name: _short(value) for name, value in asdict(constants).items()},
        **errors(sets, constants, gpu),
        "fitted": {data.name: judged(data.times_us, data.predicted_us(constants, gpu)) for data in sets},
        f"held_out_{FOLDS}_folds": in_folds(family, sets, gpu, seed),
        "held_out_region": by_region(family, sets, gpu),
        "estimate_of_selection": {data.name: judged(data.times_us, data.estimated()) for data in sets},
    }
    unseen = [Data.read(name, gpu) for name in UNSEEN[family]]
    figures["unseen"] = {
        data.name: {
            "model": judged(data.times_us, data.predicted_us(constants, gpu)),
            "estimate_of_selection": judged(data.times_us, data.estimated()),
            **errors([data], constants, gpu),
        }
        for data in unseen
    }
    if len(sets) > 1:
        figures["held_out_set"] = by_set(family, sets, gpu)
    return figures


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _document(gpu: Card, sets: dict[str, Sequence[Data]], found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    families = {
        family: {
            "constants": figures["constants"],
            "card": gpu.key,
            "device": gpu.name,
            "date": date.today().isoformat(),
            "problems": len({problem for data in sets[family] for problem in data.problems}),
            "kernels": len({record["symbol"] for data in sets[family] for record in data.records}),
            **{name: figures[name] for name in ("median_error", "p90_error")},
        }
        for family, figures in found.items()
    }
    return {"schema": 1, "source": "python -m benchmarks.cost_model fit --write", "families": families}


def scattered(family: str, rng: random.Random) -> dict[str, float]:
    """Return a starting point within a factor of two of the usual one."""
    return {name: value * math.exp(rng.uniform(-0.7, 0.7)) for name, value in BEGIN[family].items()}


# ---- nvMatmulHeuristics ----------------------------------------------------------------------------------------------

ASKED_ON = (SUITE, DRAWN, FRESH, *UNSEEN["wgmma"])
ASKED = 8
"""Answers per problem. Several often name the same tile."""

CHILD = """
import json, os, sys
import nvMatmulHeuristics as nv
asked = json.load(sys.stdin)
flags = nv.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING
interface = nv.NvMatmulHeuristicsInterfaceEx(
    backend=nv.NvMatmulHeuristicsTarget.CUTLASS3, flags=flags, gpu=nv.NvMatmulHeuristicsNvidiaGpu.H200_SXM)
layout = nv.NvMatmulHeuristicsMatmulLayout.NT_ROW_MAJOR
interface.loadInternalDiscoverySet(layout, "HSH")
answers = []
for m, n, k in asked["problems"]:
    found = interface.get(interface.makeNvMatmulHeuristicsProblem(m, n, k, layout), asked["count"], precision="HSH")
    answers.append([
        [one["runtime"], kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k, kernel.cluster_m, kernel.cluster_n,
         kernel.stages, kernel.split_k]
        for one in found for kernel in [one["kernel"]]])
json.dump(answers, sys.stdout)
sys.stdout.flush()
os._exit(0)  # its clean-up crashes at the end of an interpreter
"""


@dataclass(frozen=True)
class Configuration:
    """A kernel's numbers for D = A B. If A and B are swap_ab, m and n are exchanged."""

    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    stages: int
    splits: int
    swap_ab: bool

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Configuration:
        """Read it from a record's `spec`."""
        kind, _, splits = str(spec["schedule"]).partition(":")
        tile, cluster = extents(spec["cta_tile"]), extents(spec["cluster"])
        return cls(*tile, *cluster, spec["stages"], int(splits or 1), bool(spec["swap_ab"]))


def distance(one: Configuration, other: Configuration) -> float:
    """Return the distance of two configurations in octaves. The m and n of a tile count fully.

    A factor of two counts 1 in the splits, 0.5 in m or n of the cluster, 0.25 in k of the tile, and 0.1 in the stages. Swapped
    operands count 0.2.
    """
    weights = {"tile_m": 1, "tile_n": 1, "splits": 1, "cluster_m": 0.5, "cluster_n": 0.5, "tile_k": 0.25, "stages": 0.1}
    octaves = (weight * abs(math.log2(getattr(one, n) / getattr(other, n))) for n, weight in weights.items())
    return sum(octaves) + 0.2 * (one.swap_ab != other.swap_ab)


def asked(python: Path, problems: Sequence[tuple[int, int, int]]) -> list[list[Configuration]]:
    """Return the choices of nvMatmulHeuristics per problem, ordered by its predicted times. Raises: LibraryError if it fails."""
    both = [*problems, *((n, m, k) for m, n, k in problems)]
    done = subprocess.run(
        [str(python), "-c", CHILD], input=json.dumps({"problems": both, "count": ASKED}), capture_output=True, text=True
    )
    try:
        answers = json.loads(done.stdout)
    except ValueError:
        reason = (done.stderr.strip() or "no error message").splitlines()[-1]
        raise LibraryError(f"{python} does not run nvMatmulHeuristics: {reason}") from None
    found = []
    for plain, transposed in zip(answers, answers[len(problems) :]):
        timed = [(time, Configuration(*numbers, swap_ab=False)) for time, *numbers in plain]
        for time, tile_m, tile_n, tile_k, cluster_m, cluster_n, stages, splits in transposed:
            timed.append(
                (time, Configuration(tile_n, tile_m, tile_k, cluster_n, cluster_m, stages, splits, swap_ab=True))
            )
        found.append([choice for _, choice in sorted(timed, key=lambda pair: pair[0])])
    return found


def matched(choices: Sequence[Configuration], ours: Sequence[Configuration], times_us: np.ndarray) -> list[int]:
    """Return the nearest kernels of the choices, each once, in order. Of equally near ones, the fastest counts."""
    places = []
    for choice in choices:
        apart = [distance(choice, one) for one in ours]
        nearest = [at for at, value in enumerate(apart) if value == min(apart)]
        places.append(min(nearest, key=lambda at: times_us[at]))
    return list(dict.fromkeys(places))


def figures(data: Data, python: Path) -> dict[str, Any]:
    """Judge its choices and the choices of the model on the problems of a file."""
    ours = [Configuration.of(record["spec"]) for record in data.records]
    choices = asked(python, data.problems)
    ranks = np.full(data.times_us.shape, np.inf)
    exact = 0
    for at, answers in enumerate(choices):
        exact += min(distance(answers[0], one) for one in ours) == 0
        for rank, place in enumerate(matched(answers, ours, data.times_us[at])):
            ranks[at, place] = rank
    parts = {top: _parts(data.times_us, ranks, top) for top in TOPS}
    gpu = card(CARD)
    return {
        "nvMatmulHeuristics": {
            "problems": len(data.problems),
            **{f"top{top}": round(geometric_mean(parts[top]), 4) for top in TOPS},
            "first_is_a_measured_kernel": exact,
        },
        "model": judged(data.times_us, data.predicted_us(fits()["wgmma"].constants, gpu)),
        "problems": [
            [*problem, round(parts[1][at], 3), round(parts[4][at], 3)] for at, problem in enumerate(data.problems)
        ],
    }


def _parts(times_us: np.ndarray, ranks: np.ndarray, top: int) -> list[float]:
    """Return for each problem the best time over the best time among its first `top` choices."""
    among = np.where(ranks < top, times_us, np.inf).min(1)
    return [float(best / one) for best, one in zip(times_us.min(1), among)]


# ---- Commands --------------------------------------------------------------------------------------------------------


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("fit")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the folds.")
@click.option("--starts", type=int, default=0, help="Fit from so many other starting points, and print the errors.")
@click.option("--write", is_flag=True, help="Write hgemm/model/fitted.json.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=FOLDER / "model_h200.json")
def fit_command(seed: int, starts: int, write: bool, json_path: Path) -> None:
    """Fit the constants of each family, judge them, and write the figures."""
    gpu, rng = card(CARD), random.Random(seed)
    sets = {family: [Data.read(name, gpu) for name in names] for family, names in SETS.items()}
    if starts:
        for family, ours in sets.items():
            for _ in range(starts):
                rows = [np.arange(len(data.problems)) for data in ours]
                constants = fitted(family, ours, rows, gpu, scattered(family, rng))
                short = {name: _short(value) for name, value in asdict(constants).items()}
                click.echo(f"{family} {errors(ours, constants, gpu)} {short}")
        return
    found = {family: report(family, ours, gpu, seed) for family, ours in sets.items()}
    # No wgmma kernel that splits k through a workspace was measured. Its counters are zeroed as those of mma.sync are.
    found["wgmma"]["constants"]["split_us"] = found["mma_sync"]["constants"]["split_us"]
    head = {"device": gpu.name, "fitted_on": date.today().isoformat(), "targets": {"top1": 0.95, "top4": 0.99}}
    json_path.write_text(json.dumps({**head, **found}, indent=1) + "\n", encoding="utf-8")
    if write:
        PATH.write_text(json.dumps(_document(gpu, sets, found), indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(found, indent=1))


@main.command("heuristics")
@click.option("--python", type=click.Path(path_type=Path), required=True, help="Has nvidia-matmul-heuristics.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=FOLDER / "beside_heuristics_h200.json")
def heuristics_command(python: Path, json_path: Path) -> None:
    """Judge the choices of nvMatmulHeuristics on the same problems, for an H200 and CUTLASS 3. Needs no GPU.

    Not all its configurations are among the measured kernels: each counts as the nearest kernel. Each problem and its transpose
    are asked, because a kernel may compute either.
    """
    code = "import importlib.metadata as m; print(m.version('nvidia-matmul-heuristics'))"
    version = subprocess.run([str(python), "-c", code], capture_output=True, text=True).stdout.strip()
    document: dict[str, Any] = {
        "what": "the measured best over the best of the first one and of the first four; of a problem m, n, k and these two",
        "device": card(CARD).name,
        "date": date.today().isoformat(),
        "version": version,
    }
    for name in ASKED_ON:
        document[name] = figures(Data.read(name, card(CARD)), python)
    lines = re.sub(
        r"\[\s+([^\[\]]+?)\s+\]", lambda row: f"[{' '.join(row[1].split())}]", json.dumps(document, indent=1)
    )
    json_path.write_text(lines + "\n", encoding="utf-8")
    shown = {name: {key: one for key, one in document[name].items() if key != "problems"} for name in ASKED_ON}
    click.echo(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
