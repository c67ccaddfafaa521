"""Groups of similar nodes: ordered by level, or k-means with five distances between their courses.

k-means needs points, not distances. For the Euclidean, correlation, STS and ACF distances the points are exact:
their Euclidean distances are those distances. CORT has no such points; the classical scaling of its distances
gives the nearest ones.
"""

from __future__ import annotations

import numpy as np

from prontosched.subspace import Array

GROUPINGS = {
    "ordered": "Ordered",
    "euclidean": "KM Euclidean",
    "correlation": "KM Corr",
    "sts": "KM Sts",
    "cort": "KM Cort",
    "acf": "KM Acf",
}
# Nodes per group the number of groups aims at.
GROUP_SIZE = 10
# How steeply CORT weighs the behaviour of two courses against their values.
CORT_STEEPNESS = 2.0


def group_nodes(grouping: str, past: Array, scaled: Array, *, seed: int, groups: int | None = None) -> Array:
    """Return the group of each node, `(M,)`.

    Parameters
    ----------
    grouping
        A key of `GROUPINGS`.
    past
        Past windows in their unit, `(M, n)`: their medians give the order of "ordered".
    scaled
        The same in [0, 1]: what the k-means distances compare.
    groups
        How many; by default about one for ten nodes, at least two.
    """
    nodes = len(past)
    count = groups if groups is not None else max(2, round(nodes / GROUP_SIZE))
    count = min(count, nodes)
    if grouping == "ordered":
        order = np.argsort(np.median(past, axis=1), kind="stable")
        labels = np.empty(nodes, dtype=int)
        for group, members in enumerate(np.array_split(order, count)):
            labels[members] = group
        return labels
    from sklearn.cluster import KMeans

    points = embed(grouping, scaled)
    distinct = len(np.unique(points.round(9), axis=0))
    found: Array = KMeans(min(count, distinct), n_init=4, random_state=seed).fit_predict(points)
    return found


def embed(grouping: str, scaled: Array) -> Array:
    """Return points whose Euclidean distances are those of the grouping (nearest to them for CORT)."""
    if grouping == "euclidean":
        return scaled
    if grouping == "correlation":
        centred = scaled - scaled.mean(axis=1, keepdims=True)
        length = np.linalg.norm(centred, axis=1, keepdims=True)
        unit: Array = centred / np.where(length > 0.0, length, 1.0)
        return unit
    if grouping == "sts":
        slopes: Array = np.diff(scaled, axis=1)
        return slopes
    if grouping == "acf":
        return _autocorrelations(scaled)
    if grouping == "cort":
        from sklearn.manifold import ClassicalMDS

        distances = cort_distances(scaled)
        if distances.max() == 0.0:
            return np.zeros((len(scaled), 1))
        size = min(scaled.shape[1], len(scaled) - 1)
        with np.errstate(invalid="ignore"):
            points: Array = ClassicalMDS(n_components=size, metric="precomputed").fit_transform(distances)
        # CORT is no metric: along some axes its squared distances are negative, and there is no such point.
        return points[:, np.isfinite(points).all(axis=0)]
    raise ValueError(f"grouping must be one of {', '.join(GROUPINGS)}, got {grouping!r}")


def cort_distances(scaled: Array) -> Array:
    """Return the CORT distances, `(M, M)`: Euclidean, weighted by how alike the courses rise and fall.

    References
    ----------
    Chouakria and Nagabhushan, "Adaptive dissimilarity index for measuring time series proximity", 2007.
    """
    from sklearn.metrics import pairwise_distances

    slopes = np.diff(scaled, axis=1)
    likeness = 1.0 - pairwise_distances(slopes, metric="cosine")
    weight = 2.0 / (1.0 + np.exp(CORT_STEEPNESS * likeness))
    distances: Array = weight * pairwise_distances(scaled)
    np.fill_diagonal(distances, 0.0)
    return (distances + distances.T) / 2.0


def _autocorrelations(scaled: Array) -> Array:
    from statsmodels.tsa.stattools import acf

    lags = max(1, scaled.shape[1] // 2)
    rows = np.zeros((len(scaled), lags))
    for row, course in enumerate(scaled):
        if np.ptp(course) > 0.0:  # a constant course has no autocorrelation
            rows[row] = acf(course, nlags=lags, fft=False)[1:]
    return rows
