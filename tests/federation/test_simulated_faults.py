"""Kills, stops, cuts and lost stores on a simulated bus and clock: thousands of moments in a second.

What `test_robustness` does to real processes is done here to the protocol alone: leases, incarnations, what is sent
again after a break. `make soak ARGS=tests/federation/test_simulated_faults.py` tries hundreds of seeds.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from prontosched.federation.aggregator import Aggregator
from prontosched.federation.leases import LeaderLease
from prontosched.federation.link import (
    CENSUS_KEY,
    SUMMARIES,
    TOPICS,
    VIEW_KEY,
    VIEWS,
    Entry,
    LinkDownError,
    LocalBus,
    LocalLink,
    Subscription,
)
from prontosched.federation.message import GlobalView, Summary, read_count, read_fields
from prontosched.federation.publisher import Propagation, SummaryPublisher
from prontosched.federation.schema import SchemaCache
from prontosched.federation.service import AggregatorService
from prontosched.federation.tree import Tree

from .fleets import factor_data, summary_of

SITES = ("east", "west")
AGENTS = [f"{SITES[number % 2]}/n{number}" for number in range(6)]
TURN = 0.25
TAKEOVER = 2.0
BASE = summary_of("n", factor_data(np.random.default_rng(0), 3, 50), rank=1, standardise=True)


class BreakableLink(LocalLink):
    """A link that can be cut: then it keeps the newest values, and sends them when it is back, as `NatsLink` does."""

    def __init__(self, bus: LocalBus, *, ahead: float) -> None:
        super().__init__(bus)
        self.up = True
        self.ahead = ahead
        self.newest: dict[tuple[str, str], bytes] = {}

    def now(self) -> float:
        return self.bus.clock() + self.ahead

    def put(self, topic: str, key: str, value: bytes) -> None:
        self.newest[topic, key] = value
        if self.up:
            super().put(topic, key, value)
            if not value:
                del self.newest[topic, key]

    def forget(self, topic: str, key: str) -> None:
        self.newest.pop((topic, key), None)

    def get(self, topic: str, key: str) -> Entry | None:
        self._check_up()
        return super().get(topic, key)

    def compare_and_set(self, topic: str, key: str, value: bytes, *, revision: int) -> int | None:
        self._check_up()
        return super().compare_and_set(topic, key, value, revision=revision)

    def subscribe(self, topic: str, pattern: str) -> Subscription:
        subscription = super().subscribe(topic, pattern)
        if not self.up:
            subscription.ready = False
            subscription.drain()
            self.bus.remove(subscription)
        return subscription

    def cut(self) -> None:
        self.up = False
        for subscription in self._subscriptions:
            self.bus.remove(subscription)

    def heal(self) -> None:
        if self.up:
            return
        self.up = True
        for (topic, key), value in list(self.newest.items()):
            self.put(topic, key, value)
        for subscription in self._subscriptions:
            subscription.age()
            self.bus.add(subscription)
            subscription.ready = True

    def _check_up(self) -> None:
        if not self.up:
            raise LinkDownError("the wire is cut")


class Agent:
    """Says how many samples it has, which grow; a fresh start has fewer."""

    def __init__(self, world: World, name: str, samples: float) -> None:
        self.name, self.samples = name, samples
        self.link = world.link()
        self.schemas = SchemaCache(self.link)
        self.publisher = SummaryPublisher(
            self.link, name, tree=Tree(), schemas=self.schemas, rule=world.rule(2.0)
        )
        self.stopped_until = 0.0

    def turn(self) -> None:
        self.samples += 1.0
        self.publisher.publish(replace(BASE, node=self.name, samples=self.samples))


class Process:
    """`pronto aggregate` for some places."""

    def __init__(self, world: World, places: tuple[str, ...]) -> None:
        self.places, self.link = places, world.link()
        holder = f"process{world.rng.getrandbits(60)}"
        self.services = [
            AggregatorService(
                self.link,
                Aggregator(place, rank=1, spare=1, expiry_seconds=600.0),
                rule=world.rule(1.0),
                lease=LeaderLease(self.link, place, holder, seconds=TAKEOVER, clock=lambda: world.time),
            )
            for place in places
        ]
        self.stopped_until = 0.0

    def turn(self) -> None:
        for service in self.services:
            try:
                service.turn()
            except LinkDownError:
                continue


class World:
    """A bus, agents, three aggregators and a standby, and what happens to them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.time = 1e9
        self.bus = LocalBus(lambda: self.time)
        self.agents = {name: Agent(self, name, 10.0) for name in AGENTS}
        self.parts = [("east",), ("west",), ("",), ("east", "west", "")]
        self.processes = [Process(self, places) for places in self.parts]

    def link(self) -> BreakableLink:
        # How far a busy machine may be wrong about the clock of the bus.
        return BreakableLink(self.bus, ahead=self.rng.uniform(-0.5, 0.5))

    def rule(self, seconds: float) -> Propagation:
        return Propagation(epsilon=0.0, max_age_seconds=seconds, rank=1)

    @property
    def everyone(self) -> list[Agent | Process]:
        return [*self.agents.values(), *self.processes]

    def run(self, seconds: float, *, agents: bool = True) -> None:
        for _ in range(round(seconds / TURN)):
            self.time += TURN
            for one in self.everyone:
                if self.time >= one.stopped_until and (agents or isinstance(one, Process)):
                    one.turn()

    def fault(self) -> None:
        kind = self.rng.choice(["kill agent", "kill process", "stop", "cut one", "cut all", "empty bus"])
        if kind == "kill agent":
            name = self.rng.choice(AGENTS)
            self.agents[name].link.close()
            self.run(self.rng.uniform(0.0, 4.0))
            samples = self.rng.choice([10.0, self.agents[name].samples])
            self.agents[name] = Agent(self, name, samples)
        elif kind == "kill process":
            place = self.rng.randrange(len(self.processes))
            dead = self.processes.pop(place)
            dead.link.close()
            self.run(self.rng.uniform(0.0, 4.0))
            self.processes.insert(place, Process(self, dead.places))
        elif kind == "stop":
            self.rng.choice(self.everyone).stopped_until = self.time + self.rng.uniform(0.5, 4.0)
        else:
            cut = [self.rng.choice(self.everyone)] if kind == "cut one" else self.everyone
            for one in cut:
                one.link.cut()
            if kind == "empty bus":
                for topic in TOPICS:
                    self.bus.values[topic].clear()
            self.run(self.rng.uniform(0.0, 4.0))
            # They come back one after another.
            for one in self.rng.sample(cut, len(cut)):
                if self.rng.random() < 0.3:
                    self.run(self.rng.uniform(0.0, 1.0))
                one.link.heal()
        self.run(self.rng.uniform(0.0, 3.0))

    def check(self) -> None:
        said = self.bus.values[SUMMARIES]
        keys = [Tree().key(name) for name in AGENTS]
        samples = sum(Summary.from_bytes(said[key].value, lambda _: BASE.metrics).samples for key in keys)
        view = GlobalView.from_bytes(self.bus.values[VIEWS][VIEW_KEY].value, lambda _: BASE.metrics)
        assert (view.nodes, view.samples) == (len(AGENTS), samples)
        assert read_count(read_fields(self.bus.values[VIEWS][CENSUS_KEY].value, "census"), "nodes") == len(
            AGENTS
        )


def endure(seed: int, faults: int) -> None:
    world = World(seed)
    world.run(10.0)
    for _ in range(faults):
        world.fault()
    for one in world.everyone:
        one.stopped_until = 0.0
        one.link.heal()
    world.run(8.0)
    world.run(4.0, agents=False)
    world.check()


@pytest.mark.parametrize("seed", range(3))
def test_the_view_is_what_was_said_last_whatever_happened(seed: int) -> None:
    endure(seed, faults=12)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 400))
def test_the_view_is_what_was_said_last_whatever_happened_for_long(seed: int) -> None:
    endure(seed, faults=40)
