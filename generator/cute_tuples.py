"""CuTe's tuples for NVRTC: the type of an element is counted to, as NVRTC has no builtin that tells it.

CCCL falls back on a class that inherits from one for each element, anew for each tuple: 23.8 s of CPU for a kernel in all of
CuTe on wgmma, and 17.4 so, with equal PTX; 34.5 and 28.9 s for one on mma.sync.
"""

from __future__ import annotations

import hashlib

from generator.errors import HgemmError
from generator.toolchain import Header

TUPLES = "cute/container/tuple.hpp"
_FALLS_BACK = b"    : CUTE_STL_NAMESPACE::tuple_element<I, CUTE_STL_NAMESPACE::tuple<T...>>\n{};"
_COUNTS = b"    : cute::hgemm_element<I, T...>\n{};"
_FIRST = b"namespace cute\n{"
_ELEMENT = b"""namespace cute {
template <size_t I, class First, class... Rest> struct hgemm_element : hgemm_element<I - 1, Rest...> {};
template <class T0, class... Rest> struct hgemm_element<0, T0, Rest...> { using type = T0; };
template <class T0, class T1, class... Rest> struct hgemm_element<1, T0, T1, Rest...> { using type = T1; };
template <class T0, class T1, class T2, class... Rest> struct hgemm_element<2, T0, T1, T2, Rest...> { using type = T2; };
}  // namespace cute

"""


def counted_tuples(headers: tuple[Header, ...]) -> tuple[Header, ...]:
    """Return the headers with CuTe's tuples told of their elements so. Raises: HgemmError where CuTe says it in another way."""
    return tuple(_counted(header) if header.name == TUPLES else header for header in headers)


def _counted(header: Header) -> Header:
    if header.text.count(_FALLS_BACK) != 2 or _FIRST not in header.text:
        raise HgemmError(f"{TUPLES} of the installed CUTLASS is not as expected: install nvidia-cutlass 4.2.0.0")
    text = header.text.replace(_FALLS_BACK, _COUNTS).replace(_FIRST, _ELEMENT + _FIRST, 1)
    return Header(header.name, text, hashlib.sha256(text).hexdigest())
