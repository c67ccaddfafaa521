"""What a scheduler must let us do: the `Gate` protocol, the values it uses, and our marks.

A gate closes nodes (the veto); a `PreferringGate` also ranks them (the preference). When to
do either is the same for every scheduler and lives in `controller` and `policy`. Our marks
are text (`label`, `rank_text`) that the scheduler keeps, or files (`MarkFiles`).

Rules for every gate
--------------------
1. Own only what you set. `observe` tells our own mark from anyone else's; `refuse`
   and `accept` read first and leave a node alone that someone else has closed. What a
   rank replaces (an administrator's weight) is kept with it and put back by `restore`.
2. Every refusal and every rank carries `valid_until`, written where the scheduler keeps
   it, so that a watchdog that never met the agent can undo it.
3. `refuse` on a node that we hold already only renews reason and expiry; `accept` and
   `restore` where nothing is ours do nothing. All can be repeated without harm.
4. Whatever the scheduler refuses, and whatever takes longer than the gate's timeout,
   is an `IntegrationError`. No call may block without end.
5. Every refusal carries its reason where the scheduler's users look for it.

Calls are synchronous. They come from a few threads, one call at a time for each node.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from prontosched.decision import Decision
from prontosched.errors import IntegrationError
from prontosched.gates.preference import CONTENDED

PREFIX = "pronto:"
REASON_LIMIT = 160
# The most that an agent's answer may have.
ANSWER_LIMIT = 64 * 1024
# Added to `GET /v1/decision` by whoever keeps jobs from a node that refuses.
ENFORCING = "?enforcing=true"

State = Literal["open", "closed-by-us", "closed-by-other"]

_NUMBER = r"-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf)|nan"
_LABEL = re.compile(rf"^pronto: (?P<reason>.*) \(score (?P<score>{_NUMBER}), until (?P<until>[0-9TZ:-]+)\)$")
_RANK = re.compile(
    rf"level (?P<level>\d), chance (?P<chance>{_NUMBER}), "
    r"(?P<word>refusing|accepting), until (?P<until>[0-9TZ:-]+)"
)
_CLOCK = "%Y-%m-%dT%H:%M:%SZ"
# The last second a label can name.
_LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,200}")
_MARK_LIMIT = 8192


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a gate is to do with one node, and for how long that holds.

    `refuse` keeps new jobs away; jobs that already run are never touched. Nodes are compared by
    `score`, the chance of contention. `reason` is one sentence for an operator. From
    `valid_until`, in seconds since 1970, the verdict counts for nothing.
    """

    refuse: bool
    score: float
    reason: str
    valid_until: float

    @property
    def expected(self) -> float:
        """The chance to rank the node by: one that refuses is expected to be contended, as by jobs announced."""
        return max(self.score, CONTENDED) if self.refuse else self.score

    def expired(self, now: float) -> bool:
        """Tell whether the verdict no longer counts; one without a time never did."""
        return not now < self.valid_until

    @classmethod
    def of(cls, decision: Decision, *, now: float, valid_seconds: float) -> Verdict:
        """Make a verdict of a decision."""
        score = chance(decision.probability, refuse=decision.raised)
        return cls(bool(decision.raised), score, decision.reason, now + valid_seconds)


def chance(probability: float | None, *, refuse: bool) -> float:
    """Return what nodes are compared by: the probability; of a signal without one 1 for a refusal, else 0."""
    return float(refuse) if probability is None or math.isnan(probability) else float(probability)


def read_decision(data: bytes, *, now: float, valid_seconds: float, clock_ahead: float = 0.0) -> Verdict:
    """Read an agent's answer to `GET /v1/decision` as a verdict by our own clock.

    It counts for at most `valid_seconds`. `clock_ahead` is by how many seconds the agent's
    clock is ahead of ours.
    """
    try:
        found: Any = json.loads(data)
        accept, until = found["accept"], float(found["valid_until"])
        probability = found.get("probability")
        score = chance(None if probability is None else float(probability), refuse=not accept)
        # Names of what runs on a node are not for the events of pods.
        offenders = str(found.get("offenders") or "")
        reason = str(found.get("reason") or "no reason given").removesuffix(f"; {offenders}")[:500]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise IntegrationError(
            f"an agent must answer with accept, probability, reason and valid_until, got {data[:80]!r}"
        ) from error
    if not isinstance(accept, bool) or not math.isfinite(until) or math.isinf(score):
        raise IntegrationError(
            f"accept must be true or false, valid_until a time and probability a number, "
            f"got {str(accept)[:40]}, {until} and {score}"
        )
    return Verdict(not accept, score, reason, min(until - clock_ahead, now + valid_seconds))


# No mark counts for longer: one that says so was made by a clock that ran ahead.
LONGEST_MARK_SECONDS = 1800.0


def _over(until: float, now: float) -> bool:
    return not now < until <= now + LONGEST_MARK_SECONDS


@dataclass(frozen=True, slots=True)
class Rank:
    """How a node compares with others, as a gate writes it down.

    Level 0 is calm and filled first. `chance` and `refuse` are the chance of contention and
    the node's own decision when the rank was written; it counts until `valid_until`.
    """

    level: int
    chance: float
    refuse: bool
    valid_until: float

    def expired(self, now: float) -> bool:
        """Tell whether the rank no longer counts; one without a time never did."""
        return _over(self.valid_until, now)


# A rank of ours that cannot be read: it has expired, so that a watchdog takes it off.
DAMAGED_RANK = Rank(0, math.nan, False, math.nan)


@dataclass(frozen=True, slots=True)
class Observed:
    """What a scheduler says about one node, and who closed it.

    `closed-by-us` bears our mark; `closed-by-other` is closed by an administrator, a failure or
    another tool, and is left alone. `detail` is the reason that the scheduler shows to its users.
    `score` and `valid_until` are read back from our mark; NaN where the node is not ours or the
    mark is damaged. `rank` is the one that we gave the node, whoever closed it.
    """

    state: State
    detail: str = ""
    score: float = math.nan
    valid_until: float = math.nan
    rank: Rank | None = None

    @property
    def ours(self) -> bool:
        """True when the node is closed and bears our mark."""
        return self.state == "closed-by-us"

    @property
    def marked(self) -> bool:
        """True when the node bears a mark of ours: a refusal or a rank."""
        return self.ours or self.rank is not None

    def lapsed(self, now: float) -> bool:
        """True when the node is ours and its verdict is over, or cannot be read."""
        return self.ours and _over(self.valid_until, now)


class Gate(Protocol):
    """One scheduler, as far as Pronto may touch it. `name` is its name in settings and messages."""

    name: str

    def observe(self, node: str) -> Observed:
        """Return what the scheduler says about `node` now; an `IntegrationError` where it does not know it."""
        ...

    def refuse(self, node: str, verdict: Verdict) -> None:
        """Keep new jobs off `node`, or renew our mark; one closed by someone else stays as it is."""
        ...

    def accept(self, node: str) -> None:
        """Let jobs onto `node` again, only if the node bears our mark."""
        ...

    def owned(self) -> list[str]:
        """Return every node that bears a mark of ours, closed or ranked, as far as this gate reaches."""
        ...


@runtime_checkable
class PreferringGate(Protocol):
    """A gate whose scheduler can be told which nodes to fill first.

    In the long run a node's rank changes at most once in `level_seconds`; 0 is for a gate that
    takes any number of changes. With `marks_calm` calm nodes bear a mark too, which is renewed
    like any other; elsewhere a node without a mark is calm.
    """

    level_seconds: float
    marks_calm: bool

    def prefer(self, node: str, rank: Rank, verdict: Verdict) -> None:
        """Give `node` its rank, or renew it; level 0 is as the administrator set it. `verdict` has the reason."""
        ...

    def restore(self, node: str) -> None:
        """Take our rank off `node` and put back what it replaced; nothing happens where there is none."""
        ...


@runtime_checkable
class ListingGate(Protocol):
    """A gate whose scheduler tells of all nodes in one call, so that the floor can be counted there."""

    def observe_all(self) -> dict[str, Observed]:
        """Return what the scheduler says about every node that this gate reaches."""
        ...


@runtime_checkable
class SweepingGate(ListingGate, Protocol):
    """A gate whose scheduler opens many nodes in one call."""

    def accept_lapsed(self, nodes: Sequence[str], now: float) -> list[str]:
        """Do what `accept` does for those of `nodes` whose refusal is over at `now`; return them."""
        ...


@runtime_checkable
class QueueGate(Protocol):
    """A gate whose scheduler can tell whether jobs wait that no open node can take."""

    def starved(self) -> bool:
        """Tell whether jobs wait for nodes; then no veto may stand."""
        ...


class LeaseTable(Protocol):
    """Permission to refuse, by a row for each node from level 1 on; it ends by itself at `valid_until`."""

    def tell(self, node: str, *, refuse: bool, score: float, valid_until: float, now: float) -> bool:
        """Write the row of `node`, and return whether it may be closed."""
        ...

    def release(self, node: str) -> None:
        """Take the row of `node` out; nothing happens where there is none."""
        ...


def label(verdict: Verdict) -> str:
    """Write a refusal as one line that people read and `read_label` understands.

    Examples
    --------
    >>> label(Verdict(True, 0.8, "cpu_user is rising", valid_until=1700000000.0))
    'pronto: cpu_user is rising (score 0.8, until 2023-11-14T22:13:20Z)'
    """
    # Blank out what could end a line, a string or a `name=value` field where a reason is stored.
    plain = "".join(c if c.isprintable() and c not in "\"'`\\=" else " " for c in verdict.reason)
    reason = " ".join(plain.split()) or "refused"
    if len(reason) > REASON_LIMIT:
        reason = reason[: REASON_LIMIT - 1].rstrip() + "…"
    return f"{PREFIX} {reason} (score {verdict.score:.4g}, until {clock_text(verdict.valid_until)})"


def read_label(text: str) -> Observed | None:
    """Read a line written by `label`; None when it is not ours.

    A line with our prefix that someone has edited is still ours, but its score and
    expiry are NaN, so that a watchdog counts it as lapsed.
    """
    if not text.startswith(PREFIX):
        return None
    found = _LABEL.match(text)
    until = math.nan if found is None else read_clock(found["until"])
    if found is None or math.isnan(until):
        return Observed("closed-by-us", text)
    return Observed("closed-by-us", text, score=float(found["score"]), valid_until=until)


def rank_text(rank: Rank) -> str:
    """Write a rank as one line that `read_rank` understands.

    Examples
    --------
    >>> rank_text(Rank(3, 0.62, False, 1700000000.0))
    'level 3, chance 0.62, accepting, until 2023-11-14T22:13:20Z'
    """
    word = "refusing" if rank.refuse else "accepting"
    return f"level {rank.level}, chance {rank.chance:.4g}, {word}, until {clock_text(rank.valid_until)}"


def read_rank(text: str) -> Rank:
    """Read what `rank_text` wrote; a text that someone has edited is a rank that has expired."""
    if (found := _RANK.fullmatch(text)) is None:
        return DAMAGED_RANK
    refuse = found["word"] == "refusing"
    return Rank(int(found["level"]), float(found["chance"]), refuse, read_clock(found["until"]))


def clock_text(seconds: float) -> str:
    """Write a time as marks carry it, in whole seconds rounded down; NaN is the first second."""
    until = 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), _LATEST)
    return datetime.fromtimestamp(math.floor(until), UTC).strftime(_CLOCK)


def read_clock(text: str) -> float:
    """Read what `clock_text` wrote; NaN where it is no time."""
    try:
        return datetime.strptime(text, _CLOCK).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return math.nan


def marks_folder(gate: str) -> Path:
    """Return where the mark files of `gate` lie unless told otherwise.

    Root, and a service with a RuntimeDirectory, keep them where a reboot clears them;
    everyone else in their own state folder.
    """
    if runtime := os.environ.get("RUNTIME_DIRECTORY", ""):
        return Path(runtime.split(":")[0]) / gate
    if os.geteuid() == 0:
        return Path("/run/pronto") / gate
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "pronto" / gate


class MarkFiles:
    """Marks as files, one per node, for schedulers that keep no note of ours themselves.

    A mark survives the agent, so that a watchdog can undo what the mark stands for. The
    folder is made at the first write.
    """

    def __init__(self, folder: Path, *, suffix: str = ".mark") -> None:
        self.folder = folder
        self.suffix = suffix

    def path(self, node: str) -> Path:
        """Return the file of `node`."""
        if not _NAME.fullmatch(node):
            raise IntegrationError(f"a node must be one plain name, got {node[:80]!r}")
        return self.folder / f"{node}{self.suffix}"

    def read(self, node: str) -> str | None:
        """Return the mark of `node`, None where there is none."""
        path = self.path(node)
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                return file.read(_MARK_LIMIT)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise IntegrationError(f"{path} must be readable: {error.strerror}") from error

    def write(self, node: str, text: str) -> None:
        """Put `text` as the mark of `node`, all of it or nothing."""
        path = self.path(node)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except OSError as error:
            raise IntegrationError(f"{self.folder} must be writable for marks: {error.strerror}") from error

    def remove(self, node: str) -> None:
        """Take the mark of `node` away; nothing happens where there is none."""
        path = self.path(node)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise IntegrationError(f"{path} must be removable: {error.strerror}") from error

    def nodes(self) -> list[str]:
        """Return the nodes that have a mark."""
        names = (path.name.removesuffix(self.suffix) for path in self.folder.glob(f"*{self.suffix}"))
        return sorted(name for name in names if _NAME.fullmatch(name))
