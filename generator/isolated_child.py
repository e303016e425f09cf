"""The first file of an isolated process: find the packages where the parent found them, and run its target."""

import importlib
import importlib.util
import json
import os
import runpy
import signal
import sys
import threading
import time

_POLL_S = 0.5


class _Packages:
    """Finds the given packages in the given folders, and nothing else."""

    def __init__(self, folders: dict) -> None:
        self._folders = folders

    def find_spec(self, name: str, path=None, target=None):
        folder = self._folders.get(name)
        if folder is None:
            return None
        return importlib.util.spec_from_file_location(
            name, f"{folder}/__init__.py", submodule_search_locations=[folder]
        )


def _end_with(parent: int) -> None:
    """End the session of this process when its parent has ended: then nobody waits for an answer or ends the session."""
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    setup, (target, *arguments) = json.loads(sys.argv[1]), sys.argv[2:]
    if os.getsid(0) == os.getpid():  # signals for the parent's session do not arrive here
        threading.Thread(target=_end_with, args=(setup["parent"],), daemon=True).start()
    sys.meta_path.insert(0, _Packages(setup["packages"]))
    sys.path[:] = setup["path"]
    module, _, function = target.partition(":")
    sys.argv = [module, *arguments]
    if function:
        getattr(importlib.import_module(module), function)(*arguments)
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
