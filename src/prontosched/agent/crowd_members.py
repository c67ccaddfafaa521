"""A crowd in the federation: every node speaks for itself, a few of them per tick.

Covers: summaries and decisions of nodes that are held as arrays, the global view that these
adopt, and the statistics that their signals share and take up, by the rules of a single node
(`prontosched.federation.member`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from prontosched.agent.crowd import Crowd
from prontosched.agent.crowd_notes import Standing
from prontosched.decision import Decision
from prontosched.errors import FederationError
from prontosched.federation.adopting import Adoptions, HeardView, fitted, moved
from prontosched.federation.contribution import shared_by, start_signal, summary_of
from prontosched.federation.herald import Herald
from prontosched.federation.link import Link
from prontosched.federation.message import GlobalView
from prontosched.federation.propagation import Propagation
from prontosched.federation.schema import SentNames
from prontosched.federation.schema_book import SchemaBook
from prontosched.federation.tree import Tree, split
from prontosched.federation.voice import Voice

LOG = logging.getLogger("prontosched.agent")
SILENT_SECONDS = 60.0
RENEW_SECONDS = 20.0
# Per tick, so that adopting leaves time to speak; those who have nothing else to project on yet, and others.
NEW_AT_ONCE, ADOPT_AT_ONCE = 32, 8
# Whose signals take up what the fleet has learned, at least, and of a large crowd this share: while young all
# find time for it.
START_AT_ONCE, START_SHARE = 4, 1 / 512


class _Speaker(NamedTuple):
    voice: Voice
    herald: Herald


class CrowdMembers:
    """Speak for the nodes of a crowd.

    Parameters
    ----------
    link, tree
        The bus, and who reports to whom.
    name_of
        Gives a node's place in the tree.

    Attributes
    ----------
    places
        Names in the tree of those who speak.
    adopted
        How many times a node adopted a view.
    started
        How many times a node's signal took up what the fleet has learned.

    Notes
    -----
    Memory: the last summary sent of each of at most 16,384 nodes, and one global view.
    """

    def __init__(self, link: Link, tree: Tree, name_of: Callable[[str], str]) -> None:
        self.link = link
        self.tree = tree
        self._name_of = name_of
        self._book = SchemaBook(link)
        self.places: list[str] = []
        self._spoken_for: list[str] = []
        self._builds = 0
        self._speakers: list[_Speaker | None] = []
        self._names = SentNames()
        self.adopted = 0
        self.started = 0
        self._unplaced = 0
        self._why = ""
        self._heard = HeardView(link, self._book, lambda place: place in self.places)
        self._adoptions = Adoptions()
        self._placed = np.zeros(0, np.bool_)
        self._blocks = np.zeros(0, np.int64)
        self._told_at = np.zeros(0)
        self._raised = np.zeros(0, np.int8)
        self._said_at = np.zeros(0)
        self._next = 0

    @property
    def told(self) -> bool:
        """True once everyone has told what it knows."""
        return bool((self._blocks > 0).all())

    @property
    def clashes(self) -> tuple[str, ...]:
        """Names of nodes here under which another agent speaks too."""
        return self._heard.clashes

    @property
    def errors(self) -> int:
        """Nodes whose names cannot be placed, and views that cannot be read."""
        return self._unplaced + self._heard.errors

    @property
    def last_error(self) -> str:
        """The last reason for one of them."""
        return self._why or self._heard.last_error

    @property
    def view(self) -> GlobalView | None:
        """The global view heard last."""
        return self._heard.view

    def __len__(self) -> int:
        return len(self.places)

    def follow(self, crowd: Crowd, now: float, more: Callable[[], bool]) -> None:
        """Let nodes speak that have something to say, and adopt the view, for as long as there is time.

        Parameters
        ----------
        now
            By the clock of the crowd.
        more
            Tells whether there is time for one more node; the first in turn has it in any case.
        """
        names = crowd.names
        self._keep_up(names, crowd.builds)
        standing = crowd.standing()
        turned, due = self._due(standing, now, len(names))
        for at in turned:
            self._decide(crowd, at, names[at], standing)
            if not more():
                break
        for at in self._adopting(standing, now):
            self._adopt(crowd, at, standing)
            if not more():
                break
        for at in self._starting(standing, now):
            self._start(crowd, at, standing)
            if not more():
                break
        for at in due:
            self._decide(crowd, at, names[at], standing)
            self._tell(crowd, at, standing)
            self._next = at + 1
            if not more():
                return

    def leave(self) -> None:
        """Say goodbye for everyone."""
        self._heard.close()
        for speaker in self._speakers:
            _leave(speaker)

    def _due(self, standing: Standing, now: float, count: int) -> tuple[list[int], list[int]]:
        """Return whose decision turned, and who else has something to say, in turn."""
        bus = self.link.now()
        fresh = now - standing.seen_at[:count] <= SILENT_SECONDS
        oldest = self.link.rule.get("max_age_seconds", 60.0)
        due = (standing.blocks[:count] != self._blocks) | (bus - self._told_at >= oldest)
        due |= bus - self._said_at >= RENEW_SECONDS
        rest = np.flatnonzero(fresh & due)
        turned = np.flatnonzero(fresh & (standing.raised[:count] != self._raised) & (self._raised >= 0))
        # One after the other, so that neighbours speak together and few aggregators have to work.
        return turned.tolist(), np.roll(rest, -int(np.searchsorted(rest, self._next))).tolist()

    def _adopting(self, standing: Standing, now: float) -> list[int]:
        """Return who is to adopt the view now, those who know nothing yet and the young first."""
        view = self._heard.look()
        if view is None:
            return []
        count = len(self._speakers)
        timestep, embedded = standing.timestep[:count], standing.embedded[:count]
        due = self._adoptions.due(view, self.link.now(), timestep, embedded)
        due &= now - standing.seen_at[:count] <= SILENT_SECONDS
        chosen = np.flatnonzero(due & self._placed)
        first = np.lexsort((timestep[chosen], embedded[chosen]))
        new = int(np.count_nonzero(~embedded[chosen]))
        return [int(at) for at in chosen[first][: min(max(new, ADOPT_AT_ONCE), NEW_AT_ONCE)]]

    def _adopt(self, crowd: Crowd, at: int, standing: Standing) -> None:
        assert self.view is not None
        learned, timestep = bool(standing.embedded[at]), int(standing.timestep[at])
        self._adoptions.note(at, self.view, self.link.now(), timestep, learned=learned)
        node = crowd.node(at)
        metrics = self._names.of(node.metrics or (), self.link.name_key)
        found = fitted(self.view, node, metrics)
        if found is not None:
            crowd.adopt(at, found[0], samples=found[1])
            self.adopted += 1

    def _starting(self, standing: Standing, now: float) -> list[int]:
        """Return whose signals are to take up the fleet's statistics now, those who have least time first."""
        if self.view is None:
            return []
        count = len(self._speakers)
        timestep = standing.timestep[:count]
        due = self._adoptions.starting(self.view, timestep)
        due &= now - standing.seen_at[:count] <= SILENT_SECONDS
        chosen = np.flatnonzero(due & self._placed)
        oldest = np.argsort(-timestep[chosen], kind="stable")
        return [int(at) for at in chosen[oldest][: max(START_AT_ONCE, int(START_SHARE * count))]]

    def _start(self, crowd: Crowd, at: int, standing: Standing) -> None:
        assert self.view is not None
        self._adoptions.note_start(at, int(standing.timestep[at]))
        self.started += start_signal(crowd.node(at), self.view.statistics)

    def _decide(self, crowd: Crowd, at: int, name: str, standing: Standing) -> None:
        raised = bool(standing.raised[at])
        self._raised[at], self._said_at[at] = raised, self.link.now()
        speaker = self._speakers[at]
        if speaker is not None:
            speaker.herald.say(not raised, lambda: _decision(crowd, name))

    def _tell(self, crowd: Crowd, at: int, standing: Standing) -> None:
        self._told_at[at] = self.link.now()
        speaker = self._speakers[at]
        # While the bus has not answered, it is looked at again at the next tick.
        self._blocks[at] = standing.blocks[at] if speaker is None or speaker.voice.ready else -1
        # Nothing learned yet, nothing to tell.
        if speaker is None or self._blocks[at] <= 0:
            return
        node = crowd.node(at)
        metrics = self._names.of(node.metrics or (), self.link.name_key)
        speaker.voice.offer(summary_of(node, speaker.voice.name, metrics), lambda: shared_by(node))

    def _keep_up(self, names: list[str], builds: int) -> None:
        """Let newcomers speak, and say goodbye for those who lost their places."""
        if builds != self._builds:
            # A new fleet holds no views.
            self._builds = builds
            self._adoptions.forget_views()
        if names == self._spoken_for:
            return
        before = {name: at for at, name in enumerate(self._spoken_for)}
        origin = np.array([before.pop(name, -1) for name in names], np.intp)
        for at in before.values():
            _leave(self._speakers[at])
        self._speakers = [
            self._speaker(name) if at < 0 else self._speakers[at]
            for name, at in zip(names, origin.tolist(), strict=True)
        ]
        self._spoken_for = names
        self.places = [speaker.voice.name for speaker in self._speakers if speaker is not None]
        self._unplaced = len(names) - len(self.places)
        self._placed = np.array([speaker is not None for speaker in self._speakers])
        self._adoptions.move(origin)
        self._blocks = moved(self._blocks, origin, -1)
        self._raised = moved(self._raised, origin, -1)
        self._told_at = moved(self._told_at, origin, 0)
        self._said_at = moved(self._said_at, origin, 0)

    def _speaker(self, name: str) -> _Speaker | None:
        place = self._name_of(name)
        try:
            split(place)
        except FederationError as error:
            self._why = str(error)
            LOG.warning("%s takes no part in the federation: %s", name, error)
            return None
        rule = Propagation(**self.link.rule)
        return _Speaker(
            Voice(self.link, place, tree=self.tree, book=self._book, rule=rule), Herald(self.link, place)
        )


def _leave(speaker: _Speaker | None) -> None:
    if speaker is not None:
        speaker.voice.leave()
        speaker.herald.take_back()


def _decision(crowd: Crowd, name: str) -> Decision:
    decision = crowd.known(name).decision
    assert decision is not None
    return decision
