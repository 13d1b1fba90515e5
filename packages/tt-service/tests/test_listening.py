"""Where keys may travel, and that no log says one."""

from __future__ import annotations

import io
import logging
import logging.config
import subprocess

import pytest
from tt_service.listening import Listening, NoKeys, loopback, server_url
from tt_spec.errors import FileError, OptionError, UserError

KEY = "tt-0123456789ab-" + "k" * 43


def refusal(kind: type[UserError], call, *arguments, **options) -> str:
    with pytest.raises(kind) as e:
        call(*arguments, **options)
    text = str(e.value)
    assert "\n" not in text and "kkkk" not in text and "hunter2" not in text
    return text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_plain_http_is_for_this_machine(host):
    assert loopback(host) and Listening(host).checked().host == host
    assert server_url(f"http://{f'[{host}]' if ':' in host else host}:8420/").endswith(":8420")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "no-such-host.invalid", ""])
def test_other_machines_need_tls(host):
    assert not loopback(host)
    assert "in plain text" in refusal(OptionError, Listening(host).checked)
    assert Listening(host, insecure=True).checked().options()["host"] == host


def test_a_certificate_makes_it_https(tmp_path):
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    make += ["-subj", "/CN=tt", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(make, check=True, capture_output=True)
    listening = Listening("0.0.0.0", 1, cert, key).checked()
    options = listening.options()
    assert (options["ssl_certfile"], options["ssl_keyfile"]) == (str(cert), str(key))
    assert listening.url == "https://0.0.0.0:1"
    assert "belong together" in refusal(OptionError, Listening(tls_cert=cert).checked)
    assert "missing.pem: No such file" in refusal(
        FileError, Listening(tls_cert=cert, tls_key=tmp_path / "missing.pem").checked
    )
    key.write_text("no key")
    assert "no certificate with its private key" in refusal(FileError, Listening(tls_cert=cert, tls_key=key).checked)


def test_a_proxy_is_believed_only_if_told_to():
    assert Listening().options()["proxy_headers"] is False
    options = Listening(proxy_headers=True).options()
    assert options["proxy_headers"] and options["forwarded_allow_ips"] == "127.0.0.1,::1"


def test_a_client_sends_its_key_over_a_network_by_tls_alone():
    assert server_url("https://tune.example.org") == "https://tune.example.org"
    assert server_url("http://192.0.2.7:8420", insecure=True) == "http://192.0.2.7:8420"
    assert "in plain text" in refusal(OptionError, server_url, "http://192.0.2.7:8420")


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:8420",
        "ftp://127.0.0.1",
        "http://",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://[::1",
        f"http://{KEY}@127.0.0.1",
        "ftp://ada:hunter2@127.0.0.1",
        "http://ada:hunter2@127.0.0.1",
        f"http://127.0.0.1/?key={KEY}",
        "http://127.0.0.1/#x",
        "",
    ],
)
def test_what_is_no_address_of_a_server_is_refused(text):
    assert "server" in refusal(OptionError, server_url, text)


@pytest.fixture
def log():
    """What uvicorn's loggers, set up as the server does, write of a record."""
    names = ["", "uvicorn", "uvicorn.error", "uvicorn.access", "tt_service"]
    before = {
        n: (logging.getLogger(n).handlers[:], logging.getLogger(n).level, logging.getLogger(n).propagate) for n in names
    }
    logging.config.dictConfig(Listening().options()["log_config"])
    stream = io.StringIO()
    for name in names:
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler, logging.StreamHandler) and type(handler.formatter).__module__.startswith("uvicorn"):
                handler.setStream(stream)

    def written(name, level, *record, **options):
        begin = stream.tell()
        logging.getLogger(name).log(level, *record, **options)
        said = stream.getvalue()[begin:]
        assert said, "it is written at all"
        return said

    yield written
    for n, (handlers, level, propagate) in before.items():
        logger = logging.getLogger(n)
        logger.handlers, logger.level, logger.propagate = handlers, level, propagate


def test_no_log_says_a_key(log):
    said = [
        log(
            "uvicorn.access", logging.INFO, '%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", f"/v1?key={KEY}", "1.1", 401
        ),
        log("uvicorn.error", logging.INFO, f"got {KEY}"),
        log("uvicorn.error", logging.INFO, "headers %s", [(b"authorization", b"Bearer hunter2"), (b"x", b"y")]),
        log("uvicorn.error", logging.INFO, "Authorization: %s", "Bearer hunter2"),
        log("tt_service", logging.ERROR, "%(key)s of %(n)d", {"key": KEY, "n": 3}),
        log("tt_service", logging.ERROR, "%d %d", KEY),
    ]
    try:
        raise ValueError(f"of {KEY}")
    except ValueError:
        said.append(log("tt_service", logging.ERROR, "failed", exc_info=True))
    assert [text for text in said if "kkkk" in text or "hunter2" in text] == []
    assert "/v1?key=tt-0123456789ab-***" in said[0] and "401" in said[0] and "Traceback" in said[-1]


def test_other_records_are_left_as_they_are():
    record = logging.LogRecord("x", logging.INFO, "", 1, "%s of %d", ("a", 3), None)
    assert NoKeys().filter(record) and (record.msg, record.args) == ("%s of %d", ("a", 3))
