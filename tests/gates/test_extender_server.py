"""The extender on real sockets: asked as a scheduler asks, fed by agents on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner

from prontosched.cli.extender import build, command
from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.agent_client import Addresses, PolledDecisions
from prontosched.gates.extender import BODY_LIMIT, Extender, Ledger, RefusalChange
from prontosched.gates.gate import Verdict
from prontosched.gates.policy import Rules
from tests.gates.verdicts import RECORDED, GivenDecisions, busy
from tests.processes import free_port, wait_for
from tests.requirements import require_program

QUICK = Rules(enforce=True, veto=True, min_hold_seconds=0.0, min_accept_seconds=0.0, max_refusing=0.5)
SHADOW = Rules(enforce=False, veto=True, min_hold_seconds=0.0, min_accept_seconds=0.0, max_refusing=0.5)
SECRETS = {"token-file": "token", "tls-cert": "tls.crt", "tls-key": "tls.key"}
NAMES = (RECORDED / "filter-names.json").read_bytes()


@asynccontextmanager
async def serving(application: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def ask(url: str, body: bytes) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url, data=body) as answer:
        return answer.status, await answer.json()


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        await asyncio.sleep(0.01)


def with_extender(
    verdicts: dict[str, Verdict],
    check: Callable[[str, Extender], Awaitable[None]],
    *,
    rules: Rules = QUICK,
    announce: Callable[[Any], None] | None = None,
) -> None:
    async def run() -> None:
        extender = Extender(Ledger(GivenDecisions(verdicts), rules), announce=announce)
        async with serving(extender.application()) as url:
            await check(url, extender)

    asyncio.run(run())


def test_recorded_request_is_answered_with_status_200_without_the_busy_node() -> None:
    async def check(url: str, extender: Extender) -> None:
        await ask(url + "/filter", NAMES)
        await extender.settle()
        status, answer = await ask(url + "/filter", NAMES)

        assert (status, answer["NodeNames"]) == (200, ["n4"])
        assert answer["FailedAndUnresolvableNodes"] == {"n1": "pronto: cpu_user is rising"}

    with_extender({"n1": busy()}, check)


def test_recorded_priority_request_prefers_the_quiet_node() -> None:
    async def check(url: str, extender: Extender) -> None:
        await ask(url + "/filter", NAMES)
        await extender.settle()
        _, answer = await ask(url + "/prioritize", (RECORDED / "prioritize-nodes.json").read_bytes())
        scores = {row["Host"]: row["Score"] for row in answer}

        assert scores == {"n4": 9, "n1": 2}

    with_extender({"n1": busy(), "n4": Verdict(False, 0.1, "quiet", time.time() + 60)}, check)


def test_shadow_mode_passes_every_node_with_equal_scores_and_still_shows_who_would_refuse() -> None:
    async def check(url: str, extender: Extender) -> None:
        await ask(url + "/filter", NAMES)
        await extender.settle()
        _, filtered = await ask(url + "/filter", NAMES)
        _, ranked = await ask(url + "/prioritize", NAMES)
        async with aiohttp.ClientSession() as session, session.get(url + "/v1/nodes") as answer:
            shown = await answer.json()

        assert filtered["NodeNames"] == ["n4", "n1"]
        assert len({row["Score"] for row in ranked}) == 1
        assert shown["mode"] == "shadow"
        assert shown["nodes"]["n1"]["refuse"] is True

    with_extender({"n1": busy()}, check, rules=SHADOW, announce=lambda changes: pytest.fail("told someone"))


def test_best_nodes_and_placed_jobs_are_served() -> None:
    async def check(url: str, extender: Extender) -> None:
        await ask(url + "/filter", NAMES)
        placed = json.dumps({"id": "j1", "node": "n4", "cpus": 2}).encode()
        assert await ask(url + "/v1/jobs", placed) == (200, {"counted": True})
        async with aiohttp.ClientSession() as session, session.get(url + "/v1/best?limit=1") as answer:
            (best,) = (await answer.json())["nodes"]
        assert (best["node"], best["state"], round(best["placed_cpus"])) == ("n4", "accepting", 2)
        assert 0.1 < best["chance"] < 0.4
        async with aiohttp.ClientSession() as session, session.get(url + "/v1/best?limit=many") as answer:
            assert (answer.status, "limit must be a number" in (await answer.json())["Error"]) == (400, True)
        assert (await ask(url + "/v1/jobs", b'{"id": 3}'))[0] == 400

    with_extender({"n1": busy(), "n4": Verdict(False, 0.1, "quiet", time.time() + 60)}, check)


def test_pods_asked_for_one_after_another_spread_over_calm_nodes() -> None:
    async def check(url: str, extender: Extender) -> None:
        request = json.loads((RECORDED / "prioritize-names.json").read_text())
        request["Pod"]["spec"]["containers"] = [{"resources": {"requests": {"cpu": "2"}}}]
        best = []
        for number in range(4):
            request["Pod"]["metadata"]["uid"] = f"pod-{number}"
            _, answer = await ask(url + "/prioritize", json.dumps(request).encode())
            best.append(max(answer, key=lambda row: row["Score"])["Host"])

        assert set(best) == {"n1", "n4"}

    quiet = {
        name: Verdict(False, chance, "", time.time() + 60) for name, chance in (("n1", 0.05), ("n4", 0.2))
    }
    with_extender(quiet, check)


def test_stale_verdict_counts_as_no_verdict() -> None:
    async def check(url: str, extender: Extender) -> None:
        await ask(url + "/filter", NAMES)
        await extender.settle()
        _, answer = await ask(url + "/filter", NAMES)

        assert answer["NodeNames"] == ["n4", "n1"]

    with_extender({"n1": busy(-1.0)}, check)


@pytest.mark.parametrize(
    "body", [b"", b"not json", b"[1]", b'{"Pod": 1}', b"[" * 100_000, b'{"Pod": {}, "Nodes": 3}']
)
def test_body_that_cannot_be_read_is_refused_with_status_400(body: bytes) -> None:
    async def check(url: str, extender: Extender) -> None:
        status, answer = await ask(url + "/filter", body)

        assert status == 400
        assert answer["Error"]
        assert extender.counts["malformed"] == 1

    with_extender({}, check)


def test_body_beyond_the_limit_is_refused_before_it_is_read() -> None:
    async def run() -> None:
        extender = Extender(Ledger(GivenDecisions({}), QUICK))
        assert extender.application()._client_max_size == BODY_LIMIT
        application = extender.application()
        application._client_max_size = 1000
        async with serving(application) as url, aiohttp.ClientSession() as session:
            answer = await session.post(url + "/filter", data=b"x" * 2000)
            assert answer.status == 413
            answer.release()

    asyncio.run(run())


def test_change_is_announced_and_a_failing_api_server_does_not_stop_the_answers() -> None:
    told: list[RefusalChange] = []

    def announce(changes: Any) -> None:
        told.extend(changes)
        raise IntegrationError("API server is away")

    verdicts = {"n1": busy()}

    async def check(url: str, extender: Extender) -> None:
        await ask(url + "/filter", NAMES)
        await until(lambda: [(c.node, c.refuse) for c in told] == [("n1", True)])
        verdicts["n1"] = Verdict(False, 0.1, "quiet", time.time() + 60)
        await until(lambda: [(c.node, c.refuse) for c in told][1:] == [("n1", False)])
        status, answer = await ask(url + "/filter", NAMES)

        assert (status, answer["NodeNames"]) == (200, ["n4", "n1"])
        assert extender.counts["wake_errors"] == 2

    with_extender(verdicts, check, announce=announce)


class Agent:
    """A node's agent as far as its one answer goes."""

    def __init__(self, **answer: Any) -> None:
        self.answer: dict[str, Any] = {"probability": 0.7, "reason": "busy", **answer}
        self.asked = 0
        self.headers: dict[str, str] = {}
        self.queries: list[str] = []
        self.status = 200
        self.knows_enforcing = True
        self.application = web.Application()
        self.application.router.add_get("/v1/decision", self._decide)

    async def _decide(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.headers = dict(request.headers)
        self.queries.append(request.query_string)
        if request.query_string and not self.knows_enforcing:
            return web.json_response({"error": "the query may have horizon, node"}, status=400)
        return web.json_response({"valid_until": time.time() + 10.0, **self.answer}, status=self.status)


def polled(agent: Agent, check: Callable[[PolledDecisions], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving(agent.application) as url:
            gone = f"http://127.0.0.1:{free_port()}"
            decisions = PolledDecisions(
                Addresses(table={"n1": url, "n2": gone}), timeout_seconds=1.0, token="secret-" * 3
            )
            try:
                await check(decisions)
            finally:
                decisions.close()

    asyncio.run(run())


def test_agents_decision_becomes_the_nodes_verdict() -> None:
    async def check(decisions: PolledDecisions) -> None:
        await decisions.poll(["n1", "n2"])
        verdict = decisions.verdicts().get("n1")

        assert verdict is not None
        assert (verdict.refuse, verdict.score, verdict.reason) == (True, 0.7, "busy")
        assert not verdict.expired(time.time())
        assert decisions.verdicts().get("n2") is None
        assert list(decisions.silent) == ["n2"]

    polled(Agent(accept=False), check)


@pytest.mark.parametrize(
    ("options", "query"),
    [
        (["--enforce", "--veto"], "enforcing=true"),
        (["--enforce"], ""),
        (["--veto"], ""),
    ],
)
def test_agents_are_told_that_they_are_obeyed_only_by_an_extender_that_filters(
    options: list[str], query: str
) -> None:
    agent = Agent(accept=False)

    async def run() -> None:
        async with serving(agent.application) as url:
            given = command.make_context("extender", [*options, "--agents", url, "--no-wake"]).params
            for name in ("listen", "token_file", "tls_cert", "tls_key"):
                del given[name]
            decisions = build(**given)[0].ledger.decisions
            assert isinstance(decisions, PolledDecisions)
            await decisions.poll(["n1"])
            decisions.close()

    asyncio.run(run())

    assert agent.queries == [query]


def test_agent_that_does_not_know_the_parameter_is_asked_without_it() -> None:
    agent = Agent(accept=False)
    agent.knows_enforcing = False

    async def check(decisions: PolledDecisions) -> None:
        decisions.enforcing = True
        await decisions.poll(["n1"])

        assert agent.queries == ["enforcing=true", ""]
        assert decisions.verdicts().get("n1") is not None

    polled(agent, check)


def test_nodes_that_are_gone_leave_nothing_behind() -> None:
    async def check(decisions: PolledDecisions) -> None:
        decisions.addresses.internal["n2"] = "10.0.0.2"
        await decisions.poll(["n1", "n2"])
        assert "n2" in decisions.silent
        await decisions.poll(["n1"])

        assert (decisions.silent, decisions.addresses.internal) == ({}, {})

    polled(Agent(accept=True), check)


@pytest.mark.parametrize("fault", [{"valid_until": "never"}, {"accept": None}])
def test_broken_answer_leaves_the_last_verdict_to_expire(fault: dict[str, Any]) -> None:
    agent = Agent(accept=False)

    async def check(decisions: PolledDecisions) -> None:
        await decisions.poll(["n1"])
        before = decisions.verdicts().get("n1")
        agent.answer |= fault
        await decisions.poll(["n1"])

        assert decisions.verdicts().get("n1") is before
        assert "n1" in decisions.silent

    polled(agent, check)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "did not answer as an agent does"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "did not answer as an agent does"),
        (b"hello\r\nContent-Length: 2\r\n\r\n{}", "did not answer as an agent does"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "did not answer as an agent does"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n", "at most 65536 bytes"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "agent answered 302"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "limit"),
    ],
)
def test_whatever_answers_in_an_agents_place_is_silence_until_an_agent_does(raw: bytes, said: str) -> None:
    answers = [raw]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        decision = json.dumps({"accept": True, "probability": 0.1, "valid_until": time.time() + 10}).encode()
        good = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(decision) + decision
        writer.write(answers.pop() if answers else good)
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            decisions = PolledDecisions(Addresses(table={"n1": f"http://127.0.0.1:{port}"}))
            await decisions.poll(["n1"])
            assert said in decisions.silent["n1"]
            for _ in range(3):  # on a new connection each time: this agent keeps none
                await decisions.poll(["n1"])
                await until(lambda: decisions._connections["n1"]._streams[0].at_eof())
                assert not decisions.silent
            decisions.close()

    asyncio.run(run())


def test_agent_that_fails_is_not_read_as_accepting() -> None:
    agent = Agent(accept=True)
    agent.status = 500

    async def check(decisions: PolledDecisions) -> None:
        await decisions.poll(["n1"])

        assert decisions.verdicts().get("n1") is None

    polled(agent, check)


def test_polling_goes_on_and_forgets_nodes_that_are_gone() -> None:
    agent, watched = Agent(accept=False), ["n1"]

    async def check(decisions: PolledDecisions) -> None:
        decisions.interval_seconds = 0.05
        task = asyncio.create_task(decisions.run(lambda: watched))
        await until(lambda: agent.asked >= 3)
        assert agent.headers["Authorization"] == "Bearer " + "secret-" * 3
        watched.clear()
        await until(lambda: decisions.verdicts().get("n1") is None)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    polled(agent, check)


def test_real_agent_is_heard_over_tls_by_the_name_in_its_certificate(tmp_path: Path) -> None:
    """As the Helm chart sets it up: one certificate and token for the agents of all nodes."""
    subprocess.run(
        [
            *(require_program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=pronto-agent", "-addext", "subjectAltName=DNS:pronto-agent"),
            *("-keyout", str(tmp_path / "tls.key"), "-out", str(tmp_path / "tls.crt")),
        ],
        check=True,
        capture_output=True,
    )
    shutil.copy(tmp_path / "tls.crt", tmp_path / "ca.crt")
    (tmp_path / "token").write_text("0123456789abcdef" * 4)
    port = free_port()
    files = [f"--{name}={tmp_path / file}" for name, file in SECRETS.items()]
    options = ["--name=n1", "--no-keep", "--interval=0.1", f"--listen=127.0.0.1:{port}", "--for=60s", *files]
    command = [
        sys.executable,
        "-c",
        "from prontosched.cli import main; main()",
        "agent",
        "--source=generated",
    ]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def listen(server_name: str) -> PolledDecisions:
        decisions = PolledDecisions(
            Addresses(table={"n1": f"https://127.0.0.1:{port}"}),
            token=(tmp_path / "token").read_text().strip(),
            ca_file=tmp_path / "ca.crt",
            server_name=server_name,
        )
        end = time.monotonic() + 20.0
        while decisions.verdicts().get("n1") is None and time.monotonic() < end:
            await decisions.poll(["n1"])
            if "CERTIFICATE_VERIFY_FAILED" in decisions.silent.get("n1", "").upper().replace(" ", "_"):
                break
            await asyncio.sleep(0.1)
        decisions.close()
        return decisions

    try:
        heard = asyncio.run(listen("pronto-agent"))
        misnamed = asyncio.run(listen("someone-else"))
    finally:
        process.terminate()
        process.wait(60)

    assert heard.verdicts().get("n1") is not None
    assert misnamed.verdicts().get("n1") is None


def test_command_beyond_this_machine_asks_for_token_and_tls(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--listen", "0.0.0.0:7090", "--agents", "http://{node}:7077"])

    assert isinstance(result.exception, SettingsError)
    assert "needs a token and TLS" in str(result.exception)


def test_command_without_an_api_server_says_so_when_it_needs_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "PRONTO_KUBERNETES_URL"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(command, ["--listen", "127.0.0.1:0"])

    assert isinstance(result.exception, IntegrationError)
    assert "needs the API server for addresses" in str(result.exception)


def test_command_answers_a_scheduler_and_stops_on_sigterm(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "agents").write_text("n1 http://127.0.0.1:9\n")
    environment = {k: v for k, v in os.environ.items() if "KUBERNETES" not in k}
    arguments = [
        "extender",
        "--listen",
        f"127.0.0.1:{port}",
        "--agents-file",
        str(tmp_path / "agents"),
        "--enforce",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", "from prontosched.cli import main; main()", *arguments],
        env=environment,
        stderr=subprocess.PIPE,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: _healthy(url), what="a healthy extender")
        request = urllib.request.Request(url + "/filter", data=NAMES, method="POST")
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert json.load(answer)["NodeNames"] == ["n4", "n1"]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()

    assert process.returncode == 0
    assert b"mode enforce, waking pods: no" in errors


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/healthz", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
