"""Draw `docs/images/signal-settings.svg`: what each setting does to recall against downtime.

Run from the top of the project: `python docs/figures/signal.py`. The stream is
generated: contention that wanders, and bursts announced by nothing.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

from prontosched.decision import Evidence
from prontosched.signals.arithmetic import One
from prontosched.signals.learned import LearnedSignal
from prontosched.signals.policy import Budget
from prontosched.subspace import Array

STEPS, HORIZON, TOLERANCE, SKIPPED = 8000, 5, 5.0, 1000
BUDGETS = (0.02, 0.04, 0.06, 0.08, 0.11, 0.15, 0.2)


def stream(seed: int) -> Array:
    """CPU Ready that wanders, measured with noise, with bursts in between."""
    rng = np.random.default_rng(seed)
    wander = np.zeros(STEPS)
    for t in range(1, STEPS):
        wander[t] = 0.95 * wander[t - 1] + 0.3 * rng.normal()
    bursts = np.where(rng.random(STEPS) < 0.005, 8.0, 0.0)
    return 1.6 * np.exp(0.8 * wander + 0.4 * rng.normal(size=STEPS)) + bursts


def labels(ready: Array, horizon: int) -> Array:
    """Whether contention follows within the horizon."""
    spike = ready >= TOLERANCE
    found = np.zeros(STEPS, dtype=bool)
    for k in range(1, horizon + 1):
        found[:-k] |= spike[k:]
    return found


def point(raised: Array, label: Array) -> tuple[float, float]:
    """Return downtime and recall after warming up."""
    raised, label = raised[SKIPPED:-HORIZON], label[SKIPPED:-HORIZON]
    return float(raised.mean()), float((raised & label).sum() / label.sum())


def curve(score: Array, label: Array) -> Array:
    """Return downtime and recall of a score for every budget, thresholds learned online."""
    points = []
    for share in BUDGETS:
        budget, raised = Budget(One(), share), np.zeros(STEPS, dtype=bool)
        for t, value in enumerate(score.tolist()):
            raised[t] = value > budget.threshold()
            budget.learn(value)
            budget.spend(bool(raised[t]))
        points.append(point(raised, label))
    return np.array(sorted(points))


def decide(ready: Array, **options: object) -> tuple[Array, Array]:
    """Return the scores and decisions of the learned signal."""
    signal = LearnedSignal(tolerance=TOLERANCE, **options)
    said = [signal.decide(Evidence(t, ready=value)) for t, value in enumerate(ready.tolist())]
    return np.array([d.score for d in said]), np.array([d.raised for d in said])


def draw() -> None:
    """Draw both panels."""
    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams.update({"svg.hashsalt": "signal", "svg.fonttype": "none", "font.size": 9})
    ready = stream(7)
    label = labels(ready, HORIZON)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    learned = curve(decide(ready, quota=True)[0], label)
    left.plot(*learned.T, "o-", color="#c2410c", label="learned, horizon 5")
    far = labels(ready, 15)
    left.plot(
        *curve(decide(ready, quota=True, horizon=15)[0], far).T,
        "o--",
        color="#fb923c",
        label="learned, horizon 15",
    )
    left.plot(*curve(ready, label).T, "s-", color="#1d4ed8", label="current CPU Ready")
    left.set_title("spending the whole budget (--quota)")
    right.plot(*learned.T, "-", color="#c2410c", alpha=0.4, label="learned, whole budget")
    for name, marker, options in (
        ("default policy", "o", {}),
        ("likelihood 0.3", "^", {"likelihood": 0.3}),
        ("hourly limit 0.2", "v", {"hourly_limit": 0.2}),
        ("hold 3", "s", {"hold": 3}),
    ):
        found = [point(decide(ready, budget=b, **options)[1], label) for b in (0.05, 0.1, 0.2)]
        right.plot(*np.array(found).T, marker, label=f"{name}: budget 5, 10, 20 %")
    right.set_title("the budget as a cap (default)")
    for axes in (left, right):
        axes.plot([0, 0.22], [0, 0.22], ":", color="#9aa5b1", label="a coin")
        axes.set(xlabel="downtime", xlim=(0, 0.22), ylim=(0, 1))
        axes.legend(fontsize=7, frameon=False, loc="upper left")
    left.set_ylabel("recall")
    figure.tight_layout()
    target = Path(__file__).parents[1] / "images" / "signal-settings.svg"
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    draw()
