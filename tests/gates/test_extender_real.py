"""The extender against a real etcd, API server and scheduler.

Skipped with a message where they are not built: `sh tests/engines/build.sh kubernetes etcd`.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiohttp import web

from prontosched.gates.extender import Extender, Ledger
from prontosched.gates.gate import Verdict
from prontosched.gates.kubernetes import ACCEPTING_CONDITION, ConditionWriter, KubernetesGate
from prontosched.gates.policy import Rules
from tests.gates.kubernetes_cluster import Cluster
from tests.gates.verdicts import GivenDecisions, busy, quiet
from tests.processes import started, wait_for


@contextmanager
def extending(
    kubernetes: Cluster, verdicts: dict[str, Verdict], *, wake: bool, enforce: bool = True
) -> Iterator[Extender]:
    """Run an extender where the scheduler asks, with the rights of its manifest."""
    rules = Rules(enforce=enforce, veto=True, min_hold_seconds=0.0, min_accept_seconds=0.0, max_refusing=1.0)
    ledger = Ledger(GivenDecisions(verdicts), rules)
    ledger.see([node["metadata"]["name"] for node in kubernetes.admin.nodes()], time.time())
    ledger.settle(time.time())
    writer = ConditionWriter(kubernetes.api("extender-token"))
    extender = Extender(ledger, announce=writer.announce if wake else None)
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(extender.application())

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", kubernetes.extender_port).start()

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield extender
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_extender_sends_pods_elsewhere_and_prefers_quiet_nodes(kubernetes: Cluster) -> None:
    for name in ("n1", "n2", "n3"):
        kubernetes.add_node(name)
    worried = Verdict(False, 0.9, "nearly", valid_until=time.time() + 60.0)
    with extending(kubernetes, {"n1": busy(), "n2": worried, "n3": quiet()}, wake=False) as extender:
        for i in range(5):
            kubernetes.add_pod(f"job{i}")
        wait_for(lambda: all(kubernetes.placed(f"job{i}") for i in range(5)), what="five pods placed")

    assert {kubernetes.placed(f"job{i}") for i in range(5)} == {"n3"}
    assert extender.counts["filter"] >= 5
    assert extender.counts["malformed"] == 0


def test_pod_is_placed_on_the_calmer_node_although_all_that_could_take_it_refuse(kubernetes: Cluster) -> None:
    for name in ("n1", "n2", "n3"):
        kubernetes.add_node(name)
    with extending(kubernetes, {"n1": busy(score=0.95), "n3": quiet()}, wake=True) as extender:
        wait_for(lambda: "n1" in extender.ledger.refusals(time.time()), what="n1 refused")
        kubernetes.admin.patch_node("n1", {"metadata": {"labels": {"kubernetes.io/hostname": "n1"}}})
        kubernetes.add_pod("bound", nodeSelector={"kubernetes.io/hostname": "n1"})
        wait_for(lambda: kubernetes.placed("bound") == "n1", what="the pod that only n1 can take")
        kubernetes.add_pod("free")
        wait_for(lambda: kubernetes.placed("free"), what="a pod that others can take")

        assert kubernetes.placed("free") == "n3"


def test_node_that_refuses_and_opens_shows_so_in_its_condition(kubernetes: Cluster) -> None:
    for name in ("n1", "n2", "n3"):
        kubernetes.add_node(name)
    verdicts = {"n1": quiet()}
    with extending(kubernetes, verdicts, wake=True):
        verdicts["n1"] = busy()
        wait_for(lambda: condition(kubernetes, "n1") == "False", what="n1 refused")
        verdicts["n1"] = quiet()
        wait_for(lambda: condition(kubernetes, "n1") == "", what="n1 open again")

    assert [c["type"] for c in kubernetes.admin.node("n1")["status"]["conditions"]] == ["Ready"]


def test_scheduler_places_pods_while_the_extender_is_away_or_in_shadow_mode(kubernetes: Cluster) -> None:
    kubernetes.add_node("n1")
    kubernetes.add_pod("away")
    wait_for(lambda: kubernetes.placed("away") == "n1", what="a pod placed without an extender")
    with extending(kubernetes, {"n1": busy()}, wake=True, enforce=False):
        kubernetes.add_pod("shadow")
        wait_for(lambda: kubernetes.placed("shadow") == "n1", what="a pod placed in shadow mode")

    assert all(c["type"] != ACCEPTING_CONDITION for c in kubernetes.admin.node("n1")["status"]["conditions"])


def test_extender_command_hears_agents_refuses_and_leaves_nothing_behind(
    kubernetes: Cluster, tmp_path: Path
) -> None:
    """The whole way: agents' HTTP answers, `pronto extender`, a real scheduler, a real API server."""
    for name in ("n1", "n2"):
        kubernetes.add_node(name)
    answers = {"n1": False, "n2": True}
    with answering(answers) as urls:
        (tmp_path / "agents").write_text("".join(f"{name} {urls[name]}\n" for name in urls))
        with started(
            *("extender", "--listen", f"127.0.0.1:{kubernetes.extender_port}", "--enforce", "--veto"),
            *("--agents-file", str(tmp_path / "agents"), "--interval", "0.2"),
            *("--min-hold", "0s", "--min-accept", "0s"),
            PRONTO_KUBERNETES_URL=kubernetes.url,
            PRONTO_KUBERNETES_TOKEN="extender-token",
            PRONTO_KUBERNETES_CA=str(kubernetes.folder / "cert" / "apiserver.crt"),
        ):
            wait_for(lambda: condition(kubernetes, "n1") == "False", what="n1 refusing")
            for i in range(4):
                kubernetes.add_pod(f"job{i}")
            wait_for(lambda: all(kubernetes.placed(f"job{i}") for i in range(4)), what="four pods placed")
            assert {kubernetes.placed(f"job{i}") for i in range(4)} == {"n2"}

        assert condition(kubernetes, "n1") == ""


def condition(kubernetes: Cluster, node: str) -> str:
    found = {c["type"]: c["status"] for c in kubernetes.admin.node(node)["status"]["conditions"]}
    return str(found.get(ACCEPTING_CONDITION, ""))


@contextmanager
def answering(answers: dict[str, bool]) -> Iterator[dict[str, str]]:
    """Stand in for the agents of the nodes: their answers at one address each."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            accept = answers[self.path.split("/")[1]]
            body = {
                "accept": accept,
                "score": 0.1 if accept else 0.9,
                "reason": "a test",
                "valid_until": time.time() + 5,
            }
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield {name: f"http://127.0.0.1:{server.server_port}/{name}" for name in answers}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_condition_writer_undoes_what_dead_agents_and_extenders_left(kubernetes: Cluster) -> None:
    gate = KubernetesGate(kubernetes.api("agent-token"))
    for name in ("n1", "n2"):
        kubernetes.add_node(name)
    writer = ConditionWriter(kubernetes.api("extender-token"))
    writer._write("n1", refuse=True, message="left behind")
    writer._write("n2", refuse=True, message="still so")
    gate.refuse("n1", busy(-5.0))
    in_service = ConditionWriter(kubernetes.api("extender-token")).refresh(lambda node: node == "n2")
    status = {name: condition(kubernetes, name) for name in ("n1", "n2")}

    assert set(in_service) == {"n1", "n2"}
    assert status == {"n1": "", "n2": "False"}
    assert "taints" not in kubernetes.admin.node("n1")["spec"]
