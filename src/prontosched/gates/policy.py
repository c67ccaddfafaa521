"""When a gate closes, opens and ranks a node: the same rules for every scheduler.

`Rules` are the settings, `VetoPolicy` has minimum times, expiry and respect for what others
did, `LevelPolicy` how often a level may change. Pure: time arrives as a number, and nothing
here calls a scheduler.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from prontosched.errors import SettingsError
from prontosched.gates.gate import LONGEST_MARK_SECONDS, Observed, Rank, Verdict
from prontosched.gates.preference import CONTENDED, level_of

# So many changes of level may follow each other before their long-run rate binds.
LEVEL_BURST = 3.0

Action = Literal["refuse", "renew", "accept", "leave"]
# Options that hold for every gate, in seconds.
RULE_OPTIONS = (
    "valid_seconds",
    "min_hold_seconds",
    "min_accept_seconds",
    "override_seconds",
    "observe_seconds",
    "prefer_seconds",
)


@dataclass(frozen=True, slots=True)
class Rules:
    """How a controller treats its node.

    Attributes
    ----------
    enforce
        False is shadow mode: decide and record, but change nothing at the scheduler.
    veto
        True also closes nodes that drown while others do not. None closes them only at a
        scheduler that cannot prefer one node to another.
    prefer_seconds
        How long a rank counts. A dead agent leaves no node ranked for longer.
    valid_seconds
        How long one decision counts. A dead agent leaves no node closed for longer.
    min_hold_seconds, min_accept_seconds
        Shortest time to stay closed, and open, against flapping.
    max_refusing
        Largest share of the nodes in service that may refuse at once, in (0, 1].
    override_seconds
        How long to leave a node open after someone else opened it over our refusal.
    observe_seconds
        How old a look at the scheduler may be while there is nothing to change.
    """

    enforce: bool = False
    veto: bool | None = None
    valid_seconds: float = 60.0
    min_hold_seconds: float = 5.0
    min_accept_seconds: float = 5.0
    max_refusing: float = 0.25
    override_seconds: float = 300.0
    observe_seconds: float = 60.0
    prefer_seconds: float = 300.0

    def __post_init__(self) -> None:
        """Refuse values that would break a promise."""
        if not 0.0 < self.max_refusing <= 1.0:
            raise SettingsError(
                f"max_refusing must be above 0 and at most 1, got {self.max_refusing}: "
                "it is the share of nodes that may refuse at once"
            )
        for name in ("valid_seconds", "prefer_seconds"):
            value = getattr(self, name)
            if not 2.0 <= value <= LONGEST_MARK_SECONDS:
                raise SettingsError(
                    f"{name} must be from 2 to {LONGEST_MARK_SECONDS:g}, got {value}: marks at schedulers are "
                    "kept in whole seconds, and longer ones are taken for those of a clock that runs ahead"
                )
        for name in ("min_hold_seconds", "min_accept_seconds", "override_seconds", "observe_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise SettingsError(f"{name} must be a finite number of seconds from 0 up, got {value}")


def take_rules(options: dict[str, str], *, enforce: bool, max_refusing: float) -> Rules:
    """Take the rules out of a gate's options, and leave there what is the gate's own.

    Examples
    --------
    >>> options = {"conf": "/etc/slurm.conf", "min_hold_seconds": "5"}
    >>> take_rules(options, enforce=True, max_refusing=0.5).min_hold_seconds, options
    (5.0, {'conf': '/etc/slurm.conf'})
    """
    given = {}
    for name in [name for name in RULE_OPTIONS if name in options]:
        text = options.pop(name)
        try:
            given[name] = float(text)
        except ValueError as error:
            raise SettingsError(f"{name} must be a number of seconds, got {text!r}") from error
    return Rules(enforce=enforce, max_refusing=max_refusing, veto=take_veto(options), **given)


def take_veto(options: dict[str, str]) -> bool | None:
    """Take out of a gate's options whether it may close nodes; None where they do not say.

    Examples
    --------
    >>> take_veto({"veto": "true"}), take_veto({})
    (True, None)
    """
    text = options.pop("veto", None)
    if text is not None and text.lower() not in ("true", "false"):
        raise SettingsError(f"veto must be true or false, got {text!r}")
    return None if text is None else text.lower() == "true"


class PolicyStep(NamedTuple):
    """What to do next at the scheduler, and why; `held` says what keeps a refusing node open."""

    action: Action
    why: str
    held: str = ""


class VetoPolicy:
    """Choose, for one node, what to do about a verdict given what the scheduler shows.

    Examples
    --------
    >>> policy = VetoPolicy(Rules(min_accept_seconds=0))
    >>> busy = Verdict(True, 0.9, "cpu_user is rising", valid_until=60.0)
    >>> policy.choose(busy, Observed("open"), now=0.0).action
    'refuse'
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._closed_at = math.nan
        self._marked_until = math.nan
        self._opened_at = -math.inf
        self._overridden_until = -math.inf

    @property
    def holding(self) -> bool:
        """True while we believe that the node is closed by us."""
        return not math.isnan(self._closed_at)

    def choose(self, verdict: Verdict | None, observed: Observed, now: float) -> PolicyStep:
        """Return the next step; `done` then tells whether it was taken."""
        # A clock that was set back must not stretch what has begun.
        self._closed_at = min(self._closed_at, now)
        self._opened_at = min(self._opened_at, now)
        self._overridden_until = min(self._overridden_until, now + self.rules.override_seconds)
        if observed.state == "closed-by-other":
            self._closed_at = math.nan
            return PolicyStep("leave", f"closed by someone else: {observed.detail or 'no reason given'}")
        if verdict is None or verdict.expired(now):
            return self._open(observed, "no valid verdict: accepting, as nothing is known")
        if verdict.refuse:
            return self._refuse(verdict, observed, now)
        if observed.ours and (left := self._closed_at + self.rules.min_hold_seconds - now) > 0:
            return PolicyStep("leave", f"accepting again in {left:.0f} s: refusals hold for a minimum time")
        return self._open(observed, verdict.reason)

    def done(self, action: Action, now: float, marked_until: float = math.nan) -> None:
        """Take note that a step was taken, and until when the mark left there counts."""
        if action == "accept":
            self._closed_at = math.nan
            self._opened_at = now
        elif action in ("refuse", "renew"):
            self._marked_until = marked_until
            if not self.holding:
                self._closed_at = now

    def _open(self, observed: Observed, why: str) -> PolicyStep:
        if observed.ours:
            return PolicyStep("accept", why)
        self._closed_at = math.nan
        return PolicyStep("leave", why)

    def _refuse(self, verdict: Verdict, observed: Observed, now: float) -> PolicyStep:
        if observed.ours:
            # Half-way through, so that one lost call does not let the mark lapse. A mark that
            # outlives its verdict was made by a clock that ran ahead.
            half = (verdict.valid_until - now) / 2
            due = not now + half < observed.valid_until <= verdict.valid_until + 1.0
            if not self.holding:  # left by an earlier run of this agent
                self._closed_at, self._marked_until = now, observed.valid_until
            return PolicyStep("renew" if due else "leave", verdict.reason)
        if self.holding:
            self._closed_at = math.nan
            # A mark that lapsed while we stalled was undone by a watchdog, as it should be.
            if now < self._marked_until:
                self._overridden_until = now + self.rules.override_seconds
        if (left := self._overridden_until - now) > 0:
            why = f"someone opened the node over our refusal: leaving it open for {left:.0f} s"
            return PolicyStep("leave", why, f"someone who opened it at its scheduler, for {left:.0f} s more")
        if (left := self._opened_at + self.rules.min_accept_seconds - now) > 0:
            why = f"refusing in {left:.0f} s: nodes accept for a minimum time"
            return PolicyStep("leave", why, f"the minimum time of its gate, for {left:.0f} s more")
        return PolicyStep("refuse", verdict.reason)


class LevelPolicy:
    """Choose when the rank of one node changes.

    A level that rises is written at once, one that falls a little later. In the long run
    there is at most one change in `seconds`, however the chance behaves; 0 allows any number.

    Examples
    --------
    >>> levels = LevelPolicy(60.0)
    >>> levels.choose(Verdict(False, 0.6, "busy", valid_until=60.0), None, now=0.0)
    3
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._saved = LEVEL_BURST
        self._at = math.nan

    def choose(self, verdict: Verdict | None, held: Rank | None, now: float) -> int:
        """Return the level that the node is to have now; `done` then tells that it has it."""
        before = 0 if held is None else held.level
        if verdict is None or verdict.expired(now):
            return 0
        level = wanted_level(verdict, held)
        # A fall leaves enough for the rise that may follow it.
        cost = 1.0 if level > before else 2.0
        return level if level == before or self._left(now) >= cost else before

    def done(self, now: float) -> None:
        """Take note that the level was changed."""
        self._saved, self._at = max(0.0, self._left(now) - 1.0), now

    def _left(self, now: float) -> float:
        if self.seconds == 0.0:
            return LEVEL_BURST
        # A clock that was set back must not earn anything.
        earned = 0.0 if math.isnan(self._at) else max(0.0, now - self._at) / self.seconds
        return min(LEVEL_BURST, self._saved + earned)


def wanted_level(verdict: Verdict, held: Rank | None) -> int:
    """Return the level by a verdict alone, given the rank so far.

    Examples
    --------
    >>> wanted_level(Verdict(True, 0.4, "held for a while", valid_until=60.0), None)
    3
    """
    chance = max(verdict.score, CONTENDED) if verdict.refuse else verdict.score
    return level_of(chance, None if held is None else held.level)
