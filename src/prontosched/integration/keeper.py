"""The keeper: carries one node's verdicts to its scheduler, outside the agent's loop.

Covers: shadow mode, the capacity floor, expiry, retries after errors, and the
standing that status pages show. When to close and open is decided in `policy`;
what a scheduler must offer is `gate`.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace

from prontosched.decision import Decision
from prontosched.errors import IntegrationError
from prontosched.integration.floor import Floor, NoFloor, floor_for
from prontosched.integration.gate import Gate, Observed, RefusalLeases, State, Verdict
from prontosched.integration.policy import Policy, Rules, Step
from prontosched.integration.shadow import ShadowGate

LOG = logging.getLogger("prontosched.gate")
_LONGEST_RETRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a node stands with its scheduler, for status pages and metrics.

    Attributes
    ----------
    mode
        `shadow` or `enforce`. In shadow mode `state` is what would be.
    state
        As the scheduler showed it last; `unknown` before the first answer and after an
        error, for an error is never read as "open".
    wanted
        True when the last verdict asks to refuse.
    why
        Why the node stands so, in one sentence.
    held_open
        Why the node is left open although it refuses; empty where it is not, and in shadow mode.
    floor
        By what means the capacity floor is held, or that it is off.
    refusals, accepts, withheld, errors
        Counts since the start; `withheld` are refusals that the floor did not allow.
    refused_seconds
        Time spent closed by us since the start.
    """

    node: str
    gate: str
    mode: str
    floor: str
    state: State | str = "unknown"
    wanted: bool = False
    why: str = "no verdict yet"
    held_open: str = ""
    changed_at: float = float("nan")
    refusals: int = 0
    accepts: int = 0
    withheld: int = 0
    errors: int = 0
    last_error: str = ""
    refused_seconds: float = 0.0


class Keeper:
    """Carry verdicts of one node to one gate.

    `apply` hands the newest verdict over and returns at once; a thread of the keeper's
    own speaks to the scheduler, and opens the node by itself when no newer verdict has
    come before the last one ends. `settle` does the same work in the caller's thread.

    Parameters
    ----------
    gate
        The scheduler.
    node
        This node's name there.
    rules
        The defaults are shadow mode.
    leases
        Leave to refuse from the bus. Without it the floor is counted at the scheduler
        where that can count, and is off elsewhere, which `standing.floor` says.

    Notes
    -----
    Memory: one verdict, one observation and one standing.
    """

    def __init__(
        self, gate: Gate, node: str, *, rules: Rules | None = None, leases: RefusalLeases | None = None
    ) -> None:
        self.rules = Rules() if rules is None else rules
        self.node = node
        self._gate: Gate = gate if self.rules.enforce else ShadowGate(gate)
        self._floor: Floor = (
            floor_for(gate, share=self.rules.max_refusing, leases=leases)
            if self.rules.enforce
            else NoFloor("not held in shadow mode")
        )
        self._policy = Policy(self.rules)
        mode = "enforce" if self.rules.enforce else "shadow"
        self._standing = Standing(node, gate.name, mode, self._floor.how)
        self._seen: Observed | None = None
        self._seen_at = 0.0
        self._failures = 0
        self._retry_at = float("-inf")
        self._settled_at = float("nan")
        self._leave = False
        self._wake = threading.Condition()
        self._verdict: Verdict | None = None
        self._fresh = False
        self._given = (0.0, 0.0)
        self._closing = self._release = False
        self._thread: threading.Thread | None = None

    @property
    def standing(self) -> Standing:
        """Where the node stands now."""
        return self._standing

    def decide(self, decision: Decision, now: float) -> Standing:
        """Hand over a decision, valid for `rules.valid_seconds` from `now`."""
        return self.apply(Verdict.of(decision, now=now, valid_seconds=self.rules.valid_seconds), now)

    def apply(self, verdict: Verdict, now: float) -> Standing:
        """Hand over a verdict; returns at once and raises nothing that a scheduler did.

        Only the newest verdict counts: while the scheduler is slow, older ones are
        dropped rather than queued.
        """
        with self._wake:
            seen = self._seen
            # A node that goes on accepting needs no one: its thread looks up by itself.
            idle = not (verdict.refuse or self._standing.wanted or seen is None or seen.ours)
            self._verdict, self._fresh = verdict, not idle
            self._given = (now, time.monotonic())
            if self._thread is None and not self._closing:
                self._start()
            if not idle:
                self._wake.notify()
        return self._standing

    def settle(self, verdict: Verdict | None, now: float) -> Standing:
        """Carry one verdict to the scheduler, waiting for it; errors end in the standing."""
        self._count_time(now)
        wanted = verdict is not None and verdict.refuse and not verdict.expired(now)
        self._standing = replace(self._standing, wanted=wanted)
        if now < self._retry_at <= now + _LONGEST_RETRY_SECONDS:
            return self._standing
        try:
            self._carry(verdict, now)
        except IntegrationError as error:
            self._failed(str(error), now)
        except Exception as error:  # a third party's gate must not end the keeper
            LOG.exception("gate %s broke on node %s", self._standing.gate, self.node)
            self._failed(f"{type(error).__name__}: {error}", now)
        else:
            self._failures = 0
        return self._standing

    def close(self, *, release: bool = True, timeout: float = 10.0) -> bool:
        """Stop, and open the node if it is ours; True when that was done in time.

        A scheduler that does not answer is left after `timeout` seconds; the node then
        opens when its verdict ends, by the watchdog. With 0 the keeper goes on by itself.
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
                LOG.warning("gate %s did not answer for %g s: leaving", self._standing.gate, timeout)
            return False
        return not (release and self._failures)

    def _start(self) -> None:
        name = f"pronto-gate-{self._standing.gate}"
        self._thread = threading.Thread(target=self._attend, name=name, daemon=True)
        self._thread.start()

    def _attend(self) -> None:
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
        """Return the agent's time: its last word plus what has passed since."""
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
        seen, fresh = self._seen, False
        if seen is None or not 0 <= now - self._seen_at < self.rules.observe_seconds:
            seen, fresh = self._look(now), True
        step = self._policy.choose(verdict, seen, now)
        if step.action != "leave" and not fresh:
            # Read first, always: someone else may have been here since.
            seen, fresh = self._look(now), True
            step = self._policy.choose(verdict, seen, now)
        if verdict is not None and verdict.refuse:
            step = self._ask_floor(step, verdict, seen, now, fresh=fresh)
        seen = self._take(step, verdict, seen, now)
        if self._leave and not seen.ours:
            self._floor.release(self.node)
            self._leave = False
        held = step.held if self.rules.enforce and seen.state == "open" else ""
        self._standing = replace(self._standing, state=seen.state, why=step.why, held_open=held)

    def _ask_floor(self, step: Step, verdict: Verdict, seen: Observed, now: float, *, fresh: bool) -> Step:
        """Ask for leave before closing, and again while closed; give way where there is none."""
        holding = step.action == "leave" and seen.ours
        if step.action not in ("refuse", "renew") and not holding:
            return step
        if holding and self._floor.costly and not fresh:
            return step
        self._leave = self._floor.allow(self.node, verdict, now)
        if self._leave:
            return step
        self._standing = replace(self._standing, withheld=self._standing.withheld + 1)
        why = f"accepting although {verdict.reason}: enough other nodes refuse already"
        held = "the capacity floor of its gate: enough other nodes refuse already"
        return Step("accept" if seen.ours else "leave", why, held)

    def _take(self, step: Step, verdict: Verdict | None, seen: Observed, now: float) -> Observed:
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
        self._changed(step, now)
        if step.action == "refuse" and verdict is not None and not self._floor.allow(self.node, verdict, now):
            # Another node closed at the same moment, and is more certain.
            self._gate.accept(self.node)
            self._policy.done("accept", now)
            seen = self._look(now)
        return seen

    def _look(self, now: float) -> Observed:
        self._seen, self._seen_at = self._gate.observe(self.node), now
        return self._seen

    def _changed(self, step: Step, now: float) -> None:
        if step.action == "renew":
            return
        refused = step.action == "refuse"
        self._standing = replace(
            self._standing,
            changed_at=now,
            refusals=self._standing.refusals + refused,
            accepts=self._standing.accepts + (not refused),
        )
        would = "" if self.rules.enforce else "shadow mode, enforcing nothing: "
        LOG.info("%snode %s %ss: %s", would, self.node, step.action, step.why)

    def _count_time(self, now: float) -> None:
        if self._seen is not None and self._seen.ours and now > self._settled_at:
            spent = self._standing.refused_seconds + now - self._settled_at
            self._standing = replace(self._standing, refused_seconds=spent)
        self._settled_at = now

    def _failed(self, message: str, now: float) -> None:
        if message != self._standing.last_error:
            LOG.warning("gate %s, node %s: %s", self._standing.gate, self.node, message)
        self._seen = None
        self._retry_at = now + min(2.0**self._failures, _LONGEST_RETRY_SECONDS)
        self._failures += 1
        errors = self._standing.errors + 1
        self._standing = replace(
            self._standing, state="unknown", why=message, held_open="", errors=errors, last_error=message
        )
