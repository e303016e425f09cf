"""The run-time package: launches variants of a library on arrays of any framework; needs the driver and no compiler."""

from hgemm.errors import DeviceError, HgemmError, LibraryError, ProblemError, RequestError
from hgemm.kernel import Kernel
from hgemm.kinds import Kind
from hgemm.library import Library
from hgemm.library import open_library as open
from hgemm.problem import Problem

__all__ = [
    "DeviceError",
    "HgemmError",
    "Kernel",
    "Kind",
    "Library",
    "LibraryError",
    "Plan",
    "Problem",
    "ProblemError",
    "RequestError",
    "open",
]


def __getattr__(name: str) -> object:
    if name == "Plan":  # and what it needs: 20 ms that opening a library does without
        from hgemm.plan import Plan

        return Plan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
