"""Proves the shipped kernels on the CPU: `python -m generator.cli.prove_catalog`, or `make verify`.

--sample N proves N kernels, chosen by --seed, for example the hash of a commit. With --since COMMIT it also proves the kernels
whose source differs from that commit. --recipes proves the published kernels of generator/ladders/published instead.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from generator.build.emit import emit
from generator.build.toolchain import templates_folder
from generator.build.workers import cores
from generator.catalog import LOCK, catalog_kernels, read_lock
from generator.device_check import outcome_line, outcome_summary
from generator.errors import HgemmError
from generator.ladders.ladder import ENTRY_HEADER, ladder_on
from generator.ladders.recipes import ladder_names, load_ladder
from generator.proof.jobs import ProofSource, host_toolchain, prove_texts


def chosen(texts: Sequence[ProofSource], sample: int, seed: str, changed: Iterable[str]) -> list[ProofSource]:
    """Return the changed kernels, and `sample` others chosen by `seed`."""
    changed = {*changed}
    others = [text for text in texts if text.symbol not in changed]
    others.sort(key=lambda text: hashlib.sha256(f"{seed} {text.symbol}".encode()).digest())
    symbols = {text.symbol for text in others[:sample]} | changed
    return [text for text in texts if text.symbol in symbols]


def changed_since(commit: str, lock: Path) -> set[str]:
    """Return the symbols whose source differs from a commit's lock file. Without git, return none."""
    command = ["git", "show", f"{commit}:./{lock.name}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=lock.parent)
    if done.returncode:
        return set()
    before, now = read_lock(done.stdout), read_lock(lock.read_text(encoding="ascii"))
    return {symbol for symbol, hashes in now.items() if before.get(symbol) != hashes}


def prove(texts: Sequence[ProofSource], jobs: int, twins: bool = True) -> bool:
    """Prove kernels, print a line for each, and return whether all passed. With `twins`, those of two types share cases."""
    outcomes = []
    for outcome in prove_texts(texts, host_toolchain(), jobs, twins=twins):
        outcomes.append(outcome)
        print(outcome_line(outcome), flush=True)
    print(outcome_summary(outcomes))
    return not any(outcome.failed for outcome in outcomes)


def recipe_texts() -> list[ProofSource]:
    """Return every recipe for its published architecture, including baseline kernels."""
    ladders = [
        ladder_on(published_ladder, published_ladder.arch) for published_ladder in map(load_ladder, ladder_names())
    ]
    templates = templates_folder()
    plans = dict.fromkeys(plan for ladder in ladders for plan in ladder.plans)
    baselines = [kernel for ladder in ladders for kernel in ladder.baseline_kernels]
    ours = [ProofSource.of(emit(plan, templates)) for plan in plans]
    return ours + [ProofSource(kernel.kernel, ENTRY_HEADER, kernel.planned()) for kernel in baselines]


def main() -> int:
    parser = argparse.ArgumentParser(prog="generator.cli.prove_catalog", description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="prove N of the kernels")
    parser.add_argument("--seed", default="", help="seed of the sample")
    parser.add_argument(
        "--since", default="", metavar="COMMIT", help="also prove kernels whose source differs from COMMIT"
    )
    parser.add_argument("--recipes", action="store_true", help="prove the published kernels instead of the catalog")
    parser.add_argument("--folder", type=Path, default=Path("emitted"), help="folder of the catalog's lock file")
    parser.add_argument(
        "--every-case",
        action="store_true",
        help="run all cases of kernels that differ only in the type of their elements",
    )
    parser.add_argument("-j", "--jobs", type=int, default=cores(), metavar="N")
    args = parser.parse_args()
    texts = recipe_texts() if args.recipes else [*map(ProofSource.of, catalog_kernels())]
    if args.sample:
        changed = changed_since(args.since, args.folder / LOCK) if args.since else set()
        texts = chosen(texts, args.sample, args.seed, changed)
    return 0 if prove(texts, args.jobs, not args.every_case) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HgemmError as error:
        sys.exit(f"verify: error: {error}")
