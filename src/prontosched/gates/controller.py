"""The controller carries one node's verdicts to its scheduler, outside the agent's loop.

Also here: `Dispatcher`, the threads that controllers of many nodes share; `ShadowGate`, which
only remembers what would be done. When to close, open and rank, and how many nodes may be closed,
is decided in `policy`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
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
    Verdict,
    label,
    read_label,
)
from prontosched.gates.policy import Floor, LevelPolicy, PolicyStep, Rules, VetoPolicy, floor_for
from prontosched.gates.preference import LEVEL_EDGES

LOG = logging.getLogger("prontosched.gate")
_LONGEST_RETRY_SECONDS = 60.0
# How old a look at the scheduler may be while we hold the node closed, or wait for the floor's permission.
_HELD_LOOK_SECONDS = 10.0
# A gate that takes any number of changes is told of chances that moved by so much.
_FINE_CHANCE = 0.05
# Threads that call one scheduler, however many nodes there are.
_THREADS = 8
# More nodes than this that are due within a second are looked at together, in one call that answers for so long;
# the queue is asked for likewise.
_FEW_NODES, _LISTING_SECONDS, _QUEUE_SECONDS = 8, 5.0, 2.0


@dataclass(frozen=True, slots=True)
class GateStatus:
    """Where a node stands with its scheduler, for status pages and metrics.

    `mode` is `shadow`, where all is what would be, or `enforce`; `floor` says by what means the
    capacity floor is held. `level` is None where the scheduler cannot be told one. `state` is
    what the scheduler shows, or `would-be-closed` in shadow mode; it is `unknown` before the
    first answer and after an error: an error is never read as "open".
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

    `apply` hands the newest verdict over and returns at once; a thread of the dispatcher
    calls the scheduler, and opens the node by itself when no newer verdict has
    come before the last one ends. `settle` does the same work in the caller's thread.
    """

    def __init__(
        self,
        gate: Gate,
        node: str,
        *,
        rules: Rules | None = None,
        leases: LeaseTable | None = None,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        self.rules = Rules() if rules is None else rules
        self.node = node
        enforce = self.rules.enforce
        self._veto = vetoes(gate, self.rules)
        self._gate: Any = gate if enforce else ShadowGate(gate)
        self._ranks = isinstance(gate, PreferringGate)
        self._marks_calm = isinstance(gate, PreferringGate) and gate.marks_calm and enforce
        self._leases = leases if self._veto and enforce else None
        self._dispatcher = Dispatcher(gate) if dispatcher is None else dispatcher
        self._floor = self._floor_of(gate)
        self._policy = VetoPolicy(self.rules)
        self._levels = LevelPolicy(gate.level_seconds if isinstance(gate, PreferringGate) else 0.0)
        mode, level = "enforce" if enforce else "shadow", 0 if self._ranks else None
        self._status = GateStatus(node, gate.name, mode, self._floor.how, self._veto, level)
        self._would = "" if enforce else "shadow mode, enforcing nothing: "
        self._seen: Observed | None = None
        self._seen_at = 0.0
        # When our last change at the scheduler was over, by the monotonic clock.
        self._changed_at = float("-inf")
        self._failures = 0
        self._retry_at = float("-inf")
        self._settled_at = float("nan")
        # Whether the floor has given permission, and whether a row of ours is in the table of leases.
        self._permitted = self._listed = False
        self._look_seconds = min(self.rules.observe_seconds, _HELD_LOOK_SECONDS if enforce else math.inf)
        # What the floor last said no to, and until when that holds.
        self._denied, self._denied_until = PolicyStep("leave", ""), float("-inf")
        self._verdict: Verdict | None = None
        self._fresh = False
        self._given = (0.0, 0.0)
        self._closing = self._release = False
        self._ended = threading.Event()

    @property
    def status(self) -> GateStatus:
        """Where the node stands now."""
        return self._status

    def apply(self, verdict: Verdict, now: float) -> GateStatus:
        """Hand over a verdict and return at once; while the scheduler is slow only the newest counts."""
        with self._dispatcher.lock:
            seen = self._seen
            # A node that goes on accepting needs no call: it is looked at by itself.
            idle = not (verdict.refuse or self._status.wanted or seen is None or seen.ours)
            idle = idle and not self._rank_due(verdict, seen, now)
            idle = idle and (self._leases is None or (_calm(verdict) and not self._listed))
            # One that refused may be on its way to the scheduler right now.
            idle = idle and not (self._fresh or (self._verdict is not None and self._verdict.refuse))
            self._verdict, self._fresh = verdict, not idle
            self._given = (now, time.monotonic())
            if not idle and not self._closing:
                self._dispatcher.call(self)
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

        Otherwise the watchdog opens the node when its verdict ends. With 0 nobody waits, and it is done all the same.
        """
        with self._dispatcher.lock:
            self._release = release
            if not self._closing:
                self._closing = True
                self._dispatcher.call(self)
        if not self._ended.wait(timeout):
            if timeout:
                LOG.warning("gate %s did not answer for %g s: leaving", self._status.gate, timeout)
            return False
        return not (release and self._failures)

    @property
    def fresh(self) -> bool:
        """Whether a verdict waits to be carried; read under the dispatcher's lock."""
        return self._fresh

    @property
    def closing(self) -> bool:
        """Whether this is the end; read under the dispatcher's lock."""
        return self._closing

    def work(self) -> float | None:
        """Carry what was handed over; return in how many seconds to look again, None after the last time."""
        with self._dispatcher.lock:
            verdict, self._fresh = self._verdict, False
            closing, release = self._closing, self._release
        if closing:
            if release:
                self._retry_at = float("-inf")
                self.settle(None, self._now())
            self._ended.set()
            return None
        self.settle(verdict, self._now())
        return self._patience()

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
        seen, looked, fresh = self._seen, False, False
        longest = self._look_seconds if seen is not None and seen.ours else self.rules.observe_seconds
        if seen is None or not 0 <= now - self._seen_at < longest:
            together = self._look_together(now)
            seen, looked, fresh = together or self._look(now), True, together is None
        # Without a veto a node is never closed, and what an earlier run closed is opened.
        bounded = verdict if self._veto or verdict is None else replace(verdict, refuse=False)
        step = self._choose(bounded, seen, now)
        due = step.action != "leave" or self._rank_due(verdict, seen, now)
        if due and not fresh and self.rules.enforce:
            # Read first, always: someone else may have been here since.
            seen, looked = self._look(now), True
            step = self._choose(bounded, seen, now)
        # The rank first: others count by it whom a floor may close.
        seen = self._carry_rank(verdict, seen, now)
        if bounded is not None and bounded.refuse:
            step = self._ask_floor(step, bounded, seen, now, looked=looked)
        seen = self._take(step, bounded, seen, now)
        self._list(verdict, seen, now)
        held = step.held if self.rules.enforce and seen.state == "open" else ""
        state = "would-be-closed" if seen.ours and not self.rules.enforce else seen.state
        self._note(state=state, why=step.why, held_open=held)

    def _choose(self, verdict: Verdict | None, seen: Observed, now: float) -> PolicyStep:
        """Choose by the policy; a refusal that the floor has just denied is not asked for again."""
        step = self._policy.choose(verdict, seen, now)
        denied = step.action == "refuse" and now < self._denied_until <= now + self._look_seconds
        return self._denied if denied else step

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
        longest = self.rules.prefer_seconds
        # Others count by it who refuses: soon enough, and not at every turn of one that cannot decide.
        lately = 0 <= now - (held.valid_until - longest) < self._look_seconds
        turned = self._veto and held.refuse != verdict.refuse and not lately
        old = not now + longest / 2 < held.valid_until <= now + longest + 1
        return level != held.level or moved or turned or old

    def _carry_rank(self, verdict: Verdict | None, seen: Observed, now: float) -> Observed:
        """Tell the scheduler the node's level where that is due; return what it shows then."""
        if not self._rank_due(verdict, seen, now):
            return seen
        before = 0 if seen.rank is None else seen.rank.level
        level = self._levels.choose(verdict, seen.rank, now)
        if verdict is None:
            seen = self._change(self._gate.restore, now=now)
        else:
            rank = Rank(level, verdict.score, verdict.refuse, now + self.rules.prefer_seconds)
            seen = self._change(self._gate.prefer, rank, verdict, now=now)
        if level != before:
            self._levels.done(now)
            self._note(rankings=self._status.rankings + 1)
            why = "no valid verdict" if verdict is None else verdict.reason
            LOG.info("%snode %s goes from level %d to %d: %s", self._would, self.node, before, level, why)
        self._note(level=level)
        return seen

    def _floor_of(self, gate: Gate) -> Floor:
        if not self.rules.enforce:
            return Floor("off (not held in shadow mode)")
        if not self._veto:
            return Floor("off (no node is closed: nodes are only ranked)")
        return floor_for(
            gate, share=self.rules.max_refusing, leases=self._leases, observe_all=self._look_at_all
        )

    def _ask_floor(
        self, step: PolicyStep, verdict: Verdict, seen: Observed, now: float, *, looked: bool
    ) -> PolicyStep:
        """Ask for permission before closing, and again while closed; open where there is none."""
        holding = step.action == "leave" and seen.ours
        if step.action not in ("refuse", "renew") and not holding:
            return step
        if holding and self._floor.costly and not looked:
            return step
        self._permitted, self._listed = self._floor.allow(self.node, verdict, now), True
        why = "enough other nodes refuse, or one that stays open is worse off"
        # Last: a queue can be long, and is not read for a node that may not be closed anyway.
        asks = self._permitted and (looked or not holding) and isinstance(self._gate, QueueGate)
        if asks and self._dispatcher.starved():
            self._permitted, self._listed, why = False, False, "jobs wait and no open node can take them"
            self._floor.release(self.node)
        if self._permitted:
            return step
        self._note(withheld=self._status.withheld + 1)
        held = f"the capacity floor of its gate: {why}"
        denied = PolicyStep("leave", f"accepting although {verdict.reason}: {why}", held)
        self._denied, self._denied_until = denied, now + self._look_seconds
        return denied._replace(action="accept") if seen.ours else denied

    def _take(self, step: PolicyStep, verdict: Verdict | None, seen: Observed, now: float) -> Observed:
        """Do what was chosen, and return what the scheduler shows then."""
        if step.action == "leave":
            return seen
        if step.action == "accept":
            seen = self._change(self._gate.accept, now=now)
        elif verdict is not None:
            seen = self._change(self._gate.refuse, verdict, now=now)
        if step.action != "accept" and not seen.ours:
            return seen  # someone else closed the node between our look and our call
        self._policy.done(step.action, now, seen.valid_until)
        if step.action != "renew":
            count = "refusals" if step.action == "refuse" else "accepts"
            self._note(changed_at=now, **{count: getattr(self._status, count) + 1})
            LOG.info("%snode %s %ss: %s", self._would, self.node, step.action, step.why)
        if step.action == "refuse" and verdict is not None and not self._floor.allow(self.node, verdict, now):
            # Another node closed at the same moment, and is more certain.
            seen = self._change(self._gate.accept, now=now)
            self._policy.done("accept", now)
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

    def _change(self, change: Callable[..., None], *values: Any, now: float) -> Observed:
        """Make a change of this node, and return what the scheduler shows then."""
        try:
            change(self.node, *values)
        finally:  # one that failed may have been made all the same
            self._changed_at = time.monotonic()
        if isinstance(self._gate, ShadowGate) and self._seen is not None:
            # The scheduler was told nothing, and has nothing new to say.
            self._seen = self._gate.remembered(self.node, self._seen)
            return self._seen
        return self._look(now)

    def _look(self, now: float) -> Observed:
        """Ask the scheduler for this node alone."""
        self._seen, self._seen_at = self._gate.observe(self.node), now
        return self._seen

    def _look_together(self, now: float) -> Observed | None:
        """Take what one call told of all nodes; None where this node must be asked for alone."""
        if (found := self._dispatcher.listed(self.node, since=self._changed_at)) is None:
            return None
        seen, age = found
        self._seen = self._gate.view(self.node, seen) if isinstance(self._gate, ShadowGate) else seen
        self._seen_at = now - age
        return self._seen

    def _look_at_all(self) -> dict[str, Observed]:
        """Return what the scheduler says about every node: as it is now before we close this one."""
        held = self._seen is not None and self._seen.ours
        return self._dispatcher.listing(since=self._changed_at if held else time.monotonic())[0]

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


class Dispatcher:
    """What the controllers of one gate share: a bounded number of threads, and looks at all nodes.

    A controller is worked on by one thread at a time: when a verdict is handed over that asks for
    something, and when it wants to look again. Threads are daemons, made when they are needed,
    and end with the last controller.
    """

    def __init__(self, gate: Gate, *, threads: int = _THREADS) -> None:
        self.lock = threading.Condition()
        self._gate = gate
        self._threads = threads
        # Controllers by the time they are due. An entry counts while `_due` says the same.
        self._queue: list[tuple[float, int, Controller]] = []
        self._due: dict[Controller, float] = {}
        self._working: set[Controller] = set()
        self._order = itertools.count()
        self._started = self._idle = 0
        self._listing = threading.Lock()
        self._listed: dict[str, Observed] = {}
        self._listed_at = self._listed_until = float("-inf")
        self._listing_error = ""
        self._queue_seen, self._queue_until = False, float("-inf")

    def call(self, controller: Controller) -> None:
        """Have a controller worked on at once, or again; the caller holds the lock."""
        if controller in self._working:
            return
        # One that is due keeps its turn: verdicts come every second, and a slow scheduler takes longer for all.
        # What ends goes before all else, in the order in which it was told so.
        now = 0.0 if controller.closing else time.monotonic()
        if self._due.get(controller, math.inf) > now:
            self._put(controller, now)
        self._summon()

    def join(self, timeout: float, longest: float = math.inf) -> bool:
        """Wait until all controllers have ended; False once none has for `timeout` seconds, and after `longest`."""
        end = time.monotonic() + longest
        with self.lock:
            while left := self._living:
                patience = min(timeout, end - time.monotonic())
                if not self.lock.wait_for(partial(self._fewer, left), patience):
                    return False
        return True

    def listed(self, node: str, *, since: float) -> tuple[Observed, float] | None:
        """Return what one call that began after `since` told of `node`, and how many seconds ago it began.

        None where few nodes are due, or the scheduler tells of one at a time, or knows no such node.
        """
        if not isinstance(self._gate, ListingGate) or not (self._is_listed(since) or self._many_due()):
            return None
        found, begun = self.listing(since=since)
        return None if (seen := found.get(node)) is None else (seen, time.monotonic() - begun)

    def listing(self, *, since: float) -> tuple[dict[str, Observed], float]:
        """Return what one call that began after `since` told of all nodes, and when it began.

        It is shared by many nodes until some seconds after its end. A call that failed has failed for all.
        """
        assert isinstance(self._gate, ListingGate)
        with self._listing:
            now = time.monotonic()
            if not self._is_listed(since) or self._living <= _FEW_NODES:
                self._listed_at, self._listed, self._listing_error = now, {}, ""
                try:
                    self._listed = self._gate.observe_all()
                except IntegrationError as error:
                    self._listing_error = str(error)
                except Exception as error:  # a third party's gate
                    LOG.exception("gate %s broke on its list of nodes", self._gate.name)
                    self._listing_error = f"{type(error).__name__}: {error}"
                self._listed_until = time.monotonic() + _LISTING_SECONDS
            if self._listing_error:
                raise IntegrationError(self._listing_error)
            return self._listed, self._listed_at

    def starved(self) -> bool:
        """Tell whether jobs wait for nodes; of many nodes one asks for all."""
        assert isinstance(self._gate, QueueGate)
        if self._living <= _FEW_NODES or time.monotonic() > self._queue_until:
            self._queue_seen = self._gate.starved()
            self._queue_until = time.monotonic() + _QUEUE_SECONDS
        return self._queue_seen

    def _is_listed(self, since: float) -> bool:
        return since < self._listed_at and time.monotonic() <= self._listed_until

    def _many_due(self) -> bool:
        soon = time.monotonic() + 1.0
        with self.lock:
            due = (at for at in self._due.values() if at <= soon)
            return len(self._working) + len(list(itertools.islice(due, _FEW_NODES))) > _FEW_NODES

    @property
    def _living(self) -> int:
        """Controllers that have not ended."""
        return len(self._due) + len(self._working)

    def _fewer(self, than: int) -> bool:
        return self._living < than

    def _put(self, controller: Controller, due: float) -> None:
        self._due[controller] = due
        heapq.heappush(self._queue, (due, next(self._order), controller))
        if len(self._queue) > 2 * len(self._due) + 64:  # mostly entries that no longer count
            self._queue = [(due, next(self._order), controller) for controller, due in self._due.items()]
            heapq.heapify(self._queue)

    def _summon(self) -> None:
        """Wake a thread, or start one while there may be more."""
        if self._idle:
            self.lock.notify()
        elif self._started < min(self._threads, self._living):
            thread = threading.Thread(target=self._run, name=f"pronto-gate-{self._gate.name}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system gives no more
                if not self._started:
                    raise
            else:
                self._started += 1

    def _run(self) -> None:
        while (controller := self._next()) is not None:
            seconds = controller.work()
            with self.lock:
                self._working.discard(controller)
                if seconds is None:
                    self.lock.notify_all()
                elif controller.closing:  # told so while at work: not behind those told after it
                    self._put(controller, -math.inf)
                else:
                    self._put(controller, time.monotonic() + (0.0 if controller.fresh else seconds))

    def _next(self) -> Controller | None:
        """Wait for a controller that is due; None when the last one has ended."""
        with self.lock:
            while self._living:
                while self._queue and self._due.get(self._queue[0][2]) != self._queue[0][0]:
                    heapq.heappop(self._queue)
                wait = self._queue[0][0] - time.monotonic() if self._queue else None
                if wait is not None and wait <= 0:
                    controller = heapq.heappop(self._queue)[2]
                    del self._due[controller]
                    self._working.add(controller)
                    if self._queue:
                        self._summon()
                    return controller
                self._idle += 1
                self.lock.wait(wait)
                self._idle -= 1
            self._started -= 1
            return None


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
        return self.view(node, self.gate.observe(node))

    def view(self, node: str, observed: Observed) -> Observed:
        """Return what `observe` does, of what the scheduler says."""
        if observed.rank is not None and isinstance(self.gate, PreferringGate):
            self.gate.restore(node)
        if observed.ours:
            self.gate.accept(node)
        return self.remembered(node, observed)

    def remembered(self, node: str, observed: Observed) -> Observed:
        """Return others' marks as they were observed, and ours as we remember them."""
        rank = self._ranks.get(node)
        if observed.state == "closed-by-other":
            self._refusals.pop(node, None)
            return replace(observed, rank=rank)
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
