"""The loop: read, step, answer, tell; on time, whatever happens to its surroundings.

The one place that catches broadly: a fault in a source, a node or a follower is counted and
named, and the next tick comes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from prontosched.agent.background import Background
from prontosched.agent.http.events import Events
from prontosched.agent.jobs import AnnouncedJobs
from prontosched.agent.nodes import NAN, Answer, LiveNode, NodeTable, Silence, expects
from prontosched.agent.offenders import Naming, Offenders
from prontosched.agent.pace import NO_TELEMETRY, Health, Pace
from prontosched.agent.record import plain
from prontosched.agent.store.decision_log import DecisionRow
from prontosched.agent.store.directions import Lineages, pack
from prontosched.agent.store.state import Disk
from prontosched.decision import Evidence, State
from prontosched.telemetry.source import Sample, Source

LOG = logging.getLogger("prontosched.agent")
QUIET_SECONDS = 60.0
LOGGED_NODES = 16
SHOWN_TARGETS = 3
MAPPED_NODES = 5000
STATES: tuple[State, ...] = ("accepting", "contended", "refusing")
# Longest time that a tick works before it lets requests be answered.
SLICE_SECONDS = 0.008
# Turns of the event loop that a request takes from its connection to its answer.
TURNS = 3
# A client that obeys refusals says so with every question. That counts for so many times an answer's validity.
ENFORCING_TIMES = 3.0


class Reader:
    """Read a source once per tick, on a thread, and wait for it no longer than `timeout` seconds.

    A read that takes longer goes on in its thread; the ticks meanwhile get None,
    and the first tick after it returned gets what it read. At no time are two
    reads under way. `hanging` counts the ticks in a row that got None.
    """

    def __init__(self, source: Source, *, timeout: float) -> None:
        self.source = source
        self.timeout = timeout
        self.hanging = 0
        self.last_seconds = 0.0
        self._thread = Background("pronto-source")
        self._pending: asyncio.Future[list[Sample]] | None = None

    async def read(self) -> list[Sample] | None:
        """Return the samples of this tick, or None while the source has not answered; `EOFError` at a trace's end."""
        if self._pending is None:
            self._pending = self._thread.submit(self._timed_read)
        done, _ = await asyncio.wait((self._pending,), timeout=self.timeout)
        if not done:
            self.hanging += 1
            return None
        finished, self._pending = self._pending, None
        self.hanging = 0
        return finished.result()

    def unanswered(self) -> Mapping[str, str]:
        """Return why nodes gave nothing at the last reading, by name; sources that know have a method for it."""
        ask: Callable[[], Mapping[str, str]] | None = getattr(self.source, "unanswered", None)
        return {} if ask is None else ask()

    async def close(self) -> None:
        """Close the source in its thread; one that still hangs is left behind."""
        if self._pending is not None:
            self._pending.add_done_callback(_retrieve)
        closing = self._thread.submit(self.source.close)
        done, _ = await asyncio.wait((closing,), timeout=min(self.timeout, 2.0))
        if done:
            self._thread.stop(1.0)
            closing.result()
        else:
            closing.add_done_callback(_retrieve)

    def _timed_read(self) -> list[Sample]:
        begin = time.monotonic()
        samples = self.source.read()
        self.last_seconds = time.monotonic() - begin
        return samples


def _retrieve(future: asyncio.Future[Any]) -> None:
    # asyncio reports an exception that nobody has asked for.
    if not future.cancelled():
        future.exception()


class Agent:
    """Run nodes live.

    `capacity` is the CPUs of a node, and announced jobs may fill it up to `capacity_factor` times. `cpus_known` is
    False where it is only assumed, of other machines. With `count_cpus` it follows the CPUs that the source counts. The
    `followers` are told of every timestep, in their order. `wall` gives seconds since 1970, which are shown and never
    compared: they may jump. `version` changes whenever an answer may be another one, apart from its age.
    """

    def __init__(
        self,
        reader: Reader,
        nodes: NodeTable,
        pace: Pace,
        *,
        silence: Silence | None = None,
        capacity: float = 1.0,
        capacity_factor: float = 1.25,
        cpus_known: bool = True,
        count_cpus: bool = False,
        disk: Disk | None = None,
        followers: Sequence[Follower] = (),
        offenders: Naming = "names",
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.reader = reader
        self.nodes = nodes
        self.pace = pace
        self.silence = Silence() if silence is None else silence
        self.capacity = capacity
        self.capacity_factor = capacity_factor
        self.cpus_known = cpus_known
        self._count_cpus = count_cpus
        self.disk = disk
        self.followers = list(followers)
        self._gate = next((one for one in self.followers if isinstance(one, NodeHolder)), None)
        self.offenders = Offenders(reader.source, offenders)
        self.wall = wall
        self.started_at = pace.clock()
        self.health = Health(pace)
        self.faults: Counter[str] = Counter()
        self.last_fault = ""
        self.last_fault_at = -math.inf
        self._counted: Counter[str] = Counter()
        self.ended = False
        self.version = 0
        self.events = Events()
        self._lineages = Lineages()
        self._announced: dict[str, AnnouncedJobs] = {}
        self._nothing_announced = AnnouncedJobs(capacity=capacity, factor=capacity_factor)
        self._quiet_until: dict[str, float] = {}
        self._slice_began = 0.0
        self._nobody = LiveNode(_no_node, name=nodes.fallback_name, now=self.started_at)

    async def run(self, stop: asyncio.Event, seconds: float | None = None) -> None:
        """Tick until `stop` is set, `seconds` have passed, or the source has ended; then close all."""
        stopping = asyncio.ensure_future(stop.wait())
        end = float("inf") if seconds is None else self.pace.clock() + seconds
        try:
            while not stop.is_set() and not self.ended:
                left = end - self.pace.clock()
                wait = min(self.pace.remaining(), left)
                if wait > 0:
                    await asyncio.wait((stopping,), timeout=wait)
                else:
                    await asyncio.sleep(0)  # a loop that is behind must still let others run
                if left <= 0 or stop.is_set():
                    break
                if self.pace.remaining() <= 0:
                    self.pace.begin()
                    await self.tick()
        finally:
            stopping.cancel()
            await self.close()

    async def tick(self) -> None:
        """Read once, step the nodes, and tell whoever follows."""
        samples: list[Sample] | None = []
        try:
            samples = await self.reader.read()
            if samples is None:
                self.fault("source", TimeoutError(f"no answer within {self.reader.timeout:.3g} s"))
            else:
                self._note_unanswered(anyone=bool(samples))
            if samples:
                self._follow_cpus()
                self.offenders.update()
        except EOFError:
            self.ended = True
            return
        except Exception as error:
            self.fault("source", error)
        now, decisions = self.pace.clock(), self.nodes.tally.decisions
        self._slice_began = time.perf_counter()
        if samples:
            await self._step(samples, now)
        self.version += 1
        self._weigh_jobs(now)
        try:
            await self._publish(now)
        except Exception as error:
            self.fault("publish", error)
        for follower in self.followers:
            try:
                if (work := follower.follow(self)) is not None:
                    await work
            except Exception as error:
                self.fault(follower.name, error)
            await self.give_way()
        self._count_errors()
        self.health.note_tick(decided=self.nodes.tally.decisions > decisions)

    def _follow_cpus(self) -> None:
        cpus = float(getattr(self.reader.source, "cpus", 0.0)) if self._count_cpus else 0.0
        if cpus and cpus != self.capacity:
            self.capacity = cpus
            for announced in (self._nothing_announced, *self._announced.values()):
                announced.capacity = cpus

    async def _step(self, samples: Sequence[Sample], now: float) -> None:
        """Carry each sample to its node's decision; one node's trouble is not another's."""
        clock = self.wall()
        self.nodes.begin(samples, now)
        lacking: list[str] = []
        for sample in samples:
            try:
                if (node := self.nodes.step(sample, now)) is None:
                    continue
                if lack := _lack(node, now):
                    lacking.append(f"{sample.node}: {lack}")
                if node.raised and node.seen_at == now:
                    node.note_rejection(clock, self.offenders.words)
            except Exception as error:
                self.fault("node", error)
            self.version += 1
            await self.give_way()
        if lacking:
            self.fault(
                "source", f"telemetry is missing, {_first(lacking)}", in_tick=len(lacking) == len(samples)
            )

    async def give_way(self) -> None:
        """Let others run, such as requests that wait, if this tick has worked for some milliseconds."""
        if time.perf_counter() - self._slice_began >= SLICE_SECONDS:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            self._slice_began = time.perf_counter()

    def answer(
        self,
        node: str | None = None,
        *,
        cpus: float = 0.0,
        own: bool = False,
        jobs: bool = True,
        among_users: bool = False,
    ) -> Answer:
        """Answer for one node, by default the only one.

        With `own`, the node's own word, whether or not a gate holds it open. Without `jobs`,
        nothing that was announced counts; with `among_users`, what ordinary users announced does too.
        `KeyError` as from `known`.
        """
        known, now = self.known(node), self.pace.clock()
        fresh = known.decision is not None and now - known.seen_at <= self.silence.valid_seconds
        announced = (
            self._announced.get(known.name, self._nothing_announced) if jobs else self._nothing_announced
        )
        if not len(announced):  # only announced jobs are weighed at every timestep
            announced.busy = 0.0
            announced.saw(known.utilisation - known.background)
        return known.answer(
            announced,
            self.silence,
            now=now,
            clock=self.wall(),
            cpus=cpus,
            among_users=among_users,
            held_by="" if own else self.held_open(known.name),
            trouble="" if fresh else self._trouble(known),
            enforced=self.enforced or now < known.obeyed_until,
            offenders=self.offenders.words,
        )

    def _trouble(self, known: LiveNode) -> str:
        """Say why a node has no decision: its own target's silence, else what went wrong since it last had one."""
        if own := self.reader.unanswered().get(known.name, ""):
            return own
        nothing = NO_TELEMETRY if known.decision is None and self.health.trouble else ""
        return self.health.fault_since(known.seen_at) or nothing

    def held_open(self, node: str) -> str:
        """Say why the gate leaves a node open that refuses; empty where it does not."""
        return "" if self._gate is None else self._gate.held_open(node)

    def gate_level(self, node: str) -> int:
        """Return what the gate has done with a node, as the decision log keeps it."""
        return 0 if self._gate is None else self._gate.gate_level(node)

    @property
    def enforced(self) -> bool:
        """Whether the gate carries refusals out at a scheduler."""
        return self._gate is not None and self._gate.enforcing

    def note_enforcing(self, node: str | None = None) -> None:
        """Note that a client obeys the refusals of a node, or of all nodes, for some time.

        The signal is told, because what follows an obeyed refusal does not show what would have come without it.
        """
        now = self.pace.clock()
        for one in self.nodes if node is None else (self.known(node),):
            if one.obeyed_until <= now:
                self.version += 1
            one.obeyed_until = now + ENFORCING_TIMES * self.silence.valid_seconds

    def known(self, node: str | None = None) -> LiveNode:
        """Return one node, by default the only one; before the first sample, one that has seen nothing.

        `KeyError` where there is no such node, or where there are several and none is named.
        """
        if not len(self.nodes) and node in (None, self.nodes.fallback_name):
            return self._nobody
        if node is not None:
            return self.nodes[node]
        if (only := self.nodes.only) is None:
            raise KeyError(
                f"name one of the {len(self.nodes)} nodes: --node NAME, or ?node=NAME in a request"
            )
        return only

    def announced(self, node: str) -> AnnouncedJobs:
        """Return the announced jobs of one node."""
        if node not in self._announced:
            self._announced[node] = AnnouncedJobs(capacity=self.capacity, factor=self.capacity_factor)
        return self._announced[node]

    def announce(
        self,
        job: str,
        *,
        cpus: float,
        ttl: float,
        node: str | None = None,
        unless: Collection[State] = (),
        pid: int | None = None,
        uid: int | None = None,
    ) -> tuple[bool, Answer]:
        """Count a job before telemetry shows it; return whether it counts, and the answer it met.

        It does not count where the node, weighed with the job, is in one of the states `unless`.
        With `uid` it is an ordinary user's: it meets all jobs, and only users' jobs meet it.
        Nothing else runs between the question and the announcement, so of several
        that ask at once each one meets those admitted before it.
        """
        known = self.known(node)
        name, announced = known.name, self.announced(known.name)
        now = self.pace.clock()
        announced.expire(now)
        self.version += 1
        met = self.answer(name, cpus=cpus, among_users=uid is not None)
        if met.state in unless:
            return False, met
        announced.add(job, cpus=cpus, ttl=ttl, now=now, pid=pid, uid=uid)
        return True, met

    def withdraw(self, job: str, uid: int | None = None) -> bool:
        """Forget an announced job, a scheduler's or one user's, on whichever node; return whether there was one."""
        self.version += 1
        return any(announced.remove(job, uid) for announced in self._announced.values())

    def fault(self, kind: str, error: BaseException | str, *, in_tick: bool = True) -> None:
        """Count a fault, and name it in the log at most once a minute per kind.

        With `in_tick`, a tick that meets it is a tick that failed: see `Health`.
        """
        self.faults[kind] += 1
        # The text of a KeyError is the key alone.
        told = "" if isinstance(error, LookupError) else str(error)
        now = self.pace.clock()
        self.last_fault, self.last_fault_at = f"{kind}: {told or repr(error)}", now
        if in_tick:
            self.health.note_fault(self.last_fault)
        if now >= self._quiet_until.get(kind, now):
            self._quiet_until[kind] = now + QUIET_SECONDS
            detail = error if LOG.isEnabledFor(logging.DEBUG) and isinstance(error, BaseException) else None
            LOG.warning("%s (%d so far)", self.last_fault, self.faults[kind], exc_info=detail)

    def _note_unanswered(self, *, anyone: bool) -> None:
        """Count that targets gave nothing; where none gave anything the tick has failed."""
        silent = self.reader.unanswered()
        if silent:
            named = _first([f"{name}: {why}" for name, why in silent.items()])
            self.fault("source", f"no telemetry from {named}", in_tick=not anyone)

    def _count_errors(self) -> None:
        """Count what a follower or the disk met outside the loop and has named in the log itself."""
        sides: list[tuple[str, Any]] = [(follower.name, follower) for follower in self.followers]
        for kind, side in [*sides, ("disk", self.disk)]:
            errors = getattr(side, "errors", 0)
            if (new := errors - self._counted[kind]) > 0:
                self._counted[kind] = errors
                self.faults[kind] += new
                self.last_fault, self.last_fault_at = f"{kind}: {side.last_error}", self.pace.clock()

    def _weigh_jobs(self, now: float) -> None:
        for name, announced in list(self._announced.items()):
            node = self.nodes.get(name)
            if node is not None and len(announced) and node.seen_at == now:
                announced.saw(node.utilisation - node.background)
            announced.expire(now)
            if node is None and not len(announced):
                del self._announced[name]

    async def _publish(self, now: float) -> None:
        """Tell those who watch, and keep what is to be kept."""
        if not len(self.nodes):
            return
        # Of many nodes the log has turns and minutes: a thousand rows a second would fill any bound.
        few = self.logs_every_decision
        clock = self.wall()
        seen = {node.name: self._seen(node, now) for node in self.nodes} if few else {}
        rows = [
            _row(self.answer(node.name), clock, *seen.get(node.name, (None, [])), self.gate_level(node.name))
            for node in (self.nodes if few else self.nodes.changed)
        ]
        first = next(iter(self.nodes)).name
        self.events.publish(self._event(clock, *seen.get(first, (None, []))))
        await self.give_way()
        fresh = [node for node in self.nodes if node.seen_at == now]
        if self.disk is not None and fresh:
            try:
                self.disk.keep(
                    rows,
                    [] if few else [_signal_row(node, clock, self.gate_level(node.name)) for node in fresh],
                )
                await self.disk.save(self.nodes, clock, self.give_way)
            except Exception as error:
                self.fault("state", error)

    def _event(self, clock: float, evidence: Evidence | None, begun: Sequence[int]) -> dict[str, Any]:
        """Return the last timestep as one event: all of a single node, a map of many.

        A single node's comes with what it decided from, None without new telemetry, and which directions begin anew.
        """
        loop = {"lag_seconds": plain(self.pace.lag_seconds), "late": self.pace.late}
        if (only := self.nodes.only) is not None:
            event = self.answer(only.name).as_json()
            event["time"] = plain(clock)
            event["loop"] = loop
            event["downtime"] = plain(self.nodes.tally.downtime)
            if evidence is not None:
                event["projections"] = [plain(float(p)) for p in evidence.projections]
                event["spikes"] = None if evidence.spikes is None else [int(s) for s in evidence.spikes]
                event["begun"] = list(begun)
            return event
        found = [self.state_of(node) for node in self.nodes]
        every = [node.ready for node in self.nodes]
        ready = [value for value in every if value == value]  # not NaN
        event = {
            "time": plain(clock),
            "nodes": len(found),
            "states": {state: found.count(state) for state in STATES},
            "cpu_ready_percent": plain(sum(ready) / len(ready)) if ready else None,
            "downtime": plain(self.nodes.tally.downtime),
            "loop": loop,
        }
        if len(found) <= MAPPED_NODES:
            event["state_map"] = "".join(state[0] for state in found)
            event["ready_map"] = [round(value, 1) if value == value else None for value in every]
        return event

    def state_of(self, node: LiveNode) -> State:
        """Return a node's state by its signal and its gate; an answer also weighs jobs and age."""
        if node.raised:
            return "contended" if self.held_open(node.name) else "refusing"
        return "contended" if node.decision is not None and expects(node.decision) else "accepting"

    @property
    def logs_every_decision(self) -> bool:
        """Whether the decision log has every decision; of more nodes it has the turns and the minutes."""
        return len(self.nodes) <= LOGGED_NODES

    def _seen(self, node: LiveNode, now: float) -> tuple[Evidence | None, list[int]]:
        """Return what a node's decision was made from, and its new directions; nothing without new telemetry."""
        evidence = node.evidence if node.seen_at == now else None
        return evidence, [] if evidence is None else self._lineages.begun(node.name, evidence)

    async def close(self) -> None:
        """Let go of everything; `run` does so at its end."""
        for follower in self.followers:
            try:
                follower.close()
            except Exception as error:
                self.fault(follower.name, error)
        for announced in self._announced.values():
            announced.clear()
        self.events.close()
        try:
            await self.reader.close()
        except Exception as error:
            self.fault("source", error)
        if self.disk is not None:
            try:
                await self.disk.close(self.nodes if len(self.nodes) else None, self.wall())
            except Exception as error:
                self.fault("state", error)


def _first(words: Sequence[str]) -> str:
    more = f" and {len(words) - SHOWN_TARGETS} more" if len(words) > SHOWN_TARGETS else ""
    return "; ".join(words[:SHOWN_TARGETS]) + more


def _lack(node: LiveNode, now: float) -> str:
    """Say what of a node's telemetry is missing, where that is most of it; nothing otherwise."""
    if node.schema is None:
        return ""
    if node.seen_at != now:
        return "not a single number"
    missing, known = len(node.schema.missing), len(node.schema.metrics)
    return f"{missing} of {known} metrics" if 2 * missing > known else ""


def _row(met: Answer, time: float, evidence: Evidence | None, begun: list[int], level: int) -> DecisionRow:
    """Return an answer as the decision log keeps it; without `evidence` there was no new telemetry."""
    return DecisionRow(
        time=time,
        node=met.node,
        raised=bool(met.raised),
        accept=met.accept,
        score=met.score,
        threshold=met.threshold,
        ready=met.cpu_ready_percent,
        utilisation=met.utilisation_percent,
        expected=met.expected_ready,
        reason=None if met.state == "accepting" else met.full_reason,
        directions=None if evidence is None else pack(evidence.projections, evidence.spikes, begun),
        contended=met.state == "contended",
        level=level,
    )


def _signal_row(node: LiveNode, time: float, level: int) -> DecisionRow:
    """Return what the signal of one of many nodes said: jobs on their way are not looked at."""
    decision, raised = node.decision, node.raised
    assert decision is not None
    contended = not raised and expects(decision)
    said = (time, node.name, raised, not raised, decision.score, NAN, node.ready, NAN, NAN, None, None)
    return DecisionRow._make((*said, contended, level))


def _no_node(metrics: tuple[str, ...]) -> Any:
    raise AssertionError("a node that stands for none is never built")


class Follower(Protocol):
    """Something told of every timestep: a federation, a gate, a watchdog. It returns at once.

    One that meets errors in a thread of its own counts them in `errors`, has the newest in
    `last_error`, and names them in the log itself.
    """

    name: str

    def follow(self, agent: Agent) -> Awaitable[None] | None:
        """Take note of the timestep that `agent` has just made; one with much to do is awaited."""
        ...

    def status(self) -> dict[str, Any]:
        """Return where it stands, as plain values for `/v1/status`."""
        ...

    def close(self) -> None:
        """Let go; called once, when the agent stops."""
        ...


@runtime_checkable
class NodeHolder(Protocol):
    """A follower that carries refusals out, and may leave a node open although it refuses."""

    @property
    def enforcing(self) -> bool:
        """Whether refusals are carried out at the scheduler; False in shadow mode."""
        ...

    def held_open(self, node: str) -> str:
        """Say why `node` is held open, for instance by the capacity floor; empty where it is not."""
        ...

    def gate_level(self, node: str) -> int:
        """Return what was done with `node` at the scheduler, as `DecisionRow.level`."""
        ...
