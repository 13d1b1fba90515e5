import subprocess
import sys

import pytest

LEAN = "from tt_core.compiler.lean import tvm_without_torch as lean; "
TVM = "try:\n    import torch\nexcept ImportError:\n    torch = None\n"


@pytest.fixture
def python(tmp_path, monkeypatch):
    """A process that finds a small TVM, which takes PyTorch if it can, and a small PyTorch."""
    (tmp_path / "tvm.py").write_text(TVM)
    (tmp_path / "torch.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

    def run(code):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import tvm; print(tvm.torch is not None)", "True"),  # what the others are about
        (LEAN + "lean(); import tvm; print(tvm.torch)", "None"),
        (LEAN + "lean(); lean(); import tvm, sys; print(tvm.torch, 'torch' in sys.modules)", "None False"),
        (LEAN + "lean(); import tvm, torch; print(torch.__name__)", "torch"),
        (LEAN + "lean(); import torch, tvm; print(tvm.torch is torch)", "True"),
        (LEAN + "import tvm; lean(); import sys; print(tvm.torch is sys.modules['torch'])", "True"),
        (LEAN + "import sys; n = sys.meta_path[:]; lean(); import tvm; lean(); print(sys.meta_path == n)", "True"),
        (LEAN + "lean(); import tvm; print(type(tvm.__loader__).__name__)", "SourceFileLoader"),
        (LEAN + "lean(); import tvm; print(tvm.__spec__.loader is tvm.__loader__)", "True"),
    ],
)
def test_tvm_is_imported_without_torch_and_all_else_is_as_ever(python, code, found):
    assert python(code) == found


XGBOOST = """
import sys, xgboost
print('sklearn' in sys.modules, sum(type(f).__name__ == '_Finder' for f in sys.meta_path))
"""


@pytest.mark.parametrize(
    ("before", "plugin", "found"),
    [
        ("", None, "True 0"),  # what the others are about
        ("lean()", None, "False 0"),
        ("lean(); import importlib.util; importlib.util.find_spec('xgboost')", None, "False 0"),
        ("lean(); import sklearn", None, "True 0"),
        ("lean(); torchless()", None, "False 1"),
        ("lean()", "theirs", "True 0"),  # a stranger's plug-in may want XGBoost's estimators
        ("lean()", "tt_ours", "False 0"),
    ],
)
def test_xgboost_is_imported_without_sklearn_where_nobody_can_want_it(python, tmp_path, before, plugin, found):
    (tmp_path / "xgboost.py").write_text("try:\n    import sklearn\nexcept ImportError:\n    pass\n")
    (tmp_path / "sklearn.py").write_text("")
    if plugin is not None:
        (tmp_path / "some-1.dist-info").mkdir()
        (tmp_path / "some-1.dist-info" / "METADATA").write_text("Name: some\nVersion: 1\n")
        (tmp_path / "some-1.dist-info" / "entry_points.txt").write_text(f"[tt]\nsome = {plugin}.hooks\n")
    lean = "from tt_core.compiler.lean import xgboost_without_sklearn as lean, tvm_without_torch as torchless; "
    assert python(f"{lean}{before}\n{XGBOOST}") == found


def test_other_threads_find_torch_all_the_while(python, tmp_path):
    code = "import sys; seen = ('torch' in sys.modules, sys.modules.get('torch'))\n"
    code += "import threading; found = []\n"
    code += "t = threading.Thread(target=lambda: found.append(__import__('torch'))); t.start(); t.join()\n"
    (tmp_path / "tvm.py").write_text(code)
    asked = "lean(); import tvm; print(tvm.seen, [m.__name__ for m in tvm.found])"
    assert python(LEAN + asked) == "(False, None) ['torch']"


def test_an_import_under_way_in_another_thread_passes_over_no_finder(python):
    code = "import sys; n = sys.meta_path[:]; lean(); asked = iter(sys.meta_path); next(asked)\n"
    code += "import tvm; print(list(asked) == n, sys.meta_path == n)"
    assert python(LEAN + code) == "True True"


def test_torch_can_be_imported_after_a_tvm_that_fails(python, tmp_path):
    (tmp_path / "tvm.py").write_text("raise OSError('no such library')")
    code = "lean()\ntry:\n    import tvm\nexcept OSError as e:\n    import torch; print(e)"
    assert python(LEAN + code) == "no such library"


def test_a_missing_tvm_is_missed(python, tmp_path):
    (tmp_path / "tvm.py").unlink()
    code = "import sys; sys.path.clear(); lean()\ntry:\n    import tvm\nexcept ModuleNotFoundError as e:\n    print(e)"
    assert python(LEAN + code) == "No module named 'tvm'"


def test_a_worker_loads_the_real_tvm_alone():
    code = (
        "import sys; from tt_core.compiler.lean import worker_backend; made = worker_backend()\n"
        "import tvm; print(type(made).__name__, 'torch' in sys.modules, tvm.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split()[:2] == ["TvmBackend", "False"], done.stderr
