"""A node's own record: what its signal was worth, against a coin.

It has recall, precision, lead time and refused capacity over a long, fading window, and whether the
signal has been better than refusing at random as often.

A refusal that works prevents what it foresaw, so a step that was refused has no
label. Steps in the shadow (nothing enforced), accepted steps, and the would-be
refusals accepted as exceptions do; exceptions stand for all refusals and are
weighted so.
"""

from __future__ import annotations

from typing import NamedTuple

from prontosched.signals.arithmetic import Component, Operations, Value
from prontosched.telemetry.scaling import weight_of

FADES = weight_of(10_000.0)
JUDGED_EVERY = 16
LONG = 5000.0
ENOUGH_SPIKES = 20.0
# Foreseen ends of contention, a horizon apart, from which they are judged.
ENOUGH_EARLY = 20.0


class SignalFigures(NamedTuple):
    """What a node's record says."""

    steps: float  # labelled steps behind the figures; the past fades with a half-life of 10,000
    recall: float  # share of the steps before contention at which the signal was raised, or would have been
    precision: float  # share of the raised steps after which contention came within the horizon
    downtime: float  # share of steps refused; a coin of this downtime has this recall
    base_rate: float  # share of steps before contention; a coin has this precision
    lead_steps: float  # mean number of steps from the first raise to the onset, over onsets foreseen
    better_than_coin: bool | None  # False after a long window without proof; None while too little is known


class SignalRecord(Component):
    """Fading counts of labelled steps.

    Memory: twelve numbers per node.
    """

    STATE = (
        "steps", "raised", "spikes", "hits", "weights", "labels", "foreseen", "leads", "demoted",
        "early_steps", "early_hits", "trusted_early",
    )  # fmt: skip
    __slots__ = ("horizon", *STATE)

    def __init__(self, ops: Operations, horizon: int) -> None:
        self.ops = ops
        self.horizon = horizon
        self.steps = ops.full(0.0)
        self.raised = ops.full(0.0)
        self.spikes = ops.full(0.0)
        self.hits = ops.full(0.0)
        self.weights = ops.full(0.0)
        self.labels = ops.full(0)
        self.foreseen = ops.full(0.0)
        self.leads = ops.full(0.0)
        self.demoted = ops.full(False)
        self.early_steps = ops.full(0.0)
        self.early_hits = ops.full(0.0)
        self.trusted_early = ops.full(False)

    def learn(self, wanted: Value, label: Value, counts: Value) -> None:
        """Take in one labelled step: whether the rule would have refused it, and how many steps it stands for."""
        counted = counts > 0.0
        fade = 1.0 - counted * FADES
        wanted_counts = wanted * counts
        self.steps = fade * self.steps + counts
        self.weights = fade * self.weights + counted
        self.raised = fade * self.raised + wanted_counts
        self.spikes = fade * self.spikes + label * counts
        self.hits = fade * self.hits + label * wanted_counts
        self.labels = self.labels + counted
        due = counted & (self.labels % JUDGED_EVERY == 0)
        if self.ops.any(due):
            self._judge(due)

    def learn_early(self, early: Value, label: Value, counts: Value) -> None:
        """Take in whether contention went on, or came back within the horizon, where its end was foreseen."""
        ops = self.ops
        counted = (early & (counts > 0.0)) * 1.0
        fade = 1.0 - counted * FADES
        self.early_steps = fade * self.early_steps + counted * counts
        self.early_hits = fade * self.early_hits + counted * counts * label
        apart = self.early_steps / self.horizon
        share = self.early_hits / ops.maximum(self.early_steps, 1.0)
        error = ops.sqrt(0.25 / ops.maximum(apart, 1.0))
        self.trusted_early = (apart >= ENOUGH_EARLY) & (share + 2.0 * error < 0.5)

    def learn_onset(self, lead: Value, counts: Value) -> None:
        """Take in how many steps before the onset of contention the signal was first raised; 0: it was not."""
        ops = self.ops
        seen = counts & (lead > 0)
        self.foreseen = ops.where(seen, (1.0 - FADES) * self.foreseen + 1.0, self.foreseen)
        self.leads = ops.where(seen, (1.0 - FADES) * self.leads + lead, self.leads)

    def _judge(self, due: Value) -> None:
        ops = self.ops
        # Labels overlap over a horizon, so that many of them count as one.
        apart = self.spikes / self.horizon
        enough = due & (self.weights >= LONG) & (apart >= ENOUGH_SPIKES)
        if not ops.any(enough):
            return
        downtime = self.raised / ops.maximum(self.steps, 1e-9)
        recall = self.hits / ops.maximum(self.spikes, 1e-9)
        error = ops.sqrt(downtime * (1.0 - downtime) / ops.maximum(apart, 1.0))
        worse = enough & (recall < downtime + error)
        better = enough & (recall > downtime + 2.0 * error)
        self.demoted = (self.demoted | worse) & ops.no(better)

    def figures(self) -> SignalFigures:
        """Return the record of one node as shares; NaN where there is nothing to divide by."""

        def share(part: float, whole: float) -> float:
            return part / whole if whole > 0.0 else float("nan")

        long = self.weights >= LONG and self.spikes / self.horizon >= ENOUGH_SPIKES
        return SignalFigures(
            steps=self.steps,
            recall=share(self.hits, self.spikes),
            precision=share(self.hits, self.raised),
            downtime=share(self.raised, self.steps),
            base_rate=share(self.spikes, self.steps),
            lead_steps=share(self.leads, self.foreseen),
            better_than_coin=(not self.demoted) if long else None,
        )
