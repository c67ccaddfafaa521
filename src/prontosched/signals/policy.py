"""What the operator asks for: tolerance, budget, horizon, and the other settings.

Covers: `Policy`, checked once, and `Tolerance`, which turns CPU Ready into units of
what counts as contention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from prontosched.errors import SettingsError
from prontosched.signals.arithmetic import Operations, Value
from prontosched.signals.held import Held
from prontosched.signals.quantiles import WHOLE_PAST, samples

FIRST_VALUES = 20
SIZE = 4096


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of the learned signal.

    Parameters
    ----------
    budget
        Share of the long run that may be refused, in (0, 1).
    tolerance
        CPU Ready from which a step counts as contention: `"5%"` or a number in the
        unit CPU Ready is measured in, or `"p95"` for a percentile of the node's past.
    horizon
        Steps ahead in which contention counts.
    quota
        Spend the whole budget, on the highest scores whatever they are, and without
        the limit for an hour. For comparing methods at equal downtime.
    hourly_limit
        Share of any one hour that may be refused.
    hold
        Steps for which a refusal is kept up.
    explore
        Share of would-be refusals accepted all the same while `enforcing`.
    seed
        Start of the random numbers that pick those.
    likelihood
        Chance of contention from which refusing is considered at all, in (0, 1).
    """

    budget: float = 0.1
    tolerance: str | float = "5%"
    horizon: int = 5
    quota: bool = False
    hourly_limit: float = 0.4
    hold: int = 0
    explore: float = 0.02
    seed: int = 0
    likelihood: float = 0.5

    def __post_init__(self) -> None:
        for name, low, high in (
            ("budget", 0.0, 1.0),
            ("likelihood", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if not low < value < high:
                raise SettingsError(f"{name} must lie between {low:g} and {high:g}, got {value!r}")
        for name in ("hourly_limit", "explore"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise SettingsError(f"{name} must be from 0 to 1, got {value!r}")
        if not 1 <= self.horizon <= 1000:
            raise SettingsError(f"horizon must be from 1 to 1000 steps, got {self.horizon!r}")
        if not 0 <= self.seed < 1 << 62:
            raise SettingsError(f"seed must be from 0 to below 2**62, got {self.seed!r}")
        if not 0 <= self.hold <= 100_000:
            raise SettingsError(f"hold must be from 0 to 100000 steps, got {self.hold!r}")
        read_tolerance(self.tolerance)

    @property
    def unit(self) -> str:
        """The unit CPU Ready is spoken of in, after a space; empty where it is not known to be percent."""
        return " %" if isinstance(self.tolerance, str) and self.tolerance.endswith("%") else ""

    @property
    def least_score(self) -> float:
        """The log odds of `likelihood`."""
        return math.log(self.likelihood / (1.0 - self.likelihood))


def read_tolerance(text: str | float) -> tuple[str, float]:
    """Return the kind of a tolerance, "absolute" or "percentile", and its value.

    Examples
    --------
    >>> read_tolerance("5%"), read_tolerance("p95"), read_tolerance(0.7)
    (('absolute', 5.0), ('percentile', 0.95), ('absolute', 0.7))
    """
    wrong = SettingsError(
        f"tolerance must be like 5%, p95 or a positive number, got {text!r}: "
        "5% is CPU Ready per CPU, p95 is learned from the node's own past"
    )
    word = str(text).strip()
    percentile = word[:1] in ("p", "P")
    try:
        value = float(word[1:] if percentile else word.removesuffix("%"))
    except ValueError:
        raise wrong from None
    if percentile:
        if not 50.0 <= value < 100.0:
            raise SettingsError(f"a percentile tolerance must be from p50 to below p100, got {text!r}")
        return "percentile", value / 100.0
    if not (math.isfinite(value) and value > 0.0):
        raise wrong
    return "absolute", value


class Tolerance(Held):
    """What counts as contention: a fixed value, or a percentile of the node's own past.

    Notes
    -----
    Memory: nothing for a fixed value; two rows of 4,096 floats for a percentile, of the whole past.
    """

    HELD: ClassVar[tuple[str, ...]] = ("level",)

    def __init__(self, ops: Operations, text: str | float) -> None:
        self.ops = ops
        self.kind, self.value = read_tolerance(text)
        self.level = ops.full(self.value if self.kind == "absolute" else math.inf)
        if self.kind == "percentile":
            self.sample = samples(ops, SIZE, longest_stride=WHOLE_PAST)
            self.HELD = ("sample", "level")  # type: ignore[misc]

    def learn(self, ready: Value) -> None:
        """Take in one value; a percentile of the past changes with it from the next step on."""
        if self.kind == "absolute":
            return
        changed = self.sample.add(ready)
        if self.ops.any(changed):
            enough = self.sample.seen >= FIRST_VALUES
            if self.ops.any(enough):
                self.level = self.ops.where(enough, self.sample.exceeding(self.value), math.inf)


# What holds where nothing is said; both forms of the learned signal begin from it.
USUAL = Policy()
