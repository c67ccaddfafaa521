"""What a node answers when asked: its decision, weighed against its age and the jobs on their way.

Pure: times arrive as numbers, ages on a clock that never jumps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from prontosched.agent.jobs import AnnouncedJobs
from prontosched.agent.nodes import LiveNode, expects
from prontosched.decision import Decision, State

NAN = float("nan")
OPTION = "a setting of its signal"


@dataclass(frozen=True, slots=True)
class Silence:
    """For how many seconds a decision counts, and what is answered once it does not.

    `accept` keeps a broken agent from closing a cluster.
    """

    valid_seconds: float = 10.0
    answer: Literal["accept", "reject"] = "accept"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to "may I send a job here?".

    Attributes
    ----------
    state
        `accepting`, `refusing`, or `contended`: contention is expected and the node is held open.
    held_by
        By what a contended node is held open, in words; empty in the other states.
    enforced
        Whether a gate carries refusals out. Where none does, it is up to who asks.
    raised
        What the signal alone said; None before the first decision.
    since, valid_until
        Clock times from which this has been the answer, and until which the decision behind it counts.
    stale
        True when the telemetry is too old to count, so that a stated policy answers.
    outlook
        Chance of contention within further horizons: pairs of timesteps ahead and chance.
    offenders
        Who waits and who runs, in half a sentence, where the node does not simply accept. Not part of
        `reason`, which schedulers and the federation are told: names stay on the node.
    """

    node: str
    accept: bool
    state: State
    held_by: str
    enforced: bool
    raised: bool | None
    score: float
    threshold: float
    reason: str
    since: float
    valid_until: float
    age_seconds: float
    stale: bool
    probability: float
    expected_ready: float
    cpu_ready_percent: float
    utilisation_percent: float
    announced_cpus: float
    timestep: int
    outlook: tuple[tuple[int, float], ...] = ()
    offenders: str = ""

    @property
    def full_reason(self) -> str:
        """The reason with who waits and who runs, for people on this node."""
        return f"{self.reason}; {self.offenders}" if self.offenders else self.reason

    def as_json(self) -> dict[str, Any]:
        """Return the answer as plain values, null where nothing is known."""
        # Written out, and not rounded: this is asked far more often than anything else.
        return {
            "node": self.node,
            "accept": self.accept,
            "state": self.state,
            "held_by": self.held_by,
            "enforced": self.enforced,
            "raised": self.raised,
            "score": _finite(self.score),
            "threshold": _finite(self.threshold),
            "reason": self.full_reason,
            "since": self.since,
            "valid_until": self.valid_until,
            "age_seconds": self.age_seconds,
            "stale": self.stale,
            "probability": _finite(self.probability),
            "expected_ready": _finite(self.expected_ready),
            "cpu_ready_percent": _finite(self.cpu_ready_percent),
            "utilisation_percent": _finite(self.utilisation_percent),
            "announced_cpus": self.announced_cpus,
            "timestep": self.timestep,
            "outlook": [{"steps": steps, "probability": _finite(p)} for steps, p in self.outlook],
            "offenders": self.offenders,
        }


def answer(
    known: LiveNode,
    announced: AnnouncedJobs,
    silence: Silence,
    *,
    now: float,
    clock: float,
    cpus: float = 0.0,
    among_users: bool = False,
    held_by: str = "",
    trouble: str = "",
    enforced: bool = False,
    offenders: str = "",
) -> Answer:
    """Weigh what is known of a node into an answer.

    Parameters
    ----------
    now, clock
        The agent's own clock, on which `known` has its times, and seconds since 1970, only shown: it may jump.
    cpus, among_users
        CPUs of the job asked for, 0 for a general answer; whether jobs that ordinary users announced are weighed.
    held_by, trouble
        Why the node's scheduler takes jobs for it even while it refuses; why there is no newer decision.
    """
    age = max(0.0, now - known.seen_at)
    decision = known.decision
    stale = decision is None or age > silence.valid_seconds
    # What was busy long ago says nothing of now; announced jobs do.
    full = announced.full(cpus, among_users=among_users) if len(announced) or not stale else None
    if stale:
        accept = silence.answer == "accept"
        changed_at = known.seen_at + (0.0 if decision is None else silence.valid_seconds)
        reason = f"{_silent(decision, age, trouble)}: {silence.answer}ing, as set"
    else:
        assert decision is not None
        accept, reason, changed_at = not decision.raised, decision.reason, known.changed_at
    likely = decision is not None and not stale and expects(decision)
    if not accept and held_by:
        accept = likely = True
    elif accept and likely:
        held_by = _option(reason)
    if accept and full is not None:
        # Full for a job of this size only: then it is so since it was asked.
        accept, reason = False, full
        changed_at = now if announced.full() is None else max(announced.full_since, known.changed_at)
    elif accept:
        changed_at = max(changed_at, announced.freed_at)
    state: State = "refusing" if not accept else "contended" if likely else "accepting"
    return Answer(
        node=known.name,
        accept=accept,
        state=state,
        held_by=held_by if state == "contended" else "",
        enforced=enforced,
        raised=None if decision is None else bool(decision.raised),
        score=NAN if decision is None else float(decision.score),
        threshold=NAN if decision is None else float(decision.threshold),
        reason=reason,
        since=clock - max(0.0, now - changed_at),
        valid_until=clock + silence.valid_seconds - age,
        age_seconds=age,
        stale=stale,
        probability=NAN if decision is None else float(decision.probability),
        expected_ready=NAN if decision is None else float(decision.expected_ready),
        cpu_ready_percent=float(known.ready),
        utilisation_percent=float(known.utilisation),
        announced_cpus=announced.cpus,
        timestep=-1 if decision is None else int(decision.timestep),
        outlook=() if decision is None else decision.outlook,
        offenders=offenders if likely else "",
    )


def _silent(decision: Decision | None, age: float, trouble: str) -> str:
    if decision is None:
        return f"no decision yet ({trouble})" if trouble else "no telemetry yet"
    return f"no telemetry for {age:.0f} s" + (f" ({trouble})" if trouble else "")


def chance_within(found: Answer, asked: int, own: int | None) -> dict[str, Any]:
    """Return the chance of contention within `asked` timesteps, or the nearest horizon offered.

    `own` is the horizon of the signal, for which `found.probability` holds.

    Examples
    --------
    >>> node = LiveNode(lambda metrics: None, name="n1")
    >>> node.decision = Decision(False, 0.0, 0.0, "", probability=0.1, outlook=((30, 0.2),))
    >>> found = answer(node, AnnouncedJobs(capacity=1), Silence(), now=0.0, clock=0.0)
    >>> chance_within(found, 60, own=5)
    {'asked': 60, 'steps': 30, 'probability': 0.2, 'offered': [5, 30]}
    """
    offered = dict(found.outlook)
    if own is not None:
        offered.setdefault(own, found.probability)
    # Apart by a factor, not by a difference: 100 steps are nearer to 120 than to 30.
    nearest = min(offered, key=lambda steps: abs(math.log(steps / asked)), default=None)
    return {
        "asked": asked,
        "steps": nearest,
        "probability": None if nearest is None or found.stale else _finite(offered[nearest]),
        "offered": sorted(offered),
    }


def slowdown(*, busy: float, waiting: float, ahead: float, asked: float, capacity: float) -> float:
    """Return how many times as long as alone a job would take: all who want to run share the CPUs.

    CPUs are `busy` with normal work, wanted by those `waiting` (CPU Ready times the CPUs), by jobs announced
    and not yet seen (`ahead`), and by the job itself (`asked`).

    Examples
    --------
    >>> slowdown(busy=2.0, waiting=3.0, ahead=0.0, asked=1.0, capacity=2.0)
    3.0
    """
    known = [value for value in (busy, waiting) if not math.isnan(value)]
    return max(1.0, (math.fsum(known) + ahead + asked) / capacity) if known else math.nan


def _option(reason: str) -> str:
    """Return the option that holds a node open, as the reason names it."""
    return reason.partition("; held open")[2].removeprefix(",").strip() or OPTION


def _finite(value: float) -> float | None:
    # Infinity less itself is no number either.
    return value if value - value == 0.0 else None
