"""nvMatmulHeuristics beside the model, on the same problems: what each one's first choice, and its first four, are worth.

python -m venv other && other/bin/pip install nvidia-matmul-heuristics
python -m benchmarks.beside_heuristics --python other/bin/python     writes benchmarks/data/beside_heuristics_h200.json

It is NVIDIA's, under a licence of its own, and optional: it is asked in a process of its own, for an H200 and CUTLASS 3, and needs
no GPU. It names configurations, of which not all are among the variants that were measured. Each is taken for the nearest
variant, by `distance`, and where several are as near, as two consumers that cooperate or take turns, for the fastest of them. A
problem and its transpose are both asked, since a kernel may compute either, and its own predicted times order the answers.
What is kept are parts of the measured best; the configurations are not.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fit_model import CARD, DRAWN, FOLDER, FRESH, SUITE, TOPS, UNSEEN, Data, judged
from hgemm.bench.protocol import geometric_mean
from hgemm.errors import LibraryError
from hgemm.model.cards import card
from hgemm.model.kernel import extents
from hgemm.model.predict import fits

ASKED_ON = (SUITE, DRAWN, FRESH, *UNSEEN["wgmma"])
ASKED = 8
"""Answers an orientation: several often name one tile."""

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
    """A kernel by its numbers, as of D = A B: a transposed one's m and n are exchanged."""

    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    stages: int
    splits: int
    swapped: bool

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Configuration:
        """Read it from a record's `spec`."""
        kind, _, splits = str(spec["schedule"]).partition(":")
        tile, cluster = extents(spec["cta_tile"]), extents(spec["cluster"])
        return cls(*tile, *cluster, spec["stages"], int(splits or 1), bool(spec["swapped"]))


def distance(one: Configuration, other: Configuration) -> float:
    """Return how far two configurations are apart, in octaves, of which a tile's m and n count whole.

    A factor of two in the splits counts 1, in a cluster's m or n 0.5, in a tile's k 0.25 and in the stages 0.1; whether operands
    are swapped 0.2.
    """
    weights = {"tile_m": 1, "tile_n": 1, "splits": 1, "cluster_m": 0.5, "cluster_n": 0.5, "tile_k": 0.25, "stages": 0.1}
    octaves = (weight * abs(math.log2(getattr(one, n) / getattr(other, n))) for n, weight in weights.items())
    return sum(octaves) + 0.2 * (one.swapped != other.swapped)


def asked(python: Path, problems: Sequence[tuple[int, int, int]]) -> list[list[Configuration]]:
    """Return its choices for each problem, in the order of its predicted times. Raises LibraryError where it does not run."""
    both = [*problems, *((n, m, k) for m, n, k in problems)]
    done = subprocess.run(
        [str(python), "-c", CHILD], input=json.dumps({"problems": both, "count": ASKED}), capture_output=True, text=True
    )
    try:
        answers = json.loads(done.stdout)
    except ValueError:
        told = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        raise LibraryError(f"{python} does not run nvMatmulHeuristics: {told}") from None
    found = []
    for plain, transposed in zip(answers, answers[len(problems) :]):
        timed = [(time, Configuration(*numbers, swapped=False)) for time, *numbers in plain]
        for time, tile_m, tile_n, tile_k, cluster_m, cluster_n, stages, splits in transposed:
            timed.append((time, Configuration(tile_n, tile_m, tile_k, cluster_n, cluster_m, stages, splits, swapped=True)))
        found.append([choice for _, choice in sorted(timed, key=lambda pair: pair[0])])
    return found


def matched(choices: Sequence[Configuration], ours: Sequence[Configuration], times_us: np.ndarray) -> list[int]:
    """Return the variants that its choices are taken for, each once, in its order."""
    places = []
    for choice in choices:
        apart = [distance(choice, one) for one in ours]
        nearest = [at for at, value in enumerate(apart) if value == min(apart)]
        places.append(min(nearest, key=lambda at: times_us[at]))
    return list(dict.fromkeys(places))


def figures(data: Data, python: Path) -> dict[str, Any]:
    """Return what its choices and the model's are worth on the problems of a file."""
    ours = [Configuration.of(record["spec"]) for record in data.records]
    choices = asked(python, data.problems)
    ranks = np.full(data.times_us.shape, np.inf)
    exact = 0
    for at, its in enumerate(choices):
        exact += min(distance(its[0], one) for one in ours) == 0
        for rank, place in enumerate(matched(its, ours, data.times_us[at])):
            ranks[at, place] = rank
    parts = {top: _parts(data.times_us, ranks, top) for top in TOPS}
    its = card(CARD)
    return {
        "nvMatmulHeuristics": {
            "problems": len(data.problems),
            **{f"top{top}": round(geometric_mean(parts[top]), 4) for top in TOPS},
            "first_is_a_measured_variant": exact,
        },
        "model": judged(data.times_us, data.predicted_us(fits()["wgmma"].constants, its)),
        "problems": [
            [*problem, round(parts[1][at], 3), round(parts[4][at], 3)] for at, problem in enumerate(data.problems)
        ],
    }


def _parts(times_us: np.ndarray, ranks: np.ndarray, top: int) -> list[float]:
    """Return its shares by problem, of as many choices as it made where these are fewer."""
    among = np.where(ranks < top, times_us, np.inf).min(1)
    return [float(best / one) for best, one in zip(times_us.min(1), among)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="an interpreter that has nvidia-matmul-heuristics")
    parser.add_argument("--json", type=Path, default=FOLDER / "beside_heuristics_h200.json")
    arguments = parser.parse_args()
    version = subprocess.run(
        [str(arguments.python), "-c", "import importlib.metadata as m; print(m.version('nvidia-matmul-heuristics'))"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    document: dict[str, Any] = {
        "what": "the measured best over the best of the first one and of the first four; of a problem m, n, k and these two",
        "device": card(CARD).name,
        "date": date.today().isoformat(),
        "version": version,
    }
    for name in ASKED_ON:
        document[name] = figures(Data.read(name, card(CARD)), arguments.python)
    lines = re.sub(r"\[\s+([^\[\]]+?)\s+\]", lambda row: f"[{' '.join(row[1].split())}]", json.dumps(document, indent=1))
    arguments.json.write_text(lines + "\n", encoding="utf-8")
    print(json.dumps({name: {k: v for k, v in document[name].items() if k != "problems"} for name in ASKED_ON}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
