"""`hgemm ladder`, after its options were read: ladders made, run or not, kept, printed and drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from generator.arch import parse_arch
from generator.build.pipeline import Outcome, Settings, make
from generator.build.toolchain import templates_folder
from generator.build.workers import cores
from generator.cli.output import progress
from generator.cli.scratch import scratch_library
from generator.device_check import open_kernel
from generator.errors import LibraryError
from generator.ladders.ladder import Ladder, about, card_of, ladder_here, ladder_on
from generator.ladders.recipes import System, load_system, read_system, system_names
from generator.ladders.results import KIND, SCHEMA, chosen, csv_text, curve, form_of, read, require_matplotlib, text
from generator.proof.executor import NoCompiler
from generator.proof.jobs import Prover, host_toolchain
from generator.store.library import Library
from generator.tables import to_text
from hgemm.bench.protocol import Protocol
from hgemm.bench.runner import write_document
from hgemm.bench.work import Work, grid
from hgemm.cases import Shape
from hgemm.device import Device, cubin_runs, open_device
from hgemm.disk import require_writable, write_atomically
from hgemm.errors import DeviceError
from hgemm.kernel import Kernel


def listing(as_json: bool) -> str:
    """Return every system and its steps."""
    systems = [load_system(name) for name in system_names()]
    if as_json:
        plain = [
            {
                "system": system.name,
                "title": system.title,
                "source": system.source,
                "steps": [{"recipe": step.path, "what": step.what, "spec": dict(step.texts)} for step in system.steps],
            }
            for system in systems
        ]
        return json.dumps(plain, indent=1) + "\n"
    return "\n".join(map(_listed, systems))


def _listed(system: System) -> str:
    rows = [{"recipe": step.path, "what": step.what} for step in system.steps]
    indented = "".join(f"  {line}\n" for line in to_text(rows, ["recipe", "what"]).splitlines()[1:])
    return f"{system.name}: {system.title} ({system.source}), {system.arch}\n{indented}"


def run(names: Sequence[str], options: Mapping[str, Any], as_json: bool) -> int:
    """Do what the options of `hgemm ladder` ask for and return the exit status."""
    form = form_of(options["to"]) if options["to"] else ""
    if form:
        require_matplotlib()
    for name in ("keep", "csv", "to"):
        require_writable(options[name], f"--{name}")
    if options["source"]:
        document = read(options["source"], names)
    else:
        with scratch_library(options["library"]) as library:
            document = _climbed(_named(names), library, options)
    if not document["ladders"]:
        raise LibraryError("no ladder was measured" + (f": {document['lost']}" if document.get("lost") else ""))
    click.echo(json.dumps(document, indent=1) + "\n" if as_json else text(document), nl=False)
    if options["csv"]:
        write_atomically(options["csv"], csv_text(document["ladders"]).encode(), "--csv")
    if form:
        write_atomically(options["to"], curve(document, form), "--to")
    for written in filter(None, (options["keep"], options["csv"], options["to"])):
        click.echo(f"hgemm: wrote {written}", err=True)
    if document.get("lost"):
        raise DeviceError(document["lost"])
    return int(any(ladder.get("refused") for ladder in document["ladders"]))


def _named(names: Sequence[str]) -> list[System]:
    """Return the systems that are named, and those that files of the user's own describe."""
    files = [Path(name) for name in names if name.endswith(".toml")]
    shipped = [name for name in names if not name.endswith(".toml")]
    return [load_system(name) for name in chosen(system_names(), shipped)] + [read_system(path) for path in files]


# ---- Making and running ---------------------------------------------------------------------------------------------


def _climbed(systems: Sequence[System], library: Library, options: Mapping[str, Any]) -> dict[str, Any]:
    shapes = _shapes(options)
    device = None if options["static"] else _device()
    ladders = [_ladder(system, options["arch"], device) for system in systems]
    outcomes = _made(ladders, library, options, prove=device is None)
    failed = [outcome.error for outcome in outcomes.values() if outcome.error]
    if failed:
        raise LibraryError("; ".join(failed))
    records = {symbol: outcome.record for symbol, outcome in outcomes.items() if outcome.record}
    works = [
        (ladder, ladder.work(shape)) for ladder in ladders for shape in shapes or map(Shape.parse, ladder.system.shapes)
    ]
    rivals = {rival.symbol: rival.made() for ladder in ladders for rival in ladder.rivals}
    name = device.name if device else ""
    known = [about(ladder, records, rivals, work, card_of(ladder, name)) for ladder, work in works]
    if device is None:
        document = {"kind": KIND, "schema": SCHEMA, "device": None, "arch": None, "ladders": known}
        if options["keep"]:
            write_document(options["keep"], document)
        return document
    loaded = {symbol: made.kernel() for symbol, made in rivals.items()}
    loaded |= {symbol: open_kernel(library, symbol) for symbol in records}
    return _measured(works, known, loaded, device, options)


def _shapes(options: Mapping[str, Any]) -> list[Shape]:
    if options["m"]:
        return [work.shape for work in grid(options["m"], options["n"], options["k"], Work(1, 1, 1))]
    return [*Shape.parse_list(options["shapes"])] if options["shapes"] else []


def _device() -> Device | None:
    try:
        return open_device()
    except DeviceError as error:
        click.echo(f"hgemm: {error}: what is known without one follows", err=True)
        return None


def _ladder(system: System, arch: str, device: Device | None) -> Ladder:
    if arch:
        return ladder_on(system, parse_arch(arch))
    return ladder_here(system, device.capability) if device else ladder_on(system, system.arch)


def _made(ladders: Sequence[Ladder], library: Library, options: Mapping[str, Any], prove: bool) -> dict[str, Outcome]:
    """Make every variant of some ladders, once; return what became of each, by symbol."""
    plans = list(dict.fromkeys(plan for ladder in ladders for plan in ladder.plans))
    settings = Settings(library, templates_folder(), prover=_prover() if prove else None)
    outcomes: dict[str, Outcome] = {}
    jobs = options["jobs"] or cores()
    with progress(len(plans), options["quiet"], jobs) as tell, closing(make(plans, settings, jobs)) as made:
        for _, outcome in made:
            outcomes[outcome.symbol] = outcome
            tell(outcome)
    return outcomes


def _prover() -> Prover | None:
    try:
        return Prover(host_toolchain())
    except NoCompiler as error:
        click.echo(f"hgemm: {error}: sectors are not counted", err=True)
        return None


def _measured(
    works: Sequence[tuple[Ladder, Work]],
    known: Sequence[dict[str, Any]],
    loaded: Mapping[str, Kernel],
    device: Device,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    from hgemm.bench.ladder import Climb, plan_of, run  # NumPy and the driver, only where something is run

    climbs = []
    for (ladder, work), head in zip(works, known):
        code = "cubin" if cubin_runs(ladder.arch, device.capability) else "ptx"
        kernels = [loaded[symbol] for symbol in ladder.symbols]
        climbs.append(Climb(work, kernels, {**head, "code": code}))
    protocol = Protocol(seconds=options["seconds"], rounds=options["rounds"], warm_up_s=options["warm_up"])
    begin = {"kind": KIND, "arch": "sm_{}{}".format(*device.capability)}
    return run(
        climbs,
        plan_of(options["seed"], options["keep"], protocol),
        device,
        begin,
        lambda line: click.echo(line, err=True),
    )
