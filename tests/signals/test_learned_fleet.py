"""A fleet decides as its nodes would."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prontosched.decision import Evidence, FleetEvidence
from prontosched.signals.learned import LearnedFleet, LearnedSignal
from prontosched.subspace import Subspace

METRICS = tuple(f"metric {i}" for i in range(8))


class Pair:
    """A fleet, and as many single signals fed the same."""

    def __init__(self, rng, nodes, **options):
        self.rng = rng
        self.nodes = nodes
        self.fleet = LearnedFleet(nodes, seed=5, **options)
        self.ones = [LearnedSignal(seed=5 + i, **options) for i in range(nodes)]
        self.basis = np.linalg.qr(rng.normal(size=(nodes, 8, 3)))[0]
        self.strengths = 5.0 + 30.0 * rng.random((nodes, 3))
        self.level = np.zeros(nodes)
        self.at = np.zeros(nodes, dtype=np.int64)

    def step(self, t, *, gaps, absent, interval=20.0):
        rng, nodes = self.rng, self.nodes
        self.level = 0.95 * self.level + 0.3 * rng.normal(size=nodes)
        ready = np.exp(self.level)
        ready[rng.random(nodes) < gaps] = math.nan
        utilisation = np.tanh(self.level) + 0.1 * rng.normal(size=nodes)
        utilisation[rng.random(nodes) < gaps] = math.nan
        time = 1e9 + interval * t + np.zeros(nodes)
        time[rng.random(nodes) < gaps] = math.nan
        present = rng.random(nodes) >= absent
        vectors = rng.normal(size=(nodes, 8)) + 0.5 * self.level[:, None]
        embedded = np.full(nodes, t > 30)
        projections = np.einsum("mdr,md->mr", self.basis, vectors)
        evidence = FleetEvidence(
            present, self.at.copy(), ready, utilisation, time, vectors, projections,
            np.zeros((nodes, 3), np.int8), self.strengths, self.basis, embedded, embedded,
            np.full(nodes, 100.0), METRICS,
        )  # fmt: skip
        together = self.fleet.decide(evidence)
        for i in np.flatnonzero(present):
            one = Evidence(
                int(self.at[i]), ready[i], utilisation[i], time[i], vectors[i],
                Subspace(self.basis[i], self.strengths[i]) if embedded[i] else None,
                projections[i].tolist() if embedded[i] else None, None, 100.0, METRICS,
            )  # fmt: skip
            yield i, self.ones[i].decide(one), together
        self.at += present


@pytest.mark.parametrize(
    "options",
    [
        {"tolerance": "p90", "enforcing": True, "explore": 0.2, "hold": 1, "budget": 0.15},
        {"tolerance": 2.0, "quota": True, "budget": 0.1, "horizon": 3},
        {"tolerance": 2.0, "calm": 90.0, "hold": 200.0, "horizon": 30},
        {"tolerance": "2%", "likelihood": 0.2, "hourly_limit": 0.2},
    ],
)
def test_a_fleet_decides_as_its_nodes_would(rng, options):
    pair = Pair(rng, 5, **options)
    raised = 0
    for t in range(600):
        for i, one, together in pair.step(t, gaps=0.04 if t % 3 else 0.0, absent=0.1 if t % 4 == 0 else 0.0):
            assert one.raised == together.raised[i]
            assert one.contended == together.contended[i]
            assert one.score == pytest.approx(together.score[i], abs=1e-9)
            assert one.threshold == pytest.approx(together.threshold[i], abs=1e-9)
            assert one.probability == pytest.approx(together.probability[i], abs=1e-9)
            assert one.expected_ready == pytest.approx(together.expected_ready[i], abs=1e-9)
            assert one.timestep == together.timestep[i]
            raised += one.raised
            if one.raised or t % 50 == 0:
                assert one.reason == pair.fleet.reason(i)

    assert raised > 20
    record = pair.fleet.learner.record.state()
    for i, one in enumerate(pair.ones):
        here = {name: values[i] for name, values in record.items()}
        assert here == pytest.approx(one.learner.record.state(), abs=1e-9)


def test_absent_nodes_are_left_alone(rng):
    pair = Pair(rng, 3)
    for t in range(40):
        list(pair.step(t, gaps=0.0, absent=0.0))
    before = pair.fleet.learner.state()

    list(pair.step(40, gaps=0.5, absent=1.0))

    for name, value in pair.fleet.learner.state().items():
        assert np.array_equal(value, before[name]), name


def test_a_fleet_needs_a_node():
    with pytest.raises(ValueError, match="nodes must be at least 1, got 0"):
        LearnedFleet(0)


def test_a_change_in_the_number_of_metrics_is_refused_by_a_fleet(rng):
    pair = Pair(rng, 2)
    list(pair.step(0, gaps=0.0, absent=0.0))
    pair.basis = pair.basis[:, :7]

    with pytest.raises(ValueError, match="must have 8 metrics, got 9"):
        pair.fleet.decide(pair.fleet._evidence._replace(vectors=np.zeros((2, 9))))
