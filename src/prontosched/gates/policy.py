"""When a gate closes, opens and ranks a node: the same rules for every scheduler.

`Rules` are the settings. `VetoPolicy` has minimum times, expiry and respect for what others
did; `LevelPolicy` how often a level may change. Time arrives as a number.

The capacity floor bounds how many nodes are closed at once. Every gate, the simulator and
the extender use it. A node may be closed if all of this holds:

1. Its own decision is to refuse.
2. Its chance of contention is at least `TYPICAL_TIMES` the fleet's typical one.
3. No node that stays open has a higher chance.
4. At most `places` nodes are closed.
5. No job waits that no open node can take.

A lone node is never closed: there is no other node that could take the job. `closable` is
the rule over arrays, `closed_nodes` over names and `may_close` for one node. A `Floor` applies
it for one controller: with leases on the bus (`LeaseFloor`) or with the marks at the
scheduler (`CountedFloor`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.errors import SettingsError
from prontosched.gates.gate import (
    LONGEST_MARK_SECONDS,
    Gate,
    LeaseTable,
    ListingGate,
    Observed,
    Rank,
    Verdict,
)
from prontosched.gates.preference import LEVEL_EDGES, level_of
from prontosched.subspace import Array

# So many changes of level may follow each other before their long-run rate binds.
LEVEL_BURST = 3.0
TYPICAL_TIMES = 2.0
# A closed node's chance counts for this much more, so that near equals do not take turns.
HELD_MARGIN = 0.1

Action = Literal["refuse", "renew", "accept", "leave"]
# Options that hold for every gate, in seconds: how long marks count, and shortest and longest times.
MARK_OPTIONS = ("valid_seconds", "prefer_seconds")
TIME_OPTIONS = ("min_hold_seconds", "min_accept_seconds", "override_seconds", "observe_seconds")
RULE_OPTIONS = (*MARK_OPTIONS, *TIME_OPTIONS)


@dataclass(frozen=True, slots=True)
class Rules:
    """How a controller treats its node.

    Attributes
    ----------
    enforce
        False is shadow mode: decide and record, but change nothing at the scheduler.
    veto
        True also closes nodes that are contended while most others are calm. None closes them only at a
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
        for name in MARK_OPTIONS:
            value = getattr(self, name)
            if not 2.0 <= value <= LONGEST_MARK_SECONDS:
                raise SettingsError(
                    f"{name} must be from 2 to {LONGEST_MARK_SECONDS:g}, got {value}: marks at schedulers are "
                    "kept in whole seconds, and longer ones are taken for those of a clock that runs ahead"
                )
        for name in TIME_OPTIONS:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise SettingsError(f"{name} must be a finite number of seconds from 0 up, got {value}")


def take_rules(options: dict[str, str], *, enforce: bool, max_refusing: float) -> Rules:
    """Take the rules out of a gate's options, and leave there what is the gate's own."""
    given = {}
    for name in [name for name in RULE_OPTIONS if name in options]:
        text = options.pop(name)
        try:
            given[name] = float(text)
        except ValueError as error:
            raise SettingsError(f"{name} must be a number of seconds, got {text!r}") from error
    return Rules(enforce=enforce, max_refusing=max_refusing, veto=take_veto(options), **given)


def take_veto(options: dict[str, str]) -> bool | None:
    """Take out of a gate's options whether it may close nodes; None where they do not say."""
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
    """Choose, for one node, what to do about a verdict given what the scheduler shows."""

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
        level = level_of(verdict.expected, None if held is None else held.level)
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


def places(nodes: int, share: float) -> int:
    """Return how many of `nodes` may be closed at once: the share rounded down, at least one of two or more.

    Examples
    --------
    >>> [places(nodes, 0.25) for nodes in (1, 2, 8, 11, 12)]
    [0, 1, 2, 2, 3]
    >>> places(1, 1.0)
    0
    """
    return 0 if nodes < 2 else max(1, math.floor(share * nodes + 1e-9))


def typical(chance: Array) -> float:
    """Return the fleet's typical chance of contention: the median, of two in the middle the lower."""
    return float(np.quantile(chance, 0.5, method="lower"))


def closable(
    refusing: NDArray[np.bool_],
    probability: Array,
    *,
    share: float,
    starved: bool = False,
    held: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """Return which of the nodes in service may be closed now.

    `refusing` is their own decision, `held` whether they are closed already; a `probability`
    of NaN counts as 0. `starved` tells whether jobs wait that no open node can take.

    Examples
    --------
    >>> refusing, chance = np.array([True, True, False, False]), np.array([0.9, 0.6, 0.1, 0.2])
    >>> closable(refusing, chance, share=0.25).tolist()
    [True, False, False, False]
    """
    chance = np.nan_to_num(probability, nan=0.0)
    closed = np.zeros(chance.shape, np.bool_)
    room = places(chance.size, share)
    if starved or room == 0:
        return closed
    weighed = chance if held is None else chance + HELD_MARGIN * held
    order = np.argsort(-weighed, kind="stable")[:room]
    outstanding = refusing & (weighed >= TYPICAL_TIMES * typical(chance))
    # From the worst down to the first that stays open: nothing calmer than that one is closed.
    closed[order] = np.logical_and.accumulate(outstanding[order])
    return closed


class NodeReport(NamedTuple):
    """What others know of one node: whether it refuses, its chance, and whether we hold it closed."""

    refuse: bool
    chance: float
    held: bool = False


def closed_nodes(
    reports: Mapping[str, tuple[bool, float, bool]], *, nodes: int, share: float
) -> frozenset[str]:
    """Return the names that may be closed now, by `closable`; each report is a `NodeReport`.

    `nodes` are in service. They report from level 1 on, so the chance of one without a
    report counts as the first edge.

    Examples
    --------
    >>> reports = {"n1": NodeReport(True, 0.9), "n2": NodeReport(True, 0.7), "n3": NodeReport(False, 0.8)}
    >>> sorted(closed_nodes(reports, nodes=8, share=0.25))
    ['n1']
    """
    if not any(refuse for refuse, _, _ in reports.values()):
        return frozenset()
    names = sorted(reports)
    calm = max(0, nodes - len(names))
    rows = [*(reports[name] for name in names), *[NodeReport(False, LEVEL_EDGES[0])] * calm]
    refuse, chance, held = (np.array(column) for column in zip(*rows, strict=True))
    closed = closable(refuse, chance, share=share, held=held)
    return frozenset(name for name, shut in zip(names, closed, strict=False) if shut)


def may_close(node: str, reports: Mapping[str, NodeReport], *, nodes: int, share: float) -> bool:
    """Tell whether `node` may be closed now, or stay so.

    One that must open for it, and has not yet, still takes a place.
    """
    if node not in closed_nodes(reports, nodes=nodes, share=share):
        return False
    return reports[node].held or sum(one.held for one in reports.values()) < places(nodes, share)


class Floor:
    """Permission to refuse, one node at a time. This one is off and always gives it.

    `how` says by what means the floor is held, or that it is off. `costly` is True when asking
    loads the scheduler, so that it is asked only before a change.
    """

    costly = False

    def __init__(self, how: str) -> None:
        self.how = how

    def allow(self, node: str, verdict: Verdict, now: float) -> bool:
        """Take or renew the permission of `node` to refuse; False when there is no place."""
        return True

    def release(self, node: str) -> None:
        """Give the permission back; nothing happens where there is none."""


class LeaseFloor(Floor):
    """The floor held by leases on the bus."""

    def __init__(self, leases: LeaseTable) -> None:
        super().__init__("leases on the bus")
        self.leases = leases

    def allow(self, node: str, verdict: Verdict, now: float) -> bool:
        """Take or renew the node's lease."""
        return self.leases.tell(
            node, refuse=True, score=verdict.score, valid_until=verdict.valid_until, now=now
        )

    def release(self, node: str) -> None:
        """Give the node's lease back."""
        self.leases.release(node)


class CountedFloor(Floor):
    """The floor held by counting our own marks at the scheduler: refusals and ranks.

    A scheduler without compare-and-set lets two nodes count at the same moment and both
    close. So a node counts again right after it has closed, and by the same order on both
    sides (chance, then name) the calmer one opens. No agent touches another's node.
    """

    costly = True

    def __init__(self, observe_all: Callable[[], Mapping[str, Observed]], name: str, share: float) -> None:
        super().__init__(f"counted at {name}, at most {share:.0%} of the nodes")
        self.share = share
        self._observe_all = observe_all

    def allow(self, node: str, verdict: Verdict, now: float) -> bool:
        """Count, and return whether `node` may be closed."""
        seen = self._observe_all()
        serving = {name: one for name, one in seen.items() if one.state != "closed-by-other"}
        reports = {}
        for name, one in serving.items():
            if one.ours:
                reports[name] = NodeReport(True, one.score, True)
            elif one.rank is not None and not one.rank.expired(now):
                reports[name] = NodeReport(one.rank.refuse, one.rank.chance)
        reports[node] = NodeReport(True, verdict.score, node in serving and serving[node].ours)
        return may_close(node, reports, nodes=len(serving), share=self.share)


def floor_for(
    gate: Gate,
    *,
    share: float,
    leases: LeaseTable | None,
    observe_all: Callable[[], Mapping[str, Observed]] | None = None,
) -> Floor:
    """Choose how to hold the floor: leases, else counting, else off and saying so.

    `observe_all` is asked in the gate's place, by controllers that share what it said.
    """
    if leases is not None:
        return LeaseFloor(leases)
    if isinstance(gate, ListingGate):
        return CountedFloor(observe_all or gate.observe_all, gate.name, share)
    return Floor("off (no leases, and the scheduler cannot count its nodes)")
