"""What the scripts of this folder share: compile, run `hgemm sanitize`, and seed faults into the PTX."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OUT = Path("build/sanitize")


@dataclass(frozen=True)
class Fault:
    """A change of the PTX text that `hgemm sanitize` must find: `pattern` becomes `replacement`, `count` times."""

    title: str
    pattern: str
    replacement: str = ""
    count: int = 1

    def seeded(self, ptx: str) -> str:
        changed, found = re.subn(self.pattern, self.replacement, ptx, count=self.count, flags=re.MULTILINE)
        if not found:
            raise SystemExit(f"fault '{self.title}': the PTX has no {self.pattern}")
        return changed


def missing(package: str, how: str) -> None:
    """Say what to install, and end the script."""
    raise SystemExit(f"{package} is missing: {how}")


def checkouts(files: Mapping[str, str]) -> list[Path]:
    """Return the folders of checkouts that the user names, one for each URL in `files`, or end the script.

    `files` has a file of each checkout.
    """
    folders = {url: Path(word) for url, word in zip(files, sys.argv[1:], strict=False)}
    if all(url in folders and (folders[url] / file).is_file() for url, file in files.items()):
        return [*folders.values()]
    words = {url: url.rpartition("/")[2].upper() for url in files}
    clones = [f"{word} is a clone: git clone --depth 1 {url}" for url, word in words.items()]
    raise SystemExit("\n".join([f"usage: {sys.argv[0]} {' '.join(words.values())}", *clones]))


def nvrtc(
    source: str,
    arch: str,
    folders: Sequence[Path],
    options: Sequence[str] = (),
    stand_ins: Mapping[str, str] | None = None,
    name: str = "kernel.cu",
) -> str:
    """Compile CUDA C++ to PTX with NVRTC and the headers of the installed CUDA wheels.

    `stand_ins` are texts of headers that NVRTC lacks, such as those of the host's standard library.
    """
    try:
        from cuda.bindings import nvrtc as lib

        from generator.build.toolchain import cuda_include

        lib.nvrtcVersion()
    except (ImportError, RuntimeError):  # cuda.pathfinder's error for a missing library is a RuntimeError
        missing("NVRTC", "run the script with the Python that has `hgemm`")
    cuda = cuda_include()
    places = [f"-I{folder}" for folder in (*folders, cuda, cuda / "cccl")]
    arguments = [word.encode() for word in (f"-arch={arch}", "-default-device", *places, *options)]
    headers = {name.encode(): text.encode() for name, text in (stand_ins or {}).items()}
    _, program = lib.nvrtcCreateProgram(source.encode(), name.encode(), len(headers), [*headers.values()], [*headers])
    (status,) = lib.nvrtcCompileProgram(program, len(arguments), arguments)
    log = _text(lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog, program)
    if int(status):
        raise SystemExit(f"NVRTC fails:\n{log[:4000]}")
    return _text(lib.nvrtcGetPTXSize, lib.nvrtcGetPTX, program)


def _text(size_of, get, program) -> str:
    _, size = size_of(program)
    buffer = bytes(size)
    get(program, buffer)
    return buffer.rstrip(b"\0").decode(errors="replace")


@dataclass(frozen=True)
class Known:
    """A true finding in the PTX as it is, and the changes after which it is clean."""

    kinds: frozenset[str]
    mends: tuple[Fault, ...]


def sanitize(
    name: str, ptx: str, launch: str, faults: Sequence[Fault], reference: str = "", known: Known | None = None
) -> None:
    """Check a kernel, which must be clean, and each fault, which must be found. Print a line for each.

    A kernel with a known finding must show it, and is mended before the faults are seeded.
    """
    OUT.mkdir(parents=True, exist_ok=True)
    toml = OUT / f"{name}.toml"
    toml.write_text(launch)
    failed = []
    if known:
        found = _run(OUT / f"{name}_original.ptx", ptx, toml, reference)
        print(f"{name} as it is: {_told(found)}", flush=True)
        failed += [f"{name} as it is"] if {one["kind"] for one in found["findings"]} != known.kinds else []
        for mend in known.mends:
            ptx = mend.seeded(ptx)
        name += "_mended"
    clean = _run(OUT / f"{name}.ptx", ptx, toml, reference)
    print(f"{name}: {_told(clean)}", flush=True)
    failed += [] if clean["passed"] else [name]
    for at, fault in enumerate(faults):
        result = _run(OUT / f"{name}_fault{at + 1}.ptx", fault.seeded(ptx), toml, reference)
        print(f"{name} with {fault.title}: {_told(result)}", flush=True)
        failed += [fault.title] if result["passed"] else []
    if failed:
        raise SystemExit(f"not as expected: {', '.join(failed)}")


def _run(path: Path, ptx: str, toml: Path, reference: str) -> dict:
    path.write_text(ptx)
    words = [sys.executable, "-m", "hgemm", "sanitize", str(path), "--launch", str(toml), "--json", "-q"]
    began = time.perf_counter()
    done = subprocess.run([*words, *(("--reference", reference) if reference else ())], capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"hgemm sanitize {path} ends with status {done.returncode}: {done.stderr.strip()}")
    return {**json.loads(done.stdout), "wall_seconds": time.perf_counter() - began}


def _told(result: dict) -> str:
    seconds = f"{result['wall_seconds']:.1f} s"
    if result["passed"]:
        ratio = max(one["max_bound_ratio"] for one in result["schedules"])
        return f"no finding, largest error {ratio:.2f} of its tolerance, {seconds}"
    first = [f"{one['kind']} at line {one['line']}: {one['message']}" for one in result["findings"]]
    first += [f"wrong result: {text}" for text in result["wrong"]] + list(result["errors"])
    return f"{first[0][:220]} ({len(first)} findings), {seconds}"
