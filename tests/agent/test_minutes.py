"""Minutes of many nodes, and projections, in the decision log."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.agent.store.decision_log import DecisionLog, DecisionRow
from prontosched.agent.store.directions import Bands, Lineages, compress, expanded, pack
from prontosched.agent.store.state import Disk
from prontosched.decision import Evidence
from prontosched.subspace import Subspace
from prontosched.telemetry.source import Sample
from tests.agent.machine import METRICS as MEASURED
from tests.agent.machine import Clock, Machine, make_agent, next_tick, sample

DAY = 86400.0
METRICS = ("a", "b", "c")


def row(time, *, directions=None, ready=1.0, raised=False, node="n1"):
    reason = "busy" if raised else None
    return DecisionRow(time, node, raised, not raised, 0.5, 1.0, ready, 20.0, math.nan, reason, directions)


def many(time, names, *, ready, raised=False):
    return [
        DecisionRow(time, name, raised, not raised, 0.25, math.nan, float(ready), math.nan, math.nan, None)
        for name in names
    ]


def insight(basis, metrics=METRICS):
    subspace = None if basis is None else Subspace(np.asarray(basis, float), np.ones(len(basis[0])))
    return Evidence(0, subspace=subspace, metrics=metrics)


@given(st.floats(min_value=-1e9, max_value=1e9))
def test_a_kept_projection_is_right_to_three_digits(value):
    assert expanded(compress(value)) == pytest.approx(value, rel=1e-3, abs=1e-6)


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=2))
def test_a_larger_projection_is_never_kept_as_a_smaller_one(values):
    low, high = sorted(values)
    if math.isfinite(low) and math.isfinite(high):
        assert compress(low) <= compress(high)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12),
    st.lists(st.sampled_from([-1, 0, 1]), min_size=12, max_size=12),
    st.lists(st.sampled_from([0, 1]), min_size=12, max_size=12),
)
def test_at_most_eight_directions_come_back_with_their_spikes_and_beginnings(values, spikes, begun):
    packed = pack(values, spikes, begun)
    found = Bands()
    found.add(packed)
    rank = min(len(values), 8)

    assert len(packed) == 3 + 2 * rank
    assert [expanded(v) for v in found.low] == pytest.approx(values[:rank], rel=1e-3, abs=1e-6)
    assert found.low == found.high
    assert [up - down for up, down in zip(found.up, found.down, strict=True)] == spikes[:rank]
    assert found.begun == begun[:rank]


def test_projections_come_back_as_ranges_with_their_spikes(tmp_path):
    log = DecisionLog(tmp_path / "d.sqlite")
    log.write(
        row(float(t), directions=pack([t, -t], [int(t == 3), -int(t == 7)], [0, int(t == 12)]))
        for t in range(20)
    )
    first, second = log.history("n1", 0.0, 20.0, 2)
    log.close()

    assert first["projections_low"] == pytest.approx([0.0, -9.0], rel=1e-3)
    assert first["projections_high"] == pytest.approx([9.0, 0.0], rel=1e-3)
    assert (first["spikes_up"], first["spikes_down"]) == ([1, 0], [0, 1])
    assert (first["begun"], second["begun"]) == ([0, 0], [0, 1])


def test_a_log_from_before_is_read_and_written_on(tmp_path):
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as old, old:
        old.executescript(
            """create table decisions (id integer primary key, time real not null, node text not null,
            raised integer not null, accept integer not null, score real, threshold real, ready real,
            utilisation real, expected real, reason text);
            pragma user_version = 1;"""
        )
        old.executemany(
            "insert into decisions (time, node, raised, accept, ready) values (?, 'n1', 0, 1, 2.0)",
            [(1000.0 + t,) for t in range(4000)],
        )
    old.close()
    log = DecisionLog(path)
    log.write([row(5000.0 + t, directions=pack([1.0], None, [0])) for t in range(200)])
    near = log.history("n1", 4990.0, 5010.0, 20)
    wide = log.history("n1", 0.0, 6000.0, 60)
    log.close()

    assert [point["projections_low"] is None for point in near] == [True] * 10 + [False] * 10
    assert sum(point["timesteps"] for point in wide) == 4200
    assert wide[0]["projections_low"] is None
    assert wide[-1]["projections_low"] == pytest.approx([1.0], rel=1e-3)
    assert log.errors == 0


@pytest.fixture(scope="module")
def hours(tmp_path_factory):
    """A log of 40,000 seconds, a decision each."""
    log = DecisionLog(tmp_path_factory.mktemp("hours") / "d.sqlite")
    begin = 1_000_000.0
    for start in range(0, 40_000, 2000):
        log.write(
            row(
                begin + t,
                ready=float(t % 50),
                raised=t % 50 < 5,
                directions=pack([t % 7 - 3], [1], [0]),
            )._replace(contended=t % 50 in (10, 11))
            for t in range(start, start + 2000)
        )
    yield log, begin
    log.close()


@pytest.mark.parametrize("width", [1.0, 72.0, 288.0, 1008.0])
def test_every_width_tells_the_same(hours, width):
    log, begin = hours
    found = log.history("n1", begin, begin + 40_000.0, math.ceil(40_000 / width))
    steps = sum(point["timesteps"] for point in found)

    assert steps == 40_000
    assert sum(p["timesteps"] * p["ready_mean"] for p in found) / steps == pytest.approx(24.5, rel=0.01)
    assert sum(p["timesteps"] * p["rejecting_share"] for p in found) / steps == pytest.approx(0.1, abs=0.005)
    assert sum(p["timesteps"] * p["contended_share"] for p in found) / steps == pytest.approx(0.04, abs=0.005)
    assert max(p["ready_max"] for p in found) == 49.0
    assert sum(p["spikes_up"][0] for p in found) == 40_000
    assert min(p["projections_low"][0] for p in found) == pytest.approx(-3.0, rel=1e-3)
    assert all(p["reason"] == "busy" for p in found if p["rejecting_share"])
    assert all(a["time"] < b["time"] for a, b in itertools.pairwise(found))


def test_single_decisions_that_had_to_go_are_still_there_by_the_minute(tmp_path):
    log = DecisionLog(tmp_path / "d.sqlite", max_bytes=400_000)
    for start in range(0, 40_000, 500):
        log.write(row(float(t), raised=True) for t in range(start, start + 500))
    fine = log.history("n1", 0.0, 2000.0, 2000)
    week = log.history("n1", 0.0, 40_000.0, 60)
    log.close()

    assert len(fine) == 34  # a minute each
    assert all(point["seconds"] == 60.0 for point in fine)
    assert sum(point["timesteps"] for point in week) == 40_000


def test_a_week_of_many_nodes_takes_no_more_than_is_said(tmp_path):
    """Shorter by a factor of 24: hours for days."""
    names = [f"rack/n{i}" for i in range(200)]
    log = DecisionLog(tmp_path / "d.sqlite", max_age_seconds=7 * 3600.0)
    now = 1_000_000.0
    for t in range(0, 9 * 3600, 60):
        log.write((), many(now + t, names, ready=t % 7, raised=t % 3 == 0))
    found = log.history(names[170], now, now + 9 * 3600, 600, every_decision=False)
    kept = log._open().execute("select count(*) from downsampled").fetchone()[0]
    size = log.size_bytes
    log.close()

    assert 7 * 60 + 7 * 6 <= kept / 200 <= 1.1 * (7 * 60 + 7 * 6) + 40
    assert size / kept < 60  # bytes per node and row
    assert found[0]["time"] >= now + 1.4 * 3600
    assert len(found) > 400
    assert found[-1]["ready_mean"] == (9 * 3600 - 60) % 7


def test_minutes_of_too_many_nodes_stay_below_the_bound(tmp_path):
    names = [f"n{i}" for i in range(300)]
    log = DecisionLog(tmp_path / "d.sqlite", max_bytes=600_000)
    sizes = []
    for t in range(0, 150 * 60, 60):
        log.write([row(float(t), raised=True, node=names[t % 300])], many(float(t), names, ready=1.0))
        sizes.append(os.path.getsize(tmp_path / "d.sqlite"))
    found = log.history("n299", 0.0, 150 * 60.0, 600, every_decision=False)
    log.close()

    assert max(sizes) < 1.2 * 600_000
    assert found[-1]["time"] >= 148 * 60.0


def test_minutes_go_on_after_a_restart_with_other_nodes_beside_it(tmp_path):
    path = tmp_path / "d.sqlite"
    for begin, names in ((0.0, ["a", "b"]), (70.0, ["c", "b", "a"])):
        log = DecisionLog(path)
        for t in range(60):
            log.write((), many(begin + t, names, ready=names.index("b")))
        if begin:
            found = {name: log.history(name, 0.0, 130.0, 130, every_decision=False) for name in "abc"}
        log._disconnect()  # killed: nothing more is written

    assert sum(point["timesteps"] for point in found["b"]) == 120
    assert sum(point["timesteps"] for point in found["c"]) == 60
    assert [point["time"] for point in found["a"]] == [0.0, 70.0, 120.0]


def test_the_minute_under_way_is_on_disk_already(tmp_path):
    log = DecisionLog(tmp_path / "d.sqlite")
    log.write((), many(600.0, ["a"], ready=3.0))
    log.write((), many(601.0, ["a"], ready=5.0))
    with closing(DecisionLog(tmp_path / "d.sqlite")) as reader:
        found = reader.history("a", 600.0, 1200.0, 10, every_decision=False)
        week = reader.history("a", 0.0, 6000.0, 1, every_decision=False)
    log.close()

    assert [(point["timesteps"], point["ready_mean"]) for point in found] == [(2, 4.0)]
    assert week[0]["timesteps"] == 2


def test_hours_written_at_once_are_all_there(tmp_path):
    log = DecisionLog(tmp_path / "d.sqlite")
    log.write(row(float(t)) for t in range(0, 20_000, 2))
    log.write(row(float(t)) for t in range(20_000, 40_000, 2))
    found = log.history("n1", 0.0, 40_000.0, 600)
    log.close()

    assert sum(point["timesteps"] for point in found) == 20_000
    assert max(b["time"] - a["time"] for a, b in itertools.pairwise(found)) <= 120.0


def test_names_that_come_and_go_are_forgotten_with_their_minutes(tmp_path):
    log = DecisionLog(tmp_path / "d.sqlite", max_age_seconds=6000.0)
    for t in range(400):
        log.write((), many(60.0 * t, [f"pod-{t}-{i}" for i in range(20)], ready=1.0))
    kept = log._open().execute("select count(*) from names").fetchone()[0]
    held = len(log._buckets)
    log.close()

    assert kept <= 20 * 150
    assert held <= 2 * 20 * 60


def test_minutes_that_an_earlier_release_packed_are_dropped_with_a_message(tmp_path, caplog):
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as old, old:
        old.executescript("create table minutes (id integer); create table members (epoch integer);")
    with closing(DecisionLog(path)) as log:
        log.write([row(1.0)])
        found = log.history("n1", 0.0, 10.0, 1)

    assert found[0]["timesteps"] == 1
    assert "minutes that release 0.1 packed are dropped" in caplog.text


def test_a_folder_that_cannot_be_written_costs_minutes_and_nothing_else(tmp_path):
    (tmp_path / "missing").write_text("no folder")
    log = DecisionLog(tmp_path / "missing" / "d.sqlite")
    for t in range(0, 6000, 10):
        assert not log.write((), many(float(t), ["a", "b"], ready=1.0))
    (tmp_path / "missing").unlink()
    assert log.write((), many(6000.0, ["a", "b"], ready=1.0))
    found = log.history("a", 0.0, 6060.0, 101, every_decision=False)
    log.close()

    assert log.errors == 600
    assert found[-1]["time"] == 6000.0


def test_a_full_disk_loses_no_minute_that_memory_can_hold(tmp_path):
    path = tmp_path / "d.sqlite"
    log = DecisionLog(path)
    log.write((), many(0.0, ["a"], ready=1.0))
    other = sqlite3.connect(path)
    other.execute("begin exclusive")
    log._open().execute("pragma busy_timeout = 1")
    assert not log.write((), many(60.0, ["a"], ready=2.0))
    other.rollback()
    other.close()
    assert log.write((), many(120.0, ["a"], ready=3.0))
    found = log.history("a", 0.0, 180.0, 3, every_decision=False)
    log.close()

    assert [point["ready_mean"] for point in found] == [1.0, 2.0, 3.0]


def test_a_cold_node_begins_its_directions_and_a_warm_one_goes_on():
    lineages = Lineages()
    east = [[1.0], [0.0], [0.0]]

    assert lineages.begun("cold", insight(None)) == []
    assert lineages.begun("cold", insight(east)) == [1]
    assert lineages.begun("cold", insight(east)) == [0]
    assert lineages.begun("warm", insight(east)) == [0]


@pytest.mark.parametrize(
    ("after", "metrics", "expected"),
    [
        ([[1.0, 0.0], [0.0, 0.9], [0.0, 0.436]], METRICS, [0, 0]),
        ([[1.0, 0.0], [0.0, -1.0], [0.0, 0.0]], METRICS, [0, 1]),
        ([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]], METRICS, [1, 1]),
        ([[1.0], [0.0], [0.0]], METRICS, [1]),
        ([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], ("a", "b", "z"), [1, 1]),
    ],
    ids=["turned a little", "sign", "exchanged", "rank", "metrics"],
)
def test_no_line_goes_through_where_a_direction_is_another_one(after, metrics, expected):
    lineages = Lineages()
    lineages.begun("n", insight([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))

    assert lineages.begun("n", insight(after, metrics)) == expected


def test_a_direction_that_turns_slowly_begins_anew_in_the_end():
    lineages = Lineages()
    angles = np.radians(np.arange(0, 120, 7))
    begun = [lineages.begun("n", insight([[np.cos(a)], [np.sin(a)], [0.0]]))[0] for a in angles]

    assert sum(begun) == 1
    assert begun.index(1) == 9  # at 63 degrees


def run(agent, ticks):
    async def go():
        while agent.pace.ticks < ticks:
            await next_tick(agent)
            await agent.tick()
        await agent.close()

    asyncio.run(go())


@pytest.mark.parametrize("nodes", [17, 70])
def test_an_agent_keeps_the_minutes_of_all_its_nodes(tmp_path, nodes):
    def give(i):
        return [
            Sample(f"n{k}", MEASURED, np.sin(np.arange(5) + k + 0.7 * i), 1000.0 + i, float(k), 10.0)
            for k in range(nodes)
        ]

    for begin in (0.0, 3000.0):  # and once more after a restart
        wall = Clock(begin)
        agent = make_agent(Machine(give), disk=Disk(tmp_path, "machine"), wall=wall)
        begin_step = agent.nodes.begin

        def begun(samples, now, wall=wall, begin_step=begin_step):
            wall.now += 10.0
            begin_step(samples, now)

        agent.nodes.begin = begun
        run(agent, 30)
    log = DecisionLog(tmp_path / "machine.decisions.sqlite")
    found = log.history("n16", 0.0, 3600.0, 60, every_decision=False)
    log.close()

    assert not agent.faults
    assert agent.logs_every_decision is False
    assert sum(point["timesteps"] for point in found) == 60
    assert {point["ready_mean"] for point in found} == {16.0}
    assert found[0]["time"] == 10.0
    assert found[-1]["time"] == 3300.0


def test_what_is_published_live_is_what_the_log_keeps(tmp_path):
    agent = make_agent(Machine(), disk=Disk(tmp_path, "machine"))
    run(agent, 60)
    events = [event for event in map(json.loads, agent.events.recent()) if event.get("projections")]
    log = DecisionLog(tmp_path / "machine.decisions.sqlite")
    begin = events[0]["time"]
    found = log.history("n1", begin, events[-1]["time"] + 1.0, 2000)
    log.close()

    assert events[0]["begun"] == [1] * len(events[0]["projections"])
    assert sum(point["timesteps"] for point in found) == len(events)
    assert found[0]["begun"] == events[0]["begun"]
    assert found[-1]["projections_high"] == pytest.approx(events[-1]["projections"], rel=2e-3, abs=1e-5)


def test_without_telemetry_no_projection_is_made_up():
    agent = make_agent(Machine(lambda i: [sample(i)] if i < 30 else []))
    run(agent, 40)
    events = [json.loads(event) for event in agent.events.recent()]

    assert events[29]["projections"]
    assert all("projections" not in event for event in events[30:])
