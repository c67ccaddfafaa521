"""The whole way on a real control plane: a live agent ranks its node, is killed, and the watchdog undoes it."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path

from prontosched.gates.kubernetes import KEY
from tests.gates.kubernetes_cluster import Cluster
from tests.processes import free_port, started, wait_for


def pronto(kubernetes: Cluster, *arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a `pronto` command with the rights of the agent's manifest."""
    return started(
        *arguments,
        PRONTO_KUBERNETES_URL=kubernetes.url,
        PRONTO_KUBERNETES_TOKEN="agent-token",
        PRONTO_KUBERNETES_CA=str(kubernetes.folder / "cert" / "apiserver.crt"),
    )


TOKEN = "0123456789abcdef"


def announced(port: int, cpus: float) -> bool:
    """Tell the agent of a job that is on its way."""
    body = json.dumps({"id": "huge", "cpus": cpus, "ttl": 60}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/jobs",
        data=body,
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def tainted(kubernetes: Cluster, node: str) -> bool:
    return any(taint["key"] == KEY for taint in kubernetes.admin.node(node)["spec"].get("taints") or [])


def test_agent_ranks_its_full_node_and_a_killed_agent_leaves_it_ranked_no_longer_than_it_said(
    kubernetes: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    for name in ("n1", "n2"):
        kubernetes.add_node(name)
        kubernetes.admin.patch_node(name, {"metadata": {"labels": {"kubernetes.io/hostname": name}}})
    port = free_port()
    gate = [
        "--gate=kubernetes",
        "--enforce",
        "--gate-option=prefer_seconds=4",
    ]
    options = ["--source=generated", "--name=n1", "--no-keep", "--interval=0.2", "--for=100s"]
    options.append(f"--token-file={tmp_path / 'token'}")
    with pronto(kubernetes, "agent", f"--listen=127.0.0.1:{port}", *options, *gate) as agent:
        wait_for(lambda: announced(port, cpus=1000), seconds=40, what="an agent that takes announcements")
        wait_for(lambda: tainted(kubernetes, "n1"), what="a taint on n1")
        for i in range(3):
            kubernetes.add_pod(f"job{i}")
        wait_for(lambda: all(kubernetes.placed(f"job{i}") for i in range(3)), what="three pods placed")
        assert {kubernetes.placed(f"job{i}") for i in range(3)} == {"n2"}
        agent.kill()
        agent.wait()

    assert tainted(kubernetes, "n1")
    with pronto(kubernetes, "gate", "watch", "--gate=kubernetes", "--every=0.5"):
        wait_for(lambda: not tainted(kubernetes, "n1"), what="n1 as it was")
