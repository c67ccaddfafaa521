from __future__ import annotations

import base64
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from prontosched.agent.http.api import build_app
from prontosched.agent.http.auth import Access, loopback, read_token, split_address, tls_context
from prontosched.agent.store import read_address
from prontosched.cli.status import NO_ANSWER
from prontosched.errors import SettingsError
from tests.agent.machine import Machine, make_agent
from tests.agent.test_api import asking
from tests.processes import called, free_port, started, wait_for
from tests.requirements import require_program

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *(require_program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        capture_output=True,
        check=True,
    )
    return folder


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org"])
def test_beyond_loopback_without_token_and_tls_it_refuses_to_start(host):
    with pytest.raises(
        SettingsError, match=r"needs a token and TLS, got .* without --token-file and --tls-cert"
    ):
        Access(host)


def test_a_token_alone_is_not_enough_beyond_loopback():
    with pytest.raises(SettingsError, match="without --tls-cert with --tls-key: give them"):
        Access("0.0.0.0", token=TOKEN)


def test_tls_alone_is_not_enough_beyond_loopback(certificate):
    with pytest.raises(SettingsError, match="without --token-file: give them"):
        Access("0.0.0.0", tls=tls_context(certificate / "cert.pem", certificate / "key.pem"))


def test_with_both_it_may_listen_anywhere(certificate):
    tls = tls_context(certificate / "cert.pem", certificate / "key.pem")

    assert Access("0.0.0.0", token=TOKEN, tls=tls).scheme == "https"
    assert tls.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("host", "own"), [("127.8.9.1", True), ("[::1]", True), ("LOCALHOST", True), ("1.2.3.4", False)]
)
def test_loopback_is_told_from_the_rest(host, own):
    assert loopback(host) is own


@pytest.mark.parametrize("text", ["", "host", "host:port", "host:70000", "::1:7077", "host:-1"])
def test_a_bad_address_is_refused(text):
    with pytest.raises(SettingsError, match="HOST:PORT"):
        split_address(text)


def test_a_short_token_is_refused(tmp_path):
    (tmp_path / "token").write_text("secret\n")
    with pytest.raises(SettingsError, match="at least 16 printable characters, got 6"):
        read_token(tmp_path / "token")


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": TOKEN},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Bearer \u00e9".encode().decode("latin-1")},
    ],
)
def test_without_the_token_nothing_is_told(header):
    async def ask(client):
        found = {}
        for path in ("/v1/decision", "/v1/status", "/metrics", "/openapi.json", "/v1/stream"):
            response = await client.get(path, headers=header)
            found[path] = (response.status, "WWW-Authenticate" in response.headers)
        return found

    found = asking(ask, access=Access(token=TOKEN))
    assert set(found.values()) == {(401, True)}


@pytest.mark.parametrize(
    "value",
    [f"Bearer {TOKEN}", f"bearer {TOKEN}", "Basic " + base64.b64encode(f"me:{TOKEN}".encode()).decode()],
)
def test_the_token_opens_as_bearer_or_as_a_password(value):
    async def ask(client):
        return (await client.get("/v1/decision", headers={"Authorization": value})).status

    assert asking(ask, access=Access(token=TOKEN)) == 200


def test_health_needs_no_token():
    async def ask(client):
        return (await client.get("/healthz")).status

    assert asking(ask, access=Access(token=TOKEN)) == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7077", "127.0.0.1.evil.example", "[::1", ""])
def test_a_name_of_someone_else_is_refused_on_loopback(host):
    """DNS rebinding: a page's own name that resolves to 127.0.0.1."""

    async def ask(client):
        return (await client.get("/v1/decision", headers={"Host": host})).status

    assert asking(ask) == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:99", "[::1]:7077"])
def test_names_of_this_machine_are_served(host):
    async def ask(client):
        return (await client.get("/v1/decision", headers={"Host": host})).status

    assert asking(ask) == 200


def test_pages_of_another_origin_cannot_announce_jobs():
    async def ask(client):
        response = await client.post("/v1/jobs", json={"id": "a"}, headers={"Origin": "http://evil.example"})
        return response.status

    assert asking(ask) == 403


def test_routes_mounted_from_outside_stand_under_the_same_rules():
    from aiohttp import web

    async def page(request):
        return web.Response(text="hello")

    async def ask(client):
        without = await client.get("/page")
        having = await client.get("/page", headers={"Authorization": f"Bearer {TOKEN}"})
        return without.status, having.status, having.headers["X-Content-Type-Options"]

    assert asking(ask, access=Access(token=TOKEN), extra=[web.get("/page", page)]) == (401, 200, "nosniff")


def test_an_agent_that_is_not_trusted_is_not_said_to_be_none(certificate, tmp_path):
    """Whoever runs it with a certificate of his own is told what to give, and a job is not kept waiting."""
    tls = ("--tls-cert", str(certificate / "cert.pem"), "--tls-key", str(certificate / "key.pem"))
    asked = ("--state", str(tmp_path))
    trusting = (*asked, "--ca", str(certificate / "cert.pem"))
    with started("agent", *tls, "--listen", f"127.0.0.1:{free_port()}", "--no-probe", *asked):
        # Where none answers yet, `status` watches by itself.
        wait_for(lambda: "no agent" not in called("status", *trusting).stderr, what="an answer over TLS")
        status, checked = called("status", *asked), called("check", *asked)
        ran = subprocess.run(
            [sys.executable, "-m", "prontosched", "run", *asked, "--patience", "10s", "--", "echo", "done"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    assert status.returncode == NO_ANSWER
    assert "must be trusted, got self-signed certificate" in status.stderr
    assert "the agent cannot be asked: the certificate of https://127.0.0.1" in checked.stdout
    assert "no agent answers" not in checked.stdout
    assert ran.stdout == "done\n"
    assert "with --ca: watching this machine for a few seconds" in ran.stderr
    assert "no agent answers" not in ran.stderr


def test_a_folder_that_may_not_be_entered_has_no_address(tmp_path, monkeypatch):
    """As for an ordinary user who names the folder of the service."""

    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)

    assert read_address(tmp_path) is None


def test_tls_is_served(certificate):
    import asyncio

    tls = tls_context(certificate / "cert.pem", certificate / "key.pem")
    trust = ssl.create_default_context(cafile=str(certificate / "cert.pem"))

    async def go():
        agent = make_agent(Machine())
        server = TestServer(build_app(agent, Access(token=TOKEN, tls=tls)), scheme="https")
        await server.start_server(ssl=tls)
        async with TestClient(server) as client:
            response = await client.get(
                "/v1/decision", ssl=trust, headers={"Authorization": f"Bearer {TOKEN}"}
            )
            status = response.status
        await agent.close()
        return status

    assert asyncio.run(go()) == 200
