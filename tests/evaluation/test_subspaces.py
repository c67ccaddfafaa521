"""Many rows at once show what a node sees vector by vector."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from prontosched.decision import Decision, Evidence
from prontosched.evaluation.inputs import Setting
from prontosched.evaluation.methods import MethodContext, choose
from prontosched.evaluation.scorers import AlignedRows, RejectJobScorer
from prontosched.evaluation.subspaces import SubspaceReplay
from prontosched.pipeline import EMBEDDINGS
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import PRESETS
from prontosched.pipeline.projection import Projector, SpikeDetector
from prontosched.signals import RejectJob
from prontosched.telemetry.scaling import Scaling

STEPS, NODES, FEATURES = 600, 2, 20
CUTS = (0, 200, 207, 500, 560, 600)
END = 550


@pytest.fixture(scope="module")
def scaled() -> np.ndarray:
    """Two nodes with factors that come and go, surges, unknown values and an idle stretch."""
    rng = np.random.default_rng(3)
    factors = np.zeros((STEPS, NODES, 3))
    for step in range(1, STEPS):
        factors[step] = 0.9 * factors[step - 1] + rng.normal(size=(NODES, 3))
    vectors = factors @ rng.normal(size=(3, FEATURES)) + 0.5 * rng.normal(size=(STEPS, NODES, FEATURES))
    vectors[rng.random((STEPS, NODES)) < 0.02] *= 6.0
    vectors[50:60, 0, 3] = np.nan
    vectors[100:130, 1] = 0.0
    return np.stack([Scaling().scale_many(vectors[:, node]) for node in range(NODES)], axis=1)


class Listener:
    """Keeps the evidence of the last step."""

    name = "listener"
    evidence = Evidence(0)

    def decide(self, evidence: Evidence) -> Decision:
        self.evidence = evidence
        return Decision(False, 0.0, 0.0, "")


@pytest.mark.parametrize(
    ("name", "options", "lag"),
    [
        ("fpca", {}, 10),
        ("fpca", {"energy_bounds": (0.01, 0.1)}, 10),
        ("fpca", {"rank": 8}, 20),
        ("spirit", {}, 10),
        ("frequent-directions", {}, 10),
        ("power-method", {}, 5),
    ],
)
def test_rows_at_once_show_what_a_node_sees(
    name: str, options: dict[str, Any], lag: int, scaled: np.ndarray
) -> None:
    settings = {**PRESETS["paper"].embedding[name], **options}
    replay = SubspaceReplay(lambda: EMBEDDINGS[name](**settings), NODES, FEATURES, lag)
    # The second node ends early.
    parts = [
        replay.run(scaled[a:b], np.array([b - a, max(0, min(b, END) - a)]))
        for a, b in itertools.pairwise(CUTS)
    ]
    spikes, strengths, warm, t_squared, spe = (np.concatenate(part) for part in zip(*parts, strict=True))

    raised = 0
    # After an idle block the power method's weaker directions are rounding errors, and differ as these do.
    for number in range(1 if name == "power-method" else NODES):
        listener = Listener()
        node = Node(
            EMBEDDINGS[name](**settings),
            listener,
            scaling=None,
            projector=Projector(lag),
            detector=SpikeDetector(lag),
        )  # type: ignore[arg-type]
        for step in range(END):
            node.step(scaled[step, number])
            seen = listener.evidence
            assert warm[step, number] == (seen.spikes is not None), step
            expected = np.zeros(spikes.shape[2])
            expected[: len(seen.spikes or ())] = seen.spikes or ()
            assert np.array_equal(spikes[step, number], expected), step
            raised += int(np.abs(expected).sum())
            if seen.subspace is not None and name == "fpca":
                found = strengths[step, number, : seen.subspace.rank]
                assert found == pytest.approx(seen.subspace.singular_values)
                assert t_squared[step, number] == pytest.approx(seen.t_squared)
                assert spe[step, number] == pytest.approx(seen.spe, abs=1e-8)
    assert raised > 40


@pytest.mark.parametrize(
    "options", [{}, {"absolute": True}, {"weights": "raw"}, {"weights": "harmonic"}, {"hold": 4}]
)
def test_the_papers_signal_decides_as_on_a_node(options: dict[str, Any], scaled: np.ndarray) -> None:
    context = MethodContext(tuple("ab"), FEATURES, 1.0, "p95", Setting(methods=("paper",)))
    (method,) = choose(("paper",))
    none = np.zeros((STEPS, NODES))
    rows = AlignedRows(none, none, none, none == 0, none.astype(np.int64), none, scaled)
    rows.seen = method.subspaces(context).run(scaled, np.full(NODES, STEPS))
    found = RejectJobScorer(NODES, **options).score(rows)

    for number in range(NODES):
        signal = RejectJob(**options)
        node = Node(EMBEDDINGS["fpca"](**PRESETS["paper"].embedding["fpca"]), signal, scaling=None)
        decisions = [node.step(y) for y in scaled[:, number]]
        assert found.raised is not None
        assert found.raised[:, number].tolist() == [decision.raised for decision in decisions]
        assert found.score[:, number] == pytest.approx([decision.score for decision in decisions])
        assert found.raised[:, number].any()
