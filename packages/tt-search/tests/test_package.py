from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import tt_search.hooks
from tt_spec import PluginError, Plugins


def test_importing_stays_light():
    code = "import sys, tt_search; print(*{m.split('.')[0] for m in sys.modules})"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    ours = {m for m in loaded if m.startswith("tt_")}
    assert ours == {"tt_spec", "tt_search"}
    assert not loaded & {"torch", "sklearn", "scipy", "xgboost", "tvm"}


def test_every_entry_builds_without_options():
    found = Plugins(extra=[("tt-search", tt_search.hooks)], installed=False)
    assert not found.broken and any(found.pieces.values())
    for role, pieces in found.pieces.items():
        for name, piece in pieces.items():
            if piece.entry.requires and importlib.util.find_spec("torch") is None:
                with pytest.raises(PluginError, match=r"pip install 'tt-search\[torch\]'"):
                    found.build(role, name)
                continue
            assert found.build(role, name) is not None
            assert piece.entry.summary
