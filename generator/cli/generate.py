"""The command `generate`, after its options were read: what is asked for, done, and answered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import click

from generator.arch import parse_arch_list
from generator.build.pipeline import Outcome, Prover, Settings, WorkerPool, cached, make, prepare
from generator.build.toolchain import templates_folder
from generator.build.workers import cores
from generator.catalog import for_others, load_catalog
from generator.cli.explain import note_hints, print_explanations
from generator.cli.options import texts_of
from generator.cli.output import OnOutcome, planning, progress
from generator.errors import RequestError
from generator.ladders.recipes import find, load_recipes
from generator.naming import symbol_of
from generator.plan import Plan
from generator.store.library import Library
from generator.sweep import Shard, Sweep, over, read_spec_file, sweep
from generator.tables import to_text
from hgemm.library import reject_file
from hgemm.record import Scalar

_OF_RECORDS = "registers spill_bytes smem_bytes ctas_per_sm hmma_per_k_tile cubin_bytes".split()
_COLUMNS = ["symbol", *_OF_RECORDS, "seconds", "status"]


def run(options: dict[str, Any]) -> int:
    """Do what the options of `generate` ask for and return the exit status.

    Raises: HgemmError for an illegal request, or where nothing can be built.
    """
    worker_pool, asked = _crew(options), requested(options)
    shard = Shard.parse(options["shard"])
    if options["explain"]:
        if shard.count > 1:
            raise RequestError("--explain tells of every combination, and no shard: leave --shard out")
        return print_explanations(asked, options["as_json"])
    asked.refuse_empty()
    if options["verify"]:
        _refuse_unprovable(asked)
    note_hints(asked)
    if asked.illegal:
        click.echo(f"generate: {asked.summary()}, and left out: --explain shows each", err=True)
    tiles = sorted({str(plan.spec.cta_tile) for plan in asked.plans})
    sources = ("tile", "spec_file", "catalog", "kernels", "recipe")
    if len(tiles) > 1 and all(options[source] is None for source in sources):
        click.echo(
            f"generate: the planned tiles differ ({', '.join(tiles)}): name --tile to compare like with like", err=True
        )
    reject_file(options["library"])
    settings = Settings(
        library=Library(options["library"]),
        templates=templates_folder(),
        force=options["force"],
        allow_spills=options["allow_spills"],
        prover=_prover(options),
    )
    plans = [plan for plan in asked.plans if shard.takes(symbol_of(plan.spec))]
    if shard.count > 1:
        click.echo(f"generate: shard {shard} has {len(plans)} of {len(asked.plans)} variants", err=True)
    if options["dry_run"]:
        return _dry_run(plans, settings, _recipes(options), options["as_json"])
    if not plans:  # a part of a sweep that is empty can be merged, too
        settings.library.folder.mkdir(parents=True, exist_ok=True)
    workers = _workers(options["jobs"])
    with progress(len(plans), options["quiet"], 0 if worker_pool else max(workers, 1)) as tell:
        made = _made(make(plans, settings, workers, worker_pool), tell)
    _print(made, settings.library, options["as_json"])
    for told in made:
        if told.error:
            click.echo(f"generate: error: {told.error}", err=True)
    return int(any(told.error for told in made))


def _workers(jobs: int | None) -> int:
    """Return how many worker processes build: none where it is said that this one is to do alone."""
    return 0 if jobs == 1 else jobs or cores()


def _crew(options: dict[str, Any]) -> WorkerPool | None:
    """Return the cluster that --executor asks for. Raises: RequestError where it is not named, or what it has not is."""
    if options["executor"] != "dask":
        if options["address"]:
            raise RequestError("--address names a cluster's scheduler: add --executor dask, or leave it out")
        return None
    if not options["address"]:
        raise RequestError("--executor dask needs the scheduler's address: add --address tcp://host:8786")
    if options["jobs"]:
        raise RequestError("-j counts processes of this machine, and a cluster has its own workers: leave -j out")
    from generator.build.dask import Cluster  # only where it is asked for
    from generator.proof.jobs import local_prover

    prover = local_prover if options["verify"] == "emulate" else None
    return Cluster(options["address"], options["allow_spills"], prover, options["worker_timeout"])


def _refuse_unprovable(asked: Sweep) -> None:
    modules = sum(plan.spec.form == "dsl" for plan in asked.plans)
    if modules:
        raise RequestError(
            f"--verify emulate runs C++, and {modules} of {len(asked.plans)} kernels are modules of CuTe DSL: leave --verify "
            "or --form dsl out, or check them on a GPU by `hgemm verify --device`"
        )


def _prover(options: dict[str, Any]) -> Prover | None:
    """Return what --verify asks for. Raises HgemmError where this machine has no C++ compiler."""
    if options["verify"] != "emulate" or options["dry_run"]:
        return None
    from generator.proof.jobs import local_prover  # only where it is asked for

    return local_prover()


def requested(options: dict[str, Any]) -> Sweep:
    """Return what the options of a spec ask for, those of the command line over those of --spec, --catalog, --kernels and --recipe.

    Raises: RequestError where a spec file, a group of the catalog, a name or a recipe is malformed or unknown.
    """
    given = texts_of(options)
    catalog = options.get("catalog")
    groups = read_spec_file(options["spec_file"]) if options["spec_file"] else []
    if catalog is not None:
        names = [name.strip() for name in catalog.split(",")]
        others = for_others(names, parse_arch_list(given["arch"])) if "arch" in given else []
        for name in others:
            click.echo(f"generate: {name} is for chips without cp.async, and left out: name it to have it", err=True)
        groups += load_catalog(names, others)
    if options.get("kernels"):
        from generator.cutlass_names import has_globs, requests_named  # only where names are given

        if has_globs(options["kernels"]) and not options.get("quiet", False):
            click.echo("generate: listing the names of CUTLASS's library, a few seconds", err=True)
        named = requests_named(options["kernels"])
        groups += named.requests
        for remark in named.remarks:
            click.echo(f"generate: {remark}", err=True)
    recipes = []
    if options.get("recipe") is not None:
        beside = {name: text for name, text in given.items() if name != "arch"}
        recipes = [over(texts, beside) for texts in load_recipes(options["recipe"], given.get("arch", ""))]
    if not recipes:
        groups = groups or [{}]
    with planning(options.get("quiet", False)) as planned:
        return sweep([*(over(group, given) for group in groups), *recipes], planned)


def _dry_run(plans: Sequence[Plan], settings: Settings, recipes: Mapping[Plan, str], as_json: bool) -> int:
    rows: list[dict[str, Scalar]] = []
    for plan in plans:
        prepared = prepare(plan, settings.templates)
        found = cached(prepared, settings)
        status = found.status if found else "to build"
        recipe = {"recipe": recipes.get(plan, "")} if recipes else {}
        rows.append({**recipe, "symbol": prepared.kernel.symbol, "status": status, "key": prepared.key})
    columns = [*(["recipe"] if recipes else []), "symbol", "status"]
    click.echo(json.dumps(rows, indent=1) + "\n" if as_json else to_text(rows, columns), nl=False)
    return 0


def _recipes(options: dict[str, Any]) -> dict[Plan, str]:
    """Return of which recipes each plan is that --recipe asks for."""
    paths: dict[Plan, str] = {}
    for step in find(options["recipe"]) if options["recipe"] else []:
        if step.baseline_kernel is None:
            alone = {**options, "spec_file": None, "catalog": None, "kernels": None, "recipe": step.path}
            for plan in requested(alone).plans:
                paths[plan] = f"{paths[plan]},{step.path}" if plan in paths else step.path
    return paths


@dataclass(frozen=True)
class _Told:
    """What the answer needs of an outcome; a record is as large as a thousand of these, and is in the library."""

    row: Mapping[str, Scalar]
    error: str
    registered: bool


def _made(outcomes: Iterator[tuple[int, Outcome]], tell: OnOutcome) -> list[_Told]:
    """Have all variants made and return what is to be told of them in the order of the plans."""
    made: dict[int, _Told] = {}
    with closing(outcomes):
        for place, outcome in outcomes:
            made[place] = _Told(_row(outcome), outcome.error, outcome.record is not None)
            tell(outcome)
    return [made[place] for place in sorted(made)]


def _print(made: Sequence[_Told], library: Library, as_json: bool) -> None:
    if not as_json:
        click.echo(to_text([told.row for told in made], _COLUMNS), nl=False)
        return
    between = "["
    for told in made:
        if told.registered:
            record = library.load(str(told.row["symbol"]), verify=False).record
            click.echo(between + json.dumps(record.data, sort_keys=True), nl=False)
            between = ",\n "
    click.echo("[]" if between == "[" else "]")


def _row(outcome: Outcome) -> dict[str, Scalar]:
    row: dict[str, Scalar] = {"symbol": outcome.symbol, "seconds": round(outcome.seconds, 2), "status": outcome.status}
    if outcome.record:
        flat = outcome.record.flat()
        row |= {name: flat["proof_mma_per_tile" if name == "hmma_per_k_tile" else name] for name in _OF_RECORDS}
    return row
