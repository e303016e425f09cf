"""Build kernels on the workers of a Dask cluster. The client checks that all machines build the same, and stores results."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generator import __version__
from generator.build.compile import versions
from generator.build.pipeline import BuildOptions, BuildResult, Prepared, Prover, build
from generator.build.toolchain import templates_folder
from generator.build.workers import LostItem, Pool, run
from generator.errors import HgemmError, RequestError

_PACKAGES = ("generator", "hgemm")
_SHOWN_DIGITS = 12


@cache
def identity() -> dict[str, str]:
    """Return what a build depends on: versions of this package and the compilers, hashes of sources and templates.

    Raises: HgemmError if a wheel is missing.
    """
    root, templates = Path(__file__).resolve().parents[2], templates_folder()
    sources = (path for package in _PACKAGES for path in (root / package).rglob("*.py"))
    return {
        "generator": __version__,
        "sources": _hash_of(sources, root),
        "templates": _hash_of((path for path in templates.rglob("*") if path.is_file()), templates),
        **versions(),
    }


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return the differences of two identities as text, or an empty text."""
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    return ", ".join(f"{name} {_short(there, name)} there, {_short(here, name)} here" for name in names)


def _short(found: Mapping[str, str], name: str) -> str:
    return found.get(name, "none")[:_SHOWN_DIGITS]


def _hash_of(paths: Iterable[Path], root: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(paths):
        whole.update(f"{path.relative_to(root).as_posix()}\0".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


# ---- The cluster ----------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from distributed import Client

INSTALL = "pip install 'hgemm-generator[dask]'"
_ADDRESS = re.compile(r"[a-z]+://[^\s/]+:(?P<port>[0-9]{1,5})")
_MAX_PORT = 65535
_GO_ON = "what was built is in the library, and the same command builds the rest"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerOptions:
    """The options that go with the kernels. `prover` makes the prover of a worker; None registers kernels without a proof."""

    allow_spills: bool
    prover: Callable[[], Prover] | None
    identity: Mapping[str, str]


@dataclass(frozen=True)
class Cluster:
    """The workers of a Dask scheduler. A run fails if there is no worker for `patience_s` seconds."""

    address: str
    allow_spills: bool = False
    prover: Callable[[], Prover] | None = None
    patience_s: float = 60.0

    def __post_init__(self) -> None:
        """Raises: RequestError if distributed is not installed or the address is malformed."""
        if not find_spec("distributed"):
            raise RequestError(f"--executor dask needs the package distributed, which is not installed: {INSTALL}")
        found = _ADDRESS.fullmatch(self.address)
        if not found or int(found["port"]) > _MAX_PORT:
            raise RequestError(
                f"--address {self.address} is malformed: write tcp://host:port, as the scheduler prints it"
            )

    def results(self, kernels: Sequence[Prepared]) -> Iterator[tuple[int, BuildResult | LostItem]]:
        """Yield (place, result or LostItem) once per kernel, as results arrive.

        Raises: HgemmError if the cluster cannot be reached, differs from this machine, or has no worker for too long.
        """
        task = partial(build_here, order=WorkerOptions(self.allow_spills, self.prover, identity()))
        with _connected(self.address, self.patience_s) as client:
            _refuse_others(client)
            watch = _Watch(client, self.patience_s)
            pool = Pool(client.get_executor(pure=False), watch.width, watch.check, _cause_of_death)
            yield from run(task, kernels, pool)


def build_here(batch: Sequence[Prepared], order: WorkerOptions) -> list[BuildResult]:
    """Build kernels in this worker. Raises: HgemmError if it differs from the sender."""
    differs = difference(order.identity, identity())
    if differs:
        raise HgemmError(_refusal([f"a worker on {platform.node()}: {differs}"]))
    prover = _prover(order.prover) if order.prover else None
    return build(batch, BuildOptions(templates_folder(), order.allow_spills, prover))


@cache
def _prover(make: Callable[[], Prover]) -> Prover:
    """Return the prover of this worker, made once."""
    return make()


@contextmanager
def _connected(address: str, patience_s: float) -> Iterator[Client]:
    """Yield a client of the scheduler when it has a worker. Raises: HgemmError after `patience_s` seconds."""
    from distributed import Client  # takes 0.5 s, and is an optional dependency
    from distributed.comm import CommClosedError

    for name in [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]:
        logging.getLogger(name).setLevel(
            logging.CRITICAL
        )  # its tracebacks of lost connections; we report them in one line
    try:
        client = Client(address, timeout=patience_s, set_as_default=False)
    except OSError as error:
        raise HgemmError(
            f"no Dask scheduler answers at {address} in {patience_s:g} s: start one with `dask scheduler`"
        ) from error
    except TypeError as error:
        raise HgemmError(
            f"the scheduler at {address} has another version of Dask ({error}): use one everywhere"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=patience_s)
        except (asyncio.TimeoutError, TimeoutError):  # the same class from Python 3.11 on
            raise HgemmError(
                f"no worker connected to {address} within {patience_s:g} s: start some with `dask worker {address} --nthreads 1`"
            ) from None
        try:
            yield client
        except (CommClosedError, CancelledError) as error:
            raise HgemmError(f"the scheduler has gone away or cancelled the work: {_GO_ON}") from error
        except ImportError as error:
            raise HgemmError(_refusal([f"a worker: {error}"])) from error


class _Watch:
    """Watches the workers of a client."""

    def __init__(self, client: Client, patience_s: float) -> None:
        self._client, self._patience_s, self._seen_s = client, patience_s, time.monotonic()
        if any(count > 1 for count in client.nthreads().values()):
            _LOG.warning("workers with several threads compile one after the other: start them with --nthreads 1")

    def width(self) -> int:
        """Return the number of parallel tasks. Raises: HgemmError if the scheduler has gone away."""
        try:
            if self._client.status == "running":
                return sum(self._client.nthreads().values())
        except OSError:
            pass  # the connection was lost
        raise HgemmError(f"the scheduler has gone away: {_GO_ON}")

    def check(self) -> None:
        """Raises: HgemmError if there has been no worker for too long."""
        if self.width():
            self._seen_s = time.monotonic()
        elif time.monotonic() - self._seen_s > self._patience_s:
            raise HgemmError(
                f"there has been no worker for {self._patience_s:g} s: start some with `dask worker`. {_GO_ON}"
            )


def _refuse_others(client: Client) -> None:
    """Raises: HgemmError that names each machine of the cluster that differs from this one."""
    found: dict[str, Any] = {}
    try:
        found["the scheduler"] = client.run_on_scheduler(identity)
    except Exception as error:
        found["the scheduler"] = error
    workers = client.run(identity, on_error="return")
    found |= {f"worker {address}": workers[address] for address in sorted(workers)}
    here, lines = identity(), []
    for name, there in found.items():
        message = str(there) if isinstance(there, Exception) else difference(here, there)
        lines += [f"{name}: {message}"] if message and not isinstance(there, OSError) else []
    if lines:
        raise HgemmError(_refusal(lines))


def _refusal(lines: list[str]) -> str:
    head = (
        "the cluster is not as this machine, and is not used: install the same version of this package, and restart it"
    )
    return "\n  ".join([head, *lines])


def _cause_of_death(error: Exception) -> str:
    from distributed import KilledWorker

    if not isinstance(error, KilledWorker):
        return ""
    return f"died while building it, as did {error.allowed_failures} before; the last was {error.last_worker.address}"
