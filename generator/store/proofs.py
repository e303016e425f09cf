"""Proofs in records. A proof is about the files and the launch data whose hashes it names.

The hashes find proofs that belong to other files, by damage or by mistake. Who writes a whole record can state any proof.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from generator.errors import ProofError
from hgemm.record import CUBIN_NAME, PTX_NAME, SOURCE_NAMES, dump, proof_mismatch

_LAUNCH = ("symbol", "arch", "spec", "launch", "traits")
"""The sections of a record that decide how a kernel is launched."""
NO_PROOF = "it has no proof"


def subject_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of a kernel's source, PTX, cubin and launch data."""
    files = record["files"]
    source = next(name for name in SOURCE_NAMES if name in files)
    launch = dump({name: record[name] for name in _LAUNCH}).encode()
    found = {
        name: files[file]["sha256"] for name, file in (("source", source), ("ptx", PTX_NAME), ("cubin", CUBIN_NAME))
    }
    return {**found, "launch": hashlib.sha256(launch).hexdigest()}


def with_proof(record: Mapping[str, Any], proof: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the results of a proof, bound to its files and launch data.

    Raises: ProofError if a record cannot hold a result, such as an infinite error.
    """
    if wrong := proof_mismatch(proof):
        raise ProofError(f"its results cannot be stored: {wrong}")
    return {**record, "proof": {**record["proof"], **proof, "subject": subject_of(record)}}


def unproved(record: Mapping[str, Any], executor: str = "") -> str:
    """Return why the proof in a record does not count, or an empty text.

    Fields: `executor` is the version of the executor that must have run it; empty, any may.
    """
    proof = record["proof"]
    if "executor" not in proof:
        return NO_PROOF
    if proof.get("subject") != subject_of(record):
        return "its proof is about other files or another launch"
    if executor and proof["executor"] != executor:
        return f"its proof is of another executor ({str(proof['executor'])[:16]!a})"
    return "" if proof.get("shapes") and proof.get("races") == 0 else "its proof is not complete"
