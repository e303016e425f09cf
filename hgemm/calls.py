"""The way from arrays to a launch that was made before: what each call of a product does, however its variant is chosen."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from hgemm.arrays import View, stream_handle
from hgemm.kernel import device_of
from hgemm.launcher import Addresses, Launcher
from hgemm.readers import READERS, Read

MAX_LAUNCHERS = 4096
"""Geometries that are remembered."""
_ALIGN_BITS = 31
"""What an address may be a multiple of for a variant's sake: 8 elements of 4 bytes."""


class Calls:
    """Launchers by the signatures of the arrays, and by options that `make` is told beside their views.

    `make` returns a launcher on a device. Threads may share this: two that meet a geometry first both make one, and
    the later one is kept.
    """

    def __init__(self, make: Callable[[Mapping[str, View], int, Any], Launcher]) -> None:
        self._make = make
        self._launchers: dict[Hashable, Launcher | None] = {}
        self._last: tuple[Hashable, Launcher | None, Addresses] = (None, None, ())
        """What was given in the last call, and what followed from it: to compare is cheaper than to find."""

    def run(
        self,
        a: Any,
        b: Any,
        out: Any,
        bias: Any = None,
        c: Any = None,
        workspace: Any = None,
        stream: Any = None,
        options: Hashable = None,
    ) -> Any:
        """Launch on `stream`, or without one on that on which the library of `out` works now, and return `out`."""
        reader = READERS[type(out)]
        read_out = reader.read(out)
        others = None if bias is None and c is None and workspace is None else (_read(bias), _read(c), _read(workspace))
        given = (READERS[type(a)].read(a), READERS[type(b)].read(b), read_out, others, options)
        last, launcher, addresses = self._last
        if given != last:
            launcher, addresses = self._find(given, (a, b, out, bias, c, workspace))
        if launcher is not None:
            if stream is None:
                stream = reader.stream(read_out)
            elif type(stream) is not int:
                stream = stream_handle(stream)
            launcher.launch(addresses, stream)
        return out

    def bind(
        self, a: Any, b: Any, out: Any, bias: Any = None, c: Any = None, workspace: Any = None
    ) -> Callable[..., Any]:
        """Return a function of a stream, or of nothing, that launches on these very arrays and returns `out`.

        They are checked now and not again: their addresses, sizes and strides must stay what they are; it keeps them alive.
        """
        arrays = (a, b, out, bias, c, workspace)
        reader = READERS[type(out)]
        read_out = reader.read(out)
        others = tuple(map(_read, arrays[3:])) if any(array is not None for array in arrays[3:]) else None
        launcher, addresses = self._find((_read(a), _read(b), read_out, others, None), arrays)

        def run(stream: Any = None) -> Any:
            if launcher is not None:
                given = reader.stream(read_out) if stream is None else stream
                launcher.launch(addresses, given if type(given) is int else stream_handle(given))
            return arrays[2]

        return run

    def _find(self, given: tuple, arrays: tuple) -> tuple[Launcher | None, Addresses]:
        """Return the launcher of a geometry, None where D has no elements, and the addresses as it takes them."""
        (a, *like_a), (b, *like_b), (d, *like_d), others, options = given
        bias = c = workspace = 0
        more = None
        if others is not None:
            bias, c, workspace = (read[0] for read in others)
            more = tuple((*read[1:], read[0] & _ALIGN_BITS) for read in others)
        low: Hashable = (a | b | d) & _ALIGN_BITS
        if low:
            low = (a & _ALIGN_BITS, b & _ALIGN_BITS, d & _ALIGN_BITS)
        key = (*like_a, *like_b, *like_d, low, more, options)
        found = self._launchers.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            found = self._add(key, {name: array for name, array in zip(_NAMES, arrays) if array is not None}, options)
        addresses = (a, b, c, d, bias, workspace)
        self._last = (given, found, addresses)
        return found, addresses

    def _add(self, key: Hashable, arrays: Mapping[str, Any], options: Hashable) -> Launcher | None:
        views = {name: READERS[type(array)].view(array, name) for name, array in arrays.items()}
        made = self._make(views, device_of(views), options) if 0 not in views["D"].shape else None
        if len(self._launchers) >= MAX_LAUNCHERS:
            self._launchers.clear()
        self._launchers[key] = made
        return made


_NAMES = ("A", "B", "D", "bias", "C", "workspace")
_ABSENT: Read = (0, None)
_UNKNOWN: Any = object()


def _read(array: Any) -> Read:
    return READERS[type(array)].read(array) if array is not None else _ABSENT
