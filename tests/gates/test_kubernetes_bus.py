"""The chart's keys on a real bus: agents, aggregators and extender with the variables and files of their pods."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from prontosched.federation.address import KEY_FILES
from tests.federation.buses import Bus
from tests.gates.chart import only, render, require_engine
from tests.processes import called, free_port, started, wait_for

AGGREGATORS = ("pronto-aggregate-0", "pronto-aggregate-1")
NODES = ("n1", "n2")


class Pods:
    """Containers of the chart as processes here, with the variables and secrets that Kubernetes gives them."""

    def __init__(
        self, folder: Path, stack: ExitStack, secrets: dict[str, dict[str, str]], *values: str
    ) -> None:
        self.folder = folder
        self.stack = stack
        self.secrets = secrets
        self.manifests = render("gate=extender", "nats.secret=bus", *values)

    def start(self, workload: str, container: str, pod: str, *further: str, node: str = "") -> dict[str, str]:
        """Run a container and return its variables."""
        kind, name = workload.split("/")
        spec = only(self.manifests, kind, name)["spec"]["template"]["spec"]
        (found,) = (one for one in spec["containers"] if one["name"] == container)
        places = {"/host": "/", "/var/lib/pronto": str(self.folder / node)}
        mounted = {mount["name"]: mount["mountPath"] for mount in found.get("volumeMounts", [])}
        for volume in spec.get("volumes", []):
            if "secret" in volume and volume["name"] in mounted:
                places[mounted[volume["name"]]] = str(
                    self.mount(volume["secret"], self.folder / "pods" / pod)
                )
        variables: dict[str, str] = {}
        for one in found.get("env", []):
            source = one.get("valueFrom", {})
            value = one.get("value", "")
            if "fieldRef" in source:
                value = {"metadata.name": pod, "spec.nodeName": node}[source["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in source:
                value = self.secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
            variables[one["name"]] = here(expanded(value, variables), places)
        arguments = [here(expanded(argument, variables), places) for argument in found["args"]]
        self.stack.enter_context(started(*arguments, *further, **variables))
        return variables

    def mount(self, secret: dict[str, Any], folder: Path) -> Path:
        """Lay out the files of a secret as a pod sees them."""
        held = self.secrets[secret["secretName"]]
        items = secret.get("items", [{"key": key, "path": key} for key in held])
        folder.mkdir(parents=True)
        for item in items:
            (folder / item["path"]).write_text(held[item["key"]])
            (folder / item["path"]).chmod(secret["defaultMode"])
        folder.chmod(0o550)
        return folder

    def agent(self, node: str) -> str:
        """Run the agent of a node on a trace, and return where it tells of the federation."""
        trace, port = self.folder / f"{node}.csv", free_port()
        rows = "".join(f"{second},{second % 3},{second % 5},{second % 7}\n" for second in range(100))
        trace.write_text("t,cpu_ready,load,runnable\n" + rows)
        replayed = (f"--trace={trace}", "--repeat", "--interval=0.2", "--no-probe")
        listen = f"--listen=127.0.0.1:{port}"
        self.start("DaemonSet/pronto-agent", "agent", f"agent-{node}", *replayed, listen, node=node)
        return f"http://127.0.0.1:{port}/v1/federation"


def expanded(text: str, variables: dict[str, str]) -> str:
    """Return a text with the variables that it names as $(NAME), as Kubernetes does."""
    return re.sub(r"\$\((\w+)\)", lambda name: variables.get(name[1], name[0]), text)


def here(text: str, places: dict[str, str]) -> str:
    for old, new in places.items():
        text = text.replace(old, new)
    return text


def asked(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return an answer, empty while there is none."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except OSError:
        return {}


def registered(folder: Path) -> dict[str, str]:
    """Make the keys as docs/integrations/kubernetes.md says, and return what the secret holds."""

    def line(state: str, *arguments: str) -> str:
        return called("federation", "keys", "--state", str(folder / state), *arguments).stdout

    lines = [line(name, "--role", "aggregator") for name in AGGREGATORS]
    lines += [line("viewer", "--role", "viewer"), *(line(node, "--name", node) for node in NODES)]
    keys = {f"{name}.key": (folder / name / KEY_FILES["aggregator"]).read_text() for name in AGGREGATORS}
    return {
        "keys": "".join(lines),
        "viewer.key": (folder / "viewer" / KEY_FILES["viewer"]).read_text(),
        **keys,
    }


@pytest.fixture(params=["open", "users"])
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Bus, dict[str, str]]]:
    """A bus that lets in anyone, and one that has a user for each key; with the keys."""
    require_engine("helm")
    keys, config = registered(tmp_path), None
    if request.param == "users":
        (tmp_path / "keys").write_text(keys["keys"])
        users = called("federation", "users", "--keys", str(tmp_path / "keys"), "--group", "prod").stdout
        (tmp_path / "accounts.conf").write_text(users)
        config = tmp_path / "server.conf"
        config.write_text(
            f'jetstream {{store_dir: "{tmp_path}", max_file_store: 8GB, max_memory_store: 1GB}}\n'
            'include "accounts.conf"\n'
        )
    made = Bus(tmp_path, config=config).start()
    yield made, keys
    made.kill()


def test_signed_members_share_a_view_and_one_that_does_not_sign_has_no_part_in_it(
    bus: tuple[Bus, dict[str, str]], tmp_path: Path
) -> None:
    server, keys = bus
    address, extender = f"{server.url}/prod", f"127.0.0.1:{free_port()}"
    secrets = {"bus": {"address": f"{address}?keys=/etc/pronto/bus/keys"}, "bus-keys": keys}
    with ExitStack() as stack:
        pods = Pods(tmp_path, stack, secrets, "nats.keys=bus-keys")
        for pod in AGGREGATORS:
            pods.start("StatefulSet/pronto-aggregate", "aggregate", pod)
        viewer = pods.start(
            "Deployment/pronto-scheduler", "extender", "pronto-scheduler", f"--listen={extender}"
        )
        members = [pods.agent(node) for node in NODES]
        stranger = Pods(tmp_path, stack, {"bus": {"address": address}}).agent("n3")

        for url in members:
            wait_for(lambda url=url: asked(url).get("adopted"), what="a view that is adopted")
            assert asked(url)["signed"]
        wait_for(lambda: asked(stranger).get("joined"), what="a stranger that tries to take part")

        def seen() -> dict[str, Any]:
            """What the extender may see of the federation."""
            at = viewer["PRONTO_EXTENDER_NATS"]
            found: dict[str, Any] = json.loads(
                called("federation", "--nats", at, "--json", "--wait", "20").stdout
            )
            return found

        def dropped() -> bool:
            return bool(server.config) or seen()["dropped"] > 0

        wait_for(dropped, what="unsigned messages dropped")
        wait_for(lambda: seen()["view_nodes"] == 2, what="both members in the view")
        assert {row["name"] for row in seen()["members"]} == set(NODES)
        assert asked(stranger)["connected"] == (server.config is None)

        def heard() -> dict[str, Any]:
            asked(f"http://{extender}/filter", {"Pod": {}, "NodeNames": [*NODES, "n3"]})
            return asked(f"http://{extender}/v1/nodes").get("nodes") or {}

        wait_for(lambda: all(heard().get(node) for node in NODES), what="decisions of both members")
        assert heard()["n3"] is None
