"""Recipes: names, files, `--set`, and errors that say what is known."""

from __future__ import annotations

import types

import pytest
import tt_spec.pieces.hooks
from tt_spec import Entry, Plugins, hookimpl
from tt_spec.errors import OptionError
from tt_spec.recipe import Recipe, content_of, read_toml, recipe_of, resolve
from tt_spec.suggestions import joined


def work(self: object) -> None:
    """Never called: recipes build pieces and look at what they have."""


class Piece:
    """Stores what it is given; has what every role asks for."""

    inputs, shared, scope = "knobs", False, "run"
    fit = predict = score = propose = select = next = stop = evaluate = work

    def __init__(self, trials: object = 1, label: object = "", refuse: bool = False) -> None:
        if refuse:
            raise ValueError("this piece refuses")
        self.trials, self.label = trials, label


def _recipe() -> dict[str, object]:
    return {
        "summary": "for tests",
        "batch": 8,
        "searcher": {"piece": "walk", "trials": 5},
        "stopper": {"piece": "patience"},
    }


class FakeHooks:
    """One piece or two of each role that a recipe names."""

    @hookimpl
    def tt_recipes(self) -> list[Entry]:
        return [Entry("house", _recipe)]

    @hookimpl
    def tt_surrogates(self) -> list[Entry]:
        return [Entry("null", Piece), Entry("forest", Piece)]

    @hookimpl
    def tt_searchers(self) -> list[Entry]:
        return [Entry("random", Piece), Entry("walk", Piece)]

    @hookimpl
    def tt_samplers(self) -> list[Entry]:
        return [Entry("top", Piece)]

    @hookimpl
    def tt_schedulers(self) -> list[Entry]:
        return [Entry("sequential", Piece), Entry("bare", lambda: Piece()), Entry("lame", types.SimpleNamespace)]

    @hookimpl
    def tt_stoppers(self) -> list[Entry]:
        return [Entry("patience", Piece)]

    @hookimpl
    def tt_evaluators(self) -> list[Entry]:
        return [Entry("fixed", Piece)]

    @hookimpl
    def tt_measurers(self) -> list[Entry]:
        return [Entry("local", Piece), Entry("remote", Piece)]

    @hookimpl
    def tt_spaces(self) -> list[Entry]:
        return [Entry("sketch", Piece), Entry("both", Piece)]

    @hookimpl
    def tt_stores(self) -> list[Entry]:
        return [Entry("sqlite", Piece)]


PLUGINS = Plugins(installed=False, extra=[("house", FakeHooks())])


def house(*sets: str) -> Recipe:
    return resolve("house", sets, PLUGINS)


def refusal(name: object = "house", *sets: str) -> str:
    with pytest.raises(OptionError) as e:
        resolve(str(name), sets, PLUGINS)
    assert "\n" not in str(e.value)
    return str(e.value)


@pytest.fixture
def file(tmp_path):
    def write(text: str):
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_recipe_names_some_pieces_and_the_others_have_defaults():
    recipe = house()
    assert (recipe.name, recipe.batch, recipe.verify) == ("house", 8, 256)
    assert recipe.pieces["searcher"] == ("walk", {"trials": 5})
    assert recipe.pieces["surrogate"] == ("null", {})
    assert recipe.pieces["draft"] is None
    assert recipe.build("draft") is None
    assert recipe.build("searcher").trials == 5


def test_the_recipes_options_win_over_the_runners():
    assert house("measurer.trials=7").build("measurer", trials=3, label="x").trials == 7
    assert house().build("measurer", trials=3).trials == 3


def test_a_piece_that_cannot_play_its_role_is_refused_before_anything_is_measured():
    assert "scheduler 'lame' of house ? lacks next: see tt_spec.roles.Scheduler" in refusal("house", "scheduler=lame")


def test_a_draft_is_a_surrogate():
    assert house("draft=forest", "draft.trials=3").build("draft").trials == 3


def test_a_description_is_plain_data():
    described = house().describe()
    assert described["searcher"] == {"piece": "walk", "trials": 5}
    assert described["batch"] == 8 and described["light"] == 16 and "draft" not in described


def test_a_file_is_a_recipe(file):
    recipe = resolve(str(file('batch = 4\n[searcher]\npiece = "walk"\ntrials = 2\n')), (), PLUGINS)
    assert (recipe.name, recipe.batch, recipe.build("searcher").trials) == ("mine", 4, 2)


def test_resolving_twice_starts_afresh():
    assert house("searcher.trials=9").build("searcher").trials == 9
    assert house().build("searcher").trials == 5


def test_tts_own_recipes_parse():
    own = Plugins(installed=False, extra=[("tt-spec", tt_spec.pieces.hooks)])
    assert {"random", "autotvm", "tt"} <= set(own.names("recipe"))
    for name in own.names("recipe"):
        assert own.build("recipe", name)["summary"]
        assert own.find("recipe", name).entry.source


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20", 20),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("true", True),
        ("false", False),
        ("[1, 2]", [1, 2]),
        ('"quoted"', "quoted"),
        ("word", "word"),
        ("two words", "two words"),
        ("a=b", "a=b"),
        (" 7 ", 7),
    ],
)
def test_values_have_the_type_that_they_look_like(text, value):
    got = house(f"searcher.label={text}").build("searcher").label
    assert got == value and type(got) is type(value)


def test_sets_apply_in_order():
    recipe = house("searcher.trials=7", "searcher=random", "searcher.label=x", "batch=16", "verify=32", "light=8")
    assert recipe.pieces["searcher"] == ("random", {"label": "x"})
    assert (recipe.batch, recipe.verify, recipe.light) == (16, 32, 8)


def test_schedule_is_the_scheduler():
    assert house("schedule=sequential").pieces["scheduler"] == ("sequential", {})


def test_optional_pieces_can_be_left_out():
    assert house("stopper=none").build("stopper") is None
    assert "stopper" not in house("stopper=none").describe()
    assert house("stopper=none", "stopper=patience").build("stopper").trials == 1


@pytest.mark.parametrize("role", ["surrogate", "searcher", "sampler", "scheduler", "evaluator", "measurer", "space"])
def test_needed_pieces_cannot(role):
    text = refusal("house", f"{role}=none")
    assert f"a recipe needs a {role}" in text and f"--set {role}=" in text


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["searcher=wlk"], "did you mean 'walk'?"),
        (["searcher.trails=3"], "did you mean 'trials'"),
        (["seacher=walk"], "did you mean 'searcher'"),
        (["seacher.trials=3"], "did you mean 'searcher'"),
        (["btch=3"], "did you mean 'batch'?"),
        (["scheduler=bare", "scheduler.trials=3"], "has no option 'trials'"),
        (["draft.trials=3"], "choose one first: --set draft=NAME"),
        (["measurer=lcal"], "did you mean 'local'?"),
        (["store=sqlit"], "did you mean 'sqlite'?"),
        (["searcher"], "--set needs piece.option=value or piece=name, got 'searcher'"),
        (["searcher="], "got 'searcher='"),
        (["searcher.trials= "], "got 'searcher.trials= '"),
        (["=3"], "''"),
        ([""], "got ''"),
        (["batch=0"], "whole number"),
        (["batch=1.5"], "whole number"),
        (["batch=many"], "whole number"),
        (["batch=\u00b2"], "whole number"),
        (["batch=" + "9" * 5000], "whole number"),
        (["light=none"], "whole number"),
        (["lihgt=4"], "did you mean 'light'"),
        (["searcher.refuse=true"], "searcher: this piece refuses"),
    ],
)
def test_wrong_sets_say_what_is_known(sets, says):
    assert says in refusal("house", *sets)


def test_an_unknown_recipe_shows_the_nearest():
    assert "did you mean 'house'?" in refusal("huse")


def test_a_folder_is_no_recipe(tmp_path):
    assert "no recipe and no file" in refusal(tmp_path)


def test_a_mistake_in_a_file_names_the_line(file):
    text = refusal(file('batch = 4\n[searcher]\npiece = "walk\n'))
    assert "mine.toml" in text and "line 3" in text


def test_a_file_that_is_not_text_is_named(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match=r"mine\.toml"):
        read_toml(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('[seacher]\npiece = "walk"', "did you mean 'searcher'"),
        ("[searcher]\ntrials = 3", '[searcher] needs a line piece = "name"'),
        ('searcher = "walk"', '[searcher] needs a line piece = "name"'),
        ('[searcher]\npiece = "wlk"', "did you mean 'walk'?"),
        ('[searcher]\npiece = "walk"\ntrails = 3', "did you mean 'trials'"),
        ("batch = 0", "batch must be a whole number, at least 1, got 0"),
        ("batch = 1.5", "batch must be a whole number, at least 1, got 1.5"),
        ("light = 0", "light must be a whole number, at least 1, got 0"),
        ("batch = true", "batch must be a whole number, at least 1, got True"),
        ("summary = 3", "summary must be text, got 3"),
    ],
)
def test_a_wrong_file_says_what_is_known(file, content, says):
    text = refusal(file(content))
    assert says in text and "'mine'" in text


def test_a_broken_plugin_recipe_is_named_like_a_file():
    class Wrong:
        @hookimpl
        def tt_recipes(self) -> list[Entry]:
            return [Entry("wrong", lambda: {"searcher": {"piece": 3}})]

    plugins = Plugins(installed=False, extra=[("house", FakeHooks()), ("wrong", Wrong())])
    with pytest.raises(OptionError, match=r"recipe 'wrong'.*\[searcher\]"):
        resolve("wrong", (), plugins)


def test_pieces_of_another_machine_are_named_and_not_looked_up():
    content = {"space": {"piece": "far"}, "measurer": {"piece": "remote", "trials": "many"}, "batch": 4}
    with pytest.raises(OptionError, match="no space is called 'far'"):
        recipe_of("sent", content, (), PLUGINS)
    recipe = recipe_of(
        "sent", content, ["searcher=walk", "searcher.trials=2"], PLUGINS, elsewhere=("space", "measurer")
    )
    assert (recipe.name, recipe.space, recipe.build("searcher").trials) == ("sent", "far", 2)


KINDS = {
    **_recipe(),
    "kind": {"conv2d": {"searcher": {"piece": "walk", "trials": 7}, "draft": {"piece": "none"}}, "matmul": {}},
    "draft": {"piece": "forest"},
}


def kinds(*sets: str, **more: object) -> Recipe:
    return recipe_of("mine", {**KINDS, **more}, sets, PLUGINS)


def test_a_kind_of_operator_has_pieces_of_its_own():
    recipe = kinds()
    conv = recipe.of("conv2d")
    assert conv.build("searcher").trials == 7 and recipe.build("searcher").trials == 5
    assert conv.build("draft") is None and recipe.build("draft") is not None
    assert recipe.of("matmul") is recipe and recipe.of("pool") is recipe, "nothing of their own"
    assert conv.pieces["stopper"] == recipe.pieces["stopper"] and conv.batch == recipe.batch == 8
    again = recipe_of("mine", content_of(recipe.describe()), (), recipe.plugins)
    assert again.kinds == recipe.kinds and again.describe() == recipe.describe()


def test_a_set_holds_for_all_kinds():
    option = kinds("searcher.trials=9")
    assert option.build("searcher").trials == option.of("conv2d").build("searcher").trials == 9
    piece = kinds("searcher=walk", "draft=none")
    assert piece.of("conv2d").pieces == piece.pieces and piece.pieces["searcher"] == ("walk", {})
    other = kinds("searcher.label=x", kind={"conv2d": {"searcher": {"piece": "random"}}})
    assert other.of("conv2d").pieces["searcher"] == ("random", {}), "an option is one piece's"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], r"tables such as \[kind.conv2d.searcher\]"),
        ({"conv2d": 3}, r"tables such as \[kind.conv2d.searcher\]"),
        ({"conv2d": {"evaluator": {"piece": "fixed"}}}, r"\[kind.conv2d.evaluator\] belongs to the whole run"),
        ({"conv2d": {"batch": 3}}, r"\[kind.conv2d.batch\] belongs to the whole run"),
        ({"conv2d": {"search": {}}}, r"\[kind.conv2d.search\] is no part of a recipe; a kind has surrogate, draft, "),
        ({"conv2d": {"searcher": {"trials": 3}}}, r'\[kind.conv2d.searcher\] needs a line piece = "name"'),
        ({"conv2d": {"searcher": {"piece": "wlak"}}}, "kind.conv2d.searcher|no searcher is called 'wlak'"),
        ({"conv2d": {"searcher": {"piece": "walk", "refuse": True}}}, "kind.conv2d.searcher: this piece refuses"),
        ({"conv2d": {"searcher": {"piece": "none"}}}, "no searcher is called 'none'"),
    ],
)
def test_wrong_pieces_of_a_kind_are_named(value, says):
    with pytest.raises(OptionError, match=says) as e:
        kinds(kind=value)
    assert "\n" not in str(e.value) and "recipe 'mine'" in str(e.value)


def test_kinds_are_joined_in_one_recipe():
    default = {
        "batch": 8,
        "searcher": {"piece": "walk"},
        "stopper": {"piece": "patience"},
        "draft": {"piece": "forest"},
    }
    quick = {"batch": 4, "searcher": {"piece": "random"}, "surrogate": {"piece": "forest"}}
    assert joined({}, default) == joined({"conv2d": None}, default) == default
    assert joined({"conv2d": quick}, default) == quick
    both = joined({"conv2d": quick, "matmul": None, "pool": quick}, default)
    assert both["batch"] == 4 and both["searcher"] == {"piece": "random"} and "stopper" not in both
    assert both["kind"] == {
        "matmul": {"surrogate": {"piece": "null"}, "draft": {"piece": "forest"}, "searcher": {"piece": "walk"}}
    }
    back = joined({"conv2d": None, "matmul": quick}, default)
    assert {k: v for k, v in back.items() if k != "kind"} == default, "the heaviest keeps it"
    assert back["kind"]["matmul"]["draft"] == {"piece": "none"}
