"""The command `generate`: reads the request from its options, builds the kernels and prints the answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from generator import epilogue
from generator.arch import ARCHS, parse_arch_list
from generator.build.pipeline import FittedOutcome, Outcome, Prover, Settings, WorkerPool, cached, make_fitting, prepare
from generator.build.toolchain import templates_folder
from generator.build.workers import cores
from generator.catalog import for_older_chips, load_catalog
from generator.cli.options import texts_of
from generator.cli.output import OnOutcome, planning, progress
from generator.errors import RequestError
from generator.families import family_of
from generator.families.base import Plan
from generator.ladders.recipes import find, load_recipes
from generator.planner import deciding_field, default_family, not_implemented
from generator.spec import BY_FIELD, Texts, differing, option_of, symbol_of
from generator.store.files import reject_export
from generator.store.library import Library
from generator.sweep import Shard, Sweep, overridden, read_spec_file, sweep
from generator.tables import counted, fitted, line_width
from hgemm.disk import require_writable
from hgemm.junit import JunitSuite, JunitTest, write_junit
from hgemm.library import reject_file
from hgemm.record import Scalar

_RESOURCES = ("registers", "spill_bytes", "smem_bytes", "ctas_per_sm", "mma_per_k_tile", "cubin_bytes")


def run(options: dict[str, Any]) -> int:
    """Build what the options ask for and return the exit status.

    Raises: HgemmError for an illegal request, or if nothing can be built.
    """
    worker_pool, asked = _worker_pool(options), requested(options)
    shard = Shard.parse(options["shard"])
    if options["require_legal"]:
        asked.reject_illegal()
    if options["explain"]:
        if shard.count > 1:
            raise RequestError("--explain shows every combination: remove --shard")
        return print_explanations(asked, options["as_json"])
    asked.reject_empty()
    missing = {plan: reason for plan in asked.plans if (reason := not_implemented(plan))}
    available = [plan for plan in asked.plans if plan not in missing]
    if not available:
        raise RequestError(next(iter(missing.values())))
    note_hints(asked)
    if asked.illegal:
        click.echo(f"generate: {_skipped(asked, options)}; --explain shows the reasons", err=True)
    for reason, count in Counter(missing.values()).items():
        click.echo(f"generate: {counted(count, 'combination')} skipped: {reason}", err=True)
    tiles = sorted({str(plan.spec.cta_tile) for plan in available})
    sources = ("tile", "spec_file", "catalog", "kernels", "recipe")
    if len(tiles) > 1 and all(options[source] is None for source in sources):
        click.echo(
            f"generate: the planned tiles differ ({', '.join(tiles)}): set --tile to compare kernels of one tile",
            err=True,
        )
    require_writable(options["junit"], "--junit")
    reject_file(options["library"])
    reject_export(options["library"])
    settings = Settings(
        library=Library(options["library"]),
        templates=templates_folder(),
        force=options["force"],
        allow_spills=options["allow_spills"],
        prover=_prover(options),
    )
    plans = [plan for plan in available if shard.takes(symbol_of(plan.spec))]
    if shard.count > 1:
        click.echo(f"generate: shard {shard} has {len(plans)} of {counted(len(available), 'kernel')}", err=True)
    if options["dry_run"]:
        return _dry_run(plans, settings, _recipes(options), options["as_json"])
    if not plans:  # an empty shard can be merged too
        settings.library.folder.mkdir(parents=True, exist_ok=True)
    workers = _workers(options["jobs"])
    with progress(len(plans), options["quiet"], 0 if worker_pool else max(workers, 1)) as tell:
        rows, plans = _rows(make_fitting(plans, asked.requests, settings, workers, worker_pool), tell)
    if options["as_json"]:
        _print_records(rows, settings.library)
    else:
        _print_table([row.cells for row in rows], plans, ["status"], [*_RESOURCES[:3], "seconds", *_RESOURCES[3:]])
    if options["junit"]:
        write_junit(options["junit"], "generate", map(_junit_suite, rows))
    for row in rows:
        if row.error:
            click.echo(f"generate: error: {row.error}", err=True)
    return int(any(row.error for row in rows))


def _skipped(asked: Sweep, options: Mapping[str, Any]) -> str:
    """Return what the request asks for and cannot be built. A catalog has kernels of many GPUs and types, so it is no mistake."""
    if options["catalog"] is None or not (options["arch"] or options["dtype"]):
        return asked.summary("and skipped")
    archs = ", ".join(dict.fromkeys(plan.spec.arch for plan in asked.plans))
    specs, suit = counted(len(asked.plans), "spec"), "suits" if len(asked.plans) == 1 else "suit"
    return f"{specs} of the catalog {suit} {archs}; the others are for other GPUs or types"


def _workers(jobs: int | None) -> int:
    """Return the number of worker processes; 0 builds in this process."""
    return 0 if jobs == 1 else jobs or cores()


def _worker_pool(options: dict[str, Any]) -> WorkerPool | None:
    """Return the cluster of --executor dask. Raises: RequestError if options of it are missing or do not apply."""
    if options["executor"] != "dask":
        if options["address"]:
            raise RequestError("--address needs --executor dask: add it, or remove --address")
        return None
    if not options["address"]:
        raise RequestError("--executor dask needs the scheduler's address: add --address tcp://host:8786")
    if options["jobs"]:
        raise RequestError("-j does not apply to --executor dask: the cluster decides how many workers it has")
    from generator.build.dask import Cluster  # slow to import
    from generator.proof.jobs import local_prover

    prover = local_prover if options["verify"] == "emulate" else None
    return Cluster(options["address"], options["allow_spills"], prover, options["worker_timeout"])


def _prover(options: dict[str, Any]) -> Prover | None:
    """Return the prover of --verify. Raises: HgemmError if this machine has no C++ compiler."""
    if options["verify"] != "emulate" or options["dry_run"]:
        return None
    from generator.proof.jobs import local_prover  # slow to import

    return local_prover()


def requested(options: dict[str, Any]) -> Sweep:
    """Return the sweep that the options ask for.

    Options of the command line override those of --spec, --catalog, --kernels and --recipe.
    Raises: RequestError for a malformed or unknown spec file, group of the catalog, name or recipe.
    """
    given = texts_of(options)
    if "epilogue" in given:
        given["epilogue"] = epilogue.resolved(given["epilogue"], Path())
    catalog = options.get("catalog")
    groups = read_spec_file(options["spec_file"]) if options["spec_file"] else []
    fixed: list[Texts] = []
    if catalog is not None:
        names = [name.strip() for name in catalog.split(",")]
        archs = parse_arch_list(given["arch"], "--arch") if "arch" in given else []
        older = [arch for arch in archs if not ARCHS[arch].has_cp_async]
        apart = for_older_chips(names) if len(older) < len(archs) else []
        groups += load_catalog(names, apart)
        for name in apart:
            if older:
                fixed += [overridden(texts, {**given, "arch": ",".join(older)}) for texts in load_catalog([name])]
                continue
            specs = counted(len(sweep(load_catalog([name])).plans), "spec")
            click.echo(
                f"generate: skipped {name} ({specs}), which is for GPUs without cp.async: --catalog {name} selects it",
                err=True,
            )
    if options.get("kernels") is not None:
        from generator.cutlass_names import has_globs, requests_named  # needed for names only

        if has_globs(options["kernels"]) and not options.get("quiet", False):
            click.echo("generate: listing the names of CUTLASS's library takes a few seconds", err=True)
        named = requests_named(options["kernels"])
        groups += named.requests
        for remark in named.remarks:
            click.echo(f"generate: {remark}", err=True)
    if options.get("recipe") is not None:
        beside = {name: text for name, text in given.items() if name != "arch"}
        fixed += [overridden(texts, beside) for texts in load_recipes(options["recipe"], given.get("arch", ""))]
    if not fixed:
        groups = groups or [{}]
    with planning(options.get("quiet", False)) as planned:
        return sweep([*(overridden(group, given) for group in groups), *fixed], planned)


def _dry_run(plans: Sequence[Plan], settings: Settings, recipes: Mapping[Plan, str], as_json: bool) -> int:
    rows: list[dict[str, Scalar]] = []
    for plan in plans:
        prepared = prepare(plan, settings.templates)
        found = cached(prepared, settings)
        status = found.status if found else "to build"
        recipe = {"recipe": recipes.get(plan, "")} if recipes else {}
        rows.append({**recipe, "symbol": prepared.kernel.symbol, "status": status, "key": prepared.key})
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        required = [*(["recipe"] if recipes else []), "status"]
        _print_table(rows, plans, required, [], "use --explain --json")
    return 0


def _print_table(
    rows: Sequence[Mapping[str, Scalar]],
    plans: Sequence[Plan],
    required: Sequence[str],
    optional: Sequence[str],
    fix: str = "use `hgemm list --columns NAMES`",
) -> None:
    """Print a table that fits a line: the required columns, the fields in which the plans differ, and the optional columns.

    `fix` says how to see a differing field that does not fit.
    """
    specs = [plan.spec.to_dict() for plan in plans]
    other = differing({name: {spec[name] for spec in specs} for name in BY_FIELD})
    whole = [{**spec, **epilogue.shown(spec["epilogue"]), **row} for spec, row in zip(specs, rows, strict=True)]
    required = [*required, *epilogue.required_columns(other)]
    table = fitted(whole, required, [*optional[:1], *other, *optional[1:]], line_width())
    click.echo(table.text, nl=False)
    if note := table.note(other, fix):
        click.echo(f"generate: {note}", err=True)


def _recipes(options: dict[str, Any]) -> dict[Plan, str]:
    """Return the published steps that each plan belongs to, with --recipe."""
    paths: dict[Plan, str] = {}
    for step in find(options["recipe"]) if options["recipe"] else []:
        if step.baseline_kernel is None:
            alone = {**options, "spec_file": None, "catalog": None, "kernels": None, "recipe": step.path}
            for plan in requested(alone).plans:
                paths[plan] = f"{paths[plan]},{step.path}" if plan in paths else step.path
    return paths


@dataclass(frozen=True)
class _Row:
    """The part of an outcome that is printed. The record stays in the library: it is a thousand times as large."""

    cells: Mapping[str, Scalar]
    error: str
    stored: bool


def _rows(made: Iterator[FittedOutcome], tell: OnOutcome) -> tuple[list[_Row], list[Plan]]:
    """Make all kernels. Return their rows and their plans, in the order of the request."""
    found: dict[int, tuple[_Row, Plan]] = {}
    with closing(made):
        for one in made:
            found[one.place] = _row(one.outcome), one.plan
            if one.note:
                click.echo(f"generate: {one.note}", err=True)
            tell(one.outcome)
    ordered = [found[place] for place in sorted(found)]
    return [row for row, _ in ordered], [plan for _, plan in ordered]


def _row(outcome: Outcome) -> _Row:
    return _Row(_cells(outcome), outcome.error, outcome.record is not None)


def _junit_suite(row: _Row) -> JunitSuite:
    build = JunitTest("build", "failure" if row.error else "passed", row.error)
    return JunitSuite(str(row.cells["symbol"]), (build,), float(row.cells["seconds"]))


def _cells(outcome: Outcome) -> dict[str, Scalar]:
    cells: dict[str, Scalar] = {
        "symbol": outcome.symbol,
        "seconds": round(outcome.seconds, 2),
        "status": outcome.status,
    }
    if outcome.record:
        flat = outcome.record.flat()
        cells |= {name: flat["proof_mma_per_k_tile" if name == "mma_per_k_tile" else name] for name in _RESOURCES}
    return cells


def _print_records(rows: Sequence[_Row], library: Library) -> None:
    """Print the records as one JSON list, each read from the library."""
    between = "["
    for row in rows:
        if row.stored:
            record = library.load(str(row.cells["symbol"]), verify=False).record
            click.echo(between + json.dumps(record.data, sort_keys=True), nl=False)
            between = ",\n "
    click.echo("[]" if between == "[" else "]")


# ---- Explanations and hints ------------------------------------------------------------------------------------------


def print_explanations(asked: Sweep, as_json: bool, question: Any = None) -> int:
    """Print an explanation of each combination. Return the exit status: 2 if no combination is legal."""
    from generator.explain import Question, explain, explanations_text  # loads the cost model

    explanations = [explain(candidate, question or Question()) for candidate in asked.candidates]
    note_hints(asked)
    if as_json:
        click.echo(json.dumps(explanations, indent=1))
    else:
        text, note = explanations_text(explanations, line_width())
        click.echo(text, nl=False)
        if note:
            click.echo(f"{click.get_current_context().find_root().info_name}: {note}", err=True)
    return 0 if asked.plans else 2


def note_hints(asked: Sweep) -> None:
    """Print the hints to a request on stderr, each once."""
    program = click.get_current_context().find_root().info_name
    for hint in dict.fromkeys(hints(asked)):
        click.echo(f"{program}: {hint}", err=True)


def hints(asked: Sweep) -> Iterator[str]:
    """Yield hints about slow builds, and about requests that do not get the best family of their GPUs."""
    if any(candidate.plan.spec.form == "cute" and not candidate.rules for candidate in asked.candidates):
        yield "form cute takes 15 s or more for each kernel; CuTe's headers take nearly all of it"
    archs = {candidate.plan.spec.arch for candidate in asked.candidates}
    for candidate in asked.candidates:
        spec, field, request = candidate.plan.spec, deciding_field(candidate.request), candidate.request
        best, kin = default_family(spec.arch), f"{spec.arch}a"
        asked = request.get("arch", spec.arch)
        if asked != spec.arch:
            yield f"{family_of(spec).name} needs {spec.arch}, so this builds for {spec.arch} instead of {asked}"
        if not field and (objection := best.objection(request)):
            yield f"{objection} on {spec.arch}"
        better = default_family(kin) if kin in ARCHS and kin not in archs else best
        if not field and better is not best and not better.objection(request):
            yield f"{kin} has {better.name} kernels for the same GPUs: use --arch {kin}"
        is_meant = field == "copy" and spec.copy == "ldg"  # --copy ldg names a family, as --mma does
        is_rejected = "family" in candidate.rules
        if field not in ("", "mma") and family_of(spec) is not best and not (is_meant or is_rejected):
            flag, name = option_of(field).flag, family_of(spec).name
            yield f"warning: {flag} selects {name} on {spec.arch}: omit it for {best.name}, or add --mma {spec.mma}"
