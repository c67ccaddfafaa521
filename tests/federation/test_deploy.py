"""The example server configuration: TLS, one user for each key, and what each may not do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import nats
import numpy as np
import pytest

from prontosched.decision import Decision
from prontosched.federation.accounts import API
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.leases import LeaderLease, NodeCount, RefusalLeases
from prontosched.federation.link import DECISIONS, LEASES, SUMMARIES, VIEWS, Entry, LinkDownError
from prontosched.federation.member import ViewSubscriber
from prontosched.federation.monitor import take_snapshot
from prontosched.federation.nats import NatsLink
from prontosched.federation.publisher import DecisionPublisher, Propagation, SummaryPublisher
from prontosched.federation.schema import SchemaCache
from prontosched.federation.service import AggregatorService
from prontosched.federation.signing import read_identity
from prontosched.federation.tree import Tree
from tests.processes import free_port, started
from tests.requirements import require_program

from .buses import Bus, eventually
from .credentials import make_credentials
from .fleets import factor_data, summary_of

DEPLOY = Path(__file__).parents[2] / "deploy" / "nats"


class SecureBus(Bus):
    """The example configuration, with a certificate and users made for the test."""

    def __init__(self, folder: Path) -> None:
        openssl = require_program("openssl")
        self.ca, key = folder / "ca.pem", folder / "ca.key"
        subprocess.run(
            [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", self.ca, "-days", "2",
             "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
            check=True, capture_output=True,
        )  # fmt: skip
        self.keys = folder / "keys"
        lines = [f"{role} {place} {i.public} {i.user}" for name, (role, place) in WHO.items()
                 for i in [read_identity(folder / f"{name}.key")]]  # fmt: skip
        self.keys.write_text("\n".join(lines))
        text = (DEPLOY / "nats-server.conf").read_text()
        for old, new in {
            "/etc/pronto/bus.pem": str(self.ca),
            "/etc/pronto/bus.key": str(key),
            "/etc/pronto/ca.pem": str(self.ca),
            "/var/lib/nats": str(folder / "store"),
            "max_file_store: 4GB": "max_file_store: 8GB",
            "listen: 0.0.0.0:4222\n": "",
        }.items():
            assert old in text
            text = text.replace(old, new)
        (folder / "nats-server.conf").write_text(text)
        made = subprocess.run(
            [sys.executable, "-m", "prontosched", "federation", "users", "--keys", self.keys, "--group", "prod"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        (folder / "accounts.conf").write_text(made.stdout)
        super().__init__(folder, config=folder / "nats-server.conf")

    def address(self, name: str) -> str:
        key = self.folder / f"{name}.key"
        return f"tls://127.0.0.1:{self.port}/prod?ca={self.ca}&keys={self.keys}&sign={key}"

    def seed(self, name: str) -> str:
        return read_identity(self.folder / f"{name}.key").user_seed


WHO = {
    "node": ("node", "n1"),
    "other": ("node", "rack1/n2"),
    "aggregator": ("aggregator", "*"),
    "rack": ("aggregator", "rack1"),
    "viewer": ("viewer", "page"),
}


@pytest.fixture(scope="module")
def secure_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBus]:
    bus = SecureBus(tmp_path_factory.mktemp("secure"))
    bus.start()
    yield bus
    bus.kill()


@pytest.fixture
def role(secure_bus: SecureBus, link_to: Callable[..., NatsLink]) -> Callable[[str], NatsLink]:
    def connect(name: str) -> NatsLink:
        identity = None if name == "viewer" else secure_bus.folder / f"{name}.key"
        link = link_to(
            secure_bus, address=secure_bus.address(name), name=name, identity=identity, timeout=2.0
        )
        assert link.wait_until_connected(20), link.last_error
        return link

    return connect


def test_the_example_is_what_the_command_prints() -> None:
    """As `deploy/nats/keys` says; its private keys were thrown away."""
    made = subprocess.run(
        [sys.executable, "-m", "prontosched", "federation", "users", "--keys", DEPLOY / "keys", "--group", "prod"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert made.stdout == (DEPLOY / "accounts.conf").read_text()


def test_each_role_can_do_its_work(role: Callable[[str], NatsLink]) -> None:
    above = role("aggregator")
    services = [
        AggregatorService(above, Aggregator(name), lease=LeaderLease(above, name, "a"))
        for name in ("", "rack1")
    ]
    nodes = {"n1": role("node"), "rack1/n2": role("other")}
    views = ViewSubscriber(nodes["n1"], SchemaCache(nodes["n1"]), lambda _: True)
    census = NodeCount(nodes["n1"])
    data = factor_data(np.random.default_rng(0), 6, 200)
    for name, link in nodes.items():
        made = {"tree": Tree(), "schemas": SchemaCache(link), "rule": Propagation()}
        publisher = SummaryPublisher(link, name, **made)
        eventually(lambda publisher=publisher, name=name: publisher.publish(summary_of(name, data, rank=3)))
        DecisionPublisher(link, name).publish(Decision(False, 0.0, 1.0, "calm"))

    def two() -> bool:
        for service in services:
            service.turn()
        return bool(views.poll() and views.view.nodes == 2 and census() == 2)

    eventually(two)
    leases = RefusalLeases(nodes["n1"], lambda words, nodes: list(words), nodes=2)
    assert leases.tell("n1", refuse=True, score=1.0, valid_until=9.0, now=0.0)
    seen = take_snapshot(role("viewer"), seconds=20)
    assert {row.name: row.accept for row in seen.nodes} == {"n1": True, "rack1/n2": True}
    assert seen.denied == ""
    assert seen.signed
    # A standby that comes later finds in the store what was said before.
    rack = role("rack")
    late = AggregatorService(rack, Aggregator("rack1"), lease=LeaderLease(rack, "rack1", "b"))
    eventually(lambda: late.turn() or late.aggregator.children)
    assert {link.dropped for link in (above, rack, *nodes.values())} == {0}
    for link in (above, rack, *nodes.values()):
        assert (link.refused, link.faults) == (0, 0), link.last_fault


KV = "$KV.pronto-prod-"
FORGED = [
    (VIEWS, "global"),
    (VIEWS, "census"),
    (SUMMARIES, "rack1"),
    (SUMMARIES, "rack1.n3"),
    (DECISIONS, "rack1.n3"),
    (DECISIONS, "rack1"),
    (LEASES, "seats.=root"),
    (LEASES, "seats.rack2"),
]
OWN = {
    "node": (SUMMARIES, "n1"),
    "other": (SUMMARIES, "rack1.n2"),
    "rack": (LEASES, "seats.rack1"),
    "viewer": None,
}


@pytest.mark.parametrize("name", OWN)
def test_no_one_writes_for_another_nor_makes_the_store_do_it(
    secure_bus: SecureBus, role: Callable[[str], NatsLink], name: str
) -> None:
    """Forged outright, and by requests whose answer, acknowledgement or delivery is to go to another's key."""
    aggregator = role("aggregator")
    targets = [one for one in FORGED if name != "rack" or one != (SUMMARIES, "rack1")]
    viewer = role("viewer")

    def stored() -> dict[tuple[str, str], Entry | None]:
        """What lies under each key, seal and all."""
        return {
            one: (aggregator if one[0] == LEASES else viewer)._ask(
                lambda session, one=one: session._get(*one)
            )
            for one in FORGED
        }

    before = stored()

    async def attack() -> list[str]:
        refused: list[str] = []

        async def note(error: Exception) -> None:
            refused.append(str(error))

        context = ssl.create_default_context(cafile=secure_bus.ca)
        client = await nats.connect(
            f"tls://127.0.0.1:{secure_bus.port}",
            tls=context,
            nkeys_seed_str=secure_bus.seed(name),
            error_cb=note,
        )
        heard: list[str] = []

        async def hear(message: object) -> None:
            heard.append(message.subject)

        await client.subscribe("_INBOX.>", cb=hear)
        for topic, key in targets:
            await client.publish(f"{KV}{topic}.{key}", b"forged")
            for api in ("$JS.API", API):
                stream = f"KV_pronto-prod-{topic}"
                consumer = {"stream_name": stream, "config": {"deliver_subject": f"{KV}{topic}.{key}"}}
                for subject, body in {
                    f"{api}.DIRECT.GET.KV_pronto-prod-schemas.{KV}schemas.x": {},
                    f"{api}.STREAM.INFO.{stream}": {},
                    f"{api}.STREAM.MSG.GET.{stream}": {"seq": 1},
                    f"{api}.CONSUMER.CREATE.{stream}": consumer,
                    f"{api}.STREAM.PURGE.{stream}": {},
                    f"{api}.STREAM.DELETE.{stream}": {},
                    f"{api}.STREAM.UPDATE.{stream}": {"name": stream, "subjects": ["a"]},
                    f"{api}.STREAM.CREATE.evil": {"name": "evil", "subjects": [f"{KV}{topic}.>"]},
                }.items():
                    await client.publish(subject, json.dumps(body).encode(), reply=f"{KV}{topic}.{key}")
            await client.publish(f"{KV}leases.clock.me", b"-", reply=f"{KV}{topic}.{key}")
            if OWN[name]:
                own_topic, own_key = OWN[name]
                await client.publish(f"{KV}{own_topic}.{own_key}", b"own", reply=f"{KV}{topic}.{key}")
        await client.flush()
        # Others work meanwhile: their answers are heard by no one else.
        await asyncio.get_running_loop().run_in_executor(None, aggregator.get, VIEWS, "global")
        await client.flush()
        await client.close()
        assert heard == []
        return refused

    refused = asyncio.run(attack())

    assert stored() == before
    assert sum("permissions violation" in text.lower() for text in refused) >= len(targets)


def test_in_one_account_the_store_writes_for_whoever_asks(
    tmp_path: Path, link_to: Callable[..., NatsLink]
) -> None:
    """Why each user has an account of its own: rights alone do not hold what the test above forbids."""
    rights = f'{{publish: ["{KV}leases.clock.*"], subscribe: ["_INBOX.>"]}}'
    (tmp_path / "one.conf").write_text(
        f'jetstream {{store_dir: "{tmp_path}", max_file_store: 8GB, max_memory_store: 1GB}}\n'
        f"authorization: {{users: [{{user: all, password: x}}, {{user: node, password: x, permissions: {rights}}}]}}\n"
    )
    bus = Bus(tmp_path, config=tmp_path / "one.conf").start()
    try:
        link = link_to(bus, address=f"nats://all:x@127.0.0.1:{bus.port}/prod")
        assert link.wait_until_connected(20), link.last_error

        async def attack() -> None:
            client = await nats.connect(f"nats://node:x@127.0.0.1:{bus.port}")
            await client.publish(f"{KV}leases.clock.me", b"-", reply=f"{KV}views.global")
            await client.flush()
            await client.close()

        asyncio.run(attack())
        forged = eventually(lambda: link.get(VIEWS, "global"))
        link.close()
    finally:
        bus.kill()

    assert b"KV_pronto-prod-leases" in forged.value


def test_no_role_can_do_anothers_work(role: Callable[[str], NatsLink]) -> None:
    role("aggregator")
    node = role("node")
    before = node.get(VIEWS, "global")
    node.put(VIEWS, "global", b"mine")

    eventually(lambda: node.refused, seconds=30)
    assert node.connected
    assert node.get(VIEWS, "global") == before
    with pytest.raises(LinkDownError, match="the bus must answer"):
        node.compare_and_set(LEASES, "seats.=root", b"usurper", revision=0)


def test_a_stranger_and_a_stranger_authority_are_turned_away(secure_bus: SecureBus, tmp_path: Path) -> None:
    known = secure_bus.address("node")
    stranger = known.replace(str(secure_bus.folder / "node.key"), str(tmp_path / "stranger.key"))
    for address in (stranger, known.replace(f"ca={secure_bus.ca}&", ""), known.partition("&keys")[0]):
        link = NatsLink(address, timeout=0.5)
        try:
            assert not link.wait_until_connected(1.0)
            eventually(lambda link=link: link.last_error)
        finally:
            link.close()


def test_a_password_is_never_shown(secure_bus: SecureBus) -> None:
    address = f"tls://node:s3cret-word@127.0.0.1:{secure_bus.port}/prod?ca={secure_bus.ca}"
    found = subprocess.run(
        [sys.executable, "-m", "prontosched", "federation", "--nats", address, "--wait", "1"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert found.returncode == 1
    assert "the bus must answer within 1 s" in found.stderr
    assert "s3cret" not in found.stderr + found.stdout


def test_the_command_shows_the_tree(role: Callable[[str], NatsLink], secure_bus: SecureBus) -> None:
    role("aggregator")
    found = subprocess.run(
        [sys.executable, "-m", "prontosched", "federation", "--nats", secure_bus.address("viewer"),
         "--json", "--wait", "20"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["signed"]


def test_an_agent_and_its_page_are_on_the_bus_by_the_key_in_the_state_folder(
    role: Callable[[str], NatsLink], secure_bus: SecureBus, tmp_path: Path
) -> None:
    role("aggregator")
    shutil.copy(secure_bus.folder / "node.key", tmp_path / "federation.key")
    address, port = secure_bus.address("node").partition("&sign")[0], free_port()
    arguments = ("agent", "--synthetic", "1", "--name", "n1", "--nats", address, "--state", str(tmp_path))
    with started(*arguments, "--listen", f"127.0.0.1:{port}"):

        def federation() -> dict:
            with (
                contextlib.suppress(OSError),
                urlopen(f"http://127.0.0.1:{port}/v1/federation", timeout=5) as answer,
            ):
                found = json.load(answer)
                return found if found.get("connected") and found["note"].startswith("the bus lets") else {}
            return {}

        found = eventually(federation)

    assert found["signed"]
    assert found["dropped"] == 0
    assert found["note"].endswith("summaries not at all; decisions not at all")


def test_a_credentials_file_opens_a_bus_that_nothing_else_opens(
    tmp_path: Path, link_to: Callable[..., NatsLink]
) -> None:
    config, creds = make_credentials(tmp_path)
    (tmp_path / "server.conf").write_text(config)
    bus = Bus(tmp_path, config=tmp_path / "server.conf").start()
    try:
        known = link_to(bus, address=f"{bus.url}/prod?creds={creds}")
        assert known.wait_until_connected(8), known.last_error
        known.put(SUMMARIES, "n1", b"here")
        assert known.flush()
        stranger = link_to(bus, group="prod")
        damaged = tmp_path / "damaged.creds"
        damaged.write_text("no credentials at all")
        confused = link_to(bus, address=f"{bus.url}/prod?creds={damaged}")

        eventually(lambda: stranger.last_error and confused.last_error)
        assert not stranger.connected
        assert not confused.connected
        for link in (known, stranger, confused):
            link.close()
    finally:
        bus.kill()


def test_a_role_that_may_not_read_all_is_told_what_it_sees(role: Callable[[str], NatsLink]) -> None:
    role("aggregator")
    node = role("node")
    seen = take_snapshot(node, seconds=30.0)

    assert seen.denied == "summaries not at all; decisions not at all"
    assert node.connected
    assert node.sessions == 1


def test_a_node_that_comes_before_any_aggregator_is_told_to_start_one(
    secure_bus: SecureBus, link_to: Callable[..., NatsLink]
) -> None:
    address = secure_bus.address("node").replace("/prod?", "/other?")
    link = link_to(secure_bus, address=address, identity=secure_bus.folder / "node.key")

    eventually(lambda: link.last_error)
    assert "start `pronto aggregate`" in link.last_error
