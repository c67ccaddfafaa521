"""What the global view is worth to a new node, and where it is worth nothing.

A fleet runs; one machine that it never saw joins, once with what the fleet knows and
once alone. Compared over its first 100, 500 and 5,000 timesteps, always before a vector
is learned from: the share of the variance that its directions capture, and how well its
probability of contention ranks what then happens (average precision).

Three fleets: machines of one kind; a stranger of another kind; and, where the folder is
given, the Server Machine Dataset, each machine held out in turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.row import Row
from prontosched.errors import TelemetryError
from prontosched.extras import missing_extra
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.link import VIEW_KEY, VIEWS, LocalBus, LocalLink
from prontosched.federation.member import Member, node_summary, signal_statistics
from prontosched.federation.message import GlobalView, Summary
from prontosched.federation.schema import SchemaCache
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import make_node
from prontosched.subspace import Array
from prontosched.telemetry.synthetic import SyntheticFleet

FEATURES = 48
# Contention, not an input: it would leak the answer into the question.
SMD_CONTENTION, SMD_UTILISATION = "load_1", "cpu_r"
SMD_LEFT_OUT = ("minute", "split", "anomaly_label", "load_1", "load_5", "load_15")
HORIZON = 5
# A stranger may lose this share to the others' view, not more.
HARM = 0.97


class Plan(NamedTuple):
    """How much is measured: machines, steps of the fleet before, and (spans, starts) per machine."""

    machines: int
    train: int
    courses: tuple[tuple[tuple[int, ...], int], ...]

    @property
    def room(self) -> int:
        """Timesteps that a machine needs after the fleet's own."""
        return sum(spans[-1] * starts for spans, starts in self.courses)


QUICK = Plan(5, 1_500, (((100, 500), 3),))
FULL = Plan(7, 4_000, (((100, 500), 8), ((5_000,), 1)))


class Course(NamedTuple):
    """The first timesteps of a node: energy captured and seen, probability, and what followed."""

    captured: Array
    seen: Array
    probability: Array
    contention: NDArray[np.bool_]


Courses = dict[int, dict[str, list[Course]]]


def worth(smd: Path | None = None, *, quick: bool = False) -> list[Row]:
    """Return variance captured and average precision, alone and with the view, as rows."""
    plan = QUICK if quick else FULL
    length = plan.train + plan.room
    kind = same_kind(plan.machines, seed=1, steps=length)
    other = same_kind(plan.machines, seed=2, steps=length)
    rows = _rows("one kind", _held_out(kind, plan), variance_floor=1.0)
    rows += _rows("a stranger", _strangers(kind, other, plan), variance_floor=HARM)
    if smd is not None:
        rows += _rows("smd", _held_out(smd_machines(smd, limit=plan.machines), plan), variance_floor=HARM)
    return rows


def _held_out(machines: Sequence[Machine], plan: Plan) -> Courses:
    """Let each machine in turn be the one that the fleet never saw."""
    courses: Courses = {}
    summaries = [_trained(machine, plan.train, str(index)) for index, machine in enumerate(machines)]
    for index, machine in enumerate(machines):
        _join(machine, _view([s for i, s in enumerate(summaries) if i != index]), plan, courses)
    return courses


def _strangers(fleet: Sequence[Machine], strangers: Sequence[Machine], plan: Plan) -> Courses:
    """Let machines of another kind join a fleet that has metrics of the same names."""
    courses: Courses = {}
    view = _view([_trained(machine, plan.train, str(index)) for index, machine in enumerate(fleet)])
    for machine in strangers:
        _join(machine, view, plan, courses)
    return courses


def _trained(machine: Machine, steps: int, name: str) -> Summary:
    """Return what a machine of the fleet sends after some time."""
    node = _node(machine)
    for t in range(steps):
        node.step(
            machine.vectors[t],
            ready=machine.ready[t],
            utilisation=machine.utilisation[t],
            time=machine.time(t),
        )
    found = node_summary(node, f"n{name}", machine.metrics)
    return replace(found, incarnation=1, sequence=1, statistics=signal_statistics(node))


def _view(summaries: Sequence[Summary]) -> GlobalView:
    aggregator = Aggregator("")
    for summary in summaries:
        aggregator.receive(summary, now=0.0)
    merged = aggregator.merged()
    assert merged is not None
    return GlobalView.of(merged, 1)


def _join(machine: Machine, view: GlobalView, plan: Plan, courses: Courses) -> None:
    """Add the first steps of new nodes: alone, with the view, with view and learned signal."""
    given = {"alone": None, "view": replace(view, statistics={}), "view and signal": view}
    for spans, starts in plan.courses:
        last = len(machine.ready) - spans[-1] - HORIZON
        for offset in np.linspace(plan.train, last, starts).astype(int):
            for kind, one in given.items():
                course = _course(machine, one, int(offset), spans[-1])
                for span in spans:
                    courses.setdefault(span, {}).setdefault(kind, []).append(course)


def _course(machine: Machine, view: GlobalView | None, offset: int, span: int) -> Course:
    node = _node(machine)
    member = None if view is None else _member(view)
    captured, seen, probability = np.zeros(span), np.zeros(span), np.zeros(span)
    for t in range(span):
        row = offset + t
        decision = node.step(
            machine.vectors[row],
            ready=machine.ready[row],
            utilisation=machine.utilisation[row],
            time=machine.time(row),
        )
        evidence = node.evidence
        assert evidence is not None
        assert evidence.vector is not None
        captured[t] = sum(p * p for p in evidence.projections)
        seen[t] = float(evidence.vector @ evidence.vector)
        probability[t] = decision.score if math.isnan(decision.probability) else decision.probability
        if member is not None:
            member.step(node, decision)
    ready = machine.ready[offset : offset + span + HORIZON]
    ahead = np.lib.stride_tricks.sliding_window_view(ready[1:], HORIZON).max(axis=1)[:span]
    return Course(captured, seen, probability, ahead >= machine.tolerance)


def _node(machine: Machine) -> Node:
    return make_node("default", metrics=machine.metrics, tolerance=machine.tolerance, horizon=HORIZON)


def _member(view: GlobalView) -> Member:
    link = LocalLink(LocalBus(lambda: 1_000_000.0))
    SchemaCache(link).publish(view.metrics)
    link.put(VIEWS, VIEW_KEY, view.to_bytes())
    return Member(link, "newcomer")


def _rows(name: str, courses: Courses, *, variance_floor: float) -> list[Row]:
    rows: list[Row] = []
    for span, found in sorted(courses.items()):
        floors = {"variance captured": variance_floor, "average precision": HARM}
        for what, measure in (("variance captured", _share), ("average precision", _precision)):
            figures = {kind: [measure(c, span) for c in ones] for kind, ones in found.items()}
            means = {kind: _mean(values) for kind, values in figures.items()}
            label = f"{name}: {what}, first {span} steps"
            rows += [Row(f"{label}, {kind}", value, "share", better="more") for kind, value in means.items()]
            for kind in ("view", "view and signal"):
                ratio = means[kind] / means["alone"]
                rows.append(Row(f"{label}, {kind} against alone", ratio, "times", floors[what], "more"))
        cases = sum(not math.isnan(_precision(c, span)) for c in found["alone"])
        rows.append(
            Row(
                f"{name}: nodes with contention in the first {span} steps",
                float(cases),
                "nodes",
                better="more",
            )
        )
    return rows


def _share(course: Course, span: int) -> float:
    return float(course.captured[:span].sum() / max(course.seen[:span].sum(), 1e-12))


def _precision(course: Course, span: int) -> float:
    """Return the average precision, NaN where nothing happened or nothing else did."""
    truth = course.contention[:span]
    if truth.all() or not truth.any():
        return math.nan
    order = np.argsort(-course.probability[:span], kind="stable")
    hits = truth[order]
    return float((np.cumsum(hits) / np.arange(1, span + 1))[hits].mean())


def _mean(values: Any) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


class Machine(NamedTuple):
    """A machine's whole course: vectors `(T, d)`, contention and utilisation `(T,)`."""

    metrics: tuple[str, ...]
    vectors: Array
    ready: Array
    utilisation: Array
    tolerance: float
    interval_seconds: float

    def time(self, timestep: int) -> float:
        """Return the clock at a timestep; the course begins at 0."""
        return timestep * self.interval_seconds


def same_kind(machines: int, *, seed: int, steps: int) -> list[Machine]:
    """Return the machines of a synthetic fleet, which resemble each other."""
    fleet = SyntheticFleet(machines, FEATURES, seed=seed, burst_every=120.0, announced=4)
    steps += 64
    vectors = np.zeros((machines, steps, FEATURES))
    ready, busy = np.zeros((machines, steps)), np.zeros((machines, steps))
    for t in range(steps):
        vectors[:, t], ready[:, t], busy[:, t], _ = fleet.step()
    return [Machine(fleet.metrics, vectors[i], ready[i], busy[i], 5.0, 1.0) for i in range(machines)]


def smd_machines(folder: Path, *, limit: int) -> list[Machine]:
    """Return the machines of the Server Machine Dataset in `folder`."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise TelemetryError(missing_extra("reading the dataset", "trace")) from error
    files = sorted(folder.glob("machine-*.parquet"))[:limit]
    if len(files) < 2:
        raise TelemetryError(
            f"{folder} must hold machine-*.parquet of at least two machines, got {len(files)}"
        )
    return [_smd_machine(parquet.read_table(file)) for file in files]


def _smd_machine(table: object) -> Machine:
    columns = {name: np.asarray(table[name].to_numpy(), np.float64) for name in _wanted(table)}  # type: ignore[index]
    metrics = tuple(name for name in columns if name not in SMD_LEFT_OUT)
    ready = columns[SMD_CONTENTION]
    # What the operator would call contention: the 95th percentile of the first half.
    tolerance = max(float(np.quantile(ready[: len(ready) // 2], 0.95)), 1e-6)
    vectors = np.stack([columns[name] for name in metrics], axis=1)
    return Machine(metrics, vectors, ready, 100.0 * columns[SMD_UTILISATION], tolerance, 60.0)


def _wanted(table: object) -> list[str]:
    names: list[str] = table.column_names  # type: ignore[attr-defined]
    return [name for name in names if name not in ("split", "anomaly_label", "minute")]
