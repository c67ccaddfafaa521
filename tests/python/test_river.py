"""The estimators keep River's rules, work in its pipelines, and bear metrics that come and go."""

from __future__ import annotations

import random

import numpy as np
import pytest
from river import checks, compose, datasets, evaluate, linear_model, metrics, preprocessing

from prontosched import FPCAEdge
from prontosched.river import ContentionModel, StreamingPCA, SubspaceAnomaly

ESTIMATORS = [
    StreamingPCA(2),
    StreamingPCA(2, "spirit", 0.96),
    StreamingPCA(2, "frequent-directions"),
    StreamingPCA(2, "power-method"),
    SubspaceAnomaly(2),
    ContentionModel(),
]


class Transactions:
    """Stands for River's own data set of this kind, which would be downloaded."""

    def take(self, count: int) -> list[tuple[dict[str, float], bool]]:
        rng = random.Random(0)
        return [({f"V{i}": rng.gauss(0, 1) for i in range(8)}, rng.random() < 0.01) for _ in range(count)]


@pytest.mark.parametrize("model", ESTIMATORS, ids=repr)
def test_rivers_own_checks_find_nothing(model, monkeypatch):
    monkeypatch.setattr(datasets, "CreditCard", Transactions)
    names = []
    for check in checks.yield_checks(model):
        check(model.clone())
        names.append(check.__name__)

    assert "check_emerging_features" in names


def test_the_transformer_is_the_embedding():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 5))
    embedding, pca = FPCAEdge(3, 10), StreamingPCA(3, max_metrics=5)
    for row in X:
        embedding.learn_one(row)
        pca.learn_one(dict(zip("abcde", row.tolist(), strict=True)))

    found = pca.transform_one(dict(zip("abcde", X[7].tolist(), strict=True)))

    np.testing.assert_allclose(list(found.values()), X[7] @ embedding.subspace.basis, atol=1e-9)


def test_pipelines_and_progressive_validation_work():
    pca = compose.Pipeline(preprocessing.StandardScaler(), StreamingPCA(4), linear_model.LogisticRegression())
    score = evaluate.progressive_val_score(datasets.Phishing(), pca, metrics.ROCAUC())

    assert score.get() > 0.9


def test_a_metric_that_appears_late_is_taken_up_and_one_too_many_is_named():
    pca = StreamingPCA(1, max_metrics=2)
    for _ in range(20):
        pca.learn_one({"a": 1.0})
    for _ in range(200):
        pca.learn_one({"b": 5.0})

    assert abs(pca.transform_one({"b": 1.0})[0]) > 0.9
    with pytest.warns(UserWarning, match="more than 2 metrics: 'd'"):
        StreamingPCA(1, max_metrics=2).learn_one({"b": 1.0, "c": 1.0, "d": 1.0})


def test_a_row_outside_the_usual_directions_scores_higher():
    rng = random.Random(1)
    model = SubspaceAnomaly(1)
    for _ in range(300):
        load = rng.gauss(0, 3)
        model.learn_one({"a": load + rng.gauss(0, 0.1), "b": load + rng.gauss(0, 0.1)})

    assert model.score_one({"a": 3.0, "b": -3.0}) > 0.99
    assert model.score_one({"a": 3.0, "b": 3.05}) < 0.7


def test_the_classifier_forecasts_one_row_ahead_better_than_chance():
    rng = random.Random(2)
    rows = []
    for t in range(1500):
        busy = t % 30 >= 20
        rows.append(({"cpu": 90.0 * busy + rng.gauss(0, 3), "net": rng.gauss(0, 1)}, busy))

    score = evaluate.progressive_val_score(rows, ContentionModel(), metrics.ROCAUC())

    assert score.get() > 0.9


def test_wrong_settings_are_refused_in_words():
    with pytest.raises(ValueError, match="method must be one of fpca, spirit"):
        StreamingPCA(2, "pca")
    with pytest.raises(ValueError, match="forgetting must be 1 for frequent-directions"):
        StreamingPCA(2, "frequent-directions", 0.9)


def test_the_model_takes_the_embedding_of_every_preset():
    assert ContentionModel(preset="paper").node.signal.name == "learned"
