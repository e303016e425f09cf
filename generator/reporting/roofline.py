"""Rooflines: what a card allows and what every variant comes to, by its tiles and by the problems that were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from generator.errors import LibraryError, RequestError
from generator.reporting.figure import INK, OURS, QUIET, THEIRS, Figure
from generator.reporting.points import Point
from hgemm.dtypes import DTYPES
from hgemm.model.cards import Card, card_named, usual_card
from hgemm.model.kernel import extents, k_tile
from hgemm.record import Record


@dataclass(frozen=True)
class Spot:
    """Variants that fall on one place: `x` FLOP a byte, `allowed` and `measured` TFLOP/s; the first is linked to."""

    x: float
    allowed: float
    measured: float | None
    tensor: float
    symbols: tuple[str, ...]


def rooflines(records: Iterable[Record], points: Sequence[Point]) -> tuple[list[Figure], int]:
    """Return a roofline for each card, and how many variants are in none: no table of a card has their instructions."""
    by_card: dict[str, list[Record]] = {}
    left_out = 0
    for record in records:
        card = usual_card(int("".join(filter(str.isdigit, record.arch))))
        if card is None or _spot(record, card, None) is None:
            left_out += 1
        else:
            by_card.setdefault(card.key, []).append(record)
    measured: dict[str, list[Point]] = {}
    for point in points:
        card = _card_of(point.device)
        if card is not None:
            measured.setdefault(card.key, []).append(point)
            by_card.setdefault(card.key, [])
    return [
        _figure(card_named(key), of_card, measured.get(key, [])) for key, of_card in sorted(by_card.items())
    ], left_out


def _card_of(device: str) -> Card | None:
    try:
        return card_named(device)
    except RequestError:
        return None


def _spot(record: Record, card: Card, measured: float | None) -> Spot | None:
    """Return where a variant falls on a card, None where the card's table lacks what its spec needs."""
    spec = record.data["spec"]
    try:
        part = k_tile(spec, card)
        m, n, k = extents(spec["cta_tile"])
    except (RequestError, LibraryError, KeyError, ValueError, AttributeError):
        return None
    flop, l2 = 2.0 * m * n * k, card.get("l2_bytes_per_clock_per_sm")
    x = flop / (part.l2 * l2) if part.l2 and l2 else part.flop_per_byte
    rate = flop * _clock(card) * 1e-12
    return Spot(x, rate / part.cycles, measured, rate / part.tensor, (record.symbol,))


def _clock(card: Card) -> float:
    """Return the cycles a second of all SMs together."""
    return card.sms * card["sm_mhz"] * 1e6


def _figure(card: Card, records: Sequence[Record], points: Sequence[Point]) -> Figure:
    best: dict[str, float] = {}
    for point in points:
        for symbol, time_us in point.times_us.items():
            best[symbol] = max(best.get(symbol, 0.0), point.tflops(time_us))
    spots = _together(spot for record in records if (spot := _spot(record, card, best.get(record.symbol))))
    panels = bool(spots) + bool(points)
    told = [f"{len(records)} variants by the bytes that their tiles take from L2"] * bool(records)
    told += [f"{len(points)} measured problems by the bytes that must cross DRAM"] * bool(points)
    words = f"Rooflines of {card.name}: {'; '.join(told)}. The roofs are {card.told_sources(['sm_mhz', 'dram_gbytes_per_s'])}."
    inches = (3.9 * panels + 0.4 if panels > 1 else 5.2, 3.9)
    return Figure(f"roofline_{card.key}", card.name, words, inches, partial(_draw, card, spots, points))


def _together(spots: Iterable[Spot]) -> list[Spot]:
    """Join the spots that fall on the same place."""
    found: dict[tuple[Any, ...], Spot] = {}
    for spot in spots:
        place = (round(spot.x, 1), round(spot.allowed, 1), spot.measured and round(spot.measured, 1))
        symbols = (*(found[place].symbols if place in found else ()), *spot.symbols)
        found[place] = Spot(spot.x, spot.allowed, spot.measured, spot.tensor, symbols)
    return [*found.values()]


# ---- Drawing --------------------------------------------------------------------------------------------------------


def _draw(card: Card, spots: Sequence[Spot], points: Sequence[Point], canvas: Any) -> None:
    panels = [partial(_tiles, card, spots)] * bool(spots) + [partial(_problems, card, spots, points)] * bool(points)
    for axes, panel in zip(canvas.subplots(1, len(panels), squeeze=False)[0], panels):
        panel(axes)
        axes.set_ylabel("TFLOP/s")
        axes.grid(True)
        axes.legend(loc="lower right", handletextpad=0.3)


def _tiles(card: Card, spots: Sequence[Spot], axes: Any) -> None:
    _marks(
        axes, [(spot.x, spot.allowed, spot) for spot in spots], "a variant, as the model allows", QUIET, filled=False
    )
    known = [(spot.x, spot.measured, spot) for spot in spots if spot.measured is not None]
    if known:
        _marks(axes, known, "a variant, at its fastest", OURS, filled=True)
    bytes_per_clock = card.get("l2_bytes_per_clock_per_sm")
    slopes = {"L2": bytes_per_clock * _clock(card) * 1e-12} if bytes_per_clock else {}
    _roofs(axes, [spot.x for spot in spots], slopes, max(spot.tensor for spot in spots))
    axes.set_xlabel("FLOP for a byte from L2")
    axes.set_title("tiles")


def _marks(axes: Any, known: Sequence[tuple[float, float, Spot]], label: str, colour: str, filled: bool) -> None:
    faces = {"facecolors": colour, "edgecolors": "none"} if filled else {"facecolors": "none", "edgecolors": colour}
    marks = axes.scatter(*zip(*[(x, y) for x, y, _ in known]), s=18, label=label, linewidths=1, zorder=3, **faces)
    marks.set_urls([f"#variant={spot.symbols[0]}" for _, _, spot in known])


def _problems(card: Card, spots: Sequence[Spot], points: Sequence[Point], axes: Any) -> None:
    ours = [(_intensity(point), point.tflops(time_us)) for point in points for time_us in point.times_us.values()]
    theirs = [
        (_intensity(point), point.tflops(min(point.baseline_us.values()))) for point in points if point.baseline_us
    ]
    axes.plot(
        *zip(*ours), "o", color=OURS, markersize=3.5, markeredgewidth=0, alpha=0.6, label="a variant on a problem"
    )
    if theirs:
        axes.plot(*zip(*theirs), "_", color=THEIRS, markersize=7, markeredgewidth=1.4, label="cuBLASLt, its fastest")
    peak = max((spot.tensor for spot in spots), default=None)
    _roofs(axes, [x for x, _ in ours], {"DRAM": card.dram_gbytes_per_s * 1e-3}, peak)
    axes.set_xlabel("FLOP for a byte of A, B and D")
    axes.set_title("problems")


def _intensity(point: Point) -> float:
    """Return the operations for a byte of A, B and D, each moved once."""
    work = point.work
    sizes: Mapping[str, int] = {name: DTYPES[getattr(work, f"dtype_{name}")].bytes for name in "abd"}
    moved = work.m * work.k * sizes["a"] + work.n * work.k * sizes["b"] + work.m * work.n * sizes["d"]
    return work.flops / (work.batch * moved)


def _roofs(axes: Any, xs: Sequence[float], slopes: Mapping[str, float], peak: float | None) -> None:
    """Draw slopes, TFLOP/s for a FLOP a byte, up to the flat roof `peak`, where there is one. Both axes become logarithmic."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    low, high = min(xs) / 1.6, max(xs) * 1.6
    for name, slope in slopes.items():
        end = min(high, peak / slope) if peak else high
        low = min(low, end / 2)
        axes.plot([low, end], [low * slope, end * slope], color=INK, linewidth=1.2)
        middle = (low * end) ** 0.5
        label = f"{name}, {slope:.1f} TB/s"
        axes.annotate(
            label, (middle, middle * slope), xytext=(-4, 4), textcoords="offset points", ha="right", fontsize=8
        )
    if peak:
        begin = min([peak / slope for slope in slopes.values()], default=low)
        high = max(high, begin * 1.6)
        axes.plot([begin, high], [peak, peak], color=INK, linewidth=1.2)
        axes.annotate(
            f"tensor cores, {peak:.0f}", (high, peak), xytext=(0, 3), textcoords="offset points", ha="right", fontsize=8
        )
    axes.set_xlim(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
