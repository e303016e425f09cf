"""Layers: imports point down, there are no import cycles, and importing a module has no side effects."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from conftest import ROOT

LAYERS = (
    "hgemm",
    "generator generator.errors generator.isolated generator.isolated_child generator.tables",
    "generator.epilogue",
    "generator.arch",
    "generator.spec",
    "generator.layouts",
    "generator.families",
    "generator.planner",
    "generator.sweep generator.cutlass_names",
    "generator.store",
    "generator.build",
    "generator.catalog",
    "generator.ptx",
    "generator.proof generator.device_check generator.device_bits generator.rebuild",
    "generator.export generator.ladders generator.pack generator.sanitize generator.tuning",
    "generator.report generator.explain generator.compare generator.doctor generator.plugin",
    "generator.cli",
    "generator.__main__",
)
"""From the lowest to the highest. Modules of one layer may import each other; a package stands for all that it contains."""

RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names.split()}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path for folder in ("generator", "hgemm") for path in sorted((ROOT / folder).rglob("*.py"))}


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules that each module imports, in functions and under TYPE_CHECKING, too."""
    return {name: {other for other in _imported(path) if other != name} for name, path in SOURCES.items()}


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in SOURCES)
        elif isinstance(node, ast.ImportFrom) and node.module in SOURCES:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in SOURCES else node.module


def package_of(module: str) -> str:
    """Return the longest name in LAYERS that a module is part of."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next(name for name in names if name in RANK)


def test_every_module_has_a_layer() -> None:
    assert [module for module in SOURCES if package_of(module) == "generator" != module] == []


def test_imports_point_down() -> None:
    found = {
        (package_of(one), package_of(other))
        for one, others in imports().items()
        for other in others
        if RANK[package_of(one)] < RANK[package_of(other)]
    }
    assert found == set()


def test_the_run_time_package_never_imports_the_generator() -> None:
    found = {
        (name, other)
        for name, path in SOURCES.items()
        if name.startswith("hgemm")
        for other in _imported(path)
        if other.startswith("generator")
    }
    assert found == set()


def test_no_imports_go_in_a_circle() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


# ---- What importing does ---------------------------------------------------------------------------------------------

NOT_IMPORTED = {
    **{name: "imports torch, which need not be there" for name in SOURCES if f"{name}.".startswith("hgemm.torch.")},
    "generator.__main__": "runs the command",
}

IMPORT_ALL = """
import builtins, importlib, json, os, sys

root, modules = sys.argv[1], json.loads(sys.argv[2])
acts = []

def ours(depth=2):
    # The frame of the generator or of hgemm that acts; what other packages do when imported is theirs.
    frame = sys._getframe(depth)
    while frame and frame.f_code.co_filename.startswith("<frozen"):
        frame = frame.f_back
    name = frame.f_code.co_filename if frame else ""
    installed = os.sep + "site-packages" + os.sep  # an environment may lie in the checkout
    return name if name.startswith(root) and installed not in name else ""

class Environment(dict):
    def __getitem__(self, name):
        if ours(): acts.append(["environment", name, ours()])
        return super().__getitem__(name)
    def get(self, name, default=None):
        if ours(): acts.append(["environment", name, ours()])
        return super().get(name, default)
    def __contains__(self, name):
        if ours(): acts.append(["environment", name, ours()])
        return super().__contains__(name)
    def __setitem__(self, name, value):
        if ours(): acts.append(["environment", name, ours()])
        super().__setitem__(name, value)

def watch(event, arguments):
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    starts = event in ("subprocess.Popen", "os.system", "os.fork", "os.posix_spawn", "socket.connect", "sqlite3.connect")
    changes = event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.chdir", "shutil.rmtree")
    loads = event == "ctypes.dlopen" and "cuda" in str(arguments[0])
    if writes or starts or changes or loads:
        acts.append([event, str(arguments[0]), ""])

real_open = builtins.open
def watched_open(file, *rest, **named):
    if ours(): acts.append(["open", str(file), ours()])
    return real_open(file, *rest, **named)

os.environ = Environment(os.environ)
builtins.open = watched_open
sys.addaudithook(watch)
for name in modules:
    importlib.import_module(name)
loaded = sorted(name for name in sys.modules if name.split(".")[0] in ("cuda", "torch", "cupy", "generator"))
import threading
print(json.dumps({"acts": acts, "loaded": loaded, "threads": threading.active_count()}))
"""


def report_of_importing(modules: list[str], folder: Path, root: Path = ROOT, path: Path = ROOT) -> dict:
    """Import modules in a process of their own and an empty folder; return what they did."""
    folder.mkdir(exist_ok=True)
    arguments = [sys.executable, "-B", "-c", IMPORT_ALL, str(root), json.dumps(modules)]
    done = subprocess.run(
        arguments, cwd=folder, env={**os.environ, "PYTHONPATH": str(path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    said, _, report = done.stdout.rstrip("\n").rpartition("\n")
    assert (said, done.stderr, [*folder.iterdir()]) == ("", "", [])
    return json.loads(report)


def test_importing_every_module_does_nothing(tmp_path: Path) -> None:
    report = report_of_importing([name for name in SOURCES if name not in NOT_IMPORTED], tmp_path)
    assert report["acts"] == [] and report["threads"] == 1
    assert {name.split(".")[0] for name in report["loaded"]} == {"generator"}, "no driver, compiler or framework"


def test_the_run_time_package_runs_without_the_generator(tmp_path: Path) -> None:
    run_time = [name for name in SOURCES if name.startswith("hgemm") and name not in NOT_IMPORTED]
    assert report_of_importing(run_time, tmp_path) == {"acts": [], "loaded": [], "threads": 1}


def test_import_watch_detects_imports(tmp_path: Path) -> None:
    text = "import os\nos.environ.get('A')\nos.environ['PATH']\nopen(os.devnull)\nos.mkdir('made')\nos.rmdir('made')\n"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "acting.py").write_text(text)
    report = report_of_importing(["acting"], tmp_path / "empty", tmp_path, tmp_path / "site")
    assert [kind for kind, *_ in report["acts"]] == ["environment", "environment", "open", "os.mkdir", "os.rmdir"]


# ---- What no source does ----------------------------------------------------------------------------------------------

FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "input"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
FORBIDDEN_OF_OS = {"system", "popen", "putenv", "chdir", "umask"}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "expandvars"}
PICKLES = {"generator.build.workers": "asks whether an exception can pass the pipe between it and its own workers"}
READS_ENVIRONMENT = {
    "generator.isolated": "hands the folders of PYTHONPATH on to an isolated process",
    "generator.device_check": "hands its own environment on to the process that uses the device",
    "generator.proof.jobs": "asks which compiler CXX names, and where the user keeps caches",
    "generator.proof.executor": "hands its environment on to a compiler, without variables that name folders",
    "generator.proof.sandbox": "hands LD_LIBRARY_PATH on to the process of a kernel, whose compiler may need it",
    "generator.build.dsl_worker": "takes CuTe DSL's own variables out of its environment, where they would change kernels",
    "hgemm.torch.native": "asks which compiler CXX names, and where the user keeps caches",
    "hgemm.locations": "asks which library is the default one, and where the user keeps data",
    "hgemm.tuning.runner": "hands its own environment on to a process for each of the GPUs that may be seen",
}
"""The command line reads variables by click's options; besides, only these modules read the environment."""


def faults(text: str) -> list[str]:
    """Return what a source does that none may do, each with its line."""
    return [f"{node.lineno} {what}" for node in ast.walk(ast.parse(text)) if (what := _fault(node))]


def _fault(node: ast.AST) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
        return node.func.id
    if isinstance(node, ast.Call) and any(
        word.arg == "shell" and not (isinstance(word.value, ast.Constant) and word.value.value is False)
        for word in node.keywords
    ):
        return "shell"
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
        return f"os.{node.attr}" if node.attr in FORBIDDEN_OF_OS else ""
    if isinstance(node, ast.Import):
        return " ".join(alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES)
    if isinstance(node, ast.ImportFrom) and node.module:
        return node.module if node.module.split(".")[0] in FORBIDDEN_MODULES else ""
    return ""


def test_no_source_runs_text_unpickles_or_calls_a_shell() -> None:
    found = {name: faults(path.read_text()) for name, path in SOURCES.items()}
    allowed = {name: ["pickle"] for name in PICKLES}
    assert {name: [one.split()[1] for one in each] for name, each in found.items() if each} == allowed


def test_code_check_finds_forbidden_calls() -> None:
    lines = [
        "eval('1')",
        "exec('1')",
        "import pickle, os",
        "from marshal import loads",
        "os.system('true')",
        "run('true', shell=True)",
        "run('true', shell=False)",
        "re.compile('a')",
    ]
    assert sorted(int(line.split()[0]) for line in faults("\n".join(lines))) == [1, 2, 3, 4, 5, 6]


def test_the_environment_is_read_in_few_places() -> None:
    reading = set()
    for name, path in SOURCES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            taken = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
            if (isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT) or taken & ENVIRONMENT:
                reading.add(name)
    assert reading <= {*READS_ENVIRONMENT} | {name for name in SOURCES if name.startswith("generator.cli.")}
