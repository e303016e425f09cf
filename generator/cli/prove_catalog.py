"""`python -m generator.cli.prove_catalog` runs the shipped kernels on the CPU; `make verify` calls it, and CI with a sample.

With --sample N it takes N kernels that change with --seed, a commit's name for instance, and those besides whose text
differs from that of the commit --since. With --recipes it takes the published kernels (generator/catalog/recipes).
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.build.pipeline import planned
from generator.build.toolchain import templates_folder
from generator.build.workers import cores
from generator.catalog import LOCK, catalog_kernels, read_lock
from generator.device_check import outcome_line, outcome_summary
from generator.emit import Kernel, emit
from generator.errors import HgemmError
from generator.ladders.ladder import ladder_on
from generator.ladders.recipes import load_system, system_names
from generator.proof.executor import trim
from generator.proof.jobs import host_toolchain, request_of, workers


def chosen(texts: Sequence[Text], sample: int, seed: str, changed: Iterable[str]) -> list[Text]:
    """Return the kernels whose text changed, and `sample` others that `seed` chooses."""
    changed = {*changed}
    others = [text for text in texts if text.symbol not in changed]
    others.sort(key=lambda text: hashlib.sha256(f"{seed} {text.symbol}".encode()).digest())
    taken = {text.symbol for text in others[:sample]} | changed
    return [text for text in texts if text.symbol in taken]


def changed_since(commit: str, lock: Path) -> set[str]:
    """Return the symbols whose source differs from that in a commit's lock file; none where git cannot tell."""
    command = ["git", "show", f"{commit}:./{lock.name}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=lock.parent)
    if done.returncode:
        return set()
    before, now = read_lock(done.stdout), read_lock(lock.read_text(encoding="ascii"))
    return {symbol for symbol, hashes in now.items() if before.get(symbol) != hashes}


@dataclass(frozen=True)
class Text:
    """What is proved: a kernel's text, and the sections of a record that are known before it is compiled."""

    symbol: str
    source: str
    record: Mapping[str, Any]

    @classmethod
    def of(cls, kernel: Kernel) -> Text:
        """Return that of an emitted kernel."""
        proof = {"mma_per_tile": kernel.plan.mma_per_k_tile}
        return cls(kernel.symbol, kernel.source, {**planned(kernel), "proof": proof})


def prove(texts: Sequence[Text], jobs: int) -> bool:
    """Prove kernels, print a line for each, and return whether all are right."""
    made = host_toolchain()
    outcomes = []
    for outcome, _ in workers(jobs).check_all([request_of(made, text.source, text.record) for text in texts]):
        outcomes.append(outcome)
        print(outcome_line(outcome), flush=True)
    trim(made.cache)
    print(outcome_summary(outcomes))
    return not any(outcome.failed for outcome in outcomes)


def recipe_texts() -> list[Text]:
    """Return the text of every recipe for the architecture of its publication, baseline kernels included."""
    ladders = [ladder_on(system, system.arch) for system in map(load_system, system_names())]
    templates = templates_folder()
    plans = dict.fromkeys(plan for ladder in ladders for plan in ladder.plans)
    baselines = [kernel for ladder in ladders for kernel in ladder.baseline_kernels]
    ours = [Text.of(emit(plan, templates)) for plan in plans]
    return ours + [Text(kernel.symbol, kernel.source, kernel.planned()) for kernel in baselines]


def main() -> int:
    parser = argparse.ArgumentParser(prog="generator.cli.prove_catalog", description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="so many of the kernels, not all")
    parser.add_argument("--seed", default="", help="chooses the sample")
    parser.add_argument("--since", default="", metavar="COMMIT", help="and those whose text differs from that commit's")
    parser.add_argument("--recipes", action="store_true", help="the recipes in place of the shipped kernels")
    parser.add_argument("--folder", type=Path, default=Path("emitted"), help="where the catalog's lock file is")
    parser.add_argument("-j", "--jobs", type=int, default=cores(), metavar="N")
    args = parser.parse_args()
    texts = recipe_texts() if args.recipes else [*map(Text.of, catalog_kernels())]
    if args.sample:
        changed = changed_since(args.since, args.folder / LOCK) if args.since else set()
        texts = chosen(texts, args.sample, args.seed, changed)
    return 0 if prove(texts, args.jobs) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HgemmError as error:
        sys.exit(f"verify: error: {error}")
