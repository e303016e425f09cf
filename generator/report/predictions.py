"""The part of a report without measurements: predicted rates, their bounds, and proofs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from generator.errors import HgemmError
from generator.report.charts import FAINT, INK, OURS, SERIES, Figure, in_order
from generator.tables import counted
from hgemm.model.cards import Card, usual_card
from hgemm.model.kernel import Size
from hgemm.model.predict import report
from hgemm.record import Record

SIDES = (512, 1024, 2048, 4096, 8192, 16384)
"""m, n and k of the predicted problems."""
USUAL_SIDE = 4096
"""m, n and k of the problem whose prediction is in the table of kernels."""


@dataclass(frozen=True)
class Predicted:
    """The predictions of one kernel on a card, for squares of SIDES.

    Units: `rates` are TFLOP/s.
    Fields: `bounds` says for each problem what limits it; `fitted` tells where the model's constants come from.
    """

    record: Record
    card: Card
    rates: tuple[float, ...]
    bounds: tuple[str, ...]
    bound: str
    fitted: str

    @property
    def usual(self) -> float:
        """The rate on the problem in the table of kernels."""
        return self.rates[SIDES.index(USUAL_SIDE)]


def predicted(records: Iterable[Record]) -> dict[str, Predicted]:
    """Return the predictions by symbol, on the usual card of each architecture. Kernels without a table are left out."""
    found = (_predicted(record) for record in records)
    return {one.record.symbol: one for one in found if one is not None}


def _predicted(record: Record) -> Predicted | None:
    card = usual_card(int("".join(filter(str.isdigit, record.arch))))
    if card is None:
        return None
    spec, resources = record.data["spec"], record.data["resources"]
    try:
        answers = [report(spec, resources, card, Size(side, side, side)) for side in SIDES]
    except (HgemmError, ValueError, KeyError, TypeError, AttributeError):
        return None
    problems = [one["problem"] for one in answers]
    rates = tuple(2e-6 * side**3 / one["predicted_us"] for side, one in zip(SIDES, problems))
    bounds = tuple(one["bound"] for one in problems)
    return Predicted(record, card, rates, bounds, answers[0]["bound"], problems[-1]["fitted"])


def short_name(symbol: str) -> str:
    """Return the hash that ends a symbol, or the symbol if it has none."""
    ending = symbol.rpartition("_")[2]
    return ending if re.fullmatch("[0-9a-f]{8}", ending) else symbol


# ==== Charts ====


def prediction_figures(found: Sequence[Predicted]) -> list[Figure]:
    """Return a chart of predicted rates for each card, and one of what limits the kernels."""
    figures = []
    for card, of_card in _by_card(found).items():
        best = max(of_card, key=lambda one: (max(one.rates), one.record.symbol))
        words = (
            f"Predicted TFLOP/s of {counted(len(of_card), 'kernel')} on square problems; "
            f"maximum {max(best.rates):.0f} by {short_name(best.record.symbol)}."
        )
        draw = partial(_draw_rates, of_card)
        figures.append(Figure(f"predicted_{of_card[0].card.key}", card, words, (4.6, 3.1), draw))
    if found:
        counts = Counter((one.record.arch, one.bound) for one in found)
        limits = Counter(one.bound for one in found)
        words = "What limits a k-tile: " + ", ".join(f"{bound} {count}" for bound, count in limits.most_common()) + "."
        figures.append(Figure("bounds", "Bounds", words, (4.6, 3.1), partial(_draw_bounds, counts)))
    return figures


def _by_card(found: Iterable[Predicted]) -> dict[str, list[Predicted]]:
    by_card: dict[str, list[Predicted]] = {}
    for one in found:
        by_card.setdefault(one.card.name, []).append(one)
    return dict(sorted(by_card.items()))


def _draw_rates(found: Sequence[Predicted], canvas: Any) -> None:
    axes = canvas.add_subplot()
    lines = {tuple(round(rate, 1) for rate in one.rates) for one in found}
    for rates in sorted(lines):
        axes.plot(SIDES, rates, color=FAINT, linewidth=1)
    axes.plot([], [], color=FAINT, linewidth=1, label="a kernel")
    best = [max(one.rates[at] for one in found) for at in range(len(SIDES))]
    axes.plot(SIDES, best, color=OURS, marker="o", markersize=4.5, linewidth=1.6, label="the fastest kernel")
    for side, rate in zip(SIDES, best):
        axes.annotate(
            f"{rate:.0f}", (side, rate), xytext=(0, 5), textcoords="offset points", ha="center", fontsize=8, color=INK
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(SIDES, [f"{side:,}" for side in SIDES])
    axes.minorticks_off()
    axes.set_ylim(0, 1.12 * max(best))
    axes.set_xlabel("m = n = k")
    axes.set_ylabel("predicted TFLOP/s")
    axes.grid(axis="y")
    axes.legend(loc="lower right")


def _draw_bounds(counts: Mapping[tuple[str, str], int], canvas: Any) -> None:
    axes = canvas.add_subplot()
    archs, bounds = in_order({arch for arch, _ in counts}), sorted({bound for _, bound in counts})
    left = [0] * len(archs)
    for at, bound in enumerate(bounds):
        widths = [counts.get((arch, bound), 0) for arch in archs]
        axes.barh(range(len(archs)), widths, left=left, color=SERIES[at % len(SERIES)], label=bound, height=0.6)
        left = [low + width for low, width in zip(left, widths)]
    axes.set_yticks(range(len(archs)), archs)
    axes.set_ylim(len(archs) - 0.4, -0.6)
    axes.set_xlabel("kernels")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="x")
    canvas.legend(loc="outside lower center", ncols=3)


# ==== Tables ====


def fastest_table(found: Sequence[Predicted]) -> dict[str, Any]:
    """Return a table of the kernel that is fastest by prediction, for each card and size."""
    rows = []
    for card, of_card in _by_card(found).items():
        for at, side in enumerate(SIDES):
            best = max(of_card, key=lambda one: (one.rates[at], one.record.symbol))
            spec = best.record.data["spec"]
            rows.append(
                [card, side, best.record.symbol, spec["dtype_a"], spec["acc"], spec["cta_tile"], spec["schedule"]]
                + [round(best.rates[at], 1), best.bounds[at], best.fitted.partition(": ")[2]]
            )
    heads = [
        "card",
        "m = n = k",
        "kernel",
        "in",
        "acc",
        "CTA tile",
        "schedule",
        "TFLOP/s",
        "bound",
        "accuracy of the model",
    ]
    return {"title": "Fastest by prediction", "heads": heads, "rows": rows, "short": True}


def proof_table(records: Sequence[Record]) -> dict[str, Any]:
    """Return a table of the proofs of each architecture."""
    rows = []
    for arch in in_order({record.arch for record in records}):
        proofs = [record.data["proof"] for record in records if record.arch == arch]
        proved = [one for one in proofs if one.get("shapes")]
        conflicts = [one.get("bank_conflicts") for one in proofs]
        errors = [one["max_bound_ratio"] for one in proved if one.get("max_bound_ratio") is not None]
        rows.append(
            [
                arch,
                len(proofs),
                len(proved),
                sum(len(one["shapes"]) for one in proved),
                sum(one.get("races", 0) for one in proved) if proved else None,
                round(max(errors), 4) if errors and math.isfinite(max(errors)) else None,
                sum(not count for count in conflicts if count is not None),
            ]
        )
    heads = ["architecture", "kernels", "proved", "shapes run", "races", "largest error, of its bound"]
    return {"title": "", "heads": [*heads, "kernels without bank conflicts"], "rows": rows, "short": True}
