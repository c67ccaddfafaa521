"""Replay of a table: a data frame, a trace file or an array in, decisions and measures out.

Needs the extra `evaluation` for `measures`, `to_frame` and `plot`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from prontosched.decision import NAN, Decision
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import make_node
from prontosched.subspace import Array
from prontosched.telemetry.source import Sample, samples
from prontosched.telemetry.trace import Layout, lay_out, open_trace
from prontosched.telemetry.trace.files import all_to_seconds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Replay:
    """What one node decided over a table, row by row.

    Attributes
    ----------
    decisions
        One for each row.
    ready, time
        CPU Ready of each row and its clock in seconds, NaN where unknown.
    node
        The node after the last row.
    """

    decisions: list[Decision]
    ready: Array
    time: Array
    node: Node

    @property
    def probability(self) -> Array:
        """Chance of contention within the horizon, for each row."""
        return np.array([decision.probability for decision in self.decisions])

    @property
    def raised(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether another job was refused, for each row."""
        return np.array([decision.raised for decision in self.decisions], dtype=bool)

    def __len__(self) -> int:
        return len(self.decisions)

    def __repr__(self) -> str:
        refused = int(self.raised.sum())
        return f"Replay({len(self)} rows, {refused} refused, {self.node!r})"

    def measures(self, truth: float = 5.0, *, horizon: int = 5) -> dict[str, float]:
        """Return how right the decisions were, by the evaluator's measures.

        Parameters
        ----------
        truth
            CPU Ready from which there is contention.
        horizon
            Rows ahead in which contention counts.

        Returns
        -------
        `recall` and `precision` of refusals against contention within the horizon, `downtime`,
        `contended_accepted` (share of contended rows that were accepted), `average_precision`
        and `roc_area` of the chance, `calibration_error`; and with `present_` before it the
        same of "refuse while CPU Ready is at or above `truth`". NaN where a figure has no meaning.
        """
        from prontosched.evaluation.measures import (
            Stretch,
            average_precision,
            calibration_error,
            count_calibration,
            count_honest,
            roc_area,
        )

        known = np.isfinite(self.ready)
        present = known & (np.nan_to_num(self.ready) >= truth)
        scores = {"": (self.probability, self.raised), "present_": (np.nan_to_num(self.ready), present)}
        found: dict[str, float] = {}
        for prefix, (score, raised) in scores.items():
            chance = score if not prefix else np.full(len(self), NAN)
            stretch = Stretch(
                ready=self.ready[:, None],
                threshold=np.full((len(self), 1), truth),
                known=known[:, None],
                gap=np.zeros((len(self), 1), dtype=bool),
                score=score[:, None, None],
                probability=chance[:, None, None],
                raised=raised[:, None, None, None],
                inner=(0, len(self)),
                horizon=horizon,
                window=horizon,
            )
            counts = count_honest(stretch)
            valid, label = stretch.valid[:, 0], stretch.label[:, 0]
            judged = valid & np.isfinite(score)
            hits, refused = counts["hits"].item(), counts["raised"].item()
            found |= {
                f"{prefix}recall": _share(hits, counts["positive"].item()),
                f"{prefix}precision": _share(hits, refused),
                f"{prefix}downtime": _share(refused, counts["valid"].item()),
                f"{prefix}contended_accepted": _share(
                    counts["contended_accepted"].item(), counts["contended"].item()
                ),
                f"{prefix}average_precision": average_precision(score[judged], label[judged]),
                f"{prefix}roc_area": roc_area(score[judged], label[judged]),
            }
            if not prefix:
                found["calibration_error"] = calibration_error(count_calibration(stretch)[0, 0].sum(axis=0))
        return found

    def to_frame(self) -> pd.DataFrame:
        """Return the decisions as a data frame, a row each."""
        import pandas as pd

        return pd.DataFrame(
            {
                "time": self.time,
                "ready": self.ready,
                "state": [decision.state for decision in self.decisions],
                "raised": self.raised,
                "probability": self.probability,
                "score": [decision.score for decision in self.decisions],
                "expected_ready": [decision.expected_ready for decision in self.decisions],
                "reason": [decision.reason for decision in self.decisions],
            }
        )

    def plot(self, truth: float | None = 5.0) -> Figure:
        """Draw CPU Ready, the chance of contention, and when the node refused."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 4.5), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        at = np.arange(len(self))
        above.plot(at, self.ready, linewidth=0.8, label="CPU Ready")
        if truth is not None:
            above.axhline(
                truth, color="0.4", linewidth=0.8, linestyle="--", label=f"contention from {truth:g} %"
            )
        above.set_ylabel("CPU Ready, %")
        above.set_ylim(bottom=0.0)
        below.plot(at, self.probability, linewidth=0.8, color="tab:green", label="chance of contention")
        below.set_ylabel("chance")
        below.set_ylim(-0.03, 1.03)
        below.set_xlabel("row")
        below.margins(x=0.01)
        if truth is not None and np.nanmax(self.ready, initial=0.0) > 20.0 * truth:
            above.set_yscale("symlog", linthresh=truth)  # peaks would hide all else
        for axes in (above, below):
            low, high = axes.get_ylim()
            shade = {"alpha": 0.2, "color": "tab:red", "lw": 0}
            label = "refusing" if axes is above else None
            axes.fill_between(at, low, high, where=self.raised, label=label, **shade)
            axes.set_ylim(low, high)
        figure.legend(loc="outside upper center", ncols=4, fontsize="small")
        return figure


def replay(
    data: Any,
    *,
    ready: str | Sequence[float] | Array | None = None,
    utilisation: str | None = None,
    timestamp: str | None = None,
    exclude: Sequence[str] = (),
    node: str | None = None,
    preset: str = "default",
    **options: Any,
) -> Replay:
    """Carry the rows of a table through one node, in their order.

    Parameters
    ----------
    data
        A pandas or polars data frame, the path of a CSV or Parquet trace, or an array of rows `(n, d)`.
    ready
        The column of CPU Ready in percent, or its values. By default the one that a trace would
        have it in, such as `ready` or `cpu_ready`.
    utilisation, timestamp
        Columns of CPU utilisation in percent and of the time; by default as in a trace. A frame
        without a time whose index has dates takes those.
    exclude
        Columns that are not metrics; `*` matches anything.
    node
        Which node of a trace of several.
    preset, options
        As in `prontosched.make_node`.

    Examples
    --------
    >>> found = replay(np.ones((50, 3)), ready=np.zeros(50))
    >>> len(found), int(found.raised.sum())
    (50, 0)
    """
    if hasattr(data, "collect"):  # a lazy frame
        data = data.collect()
    if isinstance(data, str | PathLike):
        if ready is not None and not isinstance(ready, str):
            raise ValueError(f"ready must name a column of a trace, got {type(ready).__name__}")
        source = open_trace(data, ready=ready, exclude=exclude, utilisation=utilisation, timestamp=timestamp)
        rows = _of_node(samples(source), node)
    elif hasattr(data, "columns"):
        rows = _of_node(([row] for row in _frame_rows(data, ready, utilisation, timestamp, exclude)), node)
    else:
        rows = _array_rows(np.asarray(data, dtype=np.float64), ready)
    decisions: list[Decision] = []
    seen, times = [], []
    made: Node | None = None
    for row in rows:
        if made is None:
            made = make_node(preset, metrics=row.metrics or None, **options)
        decisions.append(
            made.step(row.vector, ready=row.ready, utilisation=row.utilisation, time=row.timestamp)
        )
        seen.append(row.ready)
        times.append(row.timestamp)
    if made is None:
        raise ValueError(
            f"a table must have at least one row{f' of node {node!r}' if node else ''}, got none"
        )
    return Replay(decisions, np.array(seen), np.array(times), made)


def _of_node(steps: Iterator[list[Sample]], node: str | None) -> Iterator[Sample]:
    """Yield the samples of one node; refuse to choose among several."""
    first = node
    for row in chain.from_iterable(steps):
        first = row.node if first is None else first
        if row.node == first:
            yield row
        elif node is None:
            raise ValueError(
                f"a trace of several nodes needs node=, one of {first!r}, {row.node!r} and others"
            )


@dataclass(frozen=True)
class _FrameColumns:
    """The columns of a data frame, as the layout of a trace wants to know them."""

    path: str
    names: tuple[str, ...]
    text: frozenset[str]


def _frame_rows(
    frame: Any, ready: Any, utilisation: str | None, timestamp: str | None, exclude: Sequence[str]
) -> Iterator[Sample]:
    """Yield the rows of a data frame; its columns mean what those of a trace would."""
    if len(set(frame.columns)) < len(frame.columns):
        raise ValueError(
            f"columns of a table must have different names, got {', '.join(map(str, frame.columns))}"
        )
    columns = {str(name): _values(frame[name]) for name in frame.columns}
    given = {"ready": ready, "utilisation": utilisation, "timestamp": timestamp, "node": None}
    named = {role: name if isinstance(name, str) else None for role, name in given.items()}
    for name in named.values():
        if name is not None and name not in columns:
            raise ValueError(f"the table must have a column {name!r}, got {', '.join(list(columns)[:12])}")
    text = frozenset(name for name, values in columns.items() if values.dtype.kind not in "fiub")
    file: Any = _FrameColumns("the table", tuple(columns), text)
    layout, _ = lay_out([file], named, exclude)
    table = np.column_stack([columns[name].astype(np.float64) for name in layout.metrics])

    def side(role: str, names: tuple[str, ...]) -> Array:
        name = Layout.pick(names, file)
        # A time in words counts where it was asked for, and is then refused in words.
        absent = name is None or (named[role] is None and columns[name].dtype.kind not in "fiubM")
        return _numbers(None if absent or name is None else columns[name], len(table))

    now = side("ready", layout.ready) if ready is None or named["ready"] else _numbers(ready, len(table))
    busy = side("utilisation", layout.utilisation)
    clock = all_to_seconds(side("timestamp", layout.timestamp))
    if hasattr(frame, "index") and np.isnan(clock).all():
        index = _values(frame.index)
        clock = _numbers(index, len(table)) if index.dtype.kind == "M" else clock
    node = Layout.pick(layout.node, file)
    nodes = ["table"] * len(table) if node is None else [str(one) for one in columns[node]]
    for i, values in enumerate(table):
        yield Sample(nodes[i], layout.metrics, values, float(clock[i]), float(now[i]), float(busy[i]))


def _values(column: Any) -> np.ndarray[Any, Any]:
    """Return the values of a column or index; times with a zone as those of UTC, which pandas gives as objects."""
    zoned = getattr(column.dtype, "tz", None) is not None
    return np.asarray(column.to_numpy(dtype="datetime64[us]") if zoned else column.to_numpy())


def _array_rows(table: Array, ready: Any) -> Iterator[Sample]:
    if table.ndim != 2:
        raise ValueError(f"an array must be rows of metrics (n, d), got shape {table.shape}")
    if isinstance(ready, str):
        raise ValueError(f"ready must be one value per row of an array, got the name {ready!r}")
    for values, now in zip(table, _numbers(ready, len(table)), strict=True):
        yield Sample("table", (), values, ready=float(now))


def _numbers(values: Any, rows: int) -> Array:
    """Return a column as floats, times as seconds; NaN for one that is not there."""
    if values is None:
        return np.full(rows, NAN)
    found = np.asarray(values)
    if found.dtype.kind == "M":
        return np.where(np.isnat(found), NAN, found.astype("datetime64[us]").astype(np.float64) / 1e6)
    found = found.astype(np.float64)
    if found.shape != (rows,):
        raise ValueError(f"a column must have {rows} values, one per row, got shape {found.shape}")
    return found


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan
