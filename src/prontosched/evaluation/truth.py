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
            return FixedThreshold(self.in_unit_of(trace_unit, interval_seconds=interval_seconds))
        if self.kind == "percentile":
            return PercentileThreshold(nodes, self.value / 100.0)
        if self.kind == "median":
            return PercentileThreshold(nodes, 0.5)
        return ChartThreshold(nodes, ranges=self.kind == "xbar")


class FixedThreshold:
    """The same threshold for all nodes and times."""

    def __init__(self, value: float) -> None:
        self._value = value

    def follow(self, ready: Array) -> Array:
        """Return the threshold for every value."""
        return np.full(ready.shape, self._value)


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
        self._lowest = np.full((1, nodes), np.inf)

    def follow(self, ready: Array) -> Array:
        """Return the percentile of all values before each."""
        found = np.full(ready.shape, np.nan)
        # Where CPU Ready is unknown it lowers nothing.
        lowest = np.fmin.accumulate(np.concatenate([self._lowest, ready]), axis=0)
        self._lowest = lowest[-1:]
        for span, seen in self._past.spans(ready):
            level = self._past.quantile(self._share)
            above = np.where(level <= lowest[:-1][span], np.nextafter(level, np.inf), level)
            found[span] = np.where(seen >= FEWEST_VALUES, above, np.nan)
        return found


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

    def follow(self, ready: Array) -> Array:
        """Return the upper control limit before each value."""
        found = np.empty(ready.shape)
        for step, values in enumerate(ready):
            found[step] = self._limit()
            self._learn(values)
        return found

    def _limit(self) -> Array:
        seen = np.maximum(self._seen, 1.0)
        spread = D4 * self._moving_range if self._ranges else 3.0 * np.sqrt(self._squares / seen)
        return np.where(self._seen >= FEWEST_VALUES, self._mean + spread, np.nan)

    def _learn(self, ready: Array) -> None:
        known = np.isfinite(ready)
        self._seen += known
        off = np.where(known, ready - self._mean, 0.0)
        self._mean += off / np.maximum(self._seen, 1.0)
        self._squares += off * np.where(known, ready - self._mean, 0.0)
        moved = np.abs(ready - self._last)
        steps = np.maximum(self._seen - 1.0, 1.0)
        self._moving_range += np.where(np.isfinite(moved), (moved - self._moving_range) / steps, 0.0)
        self._last = np.where(known, ready, self._last)


# `follow` takes CPU Ready of some timesteps of every node, `(T, M)` and NaN where unknown, and returns the threshold
# in force at each: learned from the steps before alone, NaN where too little was seen.
ThresholdLearner = FixedThreshold | PercentileThreshold | ChartThreshold
