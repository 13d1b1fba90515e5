"""Keys: who may use a server, and what for.

A key is 256 random bits behind a public id, `tt-1f0c9a3b52d4-…`. It is shown once, when it is made; the service's file
holds its SHA-256 alone. Whoever reads that file can therefore use no key, and a key in a log is found by its form
(`HIDDEN`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import sqlite3
import stat
import threading
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from tt_spec.clock import Clock, WallClock
from tt_spec.errors import OptionError

from tt_service.database import connect, told
from tt_service.errors import ServiceError

__all__ = ["SCOPES", "Key", "Keys", "Who", "key_file", "key_for_client", "without_keys"]

SCOPES = {
    "jobs": "begin jobs, and steer one's own",
    "agent": "measure for others",
    "read": "read recipes and the shared history",
    "admin": "all of it, everybody's jobs too",
}
"""What a key may be for."""

HIDDEN = re.compile(r"\b(tt-[0-9a-f]{12})-[A-Za-z0-9_-]{20,}")
_KEY = re.compile(r"(tt-[0-9a-f]{12})-[A-Za-z0-9_-]{43}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LONGEST = 4096
"""Bytes of a client's key file that are read."""


@dataclass(frozen=True)
class Who:
    """Whoever stands behind a request.

    Args:
        name: The user; all keys of one name are one user's.
        key: The key's public id.
    """

    name: str
    scopes: frozenset[str]
    key: str = ""

    def may(self, scope: str) -> bool:
        """Whether the key is for this."""
        return scope in self.scopes or "admin" in self.scopes


@dataclass(frozen=True)
class Key:
    """A key as `tt key list` shows it; times are seconds since the epoch, None is never.

    Args:
        id: Its public part.
    """

    id: str
    name: str
    scopes: tuple[str, ...]
    created: float
    expires: float | None
    revoked: float | None

    def state(self, now: float) -> str:
        """Its state: "valid", "expired" or "revoked"."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "valid"


class Keys:
    """The keys of one server, in the table `keys` of the service's file, which is opened, or made, on first use.

    Nothing is remembered between two checks: a key that another process revokes is refused at once.

    Args:
        path: See `tt_service.database.path_of`.
        clock: Decides what is expired.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Clock | None = None) -> None:
        self.path = path
        self.clock = clock or WallClock()
        self._db: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def add(self, name: str, scopes: Iterable[str], for_s: float | None = None) -> str:
        """A new key, which is nowhere else and cannot be shown again.

        Args:
            for_s: Seconds until it expires; None is never.

        Raises `OptionError` for a name or scope that cannot be, `StoreError` if the file cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise OptionError(f"a key's name is 1 to 64 letters, digits, '.', '_' or '-', got {name[:80]!r}")
        wanted = sorted(set(scopes))
        if unknown := [s for s in wanted if s not in SCOPES]:
            raise OptionError(f"there is no scope {unknown[0]!r} (known: {', '.join(SCOPES)})")
        if not wanted:
            raise OptionError(f"a key needs a scope: --scope {','.join(list(SCOPES)[:2])}")
        if for_s is not None and not for_s > 0:
            raise OptionError(f"a key expires after some time, got {for_s:g} s")
        key_id, secret = f"tt-{secrets.token_hex(6)}", secrets.token_urlsafe(32)
        text, now = f"{key_id}-{secret}", self.clock.now()
        row = (key_id, name, _hashed(text), ",".join(wanted), now, None if for_s is None else now + for_s)
        with self._lock, told(self.path):
            self._opened().execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, NULL)", row)
        return text

    def check(self, text: str) -> Who | None:
        """Whoever has this key; None if it is none, expired or revoked. A wrong one takes as long as a right one."""
        match = _KEY.fullmatch(text)
        key_id = match[1] if match else "tt-none"
        with self._lock, told(self.path):
            query = "SELECT name, hash, scopes, expires, revoked FROM keys WHERE id = ?"
            found = self._opened().execute(query, (key_id,)).fetchone()
        name, kept, scopes, expires, revoked = found or ("", bytes(32), "", None, None)
        same = hmac.compare_digest(_hashed(text), kept)
        late = expires is not None and self.clock.now() >= expires
        if found is None or not same or revoked is not None or late:
            return None
        return Who(name, frozenset(scopes.split(",")), key_id)

    def listed(self) -> list[Key]:
        """All keys, the oldest first."""
        with self._lock, told(self.path):
            query = "SELECT id, name, scopes, created, expires, revoked FROM keys ORDER BY rowid"
            rows = self._opened().execute(query).fetchall()
        return [Key(i, name, tuple(scopes.split(",")), *times) for i, name, scopes, *times in rows]

    def revoke(self, which: str) -> list[Key]:
        """Revoke the key of that id, or all of that name; those that were valid until now.

        Raises `OptionError` if there is none. A whole key is refused without being repeated: it does not belong on a
        command line.
        """
        if _KEY.fullmatch(which):
            raise OptionError(f"revoke a key by its name or id, {which[:15]}, and never type the rest of it")
        matching = [k for k in self.listed() if which in (k.id, k.name)]
        if not matching:
            raise OptionError(f"no key has the name or id {which[:80]!r} (tt key list shows them)")
        valid = [k for k in matching if k.revoked is None]
        with self._lock, told(self.path):
            now = self.clock.now()
            self._opened().executemany("UPDATE keys SET revoked = ? WHERE id = ?", [(now, k.id) for k in valid])
        return valid

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._db is not None:
                self._db.close()
            self._db = None

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            db = connect(self.path)
            db.execute(
                "CREATE TABLE IF NOT EXISTS keys (id TEXT PRIMARY KEY, name TEXT NOT NULL, hash BLOB NOT NULL,"
                " scopes TEXT NOT NULL, created REAL NOT NULL, expires REAL, revoked REAL)"
            )
            self._db = db
        return self._db


def _hashed(text: str) -> bytes:
    """SHA-256: of 256 random bits nothing slower is needed."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def without_keys(text: str) -> str:
    """The text, of each key in it only the public id."""
    return HIDDEN.sub(r"\1-***", text)


# -- the client's side -------------------------------------------------------------------------------------------------


def key_file() -> Path:
    """The file in which a client's key is looked for: `~/.config/tt/key`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "tt" / "key"


def key_for_client(file: Path | None = None, environ: MutableMapping[str, str] = os.environ) -> str:
    """This client's key: TT_KEY, which programs that it starts do not inherit, or a file that nobody else can read.

    Args:
        file: The file; None is `key_file`, and TT_KEY comes before that.

    Raises `ServiceError` in one line, in which no key stands.
    """
    text = environ.pop("TT_KEY", None) if file is None else None
    where = "TT_KEY"
    if text is None:
        file = file or key_file()
        text, where = _read(file), str(file)
    if not _KEY.fullmatch(text.strip()):
        raise ServiceError(f"{where} holds no key: tt key add makes one, tt-<12 digits>-<43 characters>")
    return text.strip()


def _read(file: Path) -> str:
    """The file's text, if it is this user's and nobody else can read it."""
    try:
        opened = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError as e:
        raise ServiceError(f"a server wants a key: set TT_KEY, or put it into {file} and chmod 600 {file}") from e
    except OSError as e:
        raise ServiceError(f"{file}: {e.strerror}; it should hold this client's key") from e
    try:
        about = os.fstat(opened)
        if not stat.S_ISREG(about.st_mode):
            raise ServiceError(f"{file} is no file; it should hold this client's key")
        if os.name == "posix" and about.st_uid != os.geteuid():
            raise ServiceError(f"{file} belongs to another user; the key must be in a file of yours")
        if os.name == "posix" and about.st_mode & 0o077:
            mode = stat.S_IMODE(about.st_mode)
            raise ServiceError(f"{file} can be read by others (mode {mode:03o}): chmod 600 {file}")
        return os.read(opened, _LONGEST).decode("utf-8", "replace")
    finally:
        os.close(opened)
