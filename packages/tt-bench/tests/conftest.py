"""Small recordings whose truth is known, by `tt_bench_toy`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tt_bench.recording import Recorded, Recording
from tt_core.host import Host

sys.path.insert(0, str(Path(__file__).parent))

from tt_bench_toy import recorded, task


@pytest.fixture
def part() -> Recorded:
    return recorded(task())


@pytest.fixture
def recording() -> Recording:
    """A model of two tasks."""
    parts = (recorded(task("a", 6)), recorded(task("b", 8, weight=3.0)))
    return Recording("op:toy", "template", parts, "toy/2 cores", {"tvm": "0"})


@pytest.fixture(scope="session")
def host() -> Host:
    return Host()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Width and height, in pixels, that headless Chromium gives to the elements of a selector on a page."""
    program = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium here; the same page is parsed by other tests")

    def sizes(page: Path, selector: str) -> list[tuple[float, float]]:
        script = (
            f"const r = [...document.querySelectorAll({selector!r})].map(e => e.getBoundingClientRect());"
            "const p = document.createElement('pre'); p.id = 'sizes';"
            "p.textContent = JSON.stringify(r.map(b => [b.width, b.height])); document.body.append(p);"
        )
        copy = tmp_path_factory.mktemp("page") / "page.html"
        copy.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--host-resolver-rules=MAP * ~NOTFOUND"]
        done = subprocess.run(
            [program, *options, f"--user-data-dir={copy.parent}", copy.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        found = re.search(r'<pre id="sizes">(.*?)</pre>', done.stdout)
        assert found is not None, done.stderr[-500:]
        return [tuple(s) for s in json.loads(found.group(1))]

    return sizes
