"""The command works where nothing but tt-core is installed, with any typer that tt-core accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from typing import Any

import pytest
import typer
from tt_core.cli.app import app
from tt_spec import Plugins
from tt_spec.hooks import Entry, hookimpl
from typer.testing import CliRunner


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below `group`, groups left out, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


COMMANDS = dict(commands(typer.main.get_command(app)))


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_help_lists_every_command():
    assert {"tune", "tasks", "run", "plugins", "recipes"} <= {words[0] for words in COMMANDS}
    for words, command in COMMANDS.items():
        assert command.hidden or f" {words[-1]} " in invoke(*words[:-1], "--help")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_of_a_command_names_its_options(words):
    shown = invoke(*words, "--help")
    for parameter in COMMANDS[words].params:
        assert max(parameter.opts, key=len).lower() in shown.lower()


def test_version_names_what_is_installed():
    said = invoke("--version")
    assert version("tt-core") in said and version("apache-tvm") in said


def test_a_plug_in_adds_commands_to_tt_and_to_its_groups(monkeypatch):
    class Hooks:
        @hookimpl
        def tt_commands(self):
            def says(text: str) -> Any:
                return lambda: lambda: print(text)

            names = ("alone", "history count", "history show", "zoo feed", "zoo clean")
            return [Entry(name, says(f"plug-in's {name}"), f"says {name}") for name in names]

    own, history = typer.Typer(), typer.Typer()
    history.command("show")(lambda: print("tt's show"))
    own.add_typer(history, name="history")
    module = import_module("tt_core.cli.app")
    monkeypatch.setattr(module, "app", own)
    monkeypatch.setattr(module, "Plugins", lambda: Plugins([("mine", Hooks())], installed=False))
    for _ in range(2):  # a process may call tt more than once
        module._add_commands()
    for words, said in (
        ("alone", "plug-in's alone"),
        ("history count", "plug-in's history count"),
        ("history show", "tt's show"),
        ("zoo feed", "plug-in's zoo feed"),
        ("zoo clean", "plug-in's zoo clean"),
    ):
        result = CliRunner().invoke(own, words.split())
        assert (result.exit_code, result.output) == (0, f"{said}\n")
    assert CliRunner().invoke(own, ["history", "--help"]).output.count("says history count") == 1
    assert "A group of commands: clean, feed" in CliRunner().invoke(own, ["--help"]).output


def test_lists_recipes_and_pieces():
    assert {r["name"] for r in json.loads(invoke("recipes", "--json"))} >= {"tt", "autotvm", "random"}
    assert "tt-core" in {p["distribution"] for p in json.loads(invoke("plugins", "--json"))["pieces"]}
