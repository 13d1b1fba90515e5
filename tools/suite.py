"""All tests, each once: a package's own in an environment with nothing else, what needs more in the workspace's.

    hatch run test                          # everything
    hatch run test packages/tt-space -k x   # with arguments: pytest with these, in the workspace's environment

Together, on all cores: `tests/`, `integration/` and the packages' tests that are marked `slow` or `together`. Beside
them, on the time that those leave while they wait, every package alone with the rest of its own (tools/alone.py), which
is shown at the end. Both run whatever the other says.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HANGS_S = 900
"""After how long a test that hangs fails, and the others go on; the longest takes 90 s on two quiet processors."""

PYTEST = ("pytest", "-n", "auto", "--dist", "worksteal", f"--timeout={HANGS_S}", "--timeout-method=thread")
ALONE = (sys.executable, str(Path(__file__).with_name("alone.py")))


def main(arguments: Sequence[str]) -> int:
    """0 if all passed."""
    if arguments:
        return subprocess.call([*PYTEST, *arguments])
    jobs = max((os.cpu_count() or 1) // 2, 1)
    with tempfile.TemporaryFile("w+") as said:
        alone = subprocess.Popen([*ALONE, "--jobs", str(jobs)], stdout=said, stderr=said)
        try:
            together = subprocess.call([*PYTEST, "--together"])
        finally:
            apart = alone.wait()
            said.seek(0)
            print(said.read(), end="", flush=True)
    return int(bool(together or apart))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
