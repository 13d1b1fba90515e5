"""All tests, each once: a package's own in an environment with nothing else, what needs more in the workspace's.

    hatch run test                          # everything
    hatch run test packages/tt-space -k x   # with arguments: pytest with these, in the workspace's environment

First come `tests/`, `integration/` and the packages' tests that are marked `slow` or `together`, on all cores; then
every package alone with the rest of its own (tools/alone.py), a few at once. Both run whatever the first says.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import alone

PYTEST = ("pytest", "-n", "auto", "--dist", "worksteal")


def main(arguments: Sequence[str]) -> int:
    """0 if all passed."""
    if arguments:
        return subprocess.call([*PYTEST, *arguments])
    return max(subprocess.call([*PYTEST, "--together"]), alone.main([]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
