"""What the operator asks for: tolerance, horizon, likelihood, and the other settings.

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
        Largest share of the long run to refuse, in (0, 1); None sets no cap.
    tolerance
        CPU Ready from which a step counts as contention: `"5%"` or a number in the
        unit CPU Ready is measured in, or `"p95"` for a percentile of the node's past.
    horizon
        Steps ahead in which contention counts.
    likelihood
        Chance of contention from which the node refuses, in (0, 1).
    reopen
        Chance of contention below which it may accept again; never above `likelihood`.
    calm
        Seconds for which the chance must have been below `reopen` before it accepts again;
        ten times as many below `likelihood` do as well.
    hold
        Fewest seconds for which a refusal is kept up.
    hourly_limit
        Largest share of any one hour to refuse; None sets no limit.
    quota
        Spend the whole budget, on the highest scores whatever they are, without hysteresis
        or limits. For comparing methods at equal downtime.
    explore
        Share of would-be refusals accepted all the same while `enforcing`.
    seed
        Start of the random numbers that pick those.
    """

    tolerance: str | float = "5%"
    horizon: int = 5
    likelihood: float = 0.5
    reopen: float = 0.35
    calm: float = 3.0
    hold: float = 5.0
    budget: float | None = None
    hourly_limit: float | None = None
    quota: bool = False
    explore: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        if self.budget is not None and not 0.0 < self.budget < 1.0:
            raise SettingsError(
                f"budget must lie between 0 and 1, got {self.budget!r}: leave it out to set no cap"
            )
        if self.quota and self.budget is None:
            raise SettingsError("quota must come with a budget to spend, got none: set a budget such as 0.1")
        for name in ("likelihood", "reopen"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise SettingsError(f"{name} must lie between 0 and 1, got {getattr(self, name)!r}")
        if self.hourly_limit is not None and not 0.0 <= self.hourly_limit <= 1.0:
            raise SettingsError(f"hourly_limit must be from 0 to 1, got {self.hourly_limit!r}")
        if not 0.0 <= self.explore <= 1.0:
            raise SettingsError(f"explore must be from 0 to 1, got {self.explore!r}")
        if not 1 <= self.horizon <= 1000:
            raise SettingsError(f"horizon must be from 1 to 1000 steps, got {self.horizon!r}")
        if not 0 <= self.seed < 1 << 62:
            raise SettingsError(f"seed must be from 0 to below 2**62, got {self.seed!r}")
        for name in ("hold", "calm"):
            if not 0.0 <= getattr(self, name) <= 86_400.0:
                raise SettingsError(f"{name} must be from 0 to 86400 seconds, got {getattr(self, name)!r}")
        read_tolerance(self.tolerance)

    @property
    def unit(self) -> str:
        """The unit CPU Ready is spoken of in, after a space; empty where it is not known to be percent."""
        return " %" if isinstance(self.tolerance, str) and self.tolerance.endswith("%") else ""


def log_odds(chance: float) -> float:
    """Return the logarithm of the odds of a chance.

    Examples
    --------
    >>> log_odds(0.5)
    0.0
    """
    return math.log(chance / (1.0 - chance))


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
DEFAULTS = Policy()
