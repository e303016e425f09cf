"""What stands for a problem after all sessions: which variant is best, in which order the others follow, and their times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hgemm.measured.session import Result, Session

Place = tuple[int, int, int, int, int, int, int]
"""Compute capability, SMs, kind, m, n, k and batch."""
STATE = "steady"
"""What dispatch goes by: the state of a device that works all the time."""


@dataclass(frozen=True)
class Standing:
    """What was measured for one problem on one kind of device.

    Fields: `order` has the variants that were compared with the best one, which is first; `times_us` has those too that
        were only measured in other sessions, in terms of the session that stands; `device` and `date` are that session's.
    """

    order: tuple[str, ...]
    times_us: Mapping[str, float]
    device: str
    date: str


def standings(sessions: Iterable[Session], keys: Mapping[str, str]) -> dict[Place, Standing]:
    """Return what stands for each problem, of the variants whose content keys are `keys` by symbol.

    A session puts its order in the place of an older one where it measured the variant that stood: only then was that
    one compared with what is to be preferred to it.
    """
    found: dict[Place, Standing] = {}
    for session in sessions:
        device = session.header["capability"], session.header["sms"]
        for result in session.results:
            times = _times(session, result, keys)
            if result.state == STATE and times:
                place = (*device, result.problem.kind.code, *result.problem.extents)
                new = Standing(tuple(times), times, session.header["device"], result.date)
                found[place] = _joined(found.get(place), new)
    return found


def _times(session: Session, result: Result, keys: Mapping[str, str]) -> dict[str, float]:
    """Return the times by symbol, in the order of the result, of variants that are still what was measured."""
    tested = ((session.variants[time.variant], time.time_us) for time in result.times)
    return {one.symbol: time_us for one, time_us in tested if keys.get(one.symbol) == one.key}


def _joined(old: Standing | None, new: Standing) -> Standing:
    if old is None:
        return new
    stands = old.order[0]
    if stands in new.times_us:
        kept, added = new, _scaled(old, old.times_us[stands], new.times_us[stands])
    else:
        both = next((symbol for symbol in old.times_us if symbol in new.times_us), None)
        scale = (new.times_us[both], old.times_us[both]) if both else (1.0, 1.0)
        kept, added = old, _scaled(new, *scale)
    return Standing(kept.order, {**added, **kept.times_us}, kept.device, kept.date)


def _scaled(standing: Standing, its: float, other: float) -> dict[str, float]:
    return {symbol: time * other / its for symbol, time in standing.times_us.items()}
