"""What no source may do: act when imported, read the environment, run text or unpickle it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

SOURCES = sorted(path for folder in ("generator", "hgemm") for path in (ROOT / folder).rglob("*.py"))
NAMES = [path.relative_to(ROOT).as_posix() for path in SOURCES]
EXTRAS = {"hgemm/torch.py": "imports torch, which need not be there"}
MODULES = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in NAMES if name not in EXTRAS]
READS_ENVIRONMENT = {
    "generator/device_check.py": "hands its own environment on to the process that uses the device",
    "generator/proof/jobs.py": "asks which compiler CXX names, and where the user keeps caches",
    "generator/build/dsl_worker.py": "takes CuTe DSL's own variables out of its environment, where they would change kernels",
    "hgemm/tune/runner.py": "hands its own environment on to a process for each of the GPUs that may be seen",
}
"""The command line reads one variable, by click (generator/cli/options.py); beside that, only these do."""
PICKLES = {"generator/build/workers.py": "asks whether an exception passes the pipe between it and its own workers"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "input"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
FORBIDDEN_OF_OS = {"system", "popen", "putenv", "chdir", "umask"}

IMPORT_ALL = """
import builtins, importlib, json, os, sys

root, modules = sys.argv[1], json.loads(sys.argv[2])
acts = []

def ours(depth=2):
    # The frame of the generator or of hgemm that acts itself; what other packages do when imported is theirs.
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


def imported(modules: list[str], folder: Path) -> dict:
    """Import modules in a process of their own and an empty folder; return what they did."""
    arguments = [sys.executable, "-B", "-c", IMPORT_ALL, str(ROOT), json.dumps(modules)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(arguments, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, _, report = done.stdout.rstrip("\n").rpartition("\n")
    assert (said, done.stderr, [*folder.iterdir()]) == ("", "", [])
    return json.loads(report)


def test_importing_every_module_does_nothing(tmp_path: Path) -> None:
    report = imported([name for name in MODULES if not name.endswith("__main__")], tmp_path)
    assert report["acts"] == []
    assert report["threads"] == 1
    assert {name.split(".")[0] for name in report["loaded"]} == {"generator"}, "no driver, compiler or framework"


def test_the_run_time_package_runs_without_the_generator(tmp_path: Path) -> None:
    report = imported([name for name in MODULES if name.startswith("hgemm")], tmp_path)
    assert report == {"acts": [], "loaded": [], "threads": 1}


def test_the_watch_sees_what_it_is_there_for(tmp_path: Path) -> None:
    """A module of a root of its own that does each forbidden thing is reported for each."""
    (tmp_path / "site").mkdir()
    (tmp_path / "empty").mkdir()
    text = "import os\nos.environ.get('A')\nos.environ['PATH']\nopen(os.devnull)\nos.mkdir('made')\nos.rmdir('made')\n"
    (tmp_path / "site" / "acting.py").write_text(text)
    arguments = [sys.executable, "-B", "-c", IMPORT_ALL, str(tmp_path), '["acting"]']
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(arguments, cwd=tmp_path / "empty", env=env, capture_output=True, text=True, check=True)
    kinds = [kind for kind, *_ in json.loads(done.stdout)["acts"]]
    assert kinds == ["environment", "environment", "open", "os.mkdir", "os.rmdir"]


# ---- Sources --------------------------------------------------------------------------------------------------------


def forbidden(path: Path) -> list[str]:
    """Return what a source does that none may do, each with its line."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [f"{path.name}:{node.lineno} {what}" for node in nodes if (what := fault(node))]


def fault(node: ast.AST) -> str:
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


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_no_source_runs_text_unpickles_or_calls_a_shell(path: Path) -> None:
    pickles = path.relative_to(ROOT).as_posix() in PICKLES
    assert [fault for fault in forbidden(path) if not (pickles and "pickle" in fault)] == []


def test_the_check_finds_what_it_is_there_for(tmp_path: Path) -> None:
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
    (tmp_path / "bad.py").write_text("\n".join(lines))
    found = forbidden(tmp_path / "bad.py")
    assert sorted(int(line.split(":")[1].split()[0]) for line in found) == [1, 2, 3, 4, 5, 6]


def test_only_the_command_line_reads_the_environment() -> None:
    names = ("environ", "environb", "getenv", "getenvb", "expandvars")
    reading = set()
    for name, path in zip(NAMES, SOURCES):
        for node in ast.walk(ast.parse(path.read_text())):
            taken = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            if (isinstance(node, ast.Attribute) and node.attr in names) or {*taken} & {*names}:
                reading.add(name)
    assert reading == {*READS_ENVIRONMENT}


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_every_module_says_what_it_is_in_one_line(path: Path) -> None:
    first = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
    assert len(first) > 20 and first[0] in first.upper() and first[-1] in ".:,", first
