from __future__ import annotations

import subprocess
import sys

import tt_sample.hooks
from tt_spec.plugins import Plugins


def test_importing_stays_light():
    code = "import sys, tt_sample; print(*{m.split('.')[0] for m in sys.modules})"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    ours = {m for m in loaded if m.startswith("tt_")}
    assert ours == {"tt_spec", "tt_sample"}
    assert not loaded & {"torch", "sklearn", "scipy", "xgboost", "tvm"}


def test_every_entry_builds_without_options():
    found = Plugins(extra=[("tt-sample", tt_sample.hooks)], installed=False)
    assert not found.broken and any(found.pieces.values())
    for role, pieces in found.pieces.items():
        for name, piece in pieces.items():
            assert found.build(role, name) is not None
            assert piece.entry.summary
