"""Speed and size of the numerical core, as ratios in one run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.plain import PlainNode, PlainScaling
from benchmarks.row import Row, best_of
from prontosched.pipeline.presets import make_fleet, make_node
from prontosched.subspace import Array, Subspace, merge_all

FEATURES, RANK, BLOCK = 134, 4, 10
STEPS = 80


def telemetry(steps: int, features: int = FEATURES, seed: int = 1) -> Array:
    """Return vectors as rows: a few slow loads seen through many metrics, and noise."""
    rng = np.random.default_rng(seed)
    loads = np.zeros((steps, 6))
    for t in range(1, steps):
        loads[t] = 0.9 * loads[t - 1] + 0.43 * rng.standard_normal(6)
    return loads @ rng.standard_normal((6, features)) * 2.0 + rng.standard_normal((steps, features))


def node_rows() -> Iterator[Row]:
    """Measure `Node.step` of the paper preset against a plain rendering, a peer and a floor."""
    vectors = list(telemetry(STEPS))
    plain, plain_scaled = PlainNode(FEATURES), PlainNode(FEATURES, scaling=PlainScaling(FEATURES))
    node, scaled = make_node("paper", scaling=False), make_node("paper")
    learned = make_node("default")
    rng = np.random.default_rng(2)
    ready = np.abs(rng.standard_normal(STEPS)).cumsum() % 9

    def carry(step: Callable[[Array], object]) -> Callable[[], None]:
        def run() -> None:
            for y in vectors:
                step(y)

        return run

    def learn() -> None:
        for y, now in zip(vectors, ready.tolist(), strict=True):
            learned.step(y, ready=now, utilisation=50.0, time=float(learned.timestep))

    candidates: dict[str, Callable[[], object]] = {
        "plain": carry(plain.step),
        "plain_scaled": carry(plain_scaled.step),
        "node": carry(node.step),
        "scaled": carry(scaled.step),
        "floor": _floor(vectors),
        "learned": learn,
    }
    if peer := _incremental_pca(vectors):
        candidates["peer"] = peer
    for run in candidates.values():
        run()
    best = best_of(candidates, repeats=400)
    yield Row(
        "node step with scaling, times faster than plain",
        best["plain_scaled"] / best["scaled"],
        "x",
        10,
        "more",
    )
    yield Row(
        "node step without scaling, times faster than plain", best["plain"] / best["node"], "x", 12, "more"
    )
    if "peer" in best:
        faster = best["peer"] / best["node"]
        yield Row("node step, times faster than scikit-learn IncrementalPCA", faster, "x", 20, "more")
    yield Row("node step against one gemv and a tenth of an eigh", best["node"] / best["floor"], "x", 3)
    yield Row("learned step against the paper preset's", best["learned"] / best["scaled"], "x", 5)
    yield Row("state of a learning node", len(learned.to_bytes()) / 1000, "kB", 200)


def _floor(vectors: list[Array]) -> Callable[[], object]:
    """One projection a step and one eigenproblem a block: less cannot be done."""
    rng = np.random.default_rng(3)
    rows = np.ascontiguousarray(rng.standard_normal((RANK, FEATURES)))
    gram = rng.standard_normal((RANK + BLOCK, RANK + BLOCK))
    gram = gram @ gram.T

    def run() -> None:
        for t, y in enumerate(vectors):
            rows.dot(y)
            if t % BLOCK == 0:
                np.linalg.eigh(gram)

    return run


def _incremental_pca(vectors: list[Array]) -> Callable[[], object] | None:
    try:
        from sklearn.decomposition import IncrementalPCA
    except ImportError:
        return None
    peer = IncrementalPCA(n_components=RANK)
    blocks = [np.array(vectors[i : i + BLOCK]) for i in range(0, len(vectors), BLOCK)]
    peer.partial_fit(blocks[0])

    def run() -> None:
        for block in blocks:
            peer.partial_fit(block)
            for y in block:
                peer.transform(y[None])

    return run


def fleet_rows(nodes: int = 10_000) -> Iterator[Row]:
    """Measure a fleet's step against one matmul that projects the same vectors."""
    rng = np.random.default_rng(4)
    fleet = make_fleet("paper", nodes=nodes, features=FEATURES, scaling=False)
    scaled = make_fleet("paper", nodes=nodes, features=FEATURES)
    rows = rng.standard_normal((nodes, RANK, FEATURES))
    vectors = [rng.standard_normal((nodes, FEATURES)) for _ in range(BLOCK)]
    for t in range(2 * BLOCK):
        fleet.step(vectors[t % BLOCK])
        scaled.step(vectors[t % BLOCK])

    def carry(step: Callable[[Array], object]) -> Callable[[], None]:
        def run() -> None:
            for t in range(BLOCK):
                step(vectors[t])

        return run

    best = best_of(
        {
            "fleet": carry(fleet.step),
            "scaled": carry(scaled.step),
            "matmul": carry(lambda Y: np.matmul(rows, Y[:, :, None])),
        },
        repeats=8,
    )
    yield Row(f"fleet of {nodes}, step against one matmul", best["fleet"] / best["matmul"], "x", 8)
    name = f"the same with scaling, microseconds a node and step ({nodes} nodes)"
    yield Row(name, best["scaled"] / BLOCK / nodes * 1e6, "us")


def learned_fleet_rows(nodes: int = 1_000) -> Iterator[Row]:
    """Measure a fleet's step with the default preset against the paper preset's, both with scaling."""
    rng = np.random.default_rng(6)
    fleets = {preset: make_fleet(preset, nodes=nodes, features=FEATURES) for preset in ("paper", "default")}
    vectors = [rng.standard_normal((nodes, FEATURES)) for _ in range(BLOCK)]
    ready = [np.abs(4.0 * rng.standard_normal(nodes)) for _ in range(BLOCK)]
    # As many steps as the blocks of the embedding, of the scaling and of the heads have in common.
    steps = 160

    def carry(preset: str) -> Callable[[], None]:
        fleet = fleets[preset]

        def run() -> None:
            for t in range(steps):
                now = float(fleet.timestep[0])
                fleet.step(vectors[t % BLOCK], ready=ready[t % BLOCK], utilisation=50.0, time=now)

        return run

    best = best_of({preset: carry(preset) for preset in fleets}, repeats=3)
    name = f"default fleet of {nodes}, step against the paper preset's fleet"
    yield Row(name, best["default"] / best["paper"], "x", 2.5)


def merge_rows(nodes: int = 10_000, fan_out: int = 32) -> Iterator[Row]:
    """Measure merging all summaries up a tree against one SVD of them all."""
    rng = np.random.default_rng(5)
    shared = rng.standard_normal((FEATURES, RANK))
    bases = np.linalg.qr(shared + 0.3 * rng.standard_normal((nodes, FEATURES, RANK)))[0]
    strengths = np.sort(rng.uniform(1, 9, (nodes, RANK)))[:, ::-1]
    summaries = [Subspace(basis, values) for basis, values in zip(bases, strengths, strict=True)]
    stacked = np.hstack([s.basis * s.singular_values for s in summaries])

    def tree() -> Subspace:
        level = summaries
        while len(level) > 1:
            groups = [level[i : i + fan_out] for i in range(0, len(level), fan_out)]
            merged = [merge_all(group, rank=RANK, spare=RANK, at_once=64) for group in groups]
            level = [subspace for subspace in merged if subspace is not None]
        return level[0]

    candidates = {"tree": tree, "svd": lambda: np.linalg.svd(stacked, full_matrices=False)}
    best = best_of(candidates, repeats=5, warm=False)
    yield Row(
        f"merging {nodes} summaries at fan-out {fan_out} against one SVD",
        best["tree"] / best["svd"],
        "x",
        0.35,
    )


_RESIDENT = """
import resource, sys
import numpy as np
from prontosched.pipeline.presets import make_node
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
node = make_node("paper")
y = np.zeros(134)
state = 88172645463325252
early = 0
for t in range(int(sys.argv[1])):
    if t % 8 == 0:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        y[(state >> 33) % 134] = (state >> 40) / 2**24
    node.step(y)
    if t == int(sys.argv[1]) // 10:
        early = resident()
print(early, resident())
"""

_IMPORT = """
import sys, time
start = time.process_time()
__import__(sys.argv[1])
print(time.process_time() - start)
"""


def size_rows(steps: int = 1_000_000) -> Iterator[Row]:
    """Measure what a process with one node occupies after many steps, and what importing costs."""
    early, late = (int(n) for n in _python(_RESIDENT, str(steps)).split())
    yield Row(f"resident memory after {steps:.0e} steps", late / 1e6, "MB", 40)
    yield Row(f"growth from {steps // 10:.0e} to {steps:.0e} steps", max(late - early, 0) / 1e6, "MB", 0.0)
    best = {name: min(float(_python(_IMPORT, name)) for _ in range(7)) for name in ("numpy", "prontosched")}
    yield Row(
        "CPU time to import the package against numpy alone", best["prontosched"] / best["numpy"], "x", 1.5
    )


def _python(code: str, *arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True, timeout=900
    )
    return ran.stdout


def core_rows() -> Iterator[Row]:
    """Measure everything of the numerical core."""
    yield from node_rows()
    yield from fleet_rows()
    yield from learned_fleet_rows()
    yield from merge_rows()
    yield from size_rows()


__all__ = [
    "core_rows",
    "fleet_rows",
    "learned_fleet_rows",
    "merge_rows",
    "node_rows",
    "size_rows",
    "telemetry",
]
