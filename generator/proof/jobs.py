"""Prove kernels on the CPU, each in a separate process, so that a crash or an endless loop affects one kernel only."""

from __future__ import annotations

import atexit
import ctypes
import gc
import hashlib
import json
import os
import re
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from generator.build.compile import ptx_of
from generator.build.emit import EmittedKernel, emit
from generator.build.fresh import refusal
from generator.build.pipeline import planned_sections
from generator.build.toolchain import headers, templates_folder
from generator.build.workers import WorkerLost, process_pool
from generator.device_check import THREAD_VARIABLES, CheckOutcome, CheckWorkers, answer, kill_session
from generator.errors import HgemmError, ProofError, RequestError
from generator.isolated import NEUTRAL_FOLDER, command
from generator.planner import plan_of
from generator.proof.executor import HostCompiler, HostToolchain, cache_folder, find_compiler, require_working, trim
from generator.proof.twins import TARGET, twin_key
from generator.ptx.instructions import row_of
from generator.ptx.parser import Location
from generator.ptx.translate import PTX_FILE, source_lines
from generator.spec import Spec
from generator.store.library import Library
from generator.store.proofs import subject_of, unproved, with_proof
from hgemm.cases import Shape
from hgemm.disk import is_writable
from hgemm.library import StoredKernel
from hgemm.record import PTX_NAME, dump

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class ProofRequest:
    """A kernel to prove: its PTX, its record, and the host toolchain. Empty `shapes` means its default cases."""

    symbol: str
    ptx: str
    record: Mapping[str, Any]
    mma_per_k_tile: int
    compiler: tuple[str, ...]
    identity: str
    templates: str
    cache: str
    shapes: str = ""
    seed: int = 0
    flags: tuple[str, ...] = ()
    level: str = HostToolchain.level
    linker: tuple[str, ...] = ()
    includes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    twins: Sequence[Mapping[str, Any]] = ()
    """Kernels that differ only in numbers (see generator.proof.twins): the symbol, PTX, record and `mma_per_k_tile` of each."""


_SECTIONS = ("symbol", "arch", "spec", "launch", "traits", "accumulation_order")
"""The sections of a record that a proof reads. Records of older versions lack the last one."""


def request_of(
    host_toolchain: HostToolchain, ptx: bytes, record: Mapping[str, Any], shapes: str = "", seed: int = 0
) -> ProofRequest:
    """Return the request for a kernel's PTX and record. The record may lack the sections of a compiled kernel."""
    return ProofRequest(
        symbol=record["symbol"],
        ptx=ptx.decode(),
        record={name: record[name] for name in _SECTIONS if name in record},
        mma_per_k_tile=record["proof"]["mma_per_k_tile"],
        compiler=host_toolchain.compiler.command,
        identity=host_toolchain.compiler.identity,
        templates=str(host_toolchain.templates),
        cache=str(host_toolchain.cache),
        shapes=shapes,
        seed=seed,
        flags=host_toolchain.flags,
        level=host_toolchain.level,
        linker=host_toolchain.compiler.linker,
        includes=host_toolchain.includes(),
    )


def _kernel_of(request: ProofRequest) -> dict[str, Any]:
    """Return the fields that describe the kernel."""
    return {name: getattr(request, name) for name in ("symbol", "ptx", "record", "mma_per_k_tile")}


# ==== Processes ====


class _Server:
    """A process that has imported everything, and forks a process for each proof: a Python starts in 0.5 s, a fork in 2 ms."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command("generator.proof.jobs:serve"),
            stdin=pipe,
            stdout=pipe,
            text=True,
            env=environment,
            cwd=NEUTRAL_FOLDER,
            start_new_session=True,
        )
        atexit.register(self.end)

    def ask(self, request: str, timeout_s: float) -> tuple[int | None, str, str]:
        """Return the status, stdout and stderr of a proof. Without an answer in time, kill everything; then there is no status."""
        try:
            self.process.stdin.write(f"{request}\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], timeout_s)[0]:
                kill_session(self.process)
                return None, "", ""
            answer = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):  # it was killed
            kill_session(self.process)
            return self.process.wait(), "", ""
        return answer["status"], answer["out"], answer["err"]

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """End the process. It ends by itself if this process is killed, because its stdin is closed then."""
        atexit.unregister(self.end)
        if self.is_alive:
            kill_session(self.process)
            self.process.wait()
        self.process.stdout.close()
        with suppress(OSError):
            self.process.stdin.close()


_KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": f"{32 << 20}", "MALLOC_TRIM_THRESHOLD_": f"{1 << 30}"}
_IDLE: dict[str, list[_Server]] = {}
"""Servers without work, by the environment of their processes."""


@dataclass(frozen=True)
class ProofWorkers(CheckWorkers):
    """Processes that prove requests, `jobs` at a time. Each proof has a process of its own, which a server forks."""

    def _environment(self) -> dict[str, str]:
        """Give NumPy one thread, because further ones only spin, and let glibc keep freed memory, because fresh pages cost time."""
        return {**super()._environment(), **dict.fromkeys(THREAD_VARIABLES, "1"), **_KEEP_FREED_MEMORY}

    def _run(self, request: str) -> tuple[int | None, str, str]:
        environment = self._environment()
        idle = _IDLE.setdefault(json.dumps(sorted(environment.items())), [])
        try:
            server = idle.pop()
        except IndexError:
            server = _Server(environment)
        self._running.add(server.process)
        try:
            answer = server.ask(request, self.timeout_s)
        finally:
            self._running.discard(server.process)
        if answer[0] is not None and server.is_alive:
            idle.append(server)
        else:
            server.end()
        return answer


def workers(jobs: int, timeout_s: float = TIMEOUT_S) -> CheckWorkers:
    """Return the worker processes that prove requests, `jobs` at a time."""
    return ProofWorkers(jobs, timeout_s)


def serve() -> None:
    """Prove the requests that arrive at stdin, each in a fork of this process, until stdin is closed."""
    import generator.proof.proving  # noqa: F401  # imports NumPy, before the forks

    row_of("mov.b32")  # compiles the patterns of the table
    gc.freeze()  # leaves the pages of what is imported shared
    for line in sys.stdin:
        outputs = [os.memfd_create(name) for name in ("out", "err")]
        child = os.fork()
        if not child:
            _prove_in_fork(line, outputs)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out, err = map(_text_of, outputs)
        print(json.dumps({"status": status, "out": out, "err": err}), flush=True)


def _prove_in_fork(line: str, outputs: Iterable[int]) -> NoReturn:
    status = 1
    try:
        gc.disable()  # the process ends soon
        empty = os.open(os.devnull, os.O_RDONLY)
        for number, descriptor in enumerate((empty, *outputs)):
            os.dup2(descriptor, number)
        answer(ProofRequest(**json.loads(line)), check_here)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(status)


def _text_of(descriptor: int) -> str:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read().decode(errors="replace")


# ==== A proof ====


def check_here(request: ProofRequest) -> CheckOutcome:
    """Prove a kernel in this process. Raises HgemmError if it cannot be built or launched."""
    from generator.proof.proving import Subject, check_numbers, prove  # imports NumPy, which only this process needs

    began = time.monotonic()
    compiler = HostCompiler(tuple(request.compiler), request.identity, tuple(request.linker))
    host_toolchain = HostToolchain(
        compiler, Path(request.templates), Path(request.cache), tuple(request.flags), request.level
    )
    host_toolchain.known_includes.update(request.includes)
    shapes = Shape.parse_list(request.shapes) if request.shapes else ()
    subject, *twins = (Subject(**one) for one in (_kernel_of(request), *request.twins))
    proved = prove(subject, host_toolchain, shapes, request.seed, twins)
    checks = tuple(asdict(check) for check in proved.checks)
    took = time.monotonic() - began
    outcome = CheckOutcome(request.symbol, checks, seconds=took, proof=proved.proof, sites=proved.sites)
    if not outcome.passed:
        return outcome
    others = []
    for twin in twins:
        began = time.monotonic()
        checks = check_numbers(subject, twin, host_toolchain, request.seed, subject.pair(twins))
        numbers = tuple(map(asdict, checks))
        others.append(CheckOutcome(twin.symbol, numbers, seconds=time.monotonic() - began, twin=subject.symbol))
    return replace(outcome, twins=tuple(map(asdict, others)))


# ==== Emitted kernels, which no library has ====


@dataclass(frozen=True)
class ProofSource:
    """An emitted kernel to prove: its source, its first header, and the sections of its record that precede compilation."""

    kernel: EmittedKernel
    entry_header: str
    record: Mapping[str, Any]

    @property
    def symbol(self) -> str:
        return self.kernel.symbol

    @classmethod
    def of(cls, kernel: EmittedKernel) -> ProofSource:
        """Return the text of a kernel of ours."""
        record = {**planned_sections(kernel), "proof": {"mma_per_k_tile": kernel.plan.mma_per_k_tile}}
        return cls(kernel, kernel.entry_header, record)

    def ptx(self, templates: Path) -> bytes:
        """Return its PTX. Raises: BuildError with the log of the compiler."""
        return ptx_of(self.kernel, headers(self.entry_header, templates))


def prove_texts(
    texts: Sequence[ProofSource],
    host_toolchain: HostToolchain,
    jobs: int,
    seed: int = 0,
    timeout_s: float = TIMEOUT_S,
    twins: bool = True,
) -> Iterator[CheckOutcome]:
    """Compile emitted kernels to PTX, and prove them, in several processes. Yield the outcomes in order.

    Kernels that differ only in name and architecture share one run. With `twins`, kernels that differ only in numbers share the
    cases that do not depend on them: all but the first one run those of numbers.
    """
    host_toolchain.includes()  # read once, for all processes
    prove = partial(_prove_twins, host_toolchain=host_toolchain, seed=seed, timeout_s=timeout_s)
    with ProcessPoolExecutor(jobs, initializer=_keep_freed_memory) as pool:
        executor = pool.submit(host_toolchain.executor)  # takes some seconds, beside the first kernels
        compiling = pool.map(partial(_compiled, templates=host_toolchain.templates), texts)
        try:
            executor.result()
        except HgemmError:
            pool.shutdown(cancel_futures=True)
            raise
        compiled = list(compiling)
        groups: dict[str, dict[str, tuple[ProofSource, bytes | str]]] = {}
        for text, one in zip(texts, compiled):
            group = one.twin_key if twins and one.twin_key else one.run_key
            groups.setdefault(group, {}).setdefault(one.run_key, (text, one.ptx))
        runs: dict[str, tuple[Future[list[CheckOutcome]], int]] = {}
        for group in groups.values():
            order = sorted(group, key=lambda key: group[key][0].record["spec"]["dtype_a"] != _FIRST_TYPE)
            future = pool.submit(prove, [group[key] for key in order])
            runs |= {key: (future, at) for at, key in enumerate(order)}
        for text, one in zip(texts, compiled):
            future, at = runs[one.run_key]
            yield replace(future.result()[at], symbol=text.symbol)
    trim(host_toolchain.cache)


def _keep_freed_memory() -> None:
    """Let glibc keep the memory that NVIDIA's compilers free, for the next kernel."""
    with suppress(AttributeError, OSError):  # another C library
        for number, name in ((-3, "MALLOC_MMAP_THRESHOLD_"), (-1, "MALLOC_TRIM_THRESHOLD_")):
            ctypes.CDLL(None).mallopt(number, int(_KEEP_FREED_MEMORY[name]))


_FIRST_TYPE = "f16"
"""The type of the twin that runs all cases. The error bound of the other one takes longer to compute."""


@dataclass(frozen=True)
class _Compiled:
    """The PTX of a kernel, or why it does not compile; kernels with the same `run_key` behave alike, and twins but for numbers."""

    ptx: bytes | str
    run_key: str
    twin_key: str = ""


def _compiled(text: ProofSource, templates: Path) -> _Compiled:
    try:
        ptx = text.ptx(templates)
    except HgemmError as error:
        return _Compiled(str(error), text.symbol)
    return _Compiled(ptx, _run_key(text, ptx), twin_key(text.symbol, ptx.decode(), text.record))


def _run_key(text: ProofSource, ptx: bytes) -> str:
    """Return what a run depends on: the PTX but for its name and target, the launch, and the arithmetic of the architecture."""
    body = TARGET.sub("", ptx.decode().replace(text.symbol, "")).encode()
    sections = {name: dict(text.record[name], arch="") for name in ("spec", "traits")}
    number = int("".join(filter(str.isdigit, text.record["arch"])))
    rest = json.dumps([sections, text.record["launch"], number >= 90], sort_keys=True)  # as TensorCoreArithmetic
    return hashlib.sha256(body + rest.encode()).hexdigest()


def _prove_twins(
    kernels: Sequence[tuple[ProofSource, bytes | str]], host_toolchain: HostToolchain, seed: int, timeout_s: float
) -> list[CheckOutcome]:
    """Prove the first of several twins. If it passes, the others run the cases of numbers only; if not, they run all cases."""
    prove = partial(_prove_text, host_toolchain=host_toolchain, seed=seed, timeout_s=timeout_s)
    first, *others = kernels
    outcome = prove(*first, twins=others)
    if not outcome.twins:
        return [outcome, *(prove(*other) for other in others)]
    found = [CheckOutcome(**{**one, "checks": tuple(one["checks"])}) for one in outcome.twins]
    located = [_located(one, *other, host_toolchain) for one, other in zip(found, others, strict=True)]
    return [replace(outcome, twins=()), *located]


def _prove_text(
    text: ProofSource,
    ptx: bytes | str,
    host_toolchain: HostToolchain,
    seed: int,
    timeout_s: float,
    twins: Sequence[tuple[ProofSource, bytes | str]] = (),
) -> CheckOutcome:
    if isinstance(ptx, str):
        return CheckOutcome(text.symbol, error=ptx)
    request = request_of(host_toolchain, ptx, text.record, seed=seed)
    others = [_kernel_of(request_of(host_toolchain, ptx, text.record)) for text, ptx in twins]
    request = replace(request, twins=others)
    outcome, _ = workers(1, timeout_s).check(request)
    return _located(outcome, text, ptx, host_toolchain)


def _located(outcome: CheckOutcome, text: ProofSource, ptx: bytes, host_toolchain: HostToolchain) -> CheckOutcome:
    return located(outcome, ptx, text.record, host_toolchain.templates) if outcome.failed else outcome


# ==== `hgemm verify --emulate` and `generate --verify emulate` ====


_TIMES = "emulate_seconds"


def host_toolchain() -> HostToolchain:
    """Return the host toolchain: the compiler in CXX, or the first one that is installed.

    Raises: NoCompiler if there is none, or if it does not work.
    """
    compiler, templates = find_compiler(os.environ.get("CXX", "")), templates_folder()
    require_working(compiler, templates)
    return HostToolchain(compiler, templates, cache_folder(os.environ))


_PTX_LINE = re.compile(rf"{re.escape(PTX_FILE)}:(\d+)")


def _shown(location: Location) -> str:
    """Return the innermost line that is in a template and not in an atom."""
    for one in location.chain():
        path = PurePosixPath(one.file)
        if "cute" not in path.parts and not path.name.startswith("atoms"):
            return f"{path.name}:{one.line}"
    return f"{PurePosixPath(location.file).name}:{location.line}"


def located(outcome: CheckOutcome, ptx: bytes, record: Mapping[str, Any], templates: Path) -> CheckOutcome:
    """Return an outcome whose PTX lines are followed by source lines, if the kernel compiles to the same PTX with them."""
    try:
        kernel = emit(plan_of(Spec.from_dict(record["spec"])), templates)
        annotated = ptx_of(kernel, headers(kernel.entry_header, templates), lines=True)
        lines = source_lines(ptx.decode(), annotated.decode())
    except HgemmError:
        return outcome

    def with_line(match: re.Match) -> str:
        found = lines.get(int(match[1]))
        return match[0] + (f" ({_shown(found)})" if found else "")

    def texts(one: Any) -> Any:
        if isinstance(one, str):
            return _PTX_LINE.sub(with_line, one)
        if isinstance(one, dict):
            return {name: texts(value) for name, value in one.items()}
        return tuple(map(texts, one)) if isinstance(one, (list, tuple)) else one

    return replace(outcome, checks=texts(outcome.checks))


MAX_ELEMENTS = 2**28
"""Elements of A, B and D of a chosen shape, which the reference holds in float64."""


@dataclass(frozen=True)
class Emulation:
    """The proof of kernels of a library: shapes, seed and number of processes.

    Fields: with `trust`, kernels that this version would not write are run, too; their proofs are not stored. With `force`, kernels
        are run again whose records have a proof by this version of the executor.
    """

    library: Library
    host_toolchain: HostToolchain
    shapes: str = ""
    seed: int = 0
    jobs: int = 1
    timeout_s: float = TIMEOUT_S
    trust: bool = False
    force: bool = False
    _subjects: dict[str, dict[str, str]] = field(default_factory=dict, init=False, repr=False)

    @property
    def stores(self) -> bool:
        """Return whether proofs are stored. Without a place for them, kernels are checked all the same."""
        return is_writable(self.library.folder)

    def outcomes(self, symbols: Iterable[str]) -> Iterator[CheckOutcome]:
        """Yield the outcome of each kernel, in order. A proof on the default shapes is stored in its record, if it `stores`.

        Raises: RequestError for shapes that are too large.
        """
        for shape in Shape.parse_list(self.shapes) if self.shapes else ():
            elements = shape.batch * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)
            if elements > MAX_ELEMENTS:
                raise RequestError(
                    f"shape {shape} has {elements:,} elements of A, B and D: a check on the CPU takes at most {MAX_ELEMENTS:,}"
                )
        stored_kernels = [self.library.load(symbol) for symbol in symbols]
        fresh = iter(self._run([stored for stored in stored_kernels if not self._is_proved(stored)]))
        for stored in stored_kernels:
            yield _reused(stored) if self._is_proved(stored) else next(fresh)

    def _is_proved(self, stored: StoredKernel) -> bool:
        """Return whether the record has the proof that a run would give."""
        data = stored.record.data
        again = self.force or self.trust or self.shapes
        return not again and not unproved(data, self.host_toolchain.version()) and data["proof"]["seed"] == self.seed

    def _run(self, stored_kernels: Sequence[StoredKernel]) -> Iterator[CheckOutcome]:
        if stored_kernels:
            self.host_toolchain.executor()  # build it once, before the processes; its errors are not a kernel's
        proofs = workers(self.jobs, self.timeout_s)
        with self._judge(len(stored_kernels)) as judge:
            for outcome in proofs.each(partial(self._outcome, judge=judge, proofs=proofs), stored_kernels):
                if outcome.proof and self.stores:
                    try:
                        self._store(outcome)
                    except ProofError as error:  # of this kernel; the others go on
                        outcome = replace(outcome, error=str(error), proof={})
                yield self._located(outcome) if outcome.failed else outcome
        trim(self.host_toolchain.cache)

    @contextmanager
    def _judge(self, count: int) -> Iterator[Callable[[StoredKernel], str]]:
        """Yield a function that returns why a kernel is not run, or "". It compiles, in processes if there are several."""
        judge = partial(refusal, templates=self.host_toolchain.templates)
        jobs = min(self.jobs, count)
        if self.trust:
            yield lambda stored: ""
        elif jobs < 2:
            yield judge
        else:
            with process_pool(jobs) as pool:
                yield lambda stored: pool.executor.submit(judge, stored).result()

    def _outcome(
        self, stored: StoredKernel, judge: Callable[[StoredKernel], str], proofs: CheckWorkers
    ) -> CheckOutcome:
        try:
            why = judge(stored)
        except WorkerLost as lost:
            why = f"the process that compiled it again {lost}"
        if why:
            return CheckOutcome(stored.symbol, error=why)
        record = stored.record.data
        if not self.trust:
            self._subjects[stored.symbol] = subject_of(record)
        request = request_of(self.host_toolchain, stored.artefacts[PTX_NAME], record, self.shapes, self.seed)
        return proofs.check(request)[0]

    def _located(self, outcome: CheckOutcome) -> CheckOutcome:
        stored = self.library.load(outcome.symbol)
        return located(outcome, stored.artefacts[PTX_NAME], stored.record.data, self.host_toolchain.templates)

    def _store(self, outcome: CheckOutcome) -> None:
        """Store a proof in the record of the files that it is about, unless they were not checked, or have been replaced."""
        stored = self.library.load(outcome.symbol)
        record = stored.record.data
        new = with_proof(record, outcome.proof)
        if new["proof"]["subject"] != self._subjects.get(outcome.symbol):
            return
        before, after = (dump({**one["proof"], _TIMES: None}) for one in (record, new))
        if before != after:
            self.library.publish(new, stored.artefacts)


def _reused(stored: StoredKernel) -> CheckOutcome:
    """Return the outcome of the proof in a record, with the cases of the first run."""
    from generator.proof.proving import order_names  # imports NumPy

    proof = stored.record.data["proof"]
    checks = [
        {"case": case, "passed": True, "reason": "", "findings": [], "max_bound_ratio": proof["max_bound_ratio"]}
        for case in (*proof["shapes"], *order_names(stored.record.data))
    ]
    return CheckOutcome(stored.symbol, tuple(checks), reused=True)


@dataclass(frozen=True)
class Prover:
    """Proves kernels before they are written to the library. Can be pickled."""

    host_toolchain: HostToolchain
    timeout_s: float = TIMEOUT_S

    @cached_property
    def version(self) -> str:
        """Return the version of the executor, which is part of every proof."""
        return self.host_toolchain.version()

    def proof(self, ptx: bytes, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `proof` section of a kernel's record. Raises ProofError with the findings."""
        outcome, _ = workers(1, self.timeout_s).check(request_of(self.host_toolchain, ptx, record))
        if not outcome.passed:
            raise ProofError(located(outcome, ptx, record, self.host_toolchain.templates).reason)
        return outcome.proof


def executor_version() -> str:
    """Return the version of the installed executor, which every proof states. It needs no compiler."""
    return HostToolchain(HostCompiler((), ""), templates_folder(), Path()).version()


def local_prover() -> Prover:
    """Return the prover of this machine. Raises HgemmError if it has no C++ compiler that works."""
    return Prover(host_toolchain())
