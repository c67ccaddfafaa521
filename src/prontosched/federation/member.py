"""A node's membership: publish its summary and decision, adopt the global view.

Covers: all that an agent needs of the federation, in one call per timestep that never waits
and never raises. While the bus is away the node decides on the view it has. What adopting does
to a node: `prontosched.pipeline.node`. What statistics do to its signal: `prontosched.signals`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from prontosched.decision import Decision
from prontosched.errors import StateError
from prontosched.federation.link import VIEW_KEY, VIEWS, Entry, Link
from prontosched.federation.message import GlobalView, Statistics, Summary, UnknownSchemaError, clash_note
from prontosched.federation.pooling import trust, view_in_units
from prontosched.federation.publisher import DecisionPublisher, Propagation, SummaryPublisher
from prontosched.federation.schema import Metrics, SchemaCache, hashed
from prontosched.federation.tree import Tree, split
from prontosched.pipeline.node import LEAST_WEIGHT, Node, adopted_weight
from prontosched.subspace import Array, Subspace

log = logging.getLogger(__name__)

# Mean and deviation of a vector or two would be those vectors themselves.
FIRST_TIMESTEP = 10
ADOPT_SECONDS = 300.0
ADOPTED_RANK = 4
# Until its own history has filled, a learned signal does better by the present value than
# by what a fleet has learned; much later it has learned itself.
START_TIMESTEP, LAST_START_TIMESTEP = 300, 1000
# Weight of a view that fits, relative to what a node gives any view it adopts.
FULL_TRUST = 10.0


class ViewSubscriber:
    """The newest global view on the bus; the members of one process may share one.

    `clashes` has the names of nodes served here, told by `is_member`, under which another agent
    publishes too. `errors` counts views that could not be read.
    """

    def __init__(self, link: Link, schemas: SchemaCache, is_member: Callable[[str], bool]) -> None:
        self.link = link
        self.schemas = schemas
        self.view: GlobalView | None = None
        self.errors = 0
        self.last_error = ""
        self.clashes: tuple[str, ...] = ()
        self._is_member = is_member
        self._warned: set[str] = set()
        self._subscription = link.subscribe(VIEWS, VIEW_KEY)

    def poll(self) -> GlobalView | None:
        """Read what arrived, without waiting for the bus; return the newest view."""
        for entry in self.schemas.take({entry.key: entry for entry in self._subscription.drain()}).values():
            self._read(entry)
        return self.view

    def close(self) -> None:
        """End the subscription."""
        self.link.unsubscribe(self._subscription)

    def _read(self, entry: Entry) -> None:
        try:
            view = GlobalView.from_bytes(entry.value, self.schemas)
        except UnknownSchemaError as error:
            self.schemas.hold(entry.key, entry, error.schema)
            return
        except Exception as error:
            self.errors += 1
            self.last_error = str(error) or type(error).__name__
            return
        if self.view is not None and view.revision == self.view.revision:
            return
        self.view = view
        self.clashes = tuple(name for name in view.clashes if self._is_member(name))
        new = [name for name in self.clashes if name not in self._warned]
        if new:
            log.warning("%s", clash_note(new))
            self._warned.update(new)


class Member:
    """Keep one node in the federation.

    `name` is its place, `site/row/rack/node`. A decision holds for `decision_seconds` unless it is
    renewed; a newer view is adopted every `adopt_seconds`. Many members of one process may share
    one `views`. `started` counts how many times the signal took up the fleet's statistics.
    """

    def __init__(
        self,
        link: Link,
        name: str,
        *,
        tree: Tree | None = None,
        rule: Propagation | None = None,
        decision_seconds: float = 60.0,
        adopt_seconds: float = ADOPT_SECONDS,
        views: ViewSubscriber | None = None,
    ) -> None:
        split(name)
        self.link = link
        self.name = name
        self.name_key = link.name_key
        self.adopt_seconds = adopt_seconds
        self._shared = views is not None
        self._views = views or ViewSubscriber(link, SchemaCache(link), lambda other: other == name)
        self.decisions = DecisionPublisher(link, name, seconds=decision_seconds)
        self.summaries = SummaryPublisher(
            link,
            name,
            tree=tree or Tree(),
            schemas=self._views.schemas,
            rule=rule or Propagation(**link.rule),
        )
        self.adopted = self.started = 0
        self._errors = 0
        self._last_error = ""
        self._offered: Subspace | None = None
        self._adopted_revision, self._adopted_at = -1, -np.inf
        self._adopted_step, self._started_step = 0, 0
        self._untested = False

    @property
    def view(self) -> GlobalView | None:
        """The newest global view."""
        return self._views.view

    @property
    def errors(self) -> int:
        """Faults that were survived; those of a shared view are not counted here."""
        return self._errors + (0 if self._shared else self._views.errors)

    @property
    def last_error(self) -> str:
        """The last fault."""
        return self._last_error or self._views.last_error

    def step(self, node: Node, decision: Decision) -> bool:
        """Take part for one timestep; True when the node adopted a view.

        Call it after `node.step`. Nothing here waits for the bus, and nothing is raised:
        a federation that fails must not keep a node from deciding.
        """
        try:
            self.decisions.publish(decision)
            self._publish_summary(node)
            return self._adopt(node)
        except Exception as error:
            self._errors += 1
            if str(error) != self._last_error:
                log.exception("federation of %s: deciding alone", self.name)
            self._last_error = str(error)
            return False

    def leave(self) -> None:
        """Withdraw what was published, so that no one waits for this node to expire."""
        self.summaries.close()
        self.decisions.withdraw()
        if not self._shared:
            self._views.close()

    def _publish_summary(self, node: Node) -> None:
        own = node.embedding.subspace
        if (
            node.timestep < FIRST_TIMESTEP
            or not self.summaries.ready
            or (own is self._offered and not self.summaries.rule.aged(self.link.now()))
        ):
            return
        metrics = self._metrics(node)
        if metrics is not None:
            self.summaries.publish(node_summary(node, self.name, metrics), lambda: signal_statistics(node))
            self._offered = own

    def _metrics(self, node: Node) -> Metrics | None:
        """Return the names as they are sent: their own, or hashed where there is a key."""
        own = node.metrics
        if own is None:
            subspace = node.embedding.subspace
            if subspace is None:
                return None
            own = tuple(f"metric {row}" for row in range(subspace.features))
        return hashed(own, self.name_key) if self.name_key else own

    def _adopt(self, node: Node) -> bool:
        view = self._views.poll()
        if view is None:
            return False
        if self._start_due(view, node.timestep):
            self._started_step = node.timestep
            self.started += start_signal(node, view.statistics)
        now, learned = self.link.now(), node.embedding.subspace is not None
        if not self._adoption_due(view, now, node.timestep, learned=learned):
            return False
        metrics = self._metrics(node)
        if metrics is None:
            return False
        self._adopted_revision, self._adopted_at = view.revision, now
        self._adopted_step, self._untested = node.timestep, not learned
        fitted = fit_view(view, node, metrics)
        if fitted is None:
            return False
        node.adopt(fitted[0], samples=fitted[1])
        self.adopted += 1
        return True

    def _adoption_due(self, view: GlobalView, now: float, timestep: int, *, learned: bool) -> bool:
        if view.subspace is None:
            return False
        if timestep < self._adopted_step:
            # The node was built anew, cold: it knows nothing of a view.
            self._adopted_revision, self._adopted_at = -1, -np.inf
            self._adopted_step, self._untested = 0, False
        newer = self._adopted_revision != view.revision and now - self._adopted_at >= self.adopt_seconds
        # A young node's units change as its scale settles, and so does how far the view fits it.
        grown = timestep >= 1.5 * self._adopted_step + 10
        # The first own block says whether the view was rightly trusted.
        tested = self._untested and learned
        # A node that has seen this much would drop the view at once.
        old = learned and adopted_weight(timestep) < LEAST_WEIGHT
        return (newer or grown or tested) and not old

    def _start_due(self, view: GlobalView, timestep: int) -> bool:
        """Tell whether the signal should take up the fleet's statistics: once, while it is young."""
        if timestep < self._started_step:
            self._started_step = 0
        young = START_TIMESTEP <= timestep <= LAST_START_TIMESTEP
        return young and self._started_step == 0 and bool(view.statistics)


def node_summary(node: Node, name: str, metrics: Metrics) -> Summary:
    """Return what a node knows, in its own units, not numbered yet."""
    features, scaling = len(metrics), node.scaling
    samples = float(node.embedding.samples)
    mean, deviation, counts = np.zeros(features), np.ones(features), np.full(features, samples)
    if scaling is not None and scaling.samples:
        mean, deviation = scaling.mean, np.sqrt(scaling.variance)
        counts = samples * np.maximum(1.0 - scaling.unknown / scaling.samples, 0.0)
    return Summary(
        node=name,
        metrics=metrics,
        subspace=node.embedding.kept,
        samples=samples,
        mean=mean,
        deviation=deviation,
        spread=np.zeros(features),
        counts=counts,
    )


def fit_view(view: GlobalView, node: Node, metrics: Metrics) -> tuple[Subspace, float] | None:
    """Return the view in a node's metrics and units, and for how many samples its strengths stand.

    The samples say how much the node should trust it: as far as what the node learned
    itself lies within the view. None where they have nothing in common.
    """
    deviation: Array | None = None
    if node.scaling is not None and node.scaling.samples > 1:
        deviation = np.sqrt(node.scaling.variance)
    fitted = view_in_units(view, metrics, deviation, rank=ADOPTED_RANK)
    if fitted is None:
        return None
    return fitted, 1.0 / max(FULL_TRUST * trust(fitted, node.embedding.subspace), 1e-9)


def signal_statistics(node: Node) -> Statistics:
    """Return the additive statistics of a node's signal, under the signal's name; none while all are 0."""
    signal: Any = node.signal
    if not hasattr(signal, "share"):
        return {}
    shared = {f"{signal.name}.{name}": np.asarray(value) for name, value in signal.share().items()}
    return shared if any(value.any() for value in shared.values()) else {}


def start_signal(node: Node, statistics: Mapping[str, Array]) -> bool:
    """Let a young node's signal begin with the fleet's statistics; False when it cannot."""
    signal: Any = node.signal
    prefix = f"{signal.name}."
    own = {name.removeprefix(prefix): value for name, value in statistics.items() if name.startswith(prefix)}
    if not own or not hasattr(signal, "start_from"):
        return False
    try:
        signal.start_from(own)
    except (StateError, KeyError, ValueError) as error:
        log.info("the fleet's statistics do not fit this signal: %s", error)
        return False
    return True
