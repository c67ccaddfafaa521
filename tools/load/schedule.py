"""What a load generator does when, planned from a seed.

Covers the plan and its bound on CPU time. Nothing runs here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# Kinds of event and how often each is drawn.
KINDS = {
    "abrupt": 0.20,
    "announced": 0.30,
    "creeping": 0.14,
    "forks": 0.10,
    "mix": 0.10,
    "io": 0.08,
    "memory": 0.08,
}
GAP_SECONDS = (4.0, 30.0)
BURST_SECONDS = (3.0, 12.0)
LEAD_SECONDS = (8.0, 25.0)
HUM_LEVEL = 0.05
IO_COST = 0.3


@dataclass(frozen=True, slots=True)
class Action:
    """One process of the load: what it does, from when, for how long, how hard.

    Attributes
    ----------
    kind
        `spin` (level: share of a CPU), `forks` (level: short processes at a time), `io` (level: megabytes
        written per second) or `memory` (level: megabytes held in the end).
    ramp
        Whether the level is reached little by little rather than at once.
    """

    kind: str
    start: float
    seconds: float
    level: float
    ramp: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """What happens together.

    Attributes
    ----------
    start
        Seconds from the start of the load to its first sign.
    lead_seconds
        Time from the first sign to contention; 0 where nothing announces it.
    contention
        Whether more is asked of the CPUs than there is.
    cpu_seconds
        CPU time it can take at most.
    """

    kind: str
    start: float
    seconds: float
    lead_seconds: float
    contention: bool
    cpu_seconds: float
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A planned load; the same seed, time, CPUs and share give the same plan."""

    seed: int
    seconds: float
    cpus: int
    share: float
    memory_megabytes: float
    events: tuple[Event, ...]

    @property
    def planned_share(self) -> float:
        """CPU time planned at most, as a share of all CPUs."""
        return sum(event.cpu_seconds for event in self.events) / (self.cpus * self.seconds)

    def to_json(self) -> dict[str, Any]:
        """Return it as numbers, strings and lists."""
        return {**asdict(self), "planned_share": self.planned_share}


def plan_load(
    *, seed: int, seconds: float, cpus: int, share: float = 0.35, memory_megabytes: float = 256.0
) -> Schedule:
    """Plan a load.

    Parameters
    ----------
    seconds
        How long it lasts; no action goes on after it.
    cpus
        CPUs of the machine.
    share
        Most CPU time to take, as a share of all CPUs; holds from the start to the end of every event.
    memory_megabytes
        Most memory to hold at a time.

    Examples
    --------
    >>> plan = plan_load(seed=1, seconds=600, cpus=2, share=0.3)
    >>> plan == plan_load(seed=1, seconds=600, cpus=2, share=0.3)
    True
    >>> plan.planned_share <= 0.3
    True
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share must be in (0, 1], got {share}")
    if not seconds > 0.0:
        raise ValueError(f"seconds must be positive, got {seconds}")
    rng = np.random.default_rng(seed)
    hum = min(HUM_LEVEL, share * cpus / 2)
    events = [_event("hum", 0.0, 0.0, [Action("spin", 0.0, seconds, hum)], hum * seconds, contention=False)]
    pace = share * cpus - hum
    used, now = 0.0, 0.0
    names, weights = list(KINDS), np.array(list(KINDS.values()))
    while True:
        start = now + rng.uniform(*GAP_SECONDS)
        kind = str(rng.choice(names, p=weights / weights.sum()))
        event = MAKERS[kind](rng, start, cpus, memory_megabytes)
        # Later, until all that came before has been paid for by quiet time.
        owed = (used + event.cpu_seconds) / pace - (event.start + event.seconds)
        if owed > 0:
            event = _later(event, owed)
        if event.start + event.seconds > seconds:
            break
        events.append(event)
        used += event.cpu_seconds
        now = event.start + event.seconds
    return Schedule(seed, seconds, cpus, share, memory_megabytes, tuple(events))


def _event(
    kind: str,
    start: float,
    lead: float,
    actions: list[Action],
    cpu_seconds: float,
    *,
    contention: bool = True,
) -> Event:
    end = max(action.start + action.seconds for action in actions)
    return Event(kind, start, end - start, lead, contention, cpu_seconds, tuple(actions))


def _later(event: Event, seconds: float) -> Event:
    moved = [Action(a.kind, a.start + seconds, a.seconds, a.level, a.ramp) for a in event.actions]
    return _event(
        event.kind,
        event.start + seconds,
        event.lead_seconds,
        moved,
        event.cpu_seconds,
        contention=event.contention,
    )


def _spinners(rng: np.random.Generator, start: float, seconds: float, cpus: int) -> list[Action]:
    return [Action("spin", start, seconds, 1.0) for _ in range(int(rng.integers(cpus + 1, 4 * cpus + 1)))]


def _abrupt(rng: np.random.Generator, start: float, cpus: int, memory: float) -> Event:
    seconds = rng.uniform(*BURST_SECONDS)
    return _event("abrupt", start, 0.0, _spinners(rng, start, seconds, cpus), cpus * seconds)


def _announced(rng: np.random.Generator, start: float, cpus: int, memory: float) -> Event:
    """A job that loads its data, takes memory, starts helpers, and then computes."""
    lead, seconds = rng.uniform(*LEAD_SECONDS), rng.uniform(*BURST_SECONDS)
    signs = [
        Action("memory", start, lead + seconds, memory * rng.uniform(0.4, 1.0), ramp=True),
        Action("io", start, lead, rng.uniform(8.0, 32.0), ramp=True),
        Action("forks", start + lead / 2, lead / 2, 1.0, ramp=True),
    ]
    chosen = [signs[place] for place in sorted(rng.permutation(3)[: int(rng.integers(1, 4))])]
    cost = sum(
        IO_COST * a.seconds if a.kind == "io" else 0.5 * a.seconds for a in chosen if a.kind != "memory"
    )
    burst = _spinners(rng, start + lead, seconds, cpus)
    # Its first sign may be the helpers, which come later than the rest.
    first = min(action.start for action in chosen)
    return _event("announced", first, start + lead - first, chosen + burst, cpus * seconds + cost)


def _creeping(rng: np.random.Generator, start: float, cpus: int, memory: float) -> Event:
    count, step = int(rng.integers(2 * cpus, 4 * cpus + 1)), rng.uniform(1.0, 3.0)
    end = step * count + rng.uniform(2.0, 6.0)
    actions = [Action("spin", start + i * step, end - i * step, 1.0) for i in range(count)]
    return _event("creeping", start, cpus * step, actions, cpus * end)


def _forks(rng: np.random.Generator, start: float, cpus: int, memory: float) -> Event:
    seconds = rng.uniform(*BURST_SECONDS)
    actions = [Action("forks", start, seconds, float(rng.integers(2 * cpus, 4 * cpus + 1)))]
    return _event("forks", start, 0.0, actions, cpus * seconds)


def _mix(rng: np.random.Generator, start: float, cpus: int, memory: float) -> Event:
    seconds = rng.uniform(*BURST_SECONDS)
    actions = [
        *_spinners(rng, start, seconds, cpus),
        Action("io", start, seconds, rng.uniform(8.0, 32.0)),
        Action("memory", start, seconds, memory * rng.uniform(0.2, 0.8)),
        Action("forks", start, seconds, float(cpus)),
    ]
    return _event("mix", start, 0.0, actions, cpus * seconds)


def _io(rng: np.random.Generator, start: float, cpus: int, memory: float) -> Event:
    seconds = 2.0 * rng.uniform(*BURST_SECONDS)
    ramp = bool(rng.random() < 0.5)
    actions = [Action("io", start, seconds, rng.uniform(8.0, 48.0), ramp)]
    return _event("io", start, 0.0, actions, IO_COST * seconds, contention=False)


def _memory(rng: np.random.Generator, start: float, cpus: int, memory: float) -> Event:
    seconds = rng.uniform(*LEAD_SECONDS)
    actions = [Action("memory", start, seconds, memory * rng.uniform(0.4, 1.0), ramp=True)]
    return _event("memory", start, 0.0, actions, 0.1 * seconds, contention=False)


MAKERS: dict[str, Callable[[np.random.Generator, float, int, float], Event]] = {
    "abrupt": _abrupt,
    "announced": _announced,
    "creeping": _creeping,
    "forks": _forks,
    "mix": _mix,
    "io": _io,
    "memory": _memory,
}
