"""The estimators keep scikit-learn's rules, and give what our own classes and `IncrementalPCA` give."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import IncrementalPCA
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from prontosched import FPCAEdge
from prontosched.sklearn import (
    ContentionClassifier,
    FPCAEdgeTransformer,
    FrequentDirectionsTransformer,
    PowerMethodTransformer,
    SpiritTransformer,
)

TRANSFORMERS = [
    FPCAEdgeTransformer,
    SpiritTransformer,
    FrequentDirectionsTransformer,
    PowerMethodTransformer,
]
# Needs an environment variable set before scipy is imported.
ELSEWHERE = {"check_array_api_input"}


def rows(count: int = 300, features: int = 8, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, features)) @ rng.normal(size=(features, features)) + 5.0


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_scikit_learns_own_checks_find_nothing(kind):
    checked = 0
    for estimator, check in estimator_checks_generator(kind(n_components=2)):
        if check.func.__name__ not in ELSEWHERE:
            check(estimator)
            checked += 1

    assert checked >= 40


def test_fpca_of_full_rank_is_incremental_pca():
    X = rows()
    theirs = IncrementalPCA(8, batch_size=50).fit(X)
    ours = FPCAEdgeTransformer(8)
    for start in range(0, 300, 50):
        ours.partial_fit(X[start : start + 50])

    np.testing.assert_allclose(np.abs(np.sum(theirs.components_ * ours.components_, axis=1)), 1.0, rtol=1e-12)
    for name in ("mean_", "singular_values_", "explained_variance_", "explained_variance_ratio_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-10)
    np.testing.assert_allclose(np.abs(ours.transform(X)), np.abs(theirs.transform(X)), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(ours.inverse_transform(ours.transform(X)), X, rtol=1e-10)


def test_the_transformer_of_centred_rows_is_the_embedding():
    X = rows()
    X -= X.mean(axis=0)
    embedding = FPCAEdge(3, 10)
    embedding.learn_many(X.T)

    found = FPCAEdgeTransformer(3).fit(X)

    np.testing.assert_allclose(found.singular_values_, embedding.subspace.singular_values, rtol=1e-10)
    np.testing.assert_allclose(found.components_, embedding.subspace.basis.T, atol=1e-9)


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_an_estimator_that_was_pickled_goes_on_as_if_it_had_not_been(kind):
    X = rows()
    one = kind(n_components=3).fit(X[:155])
    other = pickle.loads(pickle.dumps(one))
    one.partial_fit(X[155:])
    other.partial_fit(X[155:])

    np.testing.assert_array_equal(one.components_, other.components_)


def test_what_is_forgotten_has_no_part_in_the_directions():
    first = np.outer(np.sin(np.arange(400.0)), [1.0, 0.0, 0.0])
    then = np.outer(np.sin(np.arange(400.0)), [0.0, 1.0, 0.0])
    found = FPCAEdgeTransformer(1, forgetting=0.5).fit(first).partial_fit(then)

    np.testing.assert_allclose(np.abs(found.components_), [[0.0, 1.0, 0.0]], atol=0.01)


def test_frames_pipelines_and_names_work():
    frame = pd.DataFrame(rows(), columns=[f"m{i}" for i in range(8)])
    pipeline = make_pipeline(StandardScaler(), FPCAEdgeTransformer(2)).set_output(transform="pandas")
    out = clone(pipeline).fit_transform(frame)

    assert list(out.columns) == ["fpcaedgetransformer0", "fpcaedgetransformer1"]
    assert out.shape == (300, 2)


def test_wrong_input_is_refused_in_words():
    with pytest.raises(ValueError, match="n_components must be a whole number of at least 1, got 0"):
        FPCAEdgeTransformer(0).fit(rows())
    with pytest.raises(TypeError, match="parse data was passed"):
        FPCAEdgeTransformer(2).fit(sparse.csr_matrix(rows()))
    with pytest.raises(ValueError, match="8 features"):
        FPCAEdgeTransformer(2).fit(rows()).transform(rows(features=5))


def announced(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Contention of ten rows every fifty, announced by the first metric three rows before."""
    rng = np.random.default_rng(1)
    X, ready = rng.normal(size=(count, 6)), np.full(count, 0.5)
    for start in range(40, count - 12, 50):
        X[start - 3 : start, 0] += 12.0
        ready[start : start + 10] = 40.0
    return X, ready


def test_the_classifier_sees_announced_contention_before_it_comes():
    X, ready = announced(2000)
    (past, future), *_ = reversed(list(TimeSeriesSplit(2).split(X)))
    model = ContentionClassifier().fit(X[past], ready[past])
    chance = model.predict_proba(X[future], ready=ready[future])[:, 1]
    starts = [at for at in range(10, future.size) if ready[future][at] > 5 and ready[future][at - 1] <= 5]
    before = [chance[at - 1] for at in starts]
    calm = [chance[at - 20] for at in starts if at > 20]

    assert np.median(before) > 0.5 > 2 * np.median(calm)
    assert model.predict(X[future], ready=ready[future]).dtype == bool


def test_predicting_teaches_the_classifier_nothing():
    X, ready = announced(300)
    model = ContentionClassifier().fit(X, ready)
    before = model.node_.to_bytes()
    first = model.predict_proba(X[:50])
    second = model.predict_proba(X[:50])

    np.testing.assert_array_equal(first, second)
    assert model.node_.to_bytes() == before
    with pytest.raises(ValueError, match="at least 0, got -1"):
        model.partial_fit(X[:3], [-1.0, 0.0, 0.0])


def test_a_classifier_that_was_pickled_goes_on_as_if_it_had_not_been():
    X, ready = announced(300)
    one = ContentionClassifier().fit(X[:155], ready[:155])
    other = pickle.loads(pickle.dumps(one))

    one.partial_fit(X[155:], ready[155:])
    other.partial_fit(X[155:], ready[155:])

    assert other.node_.to_bytes() == one.node_.to_bytes()


def test_contention_given_as_true_is_contention_when_predicting_too():
    X, ready = announced(600)
    model = ContentionClassifier().fit(X, ready > 5.0)

    chance = model.predict_proba(X[:40], ready=np.arange(40) % 2 == 0)[:, 1]

    np.testing.assert_array_equal(
        chance, model.predict_proba(X[:40], ready=np.where(np.arange(40) % 2 == 0, 100.0, 0.0))[:, 1]
    )


def test_the_classifier_takes_the_embedding_of_every_preset():
    X, ready = announced(60)
    model = ContentionClassifier(preset="paper").fit(X, ready)

    assert (model.node_.embedding.forgetting, model.node_.signal.name) == (1.0, "learned")
