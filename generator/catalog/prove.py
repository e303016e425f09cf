"""`python -m generator.catalog.prove` runs the shipped kernels on the CPU; `make verify` calls it, and CI with a sample.

With --sample N it takes N kernels that change with --seed, a commit's name for instance, and those besides whose text
differs from that of the commit --since. With --recipes it takes the published kernels (generator/catalog/recipes).
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from generator.catalog import catalog_kernels
from generator.catalog.recipes import load_recipes
from generator.commands.emulate import cores, workshop
from generator.commands.emulated_check import request_of, workers
from generator.emit import Kernel, emit
from generator.errors import HgemmError
from generator.executor.cache import trim
from generator.register import planned
from generator.sweep import sweep
from generator.toolchain import templates_folder
from generator.verbs.verify import line_of, summary_of


def chosen(kernels: Sequence[Kernel], sample: int, seed: str, changed: Iterable[str]) -> list[Kernel]:
    """Return the kernels whose text changed, and `sample` others that `seed` chooses."""
    changed = {*changed}
    others = [kernel for kernel in kernels if kernel.symbol not in changed]
    others.sort(key=lambda kernel: hashlib.sha256(f"{seed} {kernel.symbol}".encode()).digest())
    taken = {kernel.symbol for kernel in others[:sample]} | changed
    return [kernel for kernel in kernels if kernel.symbol in taken]


def changed_since(commit: str, folder: str) -> set[str]:
    """Return the symbols whose text in `folder` differs from a commit's; none where git cannot tell."""
    command = ["git", "diff", "--name-only", commit, "--", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    return {Path(name).parent.name for name in done.stdout.splitlines()} if done.returncode == 0 else set()


def prove(kernels: Sequence[Kernel], jobs: int) -> bool:
    """Prove kernels, print a line for each, and return whether all are right."""
    made = workshop()
    requests = [
        request_of(made, kernel.source, {**planned(kernel), "proof": {"mma_per_tile": kernel.plan.mma_per_k_tile}})
        for kernel in kernels
    ]
    outcomes = []
    for outcome, _ in workers(jobs).check_all(requests):
        outcomes.append(outcome)
        print(line_of(outcome), flush=True)
    trim(made.cache)
    print(summary_of(outcomes))
    return not any(outcome.failed for outcome in outcomes)


def recipe_kernels() -> list[Kernel]:
    """Emit every recipe."""
    templates = templates_folder()
    return [emit(plan, templates) for plan in sweep(load_recipes("*")).plans]


def main() -> int:
    parser = argparse.ArgumentParser(prog="generator.catalog.prove", description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="so many of the kernels, not all")
    parser.add_argument("--seed", default="", help="chooses the sample")
    parser.add_argument("--since", default="", metavar="COMMIT", help="and those whose text differs from that commit's")
    parser.add_argument("--recipes", action="store_true", help="the recipes in place of the shipped kernels")
    parser.add_argument("--folder", default="emitted", help="where the committed texts are")
    parser.add_argument("-j", "--jobs", type=int, default=cores(), metavar="N")
    args = parser.parse_args()
    kernels = recipe_kernels() if args.recipes else catalog_kernels()
    if args.sample:
        changed = changed_since(args.since, args.folder) if args.since else set()
        kernels = chosen(kernels, args.sample, args.seed, changed)
    return 0 if prove(kernels, args.jobs) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HgemmError as error:
        sys.exit(f"verify: error: {error}")
