"""`tt key add|list|revoke`."""

from __future__ import annotations

import json

import pytest
import typer
from tt_service.database import path_of
from tt_service.key_commands import COMMANDS
from tt_service.keys import Keys
from tt_spec.errors import OptionError
from typer.testing import CliRunner

app = typer.Typer()
for name, command in COMMANDS.items():
    app.command(name)(command)


@pytest.fixture
def call(tmp_path):
    """A command on the server's history; what it says."""

    def run(*arguments: str):
        done = CliRunner().invoke(app, [*arguments, "--history", str(tmp_path / "shared.db")], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done

    return run


def test_a_key_is_printed_once_and_works(call, tmp_path):
    done = call("add", "ada", "--scope", "jobs, agent", "--expires", "90d")
    key = done.stdout.strip()
    keys = Keys(path_of(tmp_path / "shared.db"))
    who = keys.check(key)
    assert who is not None and (who.name, who.scopes) == ("ada", {"jobs", "agent"})
    (listed,) = keys.listed()
    assert listed.expires is not None and 89.9 * 86400 < listed.expires - listed.created < 90.1 * 86400
    assert "not shown again" in done.stderr and key not in done.stderr
    table = call("list").stdout
    assert key[:15] in table and key[16:] not in table and "agent,jobs" in table and "valid" in table
    assert call("revoke", "ada").stdout == f"revoked {key[:15]} of ada\n" and keys.check(key) is None
    assert call("revoke", key[:15]).stdout == f"{key[:15]} was revoked before\n"
    (told,) = json.loads(call("list", "--json").stdout)
    assert (told["name"], told["state"], told["scopes"]) == ("ada", "revoked", ["agent", "jobs"])
    keys.close()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["add", "../etc/passwd"], "a key's name is"),
        (["add", "ada", "--scope", "root"], "there is no scope 'root'"),
        (["add", "ada", "--scope", ","], "needs a scope"),
        (["add", "ada", "--expires", "tomorrow"], "--expires is a number"),
        (["add", "ada", "--expires", "0d"], "--expires is a number"),
        (["add", "ada", "--expires", "999999999w"], "at most 100 years"),
        (["list"], "no keys are here"),
        (["revoke", "ada"], "no keys are here"),
    ],
)
def test_mistakes_are_one_line_and_make_no_file(call, tmp_path, arguments, says):
    with pytest.raises(OptionError) as e:
        call(*arguments)
    assert says in str(e.value) and "\n" not in str(e.value)
    assert list(tmp_path.iterdir()) == []
