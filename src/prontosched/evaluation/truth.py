"""What counts as a CPU Ready spike: fixed, percentile, mean + 3σ, x̄, median.

All but the fixed ones are learned per node from the past alone: the threshold a
value is held against has not seen that value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from prontosched.errors import SettingsError
from prontosched.signals.arithmetic import Many
from prontosched.signals.quantiles import WHOLE_PAST, ManySamples
from prontosched.subspace import Array

# Upper control limit of a moving range of two.
D4 = 3.267
FEWEST_VALUES = 20
FORMS = "p95, 3sigma, xbar, median, a value such as 5%, 1000ms or 0.2"


@dataclass(frozen=True, slots=True)
class Truth:
    """A definition of a spike: its kind, and the number that belongs to it.

    Attributes
    ----------
    kind
        `fixed`, `percentile`, `3sigma`, `xbar` or `median`.
    value
        The threshold of a fixed one, the percentile of a percentile one.
    unit
        Of a fixed one: `%` (of one CPU), `ms` (per interval), or empty for the trace's own unit.

    Examples
    --------
    >>> Truth.parse("p95")
    Truth(kind='percentile', value=95.0, unit='')
    >>> Truth.parse("1000ms").in_unit_of("percent", interval_seconds=20.0)
    5.0
    """

    kind: str
    value: float = float("nan")
    unit: str = ""

    @classmethod
    def parse(cls, text: str) -> Truth:
        """Read a definition as written on the command line."""
        word = text.strip().lower().replace(" ", "")
        if word in ("3sigma", "mean+3sigma"):
            return cls("3sigma")
        if word in ("xbar", "x-bar"):
            return cls("xbar")
        if word == "median":
            return cls("median")
        if match := re.fullmatch(r"p(\d+(?:\.\d+)?)", word):
            share = float(match[1])
            if 0 < share < 100:
                return cls("percentile", share)
        elif match := re.fullmatch(r"(?:fixed:)?(\d+(?:\.\d*)?|\.\d+)(%|ms)?", word):
            return cls("fixed", float(match[1]), match[2] or "")
        raise SettingsError(f"a spike must be defined as {FORMS}, got '{text}'")

    def __str__(self) -> str:
        """Return the form `parse` reads."""
        if self.kind == "percentile":
            return f"p{self.value:g}"
        return f"{self.value:g}{self.unit}" if self.kind == "fixed" else self.kind

    def describe(self) -> str:
        """Say in words what counts as a spike."""
        words = {
            "percentile": f"CPU Ready at or over the {self.value:g}th percentile of the node's own past",
            "3sigma": "CPU Ready at or over the mean plus three standard deviations of the node's own past",
            "xbar": "CPU Ready at or over the x̄ chart's limit (mean + D4 x mean moving range) of its past",
            "median": "CPU Ready at or over the median of the node's own past",
            "fixed": f"CPU Ready at or over {self.value:g}{self.unit or ' (in the unit of the trace)'}",
        }
        return words[self.kind]

    def in_unit_of(self, trace_unit: str, *, interval_seconds: float) -> float:
        """Return a fixed threshold in the trace's unit: `percent` of one CPU, `ms` per interval, or other."""
        asked = {"%": "percent", "ms": "ms"}.get(self.unit, trace_unit)
        if asked == trace_unit:
            return self.value
        if trace_unit not in ("percent", "ms"):
            raise SettingsError(
                f"a threshold of {self} needs CPU Ready in percent or milliseconds, got a trace in a unit of its own: "
                "give a plain number or a percentile such as p95"
            )
        one_percent = interval_seconds * 10.0
        if not one_percent > 0:
            raise SettingsError(
                f"a threshold of {self} needs the interval of the trace, got {interval_seconds} s: "
                f"give the threshold in the trace's own unit ({trace_unit})"
            )
        return self.value / one_percent if asked == "ms" else self.value * one_percent

    def tolerance(self, unit: str, *, interval_seconds: float) -> str:
        """Return the truth as a signal's tolerance: a percentile, or a value in the trace's unit."""
        if self.kind == "fixed":
            return repr(self.in_unit_of(unit, interval_seconds=interval_seconds))
        return {"percentile": f"p{self.value:g}", "median": "p50"}.get(self.kind, "p95")

    def learner(
        self, nodes: int, *, trace_unit: str = "percent", interval_seconds: float = 20.0
    ) -> ThresholdLearner:
        """Return what follows the threshold of `nodes` nodes at once."""
        if self.kind == "fixed":
            return FixedThreshold(nodes, self.in_unit_of(trace_unit, interval_seconds=interval_seconds))
        if self.kind == "percentile":
            return PercentileThreshold(nodes, self.value / 100.0)
        if self.kind == "median":
            return PercentileThreshold(nodes, 0.5)
        return ChartThreshold(nodes, ranges=self.kind == "xbar")


class FixedThreshold:
    """The same threshold for all nodes and times."""

    def __init__(self, nodes: int, value: float) -> None:
        self._threshold = np.full(nodes, value)

    def threshold(self) -> Array:
        """Return the threshold, once per node."""
        return self._threshold

    def learn(self, ready: Array) -> None:
        """Learn nothing: a fixed threshold knows all it needs."""


class PercentileThreshold:
    """A percentile of the node's own past.

    Where that is also the lowest value ever seen, as on a node that is mostly at 0, only what lies above
    it is a spike: a node that always shows the same value has none.

    Notes
    -----
    Memory: 8,192 floats per node. Past 4,096 values it is that of an even sample of them.
    """

    def __init__(self, nodes: int, share: float) -> None:
        self._past = ManySamples(Many(nodes), 4096, WHOLE_PAST)
        self._share = share
        self._lowest = np.full(nodes, np.inf)
        self._threshold = np.full(nodes, np.nan)

    def threshold(self) -> Array:
        """Return the percentile of all values so far."""
        return self._threshold

    def learn(self, ready: Array) -> None:
        """Take in one value per node."""
        changed = self._past.add(ready)
        lower = ready < self._lowest  # never so where CPU Ready is unknown
        if lower.any():
            np.fmin(self._lowest, ready, out=self._lowest)
        elif not changed.any():
            return
        level = self._past.quantile(self._share)
        level = np.where(level <= self._lowest, np.nextafter(level, np.inf), level)
        self._threshold = np.where(self._past.seen >= FEWEST_VALUES, level, np.nan)


class ChartThreshold:
    """A control limit: mean + 3σ, or with `ranges` mean + D4 times the mean moving range.

    Notes
    -----
    Memory: five floats per node.
    """

    def __init__(self, nodes: int, *, ranges: bool) -> None:
        self._ranges = ranges
        self._seen = np.zeros(nodes)
        self._mean = np.zeros(nodes)
        self._squares = np.zeros(nodes)
        self._moving_range = np.zeros(nodes)
        self._last = np.full(nodes, np.nan)

    def threshold(self) -> Array:
        """Return the upper control limit."""
        seen = np.maximum(self._seen, 1.0)
        spread = D4 * self._moving_range if self._ranges else 3.0 * np.sqrt(self._squares / seen)
        return np.where(self._seen >= FEWEST_VALUES, self._mean + spread, np.nan)

    def learn(self, ready: Array) -> None:
        """Take in one value per node."""
        known = np.isfinite(ready)
        self._seen += known
        off = np.where(known, ready - self._mean, 0.0)
        self._mean += off / np.maximum(self._seen, 1.0)
        self._squares += off * np.where(known, ready - self._mean, 0.0)
        moved = np.abs(ready - self._last)
        steps = np.maximum(self._seen - 1.0, 1.0)
        self._moving_range += np.where(np.isfinite(moved), (moved - self._moving_range) / steps, 0.0)
        self._last = np.where(known, ready, self._last)


# Follows the spike threshold of many nodes: `threshold` gives those in force, NaN where too little was seen, and
# `learn` takes in CPU Ready of every node, NaN where it is unknown.
ThresholdLearner = FixedThreshold | PercentileThreshold | ChartThreshold
