"""A federation within one process, on a clock set by hand."""

from __future__ import annotations

import numpy as np

from prontosched.decision import Decision
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.link import LocalBus, LocalLink
from prontosched.federation.member import Member
from prontosched.federation.publisher import Propagation
from prontosched.federation.service import AggregatorService
from prontosched.federation.tree import Tree
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import make_node
from prontosched.subspace import Array

METRICS = tuple(f"m{i:02d}" for i in range(16))


class Stream:
    """The telemetry of one kind of machine: a few factors, a level and noise."""

    def __init__(self, seed: int, *, kind: int = 0, features: int = len(METRICS)) -> None:
        self.rng = np.random.default_rng([kind, seed, 1])
        loading = np.linalg.qr(np.random.default_rng(kind).standard_normal((features, 3)))[0]
        self.loading = loading * np.array([6.0, 4.0, 3.0])
        self.level = self.rng.uniform(10, 20, features)

    def read(self) -> Array:
        features, factors = self.loading.shape
        return (
            self.level + self.loading @ self.rng.standard_normal(factors) + self.rng.standard_normal(features)
        )


class Simulated:
    """Members and aggregators on one board."""

    def __init__(
        self,
        names: list[str],
        *,
        tree: Tree | None = None,
        epsilon: float = 0.0,
        kind: int = 0,
        preset: str = "paper",
    ) -> None:
        self.time = 1_000_000.0
        self.board = LocalBus(lambda: self.time)
        self.tree = tree or Tree()
        self.epsilon = epsilon
        self.preset = preset
        self.nodes: dict[str, tuple[Node, Member, Stream]] = {}
        self.services = [self.service(name) for name in self.tree.aggregators(names)]
        self.decisions = 0
        for index, name in enumerate(names):
            self.join(name, Stream(index, kind=kind))

    def service(self, name: str) -> AggregatorService:
        return AggregatorService(
            LocalLink(self.board), Aggregator(name, rank=4, spare=4), tree=self.tree, rule=self.rule()
        )

    def rule(self) -> Propagation:
        return Propagation(epsilon=self.epsilon, epsilon_strength=self.epsilon, max_age_seconds=60.0)

    def join(
        self, name: str, stream: Stream, node: Node | None = None, metrics: tuple[str, ...] = METRICS
    ) -> Member:
        member = Member(LocalLink(self.board), name, tree=self.tree, rule=self.rule())
        self.nodes[name] = (node or make_node(self.preset, metrics=metrics, signal="paper"), member, stream)
        return member

    def step(self, steps: int = 1, *, aggregate: bool = True) -> None:
        for _ in range(steps):
            self.time += 1.0
            for node, member, stream in self.nodes.values():
                decision = node.step(stream.read(), time=self.time)
                assert isinstance(decision, Decision)
                self.decisions += 1
                member.step(node, decision)
            if aggregate:
                for service in self.services:
                    service.turn()

    @property
    def view(self):
        return self.services[-1].view
