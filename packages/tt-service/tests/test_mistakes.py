"""Mistakes at the command are one line that says what to do, and exit code 9."""

from __future__ import annotations

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from tt_service.cli import run
from tt_service.listening import Listening
from tt_service_house import house


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    with house(tmp_path_factory.mktemp("plain")) as here:
        yield here


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A server whose certificate nobody has signed who is trusted."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "c.pem", folder / "k.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    make += ["-subj", "/CN=tt", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(make, check=True, capture_output=True)
    with house(folder, listening=Listening("127.0.0.1", 0, cert, key)) as here:
        yield here, cert


@pytest.fixture
def other():
    """A server that answers everything with what it is given."""

    answers: dict[str, tuple[int, Any]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = answers.get(self.path, (404, "<html>nothing here</html>"))
            content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_request(self, code: Any = "-", size: Any = "-") -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    server.server_close()


@pytest.fixture
def refused(tmp_path, capsys):
    """The line of a command that a server refuses; `code` 0 for one that it does not."""

    def told(url, key, *words, code=9):
        (tmp_path / "key").write_text(key)
        (tmp_path / "key").chmod(0o600)
        found = run([*(words or ("jobs", "list")), "--server", url, "--key-file", str(tmp_path / "key")])
        return line(found, code)

    def line(found, code):
        out, err = capsys.readouterr()
        assert found == code, err
        if code:
            assert not out and err.count("\n") == 1 and err.startswith("tt-server: "), err
        return err

    return told


def test_no_server_and_keys_that_it_does_not_accept(plain, refused):
    wrong = plain.key[:-1] + ("A" if plain.key[-1] != "A" else "B")
    for command in ("list", "show abcdef", "pause abcdef", "cancel abcdef"):
        assert "does not accept this key: set TT_KEY" in refused(plain.url, wrong, "jobs", *command.split())
    assert "no server answers at http://127.0.0.1:9 (" in refused("http://127.0.0.1:9", wrong)
    assert "there is no job 'abcdef'" in refused(plain.url, plain.key, "jobs", "show", "abcdef")
    refused(plain.url, plain.key, code=0)


def test_tls_that_is_refused_says_what_to_do(plain, secured, refused, monkeypatch):
    here, cert = secured
    there = f"127.0.0.1:{here.server.port}"
    assert "SSL_CERT_FILE=ca.pem names who did" in refused(f"https://{there}", here.key)
    assert "is it https:// there?" in refused(f"http://{there}", here.key)
    assert "is it http:// there?" in refused(plain.url.replace("http:", "https:"), here.key)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    refused(f"https://{there}", here.key, code=0)


def test_servers_of_other_versions_and_of_others(other, refused, plain):
    url, answers = other
    hello = {"version": "9", "capabilities": [], "lease_s": 1, "heartbeat_s": 1, "body_bytes": 1, "job_bytes": 1}
    for found, said in (
        ((404, "<html></html>"), "is no tt server"),
        ((200, "<html></html>"), "is no tt server"),
        ((200, {"protocol": 0, "oldest": 0}), "upgrade tt-service on the server"),
        ((200, {"protocol": 9, "oldest": 8}), "pip install --upgrade tt-service"),
    ):
        answers["/v1"] = found
        assert said in refused(url, plain.key)
    answers |= {"/v1": (200, {"protocol": 1, "oldest": 1, **hello}), "/v1/jobs": (200, [{"id": 1}])}
    assert "answers what this tt-service does not understand (0.id: " in refused(url, plain.key)
