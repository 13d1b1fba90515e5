"""Keys: made once, kept as hashes, checked, expired, revoked; and how a client finds its own."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path

import pytest
from tt_service.keys import Keys, key_for_client, without_keys
from tt_spec import StoreError, UserError, VirtualClock
from tt_spec.errors import OptionError


@pytest.fixture
def clock():
    return VirtualClock(1e9)


@pytest.fixture
def keys(tmp_path, clock):
    made = Keys(tmp_path / "shared.db.service", clock)
    yield made
    made.close()


def test_a_key_is_its_users_and_for_its_scopes(keys):
    text = keys.add("ada", ["jobs", "agent"])
    who = keys.check(text)
    assert (who.name, who.scopes) == ("ada", {"jobs", "agent"}) and text.startswith(who.key)
    assert who.may("jobs") and not who.may("read")
    assert keys.check(keys.add("root", ["admin"])).may("read")


def test_keys_are_256_bits_and_never_the_same(keys):
    made = {keys.add("ada", ["read"]) for _ in range(20)}
    assert len(made) == 20 and all(re.fullmatch(r"tt-[0-9a-f]{12}-[A-Za-z0-9_-]{43}", text) for text in made)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda text: "",
        lambda text: text[:-1],
        lambda text: text + "A",
        lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"),
        lambda text: text[:16] + "A" * 43,
        lambda text: "tt-000000000000" + text[15:],
        lambda text: text[:15],
        lambda text: text.upper(),
        lambda text: "\udc80" + text,
        lambda text: text + "\0",
        lambda text: "tt-%' OR 1=1 --",
    ],
)
def test_what_is_nearly_a_key_is_none(keys, wrong):
    text = keys.add("ada", ["jobs"])
    assert keys.check(wrong(text)) is None and keys.check(text) is not None


def test_the_file_holds_no_key_and_is_its_owners_alone(keys, tmp_path):
    text = keys.add("ada", ["jobs"])
    keys.close()
    files = list(tmp_path.iterdir())
    secret = text[16:].encode()
    assert files and not any(secret in f.read_bytes() for f in files)
    assert all(f.stat().st_mode & 0o077 == 0 for f in files)


def test_a_hash_is_compared_in_constant_time_whether_the_id_is_known_or_not(keys, monkeypatch):
    compared = []
    monkeypatch.setattr("tt_service.keys.hmac.compare_digest", lambda a, b: compared.append((len(a), len(b))) or a == b)
    text = keys.add("ada", ["jobs"])
    assert keys.check(text) is not None
    for wrong in ("", "x", "tt-000000000000-" + "A" * 43, text[:-2] + "zz"):
        assert keys.check(wrong) is None
    assert compared == [(32, 32)] * 5


def test_a_key_expires_by_the_servers_clock(keys, clock):
    text = keys.add("ada", ["jobs"], 60.0)
    clock.advance(59.9)
    assert keys.check(text) is not None and keys.listed()[0].state(clock.now()) == "valid"
    clock.advance(0.1)
    assert keys.check(text) is None and keys.listed()[0].state(clock.now()) == "expired"


def test_what_another_process_revokes_is_refused_at_once(keys):
    first, second, other = keys.add("ada", ["jobs"]), keys.add("ada", ["read"]), keys.add("bob", ["jobs"])
    assert keys.check(first) is not None
    elsewhere = Keys(keys.path, keys.clock)
    assert [k.id for k in elsewhere.revoke(first[:15])] == [first[:15]]
    assert keys.check(first) is None and keys.check(second) is not None
    assert [k.name for k in elsewhere.revoke("ada")] == ["ada"], "the other was revoked before"
    elsewhere.close()
    assert keys.check(second) is None and keys.check(other) is not None
    assert [k.state(0) for k in keys.listed()] == ["revoked", "revoked", "valid"]
    assert keys.revoke("ada") == []


@pytest.mark.parametrize("name", ["", "a b", "../../etc/passwd", "-x", "a" * 65, "é", "a\n", "a/b"])
def test_a_name_that_is_none_is_refused(keys, name):
    with pytest.raises(OptionError, match="a key's name is"):
        keys.add(name, ["jobs"])


def test_wrong_scopes_and_times_are_refused(keys):
    for scopes, says in ((["job"], "there is no scope 'job'"), ([], "needs a scope")):
        with pytest.raises(OptionError, match=says):
            keys.add("ada", scopes)
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(OptionError, match="expires after some time"):
            keys.add("ada", ["jobs"], seconds)
    with pytest.raises(OptionError, match="no key has the name or id 'eve'"):
        keys.revoke("eve")
    assert keys.listed() == []


def test_a_whole_key_is_not_taken_and_not_repeated(keys):
    text = keys.add("ada", ["jobs"])
    with pytest.raises(OptionError) as e:
        keys.revoke(text)
    assert text[:15] in str(e.value) and text[16:] not in str(e.value)


def test_a_file_that_is_no_database_is_a_store_error(tmp_path):
    (tmp_path / "x").write_text("no database at all, but long enough to be asked what it is" * 20)
    with pytest.raises(StoreError):
        Keys(tmp_path / "x").check("tt-0")


def test_another_process_writes_while_this_one_checks(keys):
    text = keys.add("ada", ["jobs"])
    other = sqlite3.connect(keys.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert keys.check(text) is not None
    other.execute("COMMIT")
    other.close()


def test_a_key_in_a_text_is_cut_to_its_id(keys):
    text = keys.add("ada", ["jobs"])
    said = without_keys(f"GET /?key={text} from {text}.")
    assert said == f"GET /?key={text[:15]}-*** from {text[:15]}-***."


# -- the client's side -------------------------------------------------------------------------------------------------

KEY = "tt-0123456789ab-" + "k" * 43


def refusal(file: Path | None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(UserError) as e:
        key_for_client(file, {} if environ is None else environ)
    text = str(e.value)
    assert "\n" not in text and "kkkk" not in text
    return text


def test_the_environment_gives_its_key_once(tmp_path):
    environ = {"TT_KEY": f" {KEY}\n", "HOME": "/"}
    assert key_for_client(None, environ) == KEY and environ == {"HOME": "/"}, (
        "what is started later does not inherit it"
    )
    assert "TT_KEY holds no key" in refusal(None, {"TT_KEY": KEY + "kkkk"})


def test_a_file_that_only_its_owner_reads_gives_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "tt" / "key"
    assert f"put it into {path} and chmod 600" in refusal(None, {})
    path.parent.mkdir()
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    assert key_for_client(None, {}) == KEY
    assert key_for_client(path, {"TT_KEY": "ignored"}) == KEY
    for mode in (0o640, 0o604, 0o660, 0o610):
        path.chmod(mode)
        assert f"(mode {mode:03o}): chmod 600 {path}" in refusal(path)


def test_what_is_no_key_file_is_refused(tmp_path):
    assert "is no file" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "is no file" in refusal(tmp_path / "pipe")
    (tmp_path / "text").write_text("kkkk" * 10_000)
    (tmp_path / "text").chmod(0o600)
    assert "holds no key" in refusal(tmp_path / "text")


def test_a_file_of_another_user_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "key"
    path.write_text(KEY)
    path.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert "belongs to another user" in refusal(path)
