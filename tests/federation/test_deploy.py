"""The example server configuration: TLS, roles, and what each role may not do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prontosched.federation.aggregator import Aggregator
from prontosched.federation.leases import LeaderLease, RefusalLeases
from prontosched.federation.link import LEASES, SUMMARIES, VIEWS, LinkDownError
from prontosched.federation.monitor import take_snapshot
from prontosched.federation.nats import NatsLink
from prontosched.federation.service import AggregatorService
from tests.requirements import require_program

from .buses import Bus, eventually
from .credentials import make_credentials

DEPLOY = Path(__file__).parents[2] / "deploy" / "nats"


@pytest.fixture(scope="module")
def secure_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bus, Path]]:
    """The example configuration with certificates made for the test."""
    folder = tmp_path_factory.mktemp("secure")
    openssl = require_program("openssl")
    ca, key = folder / "ca.pem", folder / "ca.key"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", ca, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    text = (DEPLOY / "nats-server.conf").read_text()
    for old, new in {
        "/etc/pronto/bus.pem": str(ca),
        "/etc/pronto/bus.key": str(key),
        "/etc/pronto/ca.pem": str(ca),
        "/var/lib/nats": str(folder / "store"),
        "max_file_store: 4GB": "max_file_store: 8GB",
        "listen: 0.0.0.0:4222\n": "",
    }.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "nats-server.conf").write_text(text)
    shutil.copy(DEPLOY / "roles.conf", folder)
    bus = Bus(folder, config=folder / "nats-server.conf").start()
    yield bus, ca
    bus.kill()


@pytest.fixture
def role(secure_bus: tuple[Bus, Path], link_to: Callable[..., NatsLink]) -> Callable[[str], NatsLink]:
    bus, ca = secure_bus

    def connect(name: str) -> NatsLink:
        address = f"tls://{name}:change-me-{name}@127.0.0.1:{bus.port}/prod?ca={ca}"
        link = link_to(bus, address=address, name=name)
        assert link.wait_until_connected(8), link.last_error
        return link

    return connect


def test_each_role_can_do_its_work(role: Callable[[str], NatsLink]) -> None:
    above = role("aggregator")
    service = AggregatorService(above, Aggregator(""), lease=LeaderLease(above, "", "a"))
    node = role("node")
    feed = node.subscribe(VIEWS, "global")
    node.put(SUMMARIES, "n1", b"rubbish")
    assert node.flush()
    eventually(lambda: service.turn() or service.rejected)
    eventually(lambda: feed.ready)

    assert service.status()["speaking"]
    leases = RefusalLeases(node, lambda words, nodes: list(words), nodes=2)
    assert leases.tell("n1", refuse=True, score=1.0, valid_until=9.0, now=0.0)
    assert take_snapshot(role("viewer")).unreadable == 1


def test_no_role_can_do_anothers_work(role: Callable[[str], NatsLink]) -> None:
    role("aggregator")
    node, viewer = role("node"), role("viewer")
    node.put(VIEWS, "global", b"mine")
    viewer.put(SUMMARIES, "n1", b"mine")

    eventually(lambda: node.refused and viewer.refused, seconds=15)
    assert node.connected
    assert node.get(VIEWS, "global") is None
    with pytest.raises(LinkDownError, match="the bus must answer"):
        node.compare_and_set(LEASES, "seats.=root", b"usurper", revision=0)


def test_a_stranger_and_a_stranger_authority_are_turned_away(secure_bus: tuple[Bus, Path]) -> None:
    bus, ca = secure_bus
    for address in (
        f"tls://node:wrong@127.0.0.1:{bus.port}/prod?ca={ca}",
        f"tls://node:change-me-node@127.0.0.1:{bus.port}/prod",
    ):
        link = NatsLink(address, timeout=0.5)
        try:
            assert not link.wait_until_connected(1.0)
            eventually(lambda link=link: link.last_error)
        finally:
            link.close()


def test_a_password_is_never_shown(secure_bus: tuple[Bus, Path]) -> None:
    bus, ca = secure_bus
    address = f"tls://node:s3cret-word@127.0.0.1:{bus.port}/prod?ca={ca}"
    found = subprocess.run(
        [sys.executable, "-m", "prontosched", "federation", "--nats", address, "--wait", "1"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert found.returncode == 1
    assert "the bus must answer within 1 s" in found.stderr
    assert "s3cret" not in found.stderr + found.stdout


def test_the_command_shows_the_tree(role: Callable[[str], NatsLink], secure_bus: tuple[Bus, Path]) -> None:
    bus, ca = secure_bus
    role("aggregator")
    address = f"tls://viewer:change-me-viewer@127.0.0.1:{bus.port}/prod?ca={ca}"
    found = subprocess.run(
        [sys.executable, "-m", "prontosched", "federation", "--nats", address, "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["nodes"] == 0


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
    seen = take_snapshot(node, seconds=20.0)

    assert seen.denied == "summaries only as they come; decisions not at all"
    assert node.connected
    assert node.sessions == 1
    assert take_snapshot(role("viewer")).denied == ""


def test_a_node_that_comes_before_any_aggregator_is_told_to_start_one(
    secure_bus: tuple[Bus, Path], link_to: Callable[..., NatsLink]
) -> None:
    bus, ca = secure_bus
    address = f"tls://node:change-me-node@127.0.0.1:{bus.port}/other?ca={ca}"
    link = link_to(bus, address=address)

    eventually(lambda: link.last_error)
    assert "start `pronto aggregate`" in link.last_error
