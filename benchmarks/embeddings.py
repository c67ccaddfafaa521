"""Streaming PCA compared: throughput and subspace error of our embeddings and of others, on the same streams."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.core import telemetry
from examples.extensions.pronto_examples import Oja
from prontosched.pipeline import Embedding, FPCAEdge, FrequentDirections, PowerMethod, Spirit
from prontosched.subspace import Array

RANK, BLOCK = 4, 10
# Gives the orthonormal directions `(d, RANK)` after rows `(n, d)` that arrive in blocks.
Learner = Callable[[Array], Array]


@dataclass(frozen=True)
class Comparison:
    """What one method did on one stream.

    Attributes
    ----------
    error
        Distance between its directions and those of the SVD of all rows: the root mean square sine of the
        angles between them, 0 for the same and 1 for orthogonal ones.
    vectors_per_second
        Rows over the CPU time of the fastest run.
    """

    method: str
    stream: str
    error: float
    vectors_per_second: float


def streams(rows: int) -> dict[str, Array]:
    """Return rows `(n, d)`: clear directions, telemetry with close ones, and directions that change half-way."""
    rng = np.random.default_rng(0)

    def planted(count: int, seed: int) -> Array:
        basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((100, RANK)))[0]
        loads = rng.standard_normal((count, RANK)) * [8.0, 6.0, 4.0, 3.0]
        found: Array = loads @ basis.T + 0.5 * rng.standard_normal((count, 100))
        return found

    half = rows // 2
    return {
        "clear": planted(rows, 1),
        "telemetry": telemetry(rows),
        "drift": np.vstack([planted(half, 1), planted(rows - half, 2)]),
    }


def ours(make: Callable[[], Embedding]) -> Learner:
    """Return one of our embeddings, which takes vectors one by one as an agent does."""

    def learn(X: Array) -> Array:
        embedding = make()
        for y in X:
            embedding.learn_one(y)
        assert embedding.subspace is not None
        return embedding.subspace.basis

    return learn


def incremental_pca(X: Array) -> Array:
    """scikit-learn's, with the same blocks; the streams have mean 0."""
    from sklearn.decomposition import IncrementalPCA

    peer = IncrementalPCA(n_components=RANK)
    for start in range(0, len(X), BLOCK):
        peer.partial_fit(X[start : start + BLOCK])
    found: Array = peer.components_.T
    return found


def lsi_model(X: Array) -> Array:
    """Gensim's incremental SVD with the same blocks; documents are sparse, as it wants them."""
    from gensim.models import LsiModel

    words = {i: str(i) for i in range(X.shape[1])}
    model = LsiModel(id2word=words, num_topics=RANK, chunksize=BLOCK, onepass=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # it makes matrices of numpy
        for start in range(0, len(X), BLOCK):
            model.add_documents([list(enumerate(row)) for row in X[start : start + BLOCK].tolist()])
    found: Array = np.asarray(model.projection.u[:, :RANK], dtype=np.float64)
    return found


def methods() -> dict[str, Learner]:
    """Return every method that is installed, by its name."""
    found = {
        "FPCA-Edge": ours(lambda: FPCAEdge(RANK, BLOCK)),
        "FPCA-Edge, 4 spare": ours(lambda: FPCAEdge(RANK, BLOCK, spare=4)),
        "FPCA-Edge, forgetting 0.98": ours(lambda: FPCAEdge(RANK, BLOCK, 0.98)),
        "SPIRIT": ours(lambda: Spirit(RANK)),
        "Frequent Directions": ours(lambda: FrequentDirections(RANK)),
        "power method": ours(lambda: PowerMethod(RANK)),
        "Oja": ours(lambda: Oja(RANK)),
    }
    for name, package, learner in (
        ("scikit-learn IncrementalPCA", "sklearn", incremental_pca),
        ("gensim LsiModel", "gensim", lsi_model),
    ):
        if find_spec(package) is not None:
            found[name] = learner
    return found


def subspace_error(basis: Array, truth: Array) -> float:
    """Return the root mean square sine of the angles between two subspaces.

    Examples
    --------
    >>> subspace_error(np.eye(4)[:, :2], np.eye(4)[:, 1:3])
    0.7071067811865476
    """
    outside = truth - basis @ (basis.T @ truth)
    return float(np.sqrt(np.sum(outside**2) / truth.shape[1]))


def compare(rows: int = 4000, repeats: int = 3) -> Iterator[Comparison]:
    """Run every method on every stream. Drift is measured against the directions of the second half."""
    for stream, X in streams(rows).items():
        recent = X[len(X) // 2 :] if stream == "drift" else X
        truth = np.linalg.svd(recent, full_matrices=False)[2][:RANK].T
        for name, learn in methods().items():
            seconds = []
            for _ in range(repeats):
                start = time.process_time()
                basis = learn(X)
                seconds.append(time.process_time() - start)
            yield Comparison(name, stream, subspace_error(basis, truth), len(X) / max(min(seconds), 1e-9))


def table(found: list[Comparison]) -> str:
    """Return the comparison as Markdown: a row for each method, throughput on `telemetry`, an error for each stream."""
    names = list(dict.fromkeys(one.stream for one in found))
    by = {(one.method, one.stream): one for one in found}
    lines = [
        f"| method | vectors a second | {' | '.join(f'error, {name}' for name in names)} |",
        f"|---|---:|{'---:|' * len(names)}",
    ]
    for method in dict.fromkeys(one.method for one in found):
        speed = by[method, "telemetry"].vectors_per_second
        errors = " | ".join(f"{by[method, name].error:.4f}" for name in names)
        lines.append(f"| {method} | {speed:,.0f} | {errors} |")
    return "\n".join(lines)


def draw(found: list[Comparison], path: Path) -> None:
    """Draw error against throughput, one panel for each stream: better is lower and further right."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(one.stream for one in found))
    figure = Figure(figsize=(4.2 * len(names), 4.4), layout="constrained")
    panels: Any = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    marks = "os^DvPX*<>"
    for axes, name in zip(panels, names, strict=True):
        points = [one for one in found if one.stream == name]
        for mark, one in zip(marks, points, strict=False):
            axes.plot(one.vectors_per_second, max(one.error, 1e-6), mark, markersize=8, label=one.method)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(name)
        axes.set_xlabel("vectors a second")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("subspace error")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    figure.savefig(path, dpi=150)
