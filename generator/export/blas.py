"""Build libhgemm_blas.so beside an exported C library: the functions of cuBLAS on its kernels.

Programs that call cuBLAS use it without a change. Functions without an own implementation go to the real cuBLAS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import product
from pathlib import Path

from generator.build.compile import compile_text
from generator.export.c_sources import fat_binary
from hgemm.epilogue_language import as_epilogue

OLDEST = "75"
"""The oldest architecture of NVRTC 13. Its PTX runs on all GPUs that any exported kernel supports."""
SOURCES = ("blas", "forward", "log", "lt_descriptors", "lt_matmul", "simt")
MAJORS = (12, 13)
"""The major versions of cuBLAS whose names the library takes."""
STUBS = {"libcublas": "blas", "libcublasLt": "blaslt"}
"""The libraries whose names it takes, and the folders of lib/ for them. With blaslt in the search path, no real cuBLAS starts."""
GELUS = {
    "GELU": "gelu_tanh(acc)",
    "GELU_BIAS": "gelu_tanh(acc + bias)",
    "GELU_ALPHA": "gelu_tanh(alpha * acc)",
    "GELU_ALPHA_BIAS": "gelu_tanh(alpha * acc + bias)",
}
"""The expressions whose kernels serve the epilogues GELU and GELU_BIAS of cuBLASLt."""
FOLDER = "src/blas"
_KERNELS = "simt.cu"
_NAMES = "forwarded.txt"


def blas_files(
    templates: Path, archs: Iterable[str], compressed: bool, rename: Callable[[str], str]
) -> dict[str, bytes]:
    """Return the sources by path: templates, the table of forwarded functions, and the code of the SIMT kernels.

    Raises: HgemmError if a compiler is missing.
    """
    folder = templates / "capi" / "blas"
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}
    files = {f"{FOLDER}/{name}": rename(text).encode() for name, text in texts.items() if name != _NAMES}
    files[f"{FOLDER}/lt_epilogues.h"] = rename(lt_epilogues_h()).encode()
    files[f"{FOLDER}/forwarded.h"] = forwarded_h(forwarded_names(texts[_NAMES])).encode()
    numbers = tuple(sorted({"".join(filter(str.isdigit, arch)) for arch in archs})) if compressed else ()
    files[f"{FOLDER}/simt.bin"] = _simt_image(rename(texts[_KERNELS]), numbers)
    return files


def forwarded_names(text: str) -> list[str]:
    """Return the names of the functions in forwarded.txt."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    words = [word for line in lines for word in line.split()]
    names = (
        [f"cublas{word.rstrip('+')}", *([f"cublas{word[:-1]}_64"] if word.endswith("+") else [])] for word in words
    )
    return [name for both in names for name in both]


def forwarded_h(names: Sequence[str]) -> str:
    """Return forwarded.h, the table of functions that the real cuBLAS serves."""
    entries = " \\\n".join(f"  X({index}, {name})" for index, name in enumerate(names))
    return f"/* Written by the HGEMM generator from {_NAMES}. */\n#define FORWARDED(X) \\\n{entries}\n"


def lt_epilogues_h() -> str:
    """Return lt_epilogues.h, the hashes of expressions that cuBLASLt has as epilogues."""
    lines = (f'#define HGEMM_LT_{name} "{as_epilogue(text).hash}" /* {text} */\n' for name, text in GELUS.items())
    return f"/* Written by the HGEMM generator. */\n{''.join(lines)}"


@cache
def _simt_image(source: str, numbers: tuple[str, ...]) -> bytes:
    """Return PTX for all GPUs. With architectures, it is a compressed fat binary with their cubins, too."""
    ptx = b"// alpha, beta\n" + compile_text(source, _KERNELS, f"compute_{OLDEST}").rstrip(b"\0") + b"\0"
    if not numbers:
        return ptx
    cubins = {number: compile_text(source, _KERNELS, f"sm_{number}") for number in numbers}
    return fat_binary(_KERNELS, cubins, {OLDEST: ptx})


def build_blas(
    folder: Path, name: str, flags: Sequence[str], run: Callable[..., None], compiler: Sequence[str]
) -> None:
    """Compile and link lib/lib<name>_blas.so, and libraries with the names of cuBLAS and cuBLASLt, which only load it.

    `run` runs a command in `folder`. The archive lib/lib<name>.a must exist.
    """
    objects = folder / "objects"
    objects.mkdir()
    image = f'-D{name.upper()}_SIMT_IMAGE="{FOLDER}/simt.bin"'
    for source in SOURCES:
        run(folder, *compiler, *flags, "-Isrc", image, "-c", f"{FOLDER}/{source}.c", "-o", f"objects/{source}.o")
    inputs = [f"objects/{source}.o" for source in SOURCES]
    library = f"lib/lib{name}_blas.so"
    link = ("-shared", "-Wl,--build-id=none", "-Wl,-z,relro", "-Wl,-z,defs")
    run(
        folder,
        *compiler,
        *link,
        f"-Wl,-soname,lib{name}_blas.so",
        "-o",
        library,
        *inputs,
        f"lib/lib{name}.a",
        *_LIBRARIES,
    )
    (objects / "empty.c").write_text("int hgemm_blas_is_loaded = 1;\n".replace("hgemm", name))
    for (stub_name, place), major in product(STUBS.items(), MAJORS):
        soname = f"{stub_name}.so.{major}"
        (folder / "lib" / place).mkdir(exist_ok=True)
        (objects / "map").write_text(
            f"{soname} {{ global: {name}_blas_is_loaded; }};\n"
        )  # programs ask for this version
        stub = ("-fPIC", "objects/empty.c", "-Wl,--no-as-needed", library, "-Wl,-rpath,$ORIGIN/..")
        version = ("-Wl,--version-script=objects/map", f"-Wl,-soname,{soname}")
        run(folder, *compiler, *link, *version, "-o", f"lib/{place}/{soname}", *stub)
    for path in sorted(objects.iterdir()):
        path.unlink()
    objects.rmdir()


_LIBRARIES = ("-ldl", "-lpthread")
