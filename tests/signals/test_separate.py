"""A signal without a form for fleets decides in one as it does on each node alone."""

from __future__ import annotations

import numpy as np
import pytest

from prontosched.pipeline.presets import make_fleet
from prontosched.signals import SIGNALS, SignalKind


@pytest.mark.parametrize("name", ["learned", "paper"])
def test_separate_signals_decide_as_the_form_for_fleets_does(name, monkeypatch):
    monkeypatch.setitem(SIGNALS, "separate", SignalKind(SIGNALS[name].one))
    rng = np.random.default_rng(0)
    known = make_fleet("paper", nodes=3, features=6, signal=name)
    separate = make_fleet("paper", nodes=3, features=6, signal="separate")
    for _ in range(300):
        vectors = rng.normal(size=(3, 6))
        ready = np.where(rng.random(3) < 0.05, 40.0, 0.5)
        one, other = known.step(vectors, ready=ready), separate.step(vectors, ready=ready)
        np.testing.assert_array_equal(one.raised, other.raised)
        np.testing.assert_allclose(one.score, other.score, atol=1e-7)
        np.testing.assert_allclose(one.probability, other.probability, atol=1e-7)
    assert one.timestep.tolist() == other.timestep.tolist() == [299] * 3
    assert separate.signal.reason(1)
