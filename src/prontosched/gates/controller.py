"""The controller carries one node's verdicts to its scheduler, outside the agent's loop.

Also here: `ShadowGate`, which only remembers what would be done, and `release` and
`sweep`, which undo our marks. When to close, open and rank, and how many nodes may be
closed, is decided in `policy`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from prontosched.errors import IntegrationError
from prontosched.gates.gate import (
    Gate,
    LeaseTable,
    ListingGate,
    Observed,
    PreferringGate,
    QueueGate,
    Rank,
    SweepingGate,
    Verdict,
    label,
    read_label,
)
from prontosched.gates.policy import Floor, LevelPolicy, PolicyStep, Rules, VetoPolicy, floor_for
from prontosched.gates.preference import LEVEL_EDGES

LOG = logging.getLogger("prontosched.gate")
_LONGEST_RETRY_SECONDS = 60.0
# How old a look at the scheduler may be while we hold the node closed: someone may need it.
_HELD_LOOK_SECONDS = 10.0
# A gate that takes any number of changes is told of chances that moved by so much.
_FINE_CHANCE = 0.05


@dataclass(frozen=True, slots=True)
class GateStatus:
    """Where a node stands with its scheduler, for status pages and metrics.

    `mode` is `shadow`, where all is what would be, or `enforce`; `floor` says by what means the
    capacity floor is held. `level` is None where the scheduler cannot be told one. `state` is
    `unknown` before the first answer and after an error: an error is never read as "open".
    `held_open` says why the node is left open although it refuses. `withheld` counts refusals
    that the floor did not allow, `rankings` changes of level.
    """

    node: str
    gate: str
    mode: str
    floor: str
    veto: bool
    level: int | None = None
    state: str = "unknown"
    wanted: bool = False
    why: str = "no verdict yet"
    held_open: str = ""
    changed_at: float = float("nan")
    refusals: int = 0
    accepts: int = 0
    withheld: int = 0
    errors: int = 0
    rankings: int = 0
    last_error: str = ""
    refused_seconds: float = 0.0


class Controller:
    """Carry verdicts of one node to one gate.

    `apply` hands the newest verdict over and returns at once; a thread of the controller's
    own calls the scheduler, and opens the node by itself when no newer verdict has
    come before the last one ends. `settle` does the same work in the caller's thread.
    """

    def __init__(
        self, gate: Gate, node: str, *, rules: Rules | None = None, leases: LeaseTable | None = None
    ) -> None:
        self.rules = Rules() if rules is None else rules
        self.node = node
        enforce = self.rules.enforce
        self._veto = vetoes(gate, self.rules)
        self._gate: Any = gate if enforce else ShadowGate(gate)
        self._ranks = isinstance(gate, PreferringGate)
        self._marks_calm = isinstance(gate, PreferringGate) and gate.marks_calm and enforce
        self._leases = leases if self._veto and enforce else None
        self._floor = self._floor_of(gate)
        self._policy = VetoPolicy(self.rules)
        self._levels = LevelPolicy(gate.level_seconds if isinstance(gate, PreferringGate) else 0.0)
        mode, level = "enforce" if enforce else "shadow", 0 if self._ranks else None
        self._status = GateStatus(node, gate.name, mode, self._floor.how, self._veto, level)
        self._would = "" if enforce else "shadow mode, enforcing nothing: "
        self._seen: Observed | None = None
        self._seen_at = 0.0
        self._failures = 0
        self._retry_at = float("-inf")
        self._settled_at = float("nan")
        # Whether the floor has given permission, and whether a row of ours is in the table of leases.
        self._permitted = self._listed = False
        self._wake = threading.Condition()
        self._verdict: Verdict | None = None
        self._fresh = False
        self._given = (0.0, 0.0)
        self._closing = self._release = False
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> GateStatus:
        """Where the node stands now."""
        return self._status

    def apply(self, verdict: Verdict, now: float) -> GateStatus:
        """Hand over a verdict and return at once; while the scheduler is slow only the newest counts."""
        with self._wake:
            seen = self._seen
            # A node that goes on accepting needs no call: its thread looks by itself.
            idle = not (verdict.refuse or self._status.wanted or seen is None or seen.ours)
            idle = idle and not self._rank_due(verdict, seen, now)
            idle = idle and (self._leases is None or (_calm(verdict) and not self._listed))
            self._verdict, self._fresh = verdict, not idle
            self._given = (now, time.monotonic())
            if self._thread is None and not self._closing:
                self._start()
            if not idle:
                self._wake.notify()
        return self._status

    def settle(self, verdict: Verdict | None, now: float) -> GateStatus:
        """Carry one verdict to the scheduler, waiting for it; errors end in the status."""
        if self._seen is not None and self._seen.ours and now > self._settled_at:
            self._note(refused_seconds=self._status.refused_seconds + now - self._settled_at)
        self._settled_at = now
        self._note(wanted=verdict is not None and verdict.refuse and not verdict.expired(now))
        if now < self._retry_at <= now + _LONGEST_RETRY_SECONDS:
            return self._status
        try:
            self._carry(verdict, now)
        except IntegrationError as error:
            self._failed(str(error), now)
        except Exception as error:  # a third party's gate must not end the controller
            LOG.exception("gate %s broke on node %s", self._status.gate, self.node)
            self._failed(f"{type(error).__name__}: {error}", now)
        else:
            self._failures = 0
        return self._status

    def close(self, *, release: bool = True, timeout: float = 10.0) -> bool:
        """Stop, and open the node if it is ours; True when that was done within `timeout` seconds.

        Otherwise the watchdog opens the node when its verdict ends. With 0 the thread goes on by itself.
        """
        with self._wake:
            self._closing, self._release = True, release
            if self._thread is None and release:
                self._start()
            self._wake.notify()
            thread = self._thread
        if thread is None:
            return True
        thread.join(timeout)
        if thread.is_alive():
            if timeout:
                LOG.warning("gate %s did not answer for %g s: leaving", self._status.gate, timeout)
            return False
        return not (release and self._failures)

    def _start(self) -> None:
        name = f"pronto-gate-{self._status.gate}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._fresh and not self._closing:
                    self._wake.wait(self._patience())
                verdict, self._fresh = self._verdict, False
                closing, release = self._closing, self._release
            if closing:
                if release:
                    self._retry_at = float("-inf")
                    self.settle(None, self._now())
                return
            self.settle(verdict, self._now())

    def _now(self) -> float:
        """Return the time by the agent's clock: when it last handed over a verdict, plus what has passed since."""
        given, at = self._given
        return given + (time.monotonic() - at)

    def _patience(self) -> float:
        """Return how long to wait for a newer verdict before looking again."""
        now = self._now()
        if self._verdict is None or self._verdict.expired(now):
            unsure = self._seen is None or self._policy.holding
            return max(1.0, self._retry_at - now) if unsure else 3600.0
        return min(self._verdict.valid_until - now + 0.01, max(1.0, self.rules.observe_seconds))

    def _carry(self, verdict: Verdict | None, now: float) -> None:
        if verdict is not None and verdict.expired(now):
            verdict = None
        seen, fresh = self._seen, False
        longest = self.rules.observe_seconds
        if seen is None or not 0 <= now - self._seen_at < (
            min(longest, _HELD_LOOK_SECONDS) if seen.ours else longest
        ):
            seen, fresh = self._look(now), True
        # Without a veto a node is never closed, and what an earlier run closed is opened.
        bounded = verdict if self._veto or verdict is None else replace(verdict, refuse=False)
        step = self._policy.choose(bounded, seen, now)
        if (step.action != "leave" or self._rank_due(verdict, seen, now)) and not fresh:
            # Read first, always: someone else may have been here since.
            seen, fresh = self._look(now), True
            step = self._policy.choose(bounded, seen, now)
        # The rank first: others count by it whom a floor may close.
        seen = self._carry_rank(verdict, seen, now)
        if bounded is not None and bounded.refuse:
            step = self._ask_floor(step, bounded, seen, now, fresh=fresh)
        seen = self._take(step, bounded, seen, now)
        self._list(verdict, seen, now)
        held = step.held if self.rules.enforce and seen.state == "open" else ""
        self._note(state=seen.state, why=step.why, held_open=held)

    def _rank_due(self, verdict: Verdict | None, seen: Observed | None, now: float) -> bool:
        """Tell whether the scheduler must be told the node's level, or told again."""
        if not self._ranks or seen is None:
            return False
        held = seen.rank
        if verdict is None or verdict.expired(now):
            return held is not None
        if seen.state == "closed-by-other":
            return False
        level = self._levels.choose(verdict, held, now)
        if held is None:
            return level > 0 or self._marks_calm
        moved = self._levels.seconds == 0.0 and abs(held.chance - verdict.score) >= _FINE_CHANCE
        turned = self._veto and held.refuse != verdict.refuse
        longest = self.rules.prefer_seconds
        old = not now + longest / 2 < held.valid_until <= now + longest + 1
        return level != held.level or moved or turned or old

    def _carry_rank(self, verdict: Verdict | None, seen: Observed, now: float) -> Observed:
        """Tell the scheduler the node's level where that is due; return what it shows then."""
        if not self._rank_due(verdict, seen, now):
            return seen
        before = 0 if seen.rank is None else seen.rank.level
        level = self._levels.choose(verdict, seen.rank, now)
        if verdict is None:
            self._gate.restore(self.node)
        else:
            rank = Rank(level, verdict.score, verdict.refuse, now + self.rules.prefer_seconds)
            self._gate.prefer(self.node, rank, verdict)
        if level != before:
            self._levels.done(now)
            self._note(rankings=self._status.rankings + 1)
            why = "no valid verdict" if verdict is None else verdict.reason
            LOG.info("%snode %s goes from level %d to %d: %s", self._would, self.node, before, level, why)
        self._note(level=level)
        return self._look(now)

    def _floor_of(self, gate: Gate) -> Floor:
        if not self.rules.enforce:
            return Floor("off (not held in shadow mode)")
        if not self._veto:
            return Floor("off (no node is closed: nodes are only ranked)")
        return floor_for(gate, share=self.rules.max_refusing, leases=self._leases)

    def _ask_floor(
        self, step: PolicyStep, verdict: Verdict, seen: Observed, now: float, *, fresh: bool
    ) -> PolicyStep:
        """Ask for permission before closing, and again while closed; open where there is none."""
        holding = step.action == "leave" and seen.ours
        if step.action not in ("refuse", "renew") and not holding:
            return step
        if holding and self._floor.costly and not fresh:
            return step
        if isinstance(self._gate, QueueGate) and (fresh or not holding) and self._gate.starved():
            self._permitted, why = False, "jobs wait and no open node can take them"
            self._floor.release(self.node)
        else:
            self._permitted, self._listed = self._floor.allow(self.node, verdict, now), True
            why = "enough other nodes refuse, or one that stays open is worse off"
        if self._permitted:
            return step
        self._note(withheld=self._status.withheld + 1)
        held = f"the capacity floor of its gate: {why}"
        return PolicyStep(
            "accept" if seen.ours else "leave", f"accepting although {verdict.reason}: {why}", held
        )

    def _take(self, step: PolicyStep, verdict: Verdict | None, seen: Observed, now: float) -> Observed:
        """Do what was chosen, and return what the scheduler shows then."""
        if step.action == "leave":
            return seen
        if step.action == "accept":
            self._gate.accept(self.node)
        elif verdict is not None:
            self._gate.refuse(self.node, verdict)
        seen = self._look(now)
        if step.action != "accept" and not seen.ours:
            return seen  # someone else closed the node between our look and our call
        self._policy.done(step.action, now, seen.valid_until)
        if step.action != "renew":
            count = "refusals" if step.action == "refuse" else "accepts"
            self._note(changed_at=now, **{count: getattr(self._status, count) + 1})
            LOG.info("%snode %s %ss: %s", self._would, self.node, step.action, step.why)
        if step.action == "refuse" and verdict is not None and not self._floor.allow(self.node, verdict, now):
            # Another node closed at the same moment, and is more certain.
            self._gate.accept(self.node)
            self._policy.done("accept", now)
            seen = self._look(now)
        return seen

    def _list(self, verdict: Verdict | None, seen: Observed, now: float) -> None:
        """Keep our row in the table of leases: others then close no node calmer than this one."""
        if self._leases is None:
            return
        listed = verdict is not None and seen.state != "closed-by-other" and not _calm(verdict)
        if self._listed and (not listed or (self._permitted and not seen.ours)):
            self._leases.release(self.node)
            self._listed = self._permitted = False
        if verdict is not None and listed and not verdict.refuse:
            self._leases.tell(
                self.node, refuse=False, score=verdict.score, valid_until=verdict.valid_until, now=now
            )
            self._listed = True

    def _look(self, now: float) -> Observed:
        self._seen, self._seen_at = self._gate.observe(self.node), now
        return self._seen

    def _note(self, **changes: Any) -> None:
        self._status = replace(self._status, **changes)

    def _failed(self, message: str, now: float) -> None:
        if message != self._status.last_error:
            LOG.warning("gate %s, node %s: %s", self._status.gate, self.node, message)
        self._seen = None
        self._retry_at = now + min(2.0**self._failures, _LONGEST_RETRY_SECONDS)
        self._failures += 1
        errors = self._status.errors + 1
        self._note(state="unknown", why=message, held_open="", errors=errors, last_error=message)


def _calm(verdict: Verdict) -> bool:
    return not (verdict.refuse or verdict.score >= LEVEL_EDGES[0])


def vetoes(gate: Gate, rules: Rules) -> bool:
    """Tell whether nodes may be closed: where that was asked for, or is all that the gate can do."""
    return not isinstance(gate, PreferringGate) if rules.veto is None else rules.veto


class ShadowGate:
    """A gate that reads the real one and keeps refusals and ranks to itself.

    What an earlier, enforcing run left closed or ranked is undone by the first look: in shadow
    mode nothing of ours may stand.
    """

    level_seconds = 0.0
    marks_calm = False

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.name = gate.name
        self._refusals: dict[str, str] = {}
        self._ranks: dict[str, Rank] = {}

    def observe(self, node: str) -> Observed:
        """Return what the scheduler says of others' marks, and what we remember of ours."""
        observed = self.gate.observe(node)
        if observed.rank is not None and isinstance(self.gate, PreferringGate):
            self.gate.restore(node)
        rank = self._ranks.get(node)
        if observed.state == "closed-by-other":
            self._refusals.pop(node, None)
            return replace(observed, rank=rank)
        if observed.ours:
            self.gate.accept(node)
        return replace(read_label(self._refusals.get(node, "")) or Observed("open"), rank=rank)

    def refuse(self, node: str, verdict: Verdict) -> None:
        """Remember that `node` would be closed."""
        self._refusals[node] = label(verdict)

    def accept(self, node: str) -> None:
        """Remember that `node` would be open."""
        self._refusals.pop(node, None)

    def prefer(self, node: str, rank: Rank, verdict: Verdict) -> None:
        """Remember the rank that `node` would have."""
        if rank.level:
            self._ranks[node] = rank
        else:
            self._ranks.pop(node, None)

    def restore(self, node: str) -> None:
        """Remember that `node` would have no rank."""
        self._ranks.pop(node, None)

    def owned(self) -> list[str]:
        """Return the nodes that would be closed or ranked."""
        return sorted(self._refusals.keys() | self._ranks)


@dataclass(slots=True)
class SweepResult:
    """Nodes that were opened, lost our rank, keep a mark that counts, and could not be undone, with why."""

    opened: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def marked(gate: Gate) -> dict[str, Observed]:
    """Return what the scheduler says about every node that bears a mark of ours, in one call where it can."""
    if isinstance(gate, ListingGate):
        return {name: seen for name, seen in gate.observe_all().items() if seen.marked}
    return {name: gate.observe(name) for name in gate.owned()}


def release(gate: Gate) -> SweepResult:
    """Open every node that we closed and take off every rank, whether or not it still counts."""
    return sweep(gate, now=float("inf"))


def sweep(gate: Gate, *, now: float, node: str | None = None, seconds: float = math.inf) -> SweepResult:
    """Undo what of ours is over at `now`, or cannot be read: on all nodes, or only on `node`.

    Where one call tells of all nodes, only those that are over are looked at again, closed ones
    first, and opened together where the gate can: a call for each of a thousand would keep nodes closed
    past their time. For the same reason ranks are taken off for `seconds` at most; the rest is left to
    the next sweep.
    """
    swept, begun = SweepResult(), time.monotonic()
    listed: dict[str, Observed] = {}
    if node is None and isinstance(gate, ListingGate):
        listed = marked(gate)
        names = sorted(listed, key=lambda name: (not listed[name].lapsed(now), name))
        lapsed = [name for name in names if listed[name].lapsed(now)]
        if lapsed and isinstance(gate, SweepingGate):
            with suppress(IntegrationError):  # each is then tried alone, and says what it is
                swept.opened += gate.accept_lapsed(lapsed, now)
            listed |= {name: replace(listed[name], state="open") for name in swept.opened}
    else:
        names = gate.owned() if node is None else [node]
    opened = frozenset(swept.opened)
    for name in names:
        try:
            seen = listed[name] if name in listed else gate.observe(name)
            over = seen.rank is not None and seen.rank.expired(now)
            if over and not seen.lapsed(now) and time.monotonic() - begun > seconds:
                swept.kept.append(name)
                continue
            if name in listed and (over or seen.lapsed(now)):
                seen = gate.observe(name)
            if seen.lapsed(now):
                gate.accept(name)
                swept.opened.append(name)
            elif seen.ours:
                swept.kept.append(name)
            if seen.rank is not None and seen.rank.expired(now) and isinstance(gate, PreferringGate):
                gate.restore(name)
                swept.restored.append(name)
            elif seen.rank is not None and not seen.ours and name not in opened:
                swept.kept.append(name)
        except IntegrationError as error:
            # One node that the scheduler refuses to open must not keep the others from being undone.
            swept.failed[name] = str(error)
    return swept
