"""Fixtures for the federation's tests: real servers, real links, nothing left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prontosched.federation.nats import NatsLink

from .buses import Bus


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices are small here: threads of the BLAS only get in each other's way."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield
        return
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def shared_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """One nats-server for all tests that do it no harm; each takes a group of its own."""
    bus = Bus(tmp_path_factory.mktemp("bus")).start()
    yield bus
    bus.kill()


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    """A nats-server of one's own, to be killed."""
    bus = Bus(tmp_path).start()
    yield bus
    bus.kill()


@pytest.fixture
def link_to() -> Iterator[Callable[..., NatsLink]]:
    """Open links that are closed, and their threads ended, after the test."""
    links: list[NatsLink] = []

    def connect(bus: Bus, **options: object) -> NatsLink:
        address = f"{bus.url}/{options.pop('group', 'test')}"
        link = NatsLink(options.pop("address", address), **{"timeout": 1.0, **options})
        links.append(link)
        return link

    yield connect
    for link in links:
        link.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("nats ")]
