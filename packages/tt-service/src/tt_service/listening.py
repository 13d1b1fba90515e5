"""Where a server may listen, where a client may send its key, and what of both goes into a log.

A key crosses a network only under TLS: plain HTTP is for one machine, unless `--insecure` says otherwise.
"""

from __future__ import annotations

import copy
import ipaddress
import logging
import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tt_spec.errors import FileError, OptionError

from tt_service.keys import without_keys

__all__ = ["Listening", "NoKeys", "loopback", "server_url"]

_AUTHORIZATION = re.compile(r"(authorization['\"]?\s*[:=,]\s*)(?:b?'[^']*'|b?\"[^\"]*\"|[^\r\n]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Listening:
    """Where a server listens, as it is asked for.

    Args:
        tls_cert: Certificates, PEM, with `tls_key`; without them the server speaks plain HTTP.
        insecure: Plain HTTP for other machines, too: somebody else takes care of TLS.
        proxy_headers: Believe a proxy on this machine what it says of addresses (X-Forwarded-For).
    """

    host: str = "127.0.0.1"
    port: int = 8420
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    proxy_headers: bool = False

    def checked(self) -> Listening:
        """Itself. Raises `OptionError` where keys would cross a network in plain text, `FileError` for certificates
        that cannot be used."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise OptionError("--tls-cert and --tls-key belong together: a certificate and its private key, PEM files")
        if self.tls_cert is not None:
            _check_tls(self.tls_cert, self.tls_key)
        elif not self.insecure and not loopback(self.host):
            raise OptionError(
                f"on {self.host} other machines would send their keys in plain text: give --tls-cert and --tls-key,"
                " or let a proxy on this machine do TLS, or --insecure"
            )
        return self

    @property
    def url(self) -> str:
        """For clients on this machine."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls_cert else ''}://{host}:{self.port}"

    def options(self) -> dict[str, Any]:
        """Keywords for `uvicorn.Config`."""
        from tt_service.heads import Heads  # a client needs no uvicorn

        tls = {} if self.tls_cert is None else {"ssl_certfile": str(self.tls_cert), "ssl_keyfile": str(self.tls_key)}
        return {
            "host": self.host,
            "port": self.port,
            "proxy_headers": self.proxy_headers,
            "forwarded_allow_ips": "127.0.0.1,::1",
            "server_header": False,
            "http": Heads,
            "log_config": _log_config(),
            **tls,
        }


def loopback(host: str) -> bool:
    """Whether a name or address is this machine's alone, whatever it resolves to."""
    try:
        found = {str(about[4][0]).partition("%")[0] for about in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(ipaddress.ip_address(address).is_loopback for address in found)


def server_url(text: str, insecure: bool = False) -> str:
    """A server's address as a client may use it, without a slash at its end. Raises `OptionError`."""
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError:
        host, port, url = None, None, urlsplit("")
    if url.scheme not in ("http", "https") or not host or port == 0:
        raise OptionError(
            f"a server is http://HOST:PORT or https://HOST:PORT, got {without_keys(_hidden(text))[:80]!r}"
        )
    if "@" in url.netloc or url.query or url.fragment:
        raise OptionError(
            "a server's address has neither user, password, query nor fragment: the key is in TT_KEY or a file"
        )
    if url.scheme == "http" and not insecure and not loopback(host):
        raise OptionError(
            f"{host} is another machine, and http would send it the key in plain text: https, or --insecure"
        )
    return text.rstrip("/")


def _hidden(text: str) -> str:
    """The text without what stands before an "@", which may be a password."""
    return text.rpartition("@")[2]


def _check_tls(cert: Path, key: Path | None) -> None:
    def password() -> str:
        raise FileError(f"{key}: a private key with a password; the server cannot ask for it")

    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key, password)
    except ssl.SSLError as e:
        raise FileError(f"{cert} and {key}: no certificate with its private key ({e.reason or e})") from e
    except OSError as e:
        which = next((p for p in (cert, key) if p is not None and not p.is_file()), cert)
        raise FileError(f"{which}: {e.strerror}; --tls-cert and --tls-key name PEM files") from e


class NoKeys(logging.Filter):
    """A filter that leaves of every key its public id, and of an Authorization header nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_text = record.exc_text and _unsaid(record.exc_text)
        if isinstance(record.args, tuple):  # one by one: uvicorn's access log formats them itself
            record.args = tuple(a if (kept := _unsaid(str(a))) == str(a) else kept for a in record.args)
        try:
            said = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit
            record.msg, record.args = _unsaid(f"{record.msg} {record.args!r}"), ()
            return True
        if record.name != "uvicorn.access" and (kept := _unsaid(said)) != said:
            record.msg, record.args = kept, ()
        return True


def _unsaid(text: str) -> str:
    return without_keys(_AUTHORIZATION.sub(r"\1***", text))


def _log_config() -> dict[str, Any]:
    """uvicorn's own, with `NoKeys` before every handler."""
    from uvicorn.config import LOGGING_CONFIG

    config = copy.deepcopy(LOGGING_CONFIG)
    config["filters"] = {"keys": {"()": "tt_service.listening.NoKeys"}}
    for handler in config["handlers"].values():
        handler["filters"] = ["keys"]
    config["loggers"]["tt_service"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    return config
