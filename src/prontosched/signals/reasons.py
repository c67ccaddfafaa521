"""Why a node was decided as it was, in words an operator can read aloud.

Covers: the sentence, and which metrics to name in it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from prontosched.signals.heads import DIRECTIONS
from prontosched.signals.inputs import OFFSET
from prontosched.signals.learner import ContentionLearner
from prontosched.subspace import Array

# Inputs that are one thing to a reader: its name, and the first of them in `INPUTS`.
SUBJECTS = (
    ("CPU Ready now", 1),
    ("its level lately", 9),
    ("its recent peaks", 12),
    ("utilisation", 21),
    ("the time of day", 25),
)
NAMED = 2
# The logarithm of CPU Ready at the tolerance, as the learner keeps it.
CONTENDED = math.log(1.0 + OFFSET)
# A subject is named if it adds at least this share of the largest contribution.
WORTH_NAMING = 0.4


class MetricContext(NamedTuple):
    """What is needed to name metrics: the vector, the directions and their usual size."""

    vector: Array
    basis: Array | None
    sizes: Array | None
    metrics: tuple[str, ...] | None


def reason(
    learner: ContentionLearner, context: MetricContext | None, *, raised: bool, node: int | None = None
) -> str:
    """Return one sentence for the last step of a node.

    Parameters
    ----------
    context
        Where to take the names of metrics from; None for none.
    node
        Which one, of many.
    """
    policy, admission, clock = learner.policy, learner.admission, learner.clock
    facts = (
        learner.unknown,
        clock.interval,
        clock.measured,
        learner.expected,
        learner.logit,
        learner.record.demoted,
        learner.trust(),
        admission.spent,
        admission.limited,
        admission.exempt,
        learner.level,
    )
    if node is not None:
        facts = tuple(fact[node].item() for fact in facts)
    unknown, interval, measured, expected, logit, demoted, trust, spent, limited, exempt, level = facts
    if unknown:
        known = logit > -9.0  # where a learner begins, and falls back to after a horizon without CPU Ready
        way = "going by the last known value" if known else "accepting"
        return f"CPU Ready unknown for {unknown} step{'s' if unknown > 1 else ''}: {way}"
    ahead = _duration(policy.horizon * interval) if measured else f"{policy.horizon} steps"
    chance = 100.0 / (1.0 + math.exp(-logit))
    text = f"CPU Ready {_short(expected)}{learner.unit} expected within {ahead}"
    text += f", chance of contention {round(chance)} %" if chance >= 1.0 else ", contention unlikely"
    if raised:
        drivers = _drivers(learner, context, node)
        text += f"; driven by {drivers}" if drivers else ""
        if logit < admission.close_at and level < CONTENDED:
            text += "; refusing until the end is sure"
    if demoted and not policy.quota:
        text += "; no better than a coin lately: acting on the present value"
    elif trust < 1.0:
        text += "; still learning: acting mostly on the present value"
    if limited:
        text += f"; held open, {policy.hourly_limit:.0%} of this hour was refused already"
    elif spent:
        text += f"; held open, the budget of {policy.budget:.0%} goes to worse moments"
    elif exempt:
        text += "; held open as an exception, to keep learning"
    return text


@lru_cache(maxsize=64)  # a regular clock asks for the same again and again
def _duration(seconds: float) -> str:
    """Return a time in seconds, or minutes where it is long."""
    if seconds >= 120.0:
        return f"{seconds / 60.0:.3g} min"
    # A measured interval is never quite round.
    return f"{seconds:.0f} s" if seconds >= 10.0 else f"{seconds:.2g} s"


def _short(value: float) -> str:
    """Return a value with about three digits, never in powers of ten."""
    return f"{value:.0f}" if value >= 100.0 else f"{value:.3g}" if value >= 0.001 else "0"


def _drivers(learner: ContentionLearner, context: MetricContext | None, node: int | None) -> str:
    """Name what sets the present apart from this node's usual state, strongest first."""
    at: Any = ... if node is None else node
    weights, x, usual = learner.heads.weights[at], learner.inputs[0][at], learner.usual[at]
    parts = np.add.reduceat(weights[0] * (x - usual), [first for _, first in SUBJECTS]).tolist()
    found = [(part, name) for part, (name, _) in zip(parts, SUBJECTS, strict=True)]
    trusted = learner.correction.trust() if node is None else learner.correction.trust()[node]
    coefficients, inputs = learner.correction.heads.weights[at][0], learner.correction_inputs[0][at]
    correction = float(trusted * coefficients.dot(inputs)) if trusted > 0.0 else 0.0
    if correction > 0.0:
        metrics = _metrics(learner, context, coefficients, inputs, at)
        found += [(correction / (1 + i), name) for i, name in enumerate(metrics)]
    found.sort(reverse=True)
    strongest = found[0][0]
    if strongest <= 0.0:
        return ""
    return ", ".join(name for part, name in found[:NAMED] if part >= WORTH_NAMING * strongest)


def _metrics(
    learner: ContentionLearner, context: MetricContext | None, coefficients: Array, inputs: Array, at: Any
) -> list[str]:
    """Return the metrics that add most to the correction."""
    if context is None or context.metrics is None or context.basis is None or context.sizes is None:
        return ["the other metrics"]
    half = coefficients.size // 2
    both = coefficients[:half] + coefficients[half:]
    rank = min(DIRECTIONS, context.basis.shape[1])
    linear = context.basis[:, :rank] @ np.where(
        context.sizes[:rank] > 0.0, both[:rank] / np.maximum(context.sizes[:rank], 1e-12), 0.0
    )
    along = learner.correction.along[at]
    length = float(np.sqrt(along.dot(along)))
    spread = float(np.sqrt(np.asarray(learner.correction.squares[2])[at])) + 1e-3
    if length > 0.0:
        linear = linear + both[DIRECTIONS + 2] / (length * spread) * along
    part = linear * context.vector
    # T² and SPE are sums of squares: each metric has its share.
    surprise = both[DIRECTIONS : DIRECTIONS + 2] * inputs[DIRECTIONS : DIRECTIONS + 2]
    squares = context.vector**2
    part = part + max(float(surprise.sum()), 0.0) * squares / max(float(squares.sum()), 1e-12)
    strongest = np.argsort(-part, kind="stable")[:NAMED]
    return [context.metrics[i] for i in strongest if part[i] > 0.0]
