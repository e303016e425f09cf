"""The documentation site: it builds, and Chromium finds no fault. The checker finds seeded faults."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from chromium import CHROMIUM, needs_chromium
from conftest import ROOT

sys.path.insert(0, str(ROOT / "docs"))
from check_site import check_site  # noqa: E402


@needs_chromium
@pytest.mark.slow
def test_the_site_has_no_faults(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")):
        pytest.skip("mkdocs is not installed (pip install '.[docs]'): the site is not built")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr + built.stdout
    pages, faults = check_site(tmp_path / "site", CHROMIUM)
    assert pages > 20 and not faults


FAULTY = """<!doctype html><meta name=viewport content="width=device-width"><body>
<a href="gone.html">1</a> <a href="sound.html#gone">2</a> <a href="#gone">3</a> <a href="sound.html#here">sound</a>
<pre>--8 < --"x.py"</pre><div style="width: 700px">wide</div><img src="https://example.com/x.png"><script>console.error("said")</script>"""


@needs_chromium
def test_page_checks_find_each_fault(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(FAULTY)
    (tmp_path / "sound.html").write_text(
        "<!doctype html><meta name=viewport content='width=device-width'><p id=here>here"
    )
    pages, faults = check_site(tmp_path, CHROMIUM)
    assert pages == 2
    for part in (
        "broken link",
        "broken anchor sound.html#gone",
        "broken anchor index.html#gone",
        "in a window of 390 px",
        "loads https://example.com/x.png",
        "console: said",
        'the snippet --8 < --"x.py" is not filled in',
    ):
        assert any(part in fault for fault in faults), (part, faults)
    assert not any("1280" in fault or "sound.html:" in fault or "#here" in fault for fault in faults)
