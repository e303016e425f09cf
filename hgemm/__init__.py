"""The run-time package: launches variants of a library on arrays of any framework; needs the driver and no compiler."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hgemm.errors import DeviceError, HgemmError, LibraryError, ProblemError, RequestError

if TYPE_CHECKING:
    from hgemm.kernel import Kernel
    from hgemm.library import Library
    from hgemm.library import open_library as open
    from hgemm.matmul import MatmulPlan
    from hgemm.problem import Kind, Problem

__all__ = [
    "DeviceError",
    "HgemmError",
    "Kernel",
    "Kind",
    "Library",
    "LibraryError",
    "MatmulPlan",
    "Problem",
    "ProblemError",
    "RequestError",
    "open",
]

_FROM = {
    "Kernel": ("hgemm.kernel", "Kernel"),
    "Kind": ("hgemm.problem", "Kind"),
    "Library": ("hgemm.library", "Library"),
    "MatmulPlan": ("hgemm.matmul", "MatmulPlan"),
    "Plan": ("hgemm.matmul", "MatmulPlan"),  # the old name, accepted for one release
    "Problem": ("hgemm.problem", "Problem"),
    "open": ("hgemm.library", "open_library"),
}
"""Loaded when asked for: `hgemm list` starts 0.07 s sooner, `generate` 0.02."""


def __getattr__(name: str) -> object:
    if name in _FROM:
        module, attribute = _FROM[name]
        found = globals()[name] = getattr(import_module(module), attribute)
        return found
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):  # hgemm.problem after `import hgemm` alone
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
