"""Calibrate the estimates of selection by the times of a space of kernels, and judge the calibration on other problems.

\b
    python -m benchmarks.catalog_choice measure build/space --problems 500 --json raw.json    # needs a GPU
    python -m benchmarks.calibration reduce raw.json --driver 580.159.04 --date 2026-11-23 --to benchmarks/data/space_h100.json
    python -m benchmarks.calibration judge benchmarks/data/space_*.json
    python -m benchmarks.calibration clocks benchmarks/data/space_sizes_*.json
    python -m benchmarks.calibration fit benchmarks/data/space_*.json      # writes hgemm/model/calibrated.json

Each kernel gets a factor for each term of its estimate. Factors that all kernels share are fitted first. Those of each group of
similar kernels follow, pulled towards them, then those of each tile, pulled towards its group's, and those of each kernel, pulled
towards its tile's. What all kernels of a problem have in common is left out, since it changes no order. The level of all estimates
is then set to that of the model. Regression trees learn what is still wrong (benchmarks/boosting.py).
`judge` fits in folds. A loss is the time of the kernel with the lowest estimate over the lowest time of the space, less 1.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.boosting import Examples, boosted
from generator.build.emit import emit
from generator.build.pipeline import planned_sections
from generator.build.toolchain import templates_folder
from generator.sweep import sweep
from hgemm.bench.protocol import geometric_mean
from hgemm.dispatch_table import (
    CTAS_BY_GPC,
    FORGIVEN,
    FORGIVEN_IN_ONE_WAVE,
    L2_BITS,
    LONG_CLOCKS,
    MAX_ALIGNMENT,
    OVERLAP_EIGHTHS,
    ROUND_WAITS,
    STRADDLING_PART,
    Row,
    element_store_clocks,
    energy,
    estimate_clocks,
    has_gpcs,
    partial_eighths,
    refined_clocks,
    row_of,
    sms_used,
    tiles_per_sm,
)
from hgemm.launch_traits import LaunchTraits
from hgemm.model.calibrated import (
    DRAM_GBYTES_PER_S,
    ELEMENT_BYTES,
    FAMILY,
    IDENTITY,
    LAUNCH,
    LAYOUT,
    NEARLY,
    ONE,
    PATH,
    SPANS,
    TERMS,
    WAVE_BOUNDS,
    WAVE_CLASSES,
    Calibration,
    Factors,
    Words,
    calibration,
    document_of,
    group_of,
    identity,
    parse_calibration,
    span_of,
    wave_class,
)
from hgemm.model.predict import fits
from hgemm.model.trees import FEATURES, LEAF, Forest, Tree
from hgemm.model.trees import ONE as TREE_ONE
from hgemm.problem import LAYOUTS, Kind
from hgemm.selection_query import SelectionQuery, Target
from hgemm.tensor_maps import LoadBoxes

CAPABILITY, SMS = 90, 132
DRAM_SPEEDS = {"NVIDIA H100 80GB HBM3": 3352, "NVIDIA H200": 4917}
"""As Target.dram_gbytes_per_s. Units: GB/s."""
STATE = "model"
WITHIN = 3.0
"""Times beyond this multiple of the best one are not kept."""

# ---- Data: one line per problem --------------------------------------------------------------------------------------


def reduced(documents: Sequence[Mapping[str, Any]], driver: str, date: str, within: float = WITHIN) -> dict[str, Any]:
    """Return what `catalog_choice measure` wrote on one GPU, with kernels by their timing identity.

    A problem is [m, n, k, cuBLASLt's first, cuBLASLt's best, times], then [batch, layout] if it is not one product in layout tn. A
    time is [kernel, time], or [kernel, time, splits, whole tiles] if the launch decides the splits. Kernels that store single
    elements are left out, because no identity tells them from others. Units: nanoseconds.
    """
    numbers: dict[Words, int] = {}
    problems: list[list[Any]] = []
    for document in documents:
        for problem in document["problems"]:
            if problem["wrong"]:
                continue
            limit, times = within * min(problem["us"].values()), []
            extents, more = (
                problem["extents"][:3],
                [*problem["extents"][3:], *([problem["layout"]] if "layout" in problem else [])],
            )
            for name, time_us in sorted(problem["us"].items(), key=lambda item: item[1]):
                symbol, _, options = name.partition("@")
                spec = document["specs"][symbol]
                words = () if element_store_clocks(spec) else identity(spec)
                if words and time_us <= limit:
                    kernel = numbers.setdefault(words, len(numbers))
                    times.append([kernel, round(1e3 * time_us), *map(int, options.split("/") if options else ())])
            theirs = problem["baseline_us"]
            first, best = theirs.get("cublaslt#0", 0), min(theirs.values(), default=0)
            problems.append([*extents, round(1e3 * first), round(1e3 * best), times, *more])
    (device,) = {document["device"] for document in documents}
    return {
        "what": f"Times of {len(numbers)} kernels on {len(problems)} drawn problems in the state {STATE}, nanoseconds",
        "device": device,
        "capability": CAPABILITY,
        "sms": SMS,
        "driver": driver,
        "date": date,
        "state": STATE,
        "launches": LAUNCHES,
        "fields": [*IDENTITY, *NEARLY],
        "kernels": [list(words) for words in numbers],
        "problems": sorted((problem for problem in problems if problem[TIMES]), key=lambda problem: problem[:TIMES]),
    }


def in_lines(document: Mapping[str, Any]) -> str:
    """Return JSON with a line for each field and for each 8 entries of a long list."""

    def lines(value: Any) -> str:
        if not isinstance(value, list) or not value or not isinstance(value[0], list | dict):
            return json.dumps(value)
        entries = [json.dumps(one, separators=(",", ":")) for one in value]
        return "[\n" + ",\n".join(",".join(entries[at : at + 32]) for at in range(0, len(entries), 32)) + "\n]"

    return "{\n" + ",\n".join(f"{json.dumps(name)}: {lines(value)}" for name, value in document.items()) + "\n}\n"


TIMES = 5
"""Place of the times in a problem."""


def launch_of(problem: Sequence[Any]) -> tuple[int, str]:
    """Return batch and layout of a problem."""
    batch, layout = problem[TIMES + 1 :] or (1, LAYOUT)
    return batch, layout


LAUNCHES = 6
"""How products are launched: data files without this field have 1. Since 2 (2026-11-26 16:05), launches of one or two waves
take the order for which GPCs read the least, and all CTAs of a tile add the parts of k. Since 3 (19:30), kernels stage all of a
tile's D where it fits, and pad the boxes of operands that are not K-major. Since 4 (22:40), the TMA loads rows of 16 bytes
eight at a time, and kernels load their first k-tile sooner. Since 5 (2026-11-29 08:00), boxes of operands that are not K-major
end with the tile. Since 6 (11:00), launches of one or two waves give each GPC a run of tiles, if clusters have two CTAs."""
SHARED_PARTS = 2
"""The least `launches` with which all CTAs of a tile add the parts of k."""
SHORT_ROWS = 4
"""The least `launches` with which the TMA loads rows of SHORT_ROW_BYTES eight at a time."""
SHORT_ROW_BYTES = 16
EDGE_BOXES = 5
"""The least `launches` with which boxes end with their tile."""
RUNS_OF_TILES = 6
"""The least `launches` with which each GPC has a run of tiles."""
FEW_TILES = 3
"""Of so many tiles along an extent or fewer, the last one decides the time."""
WEIGHTS = {1: 1, 2: 3, 3: 6, 4: 6, 5: 9, 6: 9}
"""Problems count this often in a fit, by `launches`. Source: cross-validation on the latest ones."""


def has_other_boxes(words: Words, layout: str, launched: int, m: int, n: int) -> bool:
    """Return whether a kernel had other boxes when a product of m rows and n columns was launched so: narrower ones, no rows of
    SHORT_ROW_BYTES, or boxes that extended beyond the tile, or beyond the matrix if it has FEW_TILES or fewer."""
    its = dict(zip(IDENTITY, words))
    if its["copy"] != "tma":
        return False
    tile_m, tile_n, k = map(int, its["cta_tile"].split("x"))
    extents = [(tile_m, m)] * (layout[0] == "n") + [(tile_n, n)] * (layout[1] == "t")
    if launched < SHORT_ROWS and any(ELEMENT_BYTES * tile == SHORT_ROW_BYTES for tile, _ in extents):
        return True
    if launched >= EDGE_BOXES:
        return False
    boxes = (LoadBoxes(False, tile, k, 1, ELEMENT_BYTES, padded=True, edges=True) for tile, _ in extents)
    return any(
        tile % box.box[0] or (extent % box.box[0] and extent <= FEW_TILES * tile)
        for (tile, extent), box in zip(extents, boxes, strict=True)
    )


def has_other_order(row: Row, query: SelectionQuery, target: Target, launched: int) -> bool:
    """Return whether a launch without splits, measured with this number of `launches`, ran in strips, but today runs by GPC.

    One row or one column of clusters has the same order in both.
    """
    by_gpc = row.decides_raster and row.cluster_ctas == CTAS_BY_GPC and has_gpcs(row, query, target)
    if launched >= RUNS_OF_TILES or not by_gpc:
        return False
    extents = (query.m, row.tile_m * row.cluster_m), (query.n, row.tile_n * row.cluster_n)
    return all(extent > of_cluster for extent, of_cluster in extents)


NONE = Calibration((), 0, STATE, "", (), (), {}, {}, {})
"""A calibration that corrects nothing."""
KernelKey = tuple[Words, str]
"""Timing identity and layout."""


OPTIONS = {"cta_tile": "tile"}
"""Fields of an identity whose option has another name."""
DERIVED = {"tma": ("form", "copy", "mma"), "ldg": ("form", "mma", "consumers", "cooperation", "cluster", "swap_ab")}
"""Fields of an identity that follow from the others, by its copy."""
CTAS_PER_SM = {("ldg", "8x16x128"): {"ctas_per_sm": "4"}, ("ldg", "8x8x1024"): {"ctas_per_sm": "4"}}
"""Options of kernels by copy and tile, as in the catalog, if they are not the default. No identity has them."""
MMA_SYNC = {"copy": "cp_async", "mma": "m16n8k16"}
MMA_SYNC_TILES = ("128x128x32", "16x64x64", "16x128x64")
"""The mma.sync kernels that are calibrated: that of all layouts, and those of few rows in tt and tn. No identity determines their
specs, so they are the catalog's."""


def rows_of(documents: Sequence[Mapping[str, Any]], calibrated: Calibration = NONE) -> dict[KernelKey, Row]:
    """Return the rows of all kernels in data files, by default by the model alone. Kernels that cannot be planned are left out."""
    every: dict[KernelKey, None] = {}
    for document in documents:
        kernels = [tuple(words) for words in document["kernels"]]
        for layout in sorted({launch_of(problem)[1] for problem in document.get("problems", ())}) or [LAYOUT]:
            every.update(dict.fromkeys((words, layout) for words in kernels))
    requests = [
        {"layout": layout}
        | {OPTIONS.get(name, name): word for name, word in named.items() if name not in DERIVED[named["copy"]]}
        | CTAS_PER_SM.get((named["copy"], named["cta_tile"]), {})
        for named, layout in ((dict(zip((*IDENTITY, *NEARLY), words)), layout) for words, layout in every)
        if named["copy"] in DERIVED
    ]
    kernels = [emit(plan, templates_folder()) for plan in sweep(requests).plans]
    if any(_is_mma_sync(words) for words, _ in every):
        from generator.catalog import catalog_kernels  # reads and plans the whole catalog

        kernels += [kernel for kernel in catalog_kernels() if kernel.plan.spec.copy == MMA_SYNC["copy"]]
    found = {}
    for kernel in kernels:
        record = {**planned_sections(kernel), "resources": {"ctas_per_sm": kernel.plan.spec.ctas_per_sm}}
        key = identity(record["spec"]), record["spec"]["layout"]
        if key in every and (key[0][IDENTITY.index("copy")] in DERIVED or _is_mma_sync(key[0])):
            found[key] = row_of(LaunchTraits.of(record), record, calibrated=calibrated)
    return {key: found[key] for key in every if key in found}


def _is_mma_sync(words: Words) -> bool:
    its = dict(zip(IDENTITY, words))
    return its["cta_tile"] in MMA_SYNC_TILES and MMA_SYNC.items() <= its.items()


# ---- Launches as arrays ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launches:
    """Measured launches. Shapes: `problem` (problem,), all others (launch,), of which `row` and `at` are indices.

    Fields: a launch has `items` CTAs on the busiest SM (`busiest`), in so many `rounds`; `split` counts those that store partial
        accumulators. `k_tiles` and `round_k_tiles` are those of the busiest SM.
        `added` are the parts that a launch adds. In data files with SHARED_PARTS, all CTAs of a tile add them, so the fourth and
        further ones cost less. `weight` tells how often its problem counts in a fit. `dram_mib` is longer by as
        much as the GPU's DRAM is slower than DRAM_GBYTES_PER_S.
    Units: MiB of traffic; k-tiles; microseconds.
    """

    row: np.ndarray
    at: np.ndarray
    time_us: np.ndarray
    k_tiles: np.ndarray
    round_k_tiles: np.ndarray
    busiest: np.ndarray
    rounds: np.ndarray
    split: np.ndarray
    split_rounds: np.ndarray
    loads: np.ndarray
    items: np.ndarray
    split_items: np.ndarray
    sms: np.ndarray
    mib: np.ndarray
    dram_mib: np.ndarray
    straddling: np.ndarray
    added: np.ndarray
    m: np.ndarray
    n: np.ndarray
    k: np.ndarray
    batch: np.ndarray
    layout: np.ndarray
    weight: np.ndarray

    def __getitem__(self, chosen: np.ndarray) -> Launches:
        return Launches(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})


def launches_of(document: Mapping[str, Any], rows: Mapping[KernelKey, Row]) -> Launches:
    """Return the launches of a data file as arrays. Rows are numbered in the order of `rows`."""
    places = {key: place for place, key in enumerate(rows)}
    its_rows, target = [*rows.values()], Target.typical(f"sm_{CAPABILITY}", SMS)
    slower, launched = DRAM_GBYTES_PER_S / DRAM_SPEEDS[document["device"]], document.get("launches", 1)
    kernels = [tuple(words) for words in document["kernels"]]
    found: list[tuple[float, ...]] = []
    for at, problem in enumerate(document["problems"]):
        (m, n, k), (batch, layout) = problem[:3], launch_of(problem)
        query = SelectionQuery.dense(Kind(layout), (m, n, k, batch))
        for kernel, time_ns, *options in problem[TIMES]:
            place = places.get((kernels[kernel], layout))
            if place is None or has_other_boxes(kernels[kernel], layout, launched, m, n):
                continue
            row = its_rows[place]
            splits, whole = options or (row.splits, 0)
            if splits == 1 and has_other_order(row, query, target, launched):
                continue
            whole *= row.cluster_m * row.cluster_n
            tiles, sms, resident = row.tiles(m, n) * batch, sms_used(row, target), tiles_per_sm(row, target)
            all_k_tiles, shared = -(-k // row.tile_k), bool(options) and splits > 1
            parts = ((whole, all_k_tiles), ((tiles - whole) * splits, -(-all_k_tiles // splits)))
            busiest = [-(-items // sms) for items, _ in parts]
            rounds = [-(-count // resident) for count in busiest]
            operands, results = (m + n) * k * batch // 1024, m * n * batch // 1024
            mib = (operands * row.operand_bytes + results * row.result_bytes) / 1024
            ctas = sum(items for items, _ in parts)
            added = partial_eighths(row, splits, ctas, sms * resident) / 8 if launched >= SHARED_PARTS else splits
            found.append(
                (
                    *(place, at, time_ns / 1e3),
                    sum(count * k_tiles for count, (_, k_tiles) in zip(busiest, parts, strict=True)),
                    sum(count * k_tiles for count, (_, k_tiles) in zip(rounds, parts, strict=True)),
                    *(sum(busiest), sum(rounds), busiest[1] * shared, rounds[1] * shared),
                    sum(items * k_tiles for items, k_tiles in parts),
                    *(ctas, parts[1][0] * shared, sms),
                    *(mib, mib * slower, query.straddling / 2, added * shared),
                    *(m, n, k, batch, LAYOUTS.index(layout), WEIGHTS[launched]),
                )
            )
    columns = np.array(found, float).T
    whole_numbers = {"row": int, "at": int}
    return Launches(
        *(column.astype(whole_numbers.get(field.name, float)) for field, column in zip(fields(Launches), columns))
    )


def clocks(
    launches: Launches,
    rows: Sequence[Row],
    factors: np.ndarray | None,
    waves: np.ndarray | None = None,
    sustained: bool = False,
) -> np.ndarray:
    """Return the estimates of launches, as hgemm.dispatch_table.launch_clocks. Without factors, rows are not calibrated.

    Data files have times at equal clocks, so a fit leaves out the energy of tiles. Selection adds it: `sustained`.
    Shapes: factors (row, term); waves (class and number of waves,).
    """
    one, is_calibrated = launches, factors is not None
    by_tma = np.array([row.tensor_maps for row in rows])[one.row] > 0
    factors = np.ones((len(rows), len(TERMS))) if factors is None else factors
    factor = {term: factors[one.row, place] for place, term in enumerate(TERMS)}

    def of(name: str, term: str) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows], float)[one.row] * factor[term]

    straddling = of("straddling_clocks", "straddling") * one.straddling
    k_tile, single = of("k_tile_clocks", "k_tile") + straddling, of("single_k_tile_clocks", "k_tile") + straddling
    tile, partial = of("tile_clocks", "tile"), of("partial_clocks", "partial")
    busy = one.k_tiles * k_tile + one.busiest * tile + one.split * partial
    alone = one.round_k_tiles * single + one.rounds * of("single_tile_clocks", "tile") + one.split_rounds * partial
    sm = np.maximum(busy, alone)
    average = (one.loads * k_tile + one.items * tile + one.split_items * partial) / one.sms
    forgiven = np.where(one.items <= one.sms, FORGIVEN_IN_ONE_WAVE, FORGIVEN) / 16 * is_calibrated
    sm = sm - np.maximum(sm - average, 0) * forgiven
    if waves is not None:
        wave_factors = waves[wave_places(one, rows)]
        sm = sm * wave_factors
    again = one.loads * of("l2_clocks", "l2") / (1 << L2_BITS) - one.mib * of("l2_mib_clocks", "l2")
    operands = 2 * one.straddling  # `straddling` is 1 if both operands straddle
    again = np.maximum(again, 0) * (1 + operands / STRADDLING_PART)
    memory = of("dram_start_clocks", "dram_start") + one.dram_mib * of("dram_mib_clocks", "dram") + again
    if waves is not None:
        memory = np.where(by_tma, memory, memory * wave_factors)
    longer, shorter = np.maximum(sm, memory), np.minimum(sm, memory)
    added = (one.added > 0) * of("split_clocks", "split") + one.added * partial
    added = added * (1 + ROUND_WAITS * np.maximum(one.split - 1, 0))
    overlap = OVERLAP_EIGHTHS / 8 if is_calibrated else 1 / 2
    if sustained and is_calibrated:
        added = added + np.maximum(sm - LONG_CLOCKS, 0) * np.array([energy(row) for row in rows])[one.row] / ONE
    return of("launch_clocks", "launch") + added + longer + overlap * np.maximum(shorter - longer / 4, 0)


def features(launches: Launches, rows: Sequence[Row], factors: np.ndarray, estimates: np.ndarray) -> np.ndarray:
    """Return what trees compare, as hgemm.dispatch_table.features_of. Shapes: (launch, feature)."""
    one, (m, n, k) = launches, (launches.m, launches.n, launches.k)

    def of(name: str, term: str = "") -> np.ndarray:
        its = np.array([getattr(row, name) for row in rows], float)
        return np.round(its * factors[:, TERMS.index(term)] if term else its)[one.row]

    def alignment(extents: np.ndarray) -> np.ndarray:
        odd = extents.astype(int) | MAX_ALIGNMENT
        return odd & -odd

    tile_m, tile_n, splits = of("tile_m"), of("tile_n"), of("splits")
    tiles = (
        np.ceil(m / (tile_m * of("cluster_m")))
        * np.ceil(n / (tile_n * of("cluster_n")))
        * of("cluster_m")
        * of("cluster_n")
    )
    k_tiles = np.ceil(np.maximum(k, 1) / of("tile_k"))
    found = {
        **{"m": m, "n": n, "k": k, "layout": one.layout, "straddling": 2 * one.straddling},
        **{f"{name}_alignment": alignment(extents) for name, extents in (("m", m), ("n", n), ("k", k))},
        **{"waves": 100 * tiles * splits // one.sms, "missing_rows": -m % tile_m, "missing_columns": -n % tile_n},
        **{"k_tile_clocks": of("k_tile_clocks", "k_tile"), "tile_clocks": of("tile_clocks", "tile")},
        **{"k_tiles": np.ceil(k_tiles / splits), "dram": 1024_000 * one.mib // estimates, "clocks": estimates // 1},
        "l2": 1000 * (tiles * k_tiles * of("l2_clocks", "l2") / (1 << L2_BITS)) // estimates,
    }
    return np.stack([found[name] if name in found else of(name) for name in FEATURES], axis=1).astype(int)


def with_best_options(launches: Launches, estimates: np.ndarray) -> np.ndarray:
    """Return the places of launches with the lowest estimate of their kernel and problem."""
    ordered = np.lexsort((estimates, launches.row, launches.at))
    pairs = np.stack([launches.at, launches.row])[:, ordered]
    return ordered[np.concatenate([[True], (np.diff(pairs) != 0).any(axis=0)])]


def wave_places(launches: Launches, rows: Sequence[Row]) -> np.ndarray:
    """Return the place of each launch's factor in the factors of waves: those of a class after those of the one before it."""
    classes = [wave_class(row.tensor_maps, row.cluster_ctas, row.decides_splits, row.splits) for row in rows]
    by_tma = np.array([row.tensor_maps for row in rows])[launches.row] > 0
    tile_rows = np.ceil(launches.m / np.array([row.tile_m for row in rows])[launches.row])
    counted, of = np.where(by_tma, launches.items, tile_rows), np.where(by_tma, launches.sms, 1)
    waves = (100 * counted > np.array(WAVE_BOUNDS)[:, None] * of).sum(axis=0)
    return np.array(classes)[launches.row] * (len(WAVE_BOUNDS) + 1) + waves


# ---- Fitting ---------------------------------------------------------------------------------------------------------

NOISE = 0.018
"""Expected logarithm of a time over its estimate. Source: cross-validation, as for the spreads."""
SHARED_SPREADS = dict.fromkeys(TERMS, 0.5)
GROUP_SPREADS = {**SHARED_SPREADS, "dram": 0.2}
OWN_SPREADS = {**dict.fromkeys(TERMS, 0.35), "dram": 0.1, "l2": 0.25, "launch": 0.2}
SPAN_SPREADS = dict.fromkeys(TERMS, 0.02) | dict.fromkeys(("k_tile", "l2", "straddling"), 0.5)
SCHEDULE_SPREADS = {term: spread / 3 for term, spread in OWN_SPREADS.items()}
LAYOUT_SPREADS = dict.fromkeys(TERMS, 0.02) | dict.fromkeys(("k_tile", "l2"), 0.15)
"""Expected logarithms of the factors of all kernels, of a group's beside them, of short rows of the TMA beside these, of a tile's
own, of those of its schedule and stages beside these, and of its layout's beside its own.

DRAM is as fast for one kernel as for another. With more freedom, a few small problems gave some kernels three times its speed.
Kernels that differ only in the raster share factors: one of them may have been measured on few problems.
"""
LEAST_K_TILE = 0.65
"""The least factor of a kernel's k-tile, as a part of its group's.

A kernel that was mostly measured on few k-tiles got 0.36 of it. It was then selected for long k, where it is slow.
"""
NOT_MEASURED = 1.07
"""Estimates of kernels that were not measured are longer by this factor, relative to those of the others. Source: 202 such kernels
among 2,474 that `hgemm tune` measured after their estimates took 9 % longer than estimated. The median of a problem is 0."""
NOT_AGAIN = 1.02
"""Factor of kernels that were only measured as products were launched before SHARED_PARTS. Their own factors are too extreme, so
the estimates use the geometric means of these and of the factors of their group. Source: 68 drawn problems that `hgemm tune`
measured. The kernel with the lowest estimate loses 2.2 % to the fastest. With the own factors alone, it loses 2.7 %."""
LEAST_LAUNCHES, NEVER_NEAR = 4, 0.05
"""Kernels of the family with fewer launches have the factors of their group, or those of tn. So have those that were only measured
as products were launched before SHARED_PARTS, and were never within NEVER_NEAR of the fastest."""
MIN_PROBLEMS, FASTEST_SHARE = 100, 0.1
"""A kernel that was measured on fewer than MIN_PROBLEMS is limited to the rate that FASTEST_SHARE of its group's others reach.

Such kernels were measured on small problems. Without this bound, one with 12 of them was selected for the largest products.
"""
FAR, LEAST_WEIGHT, SOFT = 0.5, 0.03, 0.1
"""A launch this much slower than the best of its problem has the least weight. Errors above SOFT count linearly."""
STEPS, LONGEST_STEP, DIFFERENCE = 10, 0.3, 0.02


@dataclass(frozen=True)
class Fitted:
    """Factors. Shapes: `shared` (term,); `groups`, those of a kernel's group, `spans`, besides these, and `own` (row, term);
    `waves` (class and number of waves,).
    """

    shared: np.ndarray
    groups: np.ndarray
    spans: np.ndarray
    own: np.ndarray
    waves: np.ndarray


def fitted(launches: Launches, named: Mapping[KernelKey, Row]) -> Fitted:
    """Return the factors that the launches suggest. Kernels that were not launched have those of others."""
    rows = [*named.values()]
    count, terms = int(launches.at.max()) + 1, len(TERMS)
    best = np.full(count, np.inf)
    np.minimum.at(best, launches.at, launches.time_us)
    weights = launches.weight * np.clip(1 - (launches.time_us / best[launches.at] - 1) / FAR, LEAST_WEIGHT, 1)
    of_problem = np.maximum(np.bincount(launches.at, weights, count), 1e-9)
    ordered = np.argsort(launches.row, kind="stable")
    bounds = np.searchsorted(launches.row[ordered], np.arange(len(rows) + 1))

    def equations(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the normal equations of each row's factors. Shapes: logs (row, term); (row, term, term) and (row, term)."""
        base = np.log(clocks(launches, rows, np.exp(logs)))
        errors = base - np.log(launches.time_us)
        errors = errors - (np.bincount(launches.at, weights * errors, count) / of_problem)[launches.at]
        slopes = np.empty((len(errors), terms))
        for place in range(terms):
            moved = logs.copy()
            moved[:, place] += DIFFERENCE
            slopes[:, place] = (np.log(clocks(launches, rows, np.exp(moved))) - base) / DIFFERENCE
        weighted = slopes * (weights / np.sqrt(1 + (errors / SOFT) ** 2))[:, None]
        parts = [ordered[first:last] for first, last in itertools.pairwise(bounds)]
        return (
            np.array([weighted[part].T @ slopes[part] for part in parts]),
            np.array([weighted[part].T @ errors[part] for part in parts]),
        )

    def numbered(names: Sequence[Any]) -> np.ndarray:
        """Return a number for each name, and -1 for None."""
        places = {name: place for place, name in enumerate(dict.fromkeys(name for name in names if name is not None))}
        return np.array([-1 if name is None else places[name] for name in names])

    spans = [span_of(*key) for key in named]
    levels = (
        (np.zeros(len(rows), int), SHARED_SPREADS),
        (numbered([group_of(words) for words, _ in named]), GROUP_SPREADS),
        (numbered([None if span == SPANS[0] else span for span in spans]), SPAN_SPREADS),
        (numbered([_of_tile(words) for words, _ in named]), OWN_SPREADS),
        (numbered([words[:-1] for words, _ in named]), SCHEDULE_SPREADS),
        (numbered([None if layout == LAYOUT else (words[:-1], layout) for words, layout in named]), LAYOUT_SPREADS),
    )
    prior, found = np.zeros((len(rows), terms)), []
    for level, spreads in levels:
        pull = np.diag([(NOISE / spreads[term]) ** 2 for term in TERMS])
        moving = np.flatnonzero(level >= 0)
        of, firsts = level[moving], moving[np.unique(level[moving], return_index=True)[1]]
        logs = prior
        for _ in range(STEPS if len(moving) else 0):
            matrix, right = np.zeros((len(firsts), terms, terms)), np.zeros((len(firsts), terms))
            of_rows = equations(logs)
            np.add.at(matrix, of, of_rows[0][moving])
            np.add.at(right, of, of_rows[1][moving])
            pulled = right + (logs - prior)[firsts] @ pull
            change = -np.linalg.solve(matrix + pull, pulled[..., None])[..., 0]
            logs = logs.copy()
            logs[moving] += np.clip(change, -LONGEST_STEP, LONGEST_STEP)[of]
        found.append(logs)
        prior = logs
    shared, groups, spanned, *_, own = found
    k_tile = TERMS.index("k_tile")
    own[:, k_tile] = np.maximum(own[:, k_tile], groups[:, k_tile] + np.log(LEAST_K_TILE))
    own[:, k_tile] = np.maximum(own[:, k_tile], _least_k_tile(launches, named, own[:, k_tile]))
    factors = np.exp(own)
    waves = fitted_waves(launches, rows, factors)
    return Fitted(np.exp(shared[0]), np.exp(groups), np.exp(spanned - groups), factors, waves)


TREES_FAR = 0.2
"""A launch counts for the trees if its estimate exceeds the lowest of its problem by less than this part."""


def grown(launches: Launches, rows: Sequence[Row], factors: np.ndarray, waves: np.ndarray) -> list[Tree]:
    """Return the trees that refine the estimates of single products."""
    launches = launches[launches.batch == 1]
    if not len(launches.at):
        return []
    estimates = clocks(launches, rows, factors, waves, sustained=True)
    chosen = with_best_options(launches, estimates)
    launches, estimates = launches[chosen], estimates[chosen]
    plain, count = clocks(launches, rows, factors, waves), int(launches.at.max()) + 1
    best = np.full(count, np.inf)
    np.minimum.at(best, launches.at, plain)
    far = plain / best[launches.at] - 1
    counts = launches.weight / max(WEIGHTS.values())
    weights = counts * np.clip(1 - far / TREES_FAR, LEAST_WEIGHT, 1)
    errors = np.log(launches.time_us / plain)
    means = np.bincount(launches.at, weights * errors, count) / np.maximum(
        np.bincount(launches.at, weights, count), 1e-9
    )
    errors = np.clip(errors - means[launches.at], -LARGEST_ERROR, LARGEST_ERROR)
    near = far < TREES_FAR
    return boosted(
        Examples(
            features(launches[near], rows, factors, estimates[near]),
            errors=errors[near],
            weights=weights[near],
            problems=np.unique(launches.at[near], return_inverse=True)[1],
            counts=counts[near],
            times=launches.time_us[near],
            estimates=plain[near],
        )
    )


WAVE_PULL, WAVE_STEPS, WAVE_FAR, LARGEST_ERROR, LARGEST_FALL = 10, 4, 0.4, 0.3, 0.08
"""Constants of the fit of the waves' factors.

WAVE_PULL: each factor is fitted with so many more launches that have no error, which pull it towards 1.
WAVE_FAR: a launch has the least weight if its estimate exceeds the lowest of its problem by this part.
LARGEST_ERROR: larger errors, as logarithms, count as this one.
LARGEST_FALL: a logarithm is at most this much lower than that of fewer waves, since estimates must not fall as problems grow.

Weights follow estimates, not times: they choose the kernels whose errors matter.
"""


def fitted_waves(launches: Launches, rows: Sequence[Row], factors: np.ndarray) -> np.ndarray:
    """Return the factors of waves beside those of kernels."""
    places, count = wave_places(launches, rows), int(launches.at.max()) + 1
    estimates, best = clocks(launches, rows, factors), np.full(count, np.inf)
    np.minimum.at(best, launches.at, estimates)
    weights = launches.weight * np.clip(1 - (estimates / best[launches.at] - 1) / WAVE_FAR, LEAST_WEIGHT, 1)
    of_problem = np.maximum(np.bincount(launches.at, weights, count), 1e-9)
    logs, without_tma = np.zeros(WAVE_CLASSES * (len(WAVE_BOUNDS) + 1)), slice(-len(WAVE_BOUNDS) - 1, None)
    for _ in range(WAVE_STEPS):
        base, moved = (np.log(clocks(launches, rows, factors, np.exp(logs + step))) for step in (0, DIFFERENCE))
        slopes, errors = (moved - base) / DIFFERENCE, np.log(launches.time_us) - base
        errors = errors - (np.bincount(launches.at, weights * errors, count) / of_problem)[launches.at]
        errors = np.clip(errors, -LARGEST_ERROR, LARGEST_ERROR)
        right, square = (np.bincount(places, weights * slopes * one, len(logs)) for one in (errors, slopes))
        logs += right / (square + WAVE_PULL)
        logs[without_tma] = np.maximum.accumulate(np.maximum(logs[without_tma], 0))
        of_classes = logs.reshape(WAVE_CLASSES, -1)
        for one in range(1, of_classes.shape[1]):
            of_classes[:, one] = np.maximum(of_classes[:, one], of_classes[:, one - 1] - LARGEST_FALL)
    return np.exp(logs)


def _of_tile(words: Words) -> Words:
    """Return a timing identity without what matters little: whether launches decide the splits, the stages and the raster."""
    *others, schedule = words[: len(IDENTITY)]
    return (*others, "persistent" if schedule == LAUNCH else schedule)


def _least_k_tile(launches: Launches, named: Mapping[KernelKey, Row], own: np.ndarray) -> np.ndarray:
    """Return the least logarithms of the factors of k-tiles. Shapes: own (row,); (row,).

    They limit the multiply-adds a clock of kernels that were measured on fewer than MIN_PROBLEMS.
    """
    rows = [*named.values()]
    per_add = np.log([row.k_tile_clocks / (row.tile_m * row.tile_n * row.tile_k) for row in rows])
    count = int(launches.at.max()) + 1
    problems = np.bincount(np.unique(launches.row * count + launches.at) // count, minlength=len(rows))
    groups = np.array([group_of(words) for words, _ in named])
    least = np.full(len(rows), -np.inf)
    for group in dict.fromkeys(groups):
        few, many = ((groups == group) & chosen for chosen in (problems < MIN_PROBLEMS, problems >= MIN_PROBLEMS))
        if many.any():
            least[few] = np.quantile((own + per_add)[many], FASTEST_SHARE) - per_add[few]
    return least


ANCHOR_ROWS, ANCHOR_LOSS = 64, 0.1
"""The level of the estimates is that of the model on good launches of few rows, where kernels without a calibration compete."""


def level(launches: Launches, rows: Sequence[Row], factors: np.ndarray) -> float:
    """Return the number by which to multiply all factors, so that calibrated estimates are on the level of the others."""
    best = np.full(int(launches.at.max()) + 1, np.inf)
    np.minimum.at(best, launches.at, launches.time_us)
    chosen = (launches.time_us < (1 + ANCHOR_LOSS) * best[launches.at]) & (launches.m <= ANCHOR_ROWS)
    few = launches[chosen]
    return float(np.median(clocks(few, rows, None) / clocks(few, rows, factors)))


def losses(
    launches: Launches,
    rows: Sequence[Row],
    factors: np.ndarray | None,
    waves: np.ndarray | None,
    trees: Sequence[Tree] = (),
    kept: np.ndarray | None = None,
) -> np.ndarray:
    """Return the loss of each problem if the kernel with the lowest estimate runs, of all kernels or of those that are kept.

    It is infinite if no kept kernel was measured. Shapes: (problem,).
    """
    estimates = clocks(launches, rows, factors, waves, sustained=True)
    best = np.full(int(launches.at.max()) + 1, np.inf)
    np.minimum.at(best, launches.at, launches.time_us)
    if factors is not None:
        chosen = with_best_options(launches, estimates)
        launches, estimates = launches[chosen], estimates[chosen]
        factor = Forest.of(trees).refinements(features(launches, rows, factors, estimates)) / TREE_ONE
        estimates = np.where(launches.batch == 1, estimates * factor, estimates)
    estimates = np.where(True if kept is None else kept[launches.row], estimates, np.inf)
    ordered = np.lexsort((estimates, launches.at))
    _, firsts = np.unique(launches.at[ordered], return_index=True)
    selected = ordered[firsts]
    times_us = np.where(np.isfinite(estimates[selected]), launches.time_us[selected], np.inf)
    return times_us / best[launches.at[selected]] - 1


# ---- Judging ---------------------------------------------------------------------------------------------------------

FOLDS = 5


def summary(found: np.ndarray) -> str:
    """Return the figures of losses. Problems without a measured kernel count as a loss of 100 %."""
    found = np.minimum(found, 1.0)
    return (
        f"{100 * found.mean():5.2f} % mean  {100 * found.max():5.1f} % worst  "
        f"{100 * (found > 0.04).mean():4.1f} % above 4 %  {100 * (found > 0.08).mean():4.1f} % above 8 %"
    )


def of_problems(launches: Launches, wanted: np.ndarray) -> Launches:
    """Return the launches of the problems for which `wanted` is true."""
    return launches[wanted[launches.at]]


def part_of(document: Mapping[str, Any]) -> tuple[str, str]:
    """Return the part of the data that a file belongs to: the GPU, and whether it has one layout or batches and all layouts."""
    is_one = all(launch_of(problem) == (1, LAYOUT) for problem in document["problems"])
    return document["device"], "" if is_one else ", all layouts"


def problem_of(problem: Sequence[Any]) -> tuple[Any, ...]:
    return *problem[:3], *launch_of(problem)


def folds_of(documents: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], np.ndarray]:
    """Return the fold of each problem of each part. A problem that was measured more than once is in one fold."""
    problems: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for document in documents:
        problems.setdefault(part_of(document), []).extend(map(problem_of, document["problems"]))
    every = sorted({one for of_part in problems.values() for one in of_part})
    fold = dict(zip(every, np.random.default_rng(0).permutation(len(every)) % FOLDS, strict=True))
    return {part: np.array([fold[one] for one in of_part]) for part, of_part in problems.items()}


Data = Mapping[tuple[str, str], Launches]
"""Launches by their part."""


def judged(
    data: Data, folds: Mapping[tuple[str, str], np.ndarray], named: Mapping[KernelKey, Row], kept: np.ndarray | None
) -> Iterator[tuple[str, str]]:
    """Yield titles and figures: the model alone, and calibrations by the same GPU, by the others, and by all, in folds."""
    rows, devices = [*named.values()], list(dict.fromkeys(device for device, _ in data))
    for part, launches in data.items():
        yield f"{''.join(part)}: model alone", summary(losses(launches, rows, None, None, kept=kept))
    for device in devices if len(devices) > 1 else ():
        its = learnt(_joined([launches for (other, _), launches in data.items() if other != device]), named)
        for part in (one for one in data if one[0] == device):
            yield f"{''.join(part)}: calibrated by the others", summary(losses(data[part], rows, *its, kept))
    by = {f"calibrated by {device}": [part for part in data if part[0] == device] for device in devices}
    for title, sources in ((by if len(devices) > 1 else {}) | {"calibrated by all": [*data]}).items():
        found: dict[tuple[str, str], list[np.ndarray]] = {part: [] for part in sources}
        for fold in range(FOLDS):
            its = learnt(_joined([of_problems(data[part], folds[part] != fold) for part in sources]), named)
            for part in sources:
                held_out = of_problems(data[part], folds[part] == fold)
                found[part].append(losses(held_out, rows, *its, kept))
        for part in sources:
            yield f"{''.join(part)}: {title}, held out", summary(np.concatenate(found[part]))


def learnt(launches: Launches, named: Mapping[KernelKey, Row]) -> tuple[np.ndarray, np.ndarray, Sequence[Tree]]:
    """Return the factors of kernels and of waves, and the trees, that the launches suggest."""
    its = fitted(launches, named)
    return its.own, its.waves, grown(launches, [*named.values()], its.own, its.waves)


def _joined(parts: Sequence[Launches]) -> Launches:
    offsets = np.cumsum([0, *(int(part.at.max()) + 1 for part in parts)])
    columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(Launches)}
    columns["at"] = [at + offset for at, offset in zip(columns["at"], offsets)]
    return Launches(**{name: np.concatenate(values) for name, values in columns.items()})


# ---- Commands --------------------------------------------------------------------------------------------------------

_PATH = click.Path(path_type=Path, exists=True)


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("reduce")
@click.argument("files", nargs=-1, required=True, type=_PATH)
@click.option("--driver", required=True, help="Version of the driver.")
@click.option("--date", required=True, help="Day of the measurement, such as 2026-11-23.")
@click.option("--to", type=click.Path(path_type=Path), required=True, help="A file of benchmarks/data.")
def reduce_command(files: Sequence[Path], driver: str, date: str, to: Path) -> None:
    """Write the times of FILES, measured on one GPU, as a small file."""
    document = reduced([json.loads(path.read_text(encoding="utf-8")) for path in files], driver, date)
    to.write_text(in_lines(document), encoding="utf-8")
    click.echo(f"{len(document['problems'])} problems, {len(document['kernels'])} kernels, {to.stat().st_size} B")


def _read(files: Sequence[Path]) -> tuple[list[dict[str, Any]], dict[KernelKey, Row], dict[tuple[str, str], Launches]]:
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    rows = rows_of(documents)
    parts: dict[tuple[str, str], list[Launches]] = {}
    for document in documents:
        parts.setdefault(part_of(document), []).append(launches_of(document, rows))
    return documents, rows, {part: _joined(of_part) for part, of_part in parts.items()}


@main.command("judge")
@click.argument("files", nargs=-1, required=True, type=_PATH)
@click.option("--catalog", is_flag=True, help="Select among the kernels of the shipped catalog only.")
def judge_command(files: Sequence[Path], catalog: bool) -> None:
    """Print the losses of selection on problems that the calibration did not see."""
    documents, rows, data = _read(files)
    kept = _in_catalog(rows) if catalog else None
    if kept is not None:
        click.echo(f"{kept.sum()} of {len(rows)} kernels are in the catalog")
        for part, launches in data.items():
            click.echo(f"{''.join(part)}: the best kernel of the catalog: {summary(_best_of(launches, kept))}")
    for title, figures in judged(data, folds_of(documents), rows, kept):
        click.echo(f"{title}: {figures}")
    for document in documents:
        known = (problem[TIMES - 2 : TIMES + 1] for problem in document["problems"])
        ratios = [(first, best, times[0][1]) for first, best, times in known if first and best]
        if not ratios:  # measured without cuBLASLt
            continue
        click.echo(
            f"{''.join(part_of(document))}: best of the space over cuBLASLt's first "
            f"{geometric_mean([first / ours for first, _, ours in ratios]):.3f}, "
            f"best of those it proposed {geometric_mean([best / ours for _, best, ours in ratios]):.3f}"
        )


@main.command("clocks")
@click.argument("files", nargs=-1, required=True, type=_PATH)
def clocks_command(files: Sequence[Path]) -> None:
    """Print how many clocks of its estimate the kernel with the lowest estimate takes in a microsecond, for each GPU of FILES."""
    target, found = Target.typical(f"sm_{CAPABILITY}", SMS), defaultdict(list)
    for document in (json.loads(path.read_text(encoding="utf-8")) for path in files):
        rows, kernels = rows_of([document], calibration()), [tuple(words) for words in document["kernels"]]
        for problem in document["problems"]:
            batch, layout = launch_of(problem)
            query = SelectionQuery.dense(Kind(layout), (*problem[:3], batch))
            times = ((rows.get((kernels[kernel], layout)), time_ns) for kernel, time_ns, *_ in problem[TIMES])
            estimates = [(_estimate(row, query, target), time_ns) for row, time_ns in times if row]
            if estimates:
                estimate, time_ns = min(estimates)
                found[document["device"]].append(1e3 * estimate / time_ns)
    for device, clocks_per_us in found.items():
        low, middle, high = np.percentile(clocks_per_us, (10, 50, 90))
        click.echo(
            f"{device}, {len(clocks_per_us)} problems: median {middle:.0f}, of 8 in 10 between {low:.0f} and {high:.0f}"
        )


def _estimate(row: Row, query: SelectionQuery, target: Target) -> int:
    return refined_clocks(row, query, target, estimate_clocks(row, query, target))


def _in_catalog(rows: Mapping[KernelKey, Row]) -> np.ndarray:
    from generator.catalog import catalog_kernels  # reads and plans the whole catalog

    kernels = [kernel for kernel in catalog_kernels() if kernel.plan.spec.arch in ("sm_90", "sm_90a")]
    shipped = {
        (identity(planned_sections(kernel)["spec"])[: len(IDENTITY)], kernel.plan.spec.layout) for kernel in kernels
    }
    return np.array([(words[: len(IDENTITY)], layout) in shipped for words, layout in rows])


def _best_of(launches: Launches, kept: np.ndarray) -> np.ndarray:
    times = np.where(kept[launches.row], launches.time_us, np.inf)
    best, best_kept = (np.full(int(launches.at.max()) + 1, np.inf) for _ in range(2))
    np.minimum.at(best, launches.at, launches.time_us)
    np.minimum.at(best_kept, launches.at, times)
    return (best_kept / best - 1)[np.unique(launches.at)]


def devices_of(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the measured GPUs, each with the date of its newest data, the driver of that day, and its number of problems."""
    found = []
    for name in dict.fromkeys(document["device"] for document in documents):
        its = [document for document in documents if document["device"] == name]
        newest = max(its, key=lambda document: document["date"])
        problems = {problem_of(problem) for document in its for problem in document["problems"]}
        found.append(
            {
                "name": name,
                **{field: newest[field] for field in ("capability", "sms", "driver", "date")},
                "problems": len(problems),
            }
        )
    return found


@main.command("fit")
@click.argument("files", nargs=-1, required=True, type=_PATH)
@click.option("--keep-tn", is_flag=True, help="Fit the other layouts only. Estimates of layout tn stay as they are.")
@click.option("--to", type=click.Path(path_type=Path), default=PATH, show_default=True)
def fit_command(files: Sequence[Path], keep_tn: bool, to: Path) -> None:
    """Write the calibration by all problems of FILES as package data."""
    documents, rows, data = _read(files)
    together = _joined([*data.values()])
    factors = fitted(together, rows)
    of_layout = _joined([launches for (_, layouts), launches in data.items() if not layouts])
    scale = level(of_layout, [*rows.values()], factors.own) / NOT_MEASURED
    measured = np.bincount(together.row, minlength=len(rows))
    current = np.isin(range(len(rows)), together.row[together.weight > WEIGHTS[1]])
    of_value = current | (least_losses(together, len(rows)) <= NEVER_NEAR)
    devices = devices_of(documents)
    places = {key: place for place, key in enumerate(rows)}
    spans = {span_of(*key): place for key, place in places.items()}
    family = next(iter(rows))[0][: len(FAMILY)]
    found = Calibration(
        devices=tuple(device["name"] for device in devices),
        problems=sum(device["problems"] for device in devices),
        state=STATE,
        fitted=fits()["wgmma"].date,
        family=family,
        others=_permille(NOT_MEASURED * scale * factors.shared),
        groups={
            group_of(words): _permille(NOT_MEASURED * scale * factors.groups[place])
            for (words, _), place in places.items()
        },
        spans={span: _permille(factors.spans[place]) for span, place in spans.items() if span != SPANS[0]},
        kernels=without_repeats(
            {
                key: _permille(scale * (factors.own[place] if current[place] else not_again(factors, place)))
                for key, place in places.items()
                if (measured[place] >= LEAST_LAUNCHES and of_value[place])
                or (measured[place] and key[0][: len(FAMILY)] != family)
            }
        ),
        waves=tuple(_permille(part) for part in np.split(factors.waves, WAVE_CLASSES)),
    )
    if keep_tn:
        found = with_others(calibration(), found)
        together = together[together.layout != LAYOUTS.index(LAYOUT)]
    calibrated = rows_of(documents, found)
    of_kernels = [calibrated[key] for key in rows]
    trees = grown(together, of_kernels, np.ones((len(rows), len(TERMS))), np.concatenate(found.waves) / ONE)
    if keep_tn:
        trees = [by_layout(in_tn(tree), its) for tree, its in zip(found.trees, trees, strict=True)]
    found = replace(found, trees=tuple(trees))
    document = document_of(found, devices, "python -m benchmarks.calibration fit")
    parse_calibration(document)
    to.write_text(in_lines(document), encoding="utf-8")
    calibration.cache_clear()
    click.echo(f"{len(found.kernels)} kernels, {to.stat().st_size} B; all together: {dict(zip(TERMS, found.others))}")


def least_losses(launches: Launches, count: int) -> np.ndarray:
    """Return how close each of `count` rows came to the fastest of a problem. Shapes: (row,)."""
    best, found = np.full(int(launches.at.max()) + 1, np.inf), np.full(count, np.inf)
    np.minimum.at(best, launches.at, launches.time_us)
    np.minimum.at(found, launches.row, launches.time_us / best[launches.at] - 1)
    return found


def without_repeats(kernels: Mapping[KernelKey, Factors]) -> dict[KernelKey, Factors]:
    """Return kernels without those that differ from another one in the raster only and have the same factors."""
    alike: dict[KernelKey, dict[KernelKey, Factors]] = {}
    for (words, layout), factors in kernels.items():
        alike.setdefault((words[:-1], layout), {})[words, layout] = factors
    found = {}
    for its in alike.values():
        found.update(its if len({*its.values()}) > 1 else [next(iter(its.items()))])
    return found


def with_others(shipped: Calibration, found: Calibration) -> Calibration:
    """Return a calibration with the kernels of another one in all layouts but tn."""
    kernels = {key: its for key, its in shipped.kernels.items() if key[1] == LAYOUT}
    kernels |= {key: its for key, its in found.kernels.items() if key[1] != LAYOUT}
    return replace(shipped, devices=found.devices, problems=found.problems, kernels=kernels)


def by_layout(of_tn: Tree, of_others: Tree) -> Tree:
    """Return a tree that is the first one in layout tn, the second one in the others."""
    return ((FEATURES.index("layout"), LAYOUTS.index(LAYOUT), len(of_tn) + 1), *of_tn, *of_others)


def in_tn(tree: Tree) -> Tree:
    """Return a tree without its nodes for other layouts than tn."""
    feature, bound, right = tree[0]
    if feature == LEAF:
        return tree[:1]
    left, other = in_tn(tree[1:]), in_tn(tree[right:])
    if feature == FEATURES.index("layout"):
        return left if LAYOUTS.index(LAYOUT) <= bound else other
    return ((feature, bound, len(left) + 1), *left, *other)


def not_again(factors: Fitted, place: int) -> np.ndarray:
    """Return the factors of a row that was not measured with today's launches. Shapes: (term,)."""
    return NOT_AGAIN * np.sqrt(factors.own[place] * factors.groups[place] * factors.spans[place])


def _permille(factors: np.ndarray) -> tuple[int, ...]:
    return tuple(max(1, round(ONE * float(factor))) for factor in factors)


if __name__ == "__main__":
    main()
