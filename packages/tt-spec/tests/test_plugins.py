"""Finding and building pieces; what goes wrong in strangers' plug-ins."""

import importlib.metadata
import pickle
import types
import warnings

import pytest
from tt_spec import Entry, PluginError, Plugins, hookimpl, nearest
from tt_spec.errors import whose
from tt_spec.roles import ROLES


def plugin(**hooks):
    module = types.SimpleNamespace()
    for name, entries in hooks.items():

        def hook(entries=entries):
            if isinstance(entries, Exception):
                raise entries
            return entries

        # pluggy reads the signature, so the hook must really have no argument
        setattr(module, name, hookimpl((lambda h: lambda: h())(hook)))
    return module


def installed(monkeypatch, **modules):
    """Pretend these distributions are installed; an exception stands for a broken import."""

    class Point:
        def __init__(self, name, module):
            self.name, self.module = name, module
            self.dist = types.SimpleNamespace(name=name.split("@")[-1], version="1.2")
            self.name = name.split("@")[0]

        def load(self):
            if isinstance(self.module, BaseException):
                raise self.module
            return self.module

    points = [Point(name.replace("_at_", "@"), m) for name, m in modules.items()]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)


def test_own_pieces_are_found_and_built():
    own = Plugins()
    for role in ("evaluator", "measurer", "surrogate", "searcher", "sampler", "scheduler", "stopper", "store"):
        mine = [n for n in own.names(role) if own.find(role, n).distribution == "tt-spec"]
        assert mine, f"tt-spec has a trivial {role}"
        assert own.build(role, mine[0]) is not own.build(role, mine[0])
        assert own.find(role, mine[0]).entry.summary
    assert own.build("stopper", "trials", trials=3).trials == 3
    version = importlib.metadata.version("tt-spec")
    assert whose("stopper", own.build("stopper", "trials")) == f"stopper 'trials' of tt-spec {version}"


def test_every_role_has_a_hook():
    for role in ROLES:
        assert hasattr(Plugins(installed=False).hook, f"tt_{role}s")


def test_a_broken_plugin_is_left_out_listed_and_warned_of(monkeypatch):
    good = plugin(tt_searchers=[Entry("mine", dict)])
    installed(monkeypatch, broken=ImportError("no libfoo.so"), good=good, worse=SyntaxError("what"))
    with (
        pytest.warns(UserWarning, match=r"broken 1\.2 is left out: ImportError: no libfoo"),
        pytest.warns(UserWarning, match=r"worse 1\.2"),
    ):
        found = Plugins()
    assert found.names("searcher") == ["mine"]
    assert [(b.distribution, b.version) for b in found.broken] == [("broken", "1.2"), ("worse", "1.2")]


@pytest.mark.parametrize(
    ("entries", "why"),
    [(RuntimeError("hm"), "RuntimeError: hm"), (["mine"], "list of Entry"), (None, "TypeError"), ([dict], "Entry")],
)
def test_a_hook_that_fails_or_returns_rubbish_is_left_out(entries, why):
    with pytest.warns(UserWarning, match="tt_searchers failed"):
        found = Plugins([("odd", plugin(tt_searchers=entries, tt_samplers=[Entry("fine", dict)]))], installed=False)
    assert found.names("sampler") == ["fine"] and found.names("searcher") == []
    assert why in found.broken[0].why


def test_a_misspelt_hook_is_caught():
    with pytest.warns(UserWarning, match=r"no hook 'tt_serchers'; did you mean 'tt_searchers'.*known: tt_evaluators, "):
        found = Plugins([("odd", plugin(tt_serchers=[])), ("good", plugin(tt_searchers=[]))], installed=False)
    assert [b.distribution for b in found.broken] == ["odd"]


def test_a_hook_without_its_mark_is_caught():
    with pytest.warns(UserWarning, match="tt_searchers is not marked: put @tt_spec.hookimpl above it"):
        found = Plugins([("odd", types.SimpleNamespace(tt_searchers=lambda: []))], installed=False)
    assert [b.distribution for b in found.broken] == ["odd"]


def test_a_hook_may_have_another_name_if_its_mark_says_so():
    module = types.SimpleNamespace(mine=hookimpl(specname="tt_searchers")(lambda: [Entry("mine", dict)]))
    found = Plugins([("d", module)], installed=False)
    assert found.names("searcher") == ["mine"] and not found.broken


def test_a_hook_with_a_wrong_argument_is_caught():
    class Odd:
        @hookimpl
        def tt_task_finished(self, nonsense):
            pass

        @hookimpl
        def tt_searchers(self):
            return [Entry("half", dict)]

    with pytest.warns(UserWarning, match="odd"):
        found = Plugins([("odd", Odd())], installed=False)
    assert found.names("searcher") == [] and len(found.broken) == 1


def test_two_entries_of_one_name_are_an_error_that_names_both():
    one, two = (plugin(tt_searchers=[Entry("same", dict)]) for _ in range(2))
    with pytest.raises(PluginError, match=r"'same'.*(first.*second|second.*first)"):
        Plugins([("first", one), ("second", two)], installed=False)


def test_two_distributions_of_one_entry_point_name_are_an_error(monkeypatch):
    installed(monkeypatch, tt_at_first=plugin(), tt_at_second=plugin())
    with pytest.raises(PluginError, match="'first' and 'second' both use the entry-point name 'tt'"):
        Plugins()


def test_unknown_names_give_the_nearest_and_all():
    own = Plugins(installed=False, extra=[("d", plugin(tt_searchers=[Entry("random", dict), Entry("anneal", dict)]))])
    with pytest.raises(PluginError, match=r"no searcher is called 'randon'; did you mean 'random'.*\(known: anneal, "):
        own.build("searcher", "randon")
    with pytest.raises(PluginError, match="no role 'sercher'"):
        own.find("sercher", "x")
    assert nearest("zzz", []) == " (known: none)"


def test_unknown_options_give_the_nearest():
    own = Plugins()
    with pytest.raises(PluginError, match=r"has no option 'trial'; did you mean 'trials'\?"):
        own.build("stopper", "trials", trial=3)
    with pytest.raises(PluginError, match=r"'once' has no option 'n' \(known: none\)"):
        own.build("evaluator", "once", n=3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        ("no_such_module_at_all:X", r"searcher 'far' is not installed .*pip install 'dist\[extra\]'"),
        ("tt_spec.space:Nothing", r"'far' of d \? cannot be built from 'tt_spec.space:Nothing': AttributeError"),
        (lambda: {}["gone"], r"searcher 'far' of d \? cannot be built: KeyError: 'gone'"),
        ("tt_spec.space", "cannot be built from 'tt_spec.space'"),
    ],
)
def test_a_piece_that_cannot_be_imported_says_what_to_do(build, message):
    own = Plugins([("d", plugin(tt_searchers=[Entry("far", build, requires="dist[extra]")]))], installed=False)
    with pytest.raises(PluginError, match=message):
        own.build("searcher", "far")


def test_a_missing_extra_inside_the_constructor_is_named():
    def factory():
        import no_such_module_at_all  # noqa: F401  # pyright: ignore[reportMissingImports]

    own = Plugins([("d", plugin(tt_searchers=[Entry("far", factory, requires="dist[extra]")]))], installed=False)
    with pytest.raises(PluginError, match=r"pip install 'dist\[extra\]'"):
        own.build("searcher", "far")


def test_finding_pieces_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Plugins(installed=False, extra=[("d", plugin(tt_searchers=[]))])


def test_every_plugin_listens_by_itself():
    heard = []

    class Deaf:
        @hookimpl
        def tt_run_stopped(self, reason):
            raise RuntimeError("deaf")

        @hookimpl
        def tt_warm_start(self):
            return [1]

    class Hears:
        @hookimpl
        def tt_run_stopped(self, reason):
            heard.append(reason)

        @hookimpl
        def tt_run_started(self, run):
            heard.append(run)

    found = Plugins([("deaf", Deaf()), ("hears", Hears()), ("none", plugin(tt_searchers=[]))], installed=False)
    by_name = {whose("listener", x): x for x in found.listeners()}
    assert set(by_name) == {"plug-in deaf ?", "plug-in hears ?"}
    by_name["plug-in hears ?"].tt_run_started(run="r")
    by_name["plug-in hears ?"].tt_run_stopped(run="r", states=[], reason="enough")
    with pytest.raises(RuntimeError, match="deaf"):
        by_name["plug-in deaf ?"].tt_run_stopped(run="r", states=[], reason="enough")
    assert by_name["plug-in deaf ?"].tt_run_started(run="r") is None
    assert heard == ["r", "enough"]
    assert [(who, call(task=None)) for who, call in found.each("tt_warm_start")] == [("plug-in deaf ?", [[1]])]
    assert sorted(found.others()) == [
        ("tt_run_started", "hears", "?"),
        ("tt_run_stopped", "deaf", "?"),
        ("tt_run_stopped", "hears", "?"),
        ("tt_warm_start", "deaf", "?"),
    ]


def test_a_built_piece_travels_with_its_name():
    own = Plugins()
    there = pickle.loads(pickle.dumps(own.build("evaluator", "once")))
    assert whose("evaluator", there).startswith("evaluator 'once' of tt-spec ")
    assert whose("evaluator", object()) == "evaluator builtins.object"
