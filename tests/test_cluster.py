"""Dask clusters: real workers build kernels, the client stores them. Killed workers lose nothing. Mismatches are reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import SMALL, call, start

pytestmark = pytest.mark.slow
pytest.importorskip("distributed", reason="distributed is not installed: pip install '.[dask]' to test clusters")
import dask  # noqa: E402
from distributed import Client, LocalCluster  # noqa: E402

from generator.build import dask as cluster_module  # noqa: E402
from generator.build.dask import Cluster, WorkerOptions, build_here, difference, identity  # noqa: E402
from generator.build.pipeline import (  # noqa: E402
    BuildResult,
    Settings,
    make,
)
from generator.build.toolchain import templates_folder  # noqa: E402
from generator.build.workers import LostItem, Pool, run  # noqa: E402
from generator.errors import BuildError, HgemmError, RequestError  # noqa: E402
from generator.proof.executor import HostToolchain  # noqa: E402
from generator.spec import symbol_of  # noqa: E402
from generator.store.library import Library  # noqa: E402
from generator.sweep import sweep  # noqa: E402

WORKERS = 2
SWEEP = {**SMALL, "stages": "2:5", "layout": "tn,nn,nt,tt"}
"""16 kernels, which two workers build in batches of 4, and one in batches of 8."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a scheduler with two workers, in processes of their own, each with a nanny that starts it again."""
    config = {
        "distributed.scheduler.allowed-failures": 1,
        # LocalCluster stops a nanny whose worker is away 15 s after its death: starting again, after a second death.
        "distributed.deploy.lost-worker-timeout": "1 hour",
        "distributed.comm.timeouts.connect": "10s",  # a connection to a killed worker may wait as long
        "temporary-directory": str(tmp_path_factory.mktemp("dask")),
    }
    with (
        dask.config.set(config),
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None) as running,
    ):
        yield running.scheduler_address


def pids(address: str) -> list[int]:
    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(WORKERS, timeout=60)
        return sorted(client.run(os.getpid, on_error="ignore").values())


def hashes(library: Library) -> dict[str, tuple[str, dict]]:
    """Return what identifies each kernel of a library: its content key and the hashes of its files."""
    return {record.symbol: (record.key, record.data["files"]) for record in library.records()}


def test_killed_dask_workers_lose_no_kernel(address: str, settings: Settings, tmp_path: Path, monkeypatch) -> None:
    """Both workers are killed: each kernel is built, reported and stored once, and equals the local build."""
    plans, published = sweep([SWEEP]).plans, Counter[str]()
    genuine = Library.publish

    def publish(library: Library, record: dict, files: dict) -> Path:
        published[record["symbol"]] += 1
        return genuine(library, record, files)

    monkeypatch.setattr(Library, "publish", publish)
    places, victims = Counter[int](), pids(address)
    for place, outcome in make(plans, settings, 1, Cluster(address)):
        assert outcome.status == "built", outcome.error
        places[place] += 1
        if len(places) in (1, 7) and victims:
            os.kill(victims.pop(), signal.SIGKILL)
    assert not victims and len(plans) == 16
    assert places == dict.fromkeys(range(16), 1)
    assert {*published.values()} == {1} and len(published) == 16
    here = Settings(Library(tmp_path / "here"), templates_folder())
    assert {outcome.status for _, outcome in make(plans[::8], here, 0)} == {"built"}
    assert len(hashes(settings.library)) == 16 and hashes(here.library).items() <= hashes(settings.library).items()
    again = [outcome.status for _, outcome in make(plans, settings, 1, Cluster("tcp://127.0.0.1:1"))]
    assert again == ["cached"] * 16, "and no cluster is asked for what is there"


def die_over(items: Sequence[int]) -> list[int]:
    if 3 in items:
        os.kill(os.getpid(), signal.SIGKILL)
    return [-item for item in items]


def test_kernel_that_kills_every_worker_is_named_and_skipped(address: str) -> None:
    with Client(address, set_as_default=False) as client:
        check, death = cluster_module._Watch(client, patience_s=60).check, cluster_module._cause_of_death
        pool = Pool(client.get_executor(pure=False), lambda: WORKERS, check, death)
        results = list(run(die_over, list(range(8)), pool))
    assert sorted(place for place, _ in results) == list(range(8))
    (cause,) = (result.cause for place, result in results if isinstance(result, LostItem) and place == 3)
    assert cause.startswith("died while building it, as did 1 before; the last was tcp://127.0.0.1:")
    assert {place: result for place, result in results if place != 3} == {n: -n for n in range(8) if n != 3}


def test_failed_compilation_keeps_its_source_and_log(settings: Settings, monkeypatch) -> None:
    """The client needs only the worker's result: `failed/` is in the client's library, with the client's paths."""
    failing = BuildResult(
        "hgemm_bad", "failed", 0.1, failure=BuildError("hgemm_bad", "x.cu(3): error: no"), source="text"
    )
    monkeypatch.setattr(Cluster, "results", lambda self, plans: iter([(0, failing)]))
    ((_, outcome),) = make(sweep([SMALL]).plans, settings, 1, Cluster("tcp://host:1"))
    assert "hgemm_bad does not compile: x.cu(3): error: no" in outcome.error
    assert (settings.library.folder / "failed" / "hgemm_bad" / "kernel.cu").read_text() == "text"


def test_generate_has_a_cluster_build_and_prove(address: str, tmp_path: Path, host_toolchain: HostToolchain) -> None:
    words = ["--arch", "sm_80", "--tile", "32x32x16", "--stages", "2,3", "--library", tmp_path / "library"]
    done = call("generate", *words, "--executor", "dask", "--address", address, "--verify", "emulate", "--json")
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)
    assert len(records) == 2 and all(record["proof"]["races"] == 0 for record in records)
    assert "2 kernels in" in done.stderr and done.stderr.count("] proved ") == 2


# ---- What differs ------------------------------------------------------------------------------------------------------


def test_cluster_with_other_versions_is_rejected_with_all_differences(address: str, settings, monkeypatch) -> None:
    assert len(pids(address)) == WORKERS
    here = {**identity(), "templates": "f" * 64, "nvrtc": "12.9"}
    monkeypatch.setattr(cluster_module, "identity", lambda: here)
    genuine = Client.run

    def run_there(client: Client, function, **named):
        def here() -> dict[str, str]:  # which is sent as it is, not by its name
            from generator.build.dask import identity

            return identity()

        return genuine(client, here, **named)

    monkeypatch.setattr(Client, "run", run_there)
    monkeypatch.setattr(Client, "run_on_scheduler", lambda client, function: identity())
    with pytest.raises(HgemmError) as raised:
        list(make(sweep([SMALL]).plans, settings, 1, Cluster(address)))
    head, *lines = str(raised.value).splitlines()
    assert head.startswith("the cluster is not as this machine, and is not used")
    message = f"templates {identity()['templates'][:12]} there, ffffffffffff here, nvrtc {identity()['nvrtc']} there, 12.9 here"
    assert [line.split(": ", 1)[1] for line in lines] == [message] * (1 + WORKERS)
    assert lines[0].startswith("  the scheduler: ") and lines[1].startswith("  worker tcp://127.0.0.1:")


def test_late_worker_with_other_versions_reports_itself() -> None:
    order = WorkerOptions(False, False, {**identity(), "sources": "0" * 64})
    with pytest.raises(HgemmError, match="a worker on .*: sources [0-9a-f]{12} there, 000000000000 here"):
        build_here([], order)


def test_edited_sources_or_templates_are_a_difference(tmp_path: Path, monkeypatch) -> None:
    from generator.build import dask as module

    for folder in ("generator", "hgemm", "templates"):
        (tmp_path / folder / "workers").mkdir(parents=True)
    (tmp_path / "hgemm" / "a.py").write_text("1")
    (tmp_path / "templates" / "b.cuh").write_text("2")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "generator" / "workers" / "identity.py"))
    monkeypatch.setattr(module, "templates_folder", lambda: tmp_path / "templates")
    first = identity.__wrapped__()
    (tmp_path / "hgemm" / "a.py").write_text("3")
    second = identity.__wrapped__()
    (tmp_path / "templates" / "b.cuh").rename(tmp_path / "templates" / "c.cuh")
    third = identity.__wrapped__()
    assert difference(first, first) == "" and difference(first, second).split()[0] == "sources"
    assert difference(second, third).split()[0] == "templates" and "sources" not in difference(second, third)


# ---- What is missing ---------------------------------------------------------------------------------------------------


def test_cluster_without_workers_times_out(settings: Settings) -> None:
    with LocalCluster(n_workers=0, dashboard_address=None) as empty:
        before = time.monotonic()
        with pytest.raises(
            HgemmError, match=r"no worker connected to tcp://.* within 0\.5 s: start some with `dask worker tcp"
        ):
            list(make(sweep([SMALL]).plans, settings, 1, Cluster(empty.scheduler_address, patience_s=0.5)))
        assert time.monotonic() - before < 10


def test_unreachable_scheduler_gives_an_error(settings: Settings) -> None:
    with pytest.raises(HgemmError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1 in 0\.5 s"):
        list(make(sweep([SMALL]).plans, settings, 1, Cluster("tcp://127.0.0.1:1", patience_s=0.5)))


@dataclass(frozen=True)
class Daemons:
    """A scheduler and its one worker, which no nanny starts again."""

    address: str
    scheduler: subprocess.Popen[bytes]
    worker: subprocess.Popen[bytes]


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    file = tmp_path / "scheduler.json"

    def daemon(*words: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        whole = [sys.executable, "-m", "dask", *words, "--scheduler-file", str(file), "--no-dashboard"]
        null = subprocess.DEVNULL
        return subprocess.Popen(whole, env=environment, cwd=tmp_path, stdout=null, stderr=null)

    scheduler = daemon("scheduler", "--host", "127.0.0.1", "--port", "0")
    worker = daemon("worker", "--nthreads", "1", "--no-nanny")
    try:
        end = time.monotonic() + 60
        while not (file.exists() and file.read_text().endswith("}")):
            assert time.monotonic() < end, "the scheduler does not start"
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=60)
        yield Daemons(address, scheduler, worker)
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()


def test_lost_worker_ends_the_run_and_the_next_run_continues(daemons: Daemons, settings) -> None:
    plans, made = sweep([SWEEP]).plans, []
    with pytest.raises(HgemmError, match="there has been no worker for 1 s: .* the same command builds the rest"):
        for _, outcome in make(plans, settings, 1, Cluster(daemons.address, patience_s=1)):
            made.append(outcome)
            daemons.worker.kill()
    assert 0 < len(made) < len(plans)
    there = {outcome.symbol for outcome in made}
    some = [plan for plan in plans if symbol_of(plan.spec) not in there][:2]
    some += [plan for plan in plans if symbol_of(plan.spec) in there]
    statuses = Counter(outcome.status for _, outcome in make(some, settings, 0))
    assert statuses == {"cached": len(made), "built": 2}


def test_dead_scheduler_ends_the_run_with_one_line(daemons: Daemons, tmp_path: Path) -> None:
    words = [word for name, text in SWEEP.items() for word in (f"--{name}", text)]
    on = ["--executor", "dask", "--address", daemons.address]
    process = start("generate", *words, *on, "--library", tmp_path / "library")
    assert process.stderr is not None
    first = next(line for line in process.stderr if "at work" not in line)
    daemons.scheduler.kill()
    _, err = process.communicate(timeout=120)
    assert "] built hgemm_" in first and process.returncode == 1
    assert err.splitlines()[-1].startswith("generate: error: the scheduler has gone away")
    assert "Traceback" not in err


# ---- Options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--executor", "dask"], "--executor dask needs the scheduler's address: add --address tcp://host:8786"),
        (["--address", "tcp://host:1"], "--address needs --executor dask"),
        (["--executor", "dask", "--address", "host:1"], "--address host:1 is malformed: write tcp://host:port"),
        (
            ["--executor", "dask", "--address", "tcp://host:65536"],
            "tcp://host:65536 is malformed: write tcp://host:port",
        ),
        (["--executor", "dask", "--address", "tcp://host:1", "-j", "2"], "-j does not apply to --executor dask"),
    ],
)
def test_conflicting_cluster_options_are_rejected(words: list[str], message: str) -> None:
    done = call("generate", "--arch", "sm_80", *words)
    assert done.returncode == 2 and message in done.stderr and not done.stdout


def test_missing_dask_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"needs the package distributed.* pip install 'hgemm-generator\[dask\]'"):
        Cluster("tcp://host:8786")
