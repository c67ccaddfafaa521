"""A period of the decision log becomes hours, offenders and advice, as text, JSON and a page."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from prontosched.agent.http.client import Client
from prontosched.agent.report import (
    NodePeriod,
    advise,
    as_html,
    as_text,
    make_report,
    points_of,
    read_agent,
    summarise_period,
)
from prontosched.agent.store.decision_log import CLOSED_LEVEL, DecisionLog, DecisionRow
from prontosched.cli import cli
from prontosched.errors import IntegrationError, ProntoError
from tests.processes import free_port, started, wait_for

BUSY = "refusing; 3.1 CPUs waiting: postgres.service 1.9; CPUs used by backup.service 1.8, build-7 0.4"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four hours of two nodes at ten seconds: one contended every second hour, one never; one hour unwatched."""
    log, now, rows = DecisionLog(tmp_path / "linux.decisions.sqlite"), time.time(), []
    for k in range(4 * 360):
        ago = 4 * 3600 - 10.0 * k
        busy = int(ago // 3600) % 2 == 0
        row = DecisionRow(
            now - ago,
            "busy",
            busy,
            not busy,
            0.9,
            0.5,
            40.0 if busy else 1.0,
            50.0,
            1.0,
            BUSY if busy else None,
        )
        quiet = row._replace(node="<calm>", raised=False, accept=True, ready=1.0, reason=None)
        rows += [row, quiet] if ago > 3600 else [row]
    log.write(rows)
    log.close()
    return tmp_path


def report(folder: Path, *options: str) -> str:
    ran = CliRunner().invoke(cli, ["report", "--agent", "none", "--state", str(folder), *options])
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_hours_of_each_node_come_from_the_log(folder):
    found = json.loads(report(folder, "--since", "4h", "--json"))
    busy, calm = found["nodes"]

    assert (busy["node"], calm["node"]) == ("busy", "<calm>")
    assert busy["watched_hours"] == pytest.approx(4.0, abs=0.05)
    assert busy["contended_hours"] == pytest.approx(2.0, abs=0.1)
    assert busy["refused_hours"] == pytest.approx(2.0, abs=0.1)
    assert busy["ready_mean"] == pytest.approx(20.5, abs=1.0)
    assert (calm["contended_hours"], calm["refused_hours"]) == (0.0, 0.0)
    assert calm["watched_hours"] == pytest.approx(3.0, abs=0.1)
    assert [name for name, _ in busy["consumers"]] == ["backup.service", "build-7"]
    assert None in calm["stripes"]
    assert found["notes"][0].startswith("The agent's gate did nothing about the refusals of 1 node:")


def test_contention_in_a_log_is_what_the_agents_settings_say(folder, monkeypatch):
    monkeypatch.setenv("PRONTO_AGENT_TOLERANCE", "50%")
    found = json.loads(report(folder, "--since", "4h", "--json"))

    assert [one["contended_hours"] for one in found["nodes"]] == [0.0, 0.0]
    assert found["notes"][-1] == "Contended is a minute whose mean CPU Ready was 50 % or more."


def test_a_longer_period_is_read_from_downsampled_rows_and_says_what_was_not_watched(folder):
    found = json.loads(report(folder, "--since", "7d", "--json"))

    assert found["nodes"][0]["refused_hours"] == pytest.approx(2.0, abs=0.2)
    assert any(words.startswith("busy: watched for 4.0 of 168.0 hours") for words in found["advice"])
    assert points_of(0.0, 7 * 86400.0) == 1008
    assert points_of(0.0, 4 * 3600.0) == 240


@pytest.mark.parametrize("since", ["4h", "7d"])
def test_hours_preferred_away_and_closed_are_what_the_gate_did(tmp_path, since):
    log, now = DecisionLog(tmp_path / "linux.decisions.sqlite"), time.time()
    rows = [
        DecisionRow(
            *(now - 3 * 3600 + 10.0 * k, "n1", k >= 360, k < 360, 0.9, 0.5, 40.0, 50.0, 1.0, None),
            level=(0, 2, CLOSED_LEVEL)[k // 360],
        )
        for k in range(3 * 360)
    ]
    log.write(rows)
    log.close()
    (found,) = json.loads(report(tmp_path, "--since", since, "--json"))["nodes"]

    assert found["refused_hours"] == pytest.approx(2.0, abs=0.2)
    assert found["preferred_away_hours"] == pytest.approx(1.0, abs=0.2)
    assert found["closed_hours"] == pytest.approx(1.0, abs=0.2)


def test_the_text_names_offenders_and_what_to_do(folder):
    text = report(folder, "--since", "4h")

    assert "backup.service used CPUs in" in text
    assert "What the forecast was worth" in text
    assert text.splitlines()[2].split() == ["node", "watched", "contended", "refused", "preferred", "away",
                                            "closed", "held", "open", "CPU", "Ready"]  # fmt: skip


def test_the_page_is_whole_and_shows_names_as_text(folder, tmp_path):
    report(folder, "--since", "4h", "--html", str(tmp_path / "week.html"))
    page = (tmp_path / "week.html").read_text()

    assert "&lt;calm&gt;" in page
    assert "<calm>" not in page
    assert page.count("<svg") == 2
    assert "http://" not in page
    assert "https://" not in page


def test_of_one_node_only_that_one_is_told(folder):
    assert [one["node"] for one in json.loads(report(folder, "--node", "busy", "--json"))["nodes"]] == [
        "busy"
    ]


def test_without_agent_and_log_it_says_what_to_name(tmp_path):
    ran = CliRunner().invoke(cli, ["report", "--agent", "none", "--state", str(tmp_path)])

    assert "has no decision log: name an agent, or its folder" in str(ran.exception)


def test_a_running_agent_tells_its_record_too(tmp_path):
    trace = tmp_path / "one.csv"
    rows = [f"{1 + t % 7},{t % 5},{40.0 if t % 40 >= 30 else 0.5},50" for t in range(400)]
    trace.write_text("\n".join(["load,heat,ready,utilisation", *rows]) + "\n")
    port = free_port()
    client = Client(f"http://127.0.0.1:{port}")

    def decided() -> bool:
        try:
            return client.get("/v1/status")["tally"]["decisions"] > 60
        except ProntoError:
            return False

    options = ("--trace", str(trace), "--repeat", "--interval", "0.02")
    with started("agent", *options, "--listen", f"127.0.0.1:{port}", "--state", str(tmp_path / "state")):
        wait_for(decided, what="sixty decisions")
        now = time.time()
        wait_for(
            lambda: read_agent(client, now - 3600, now + 60)[0].refused_hours > 0, what="refusals in the log"
        )
        (found,) = read_agent(client, now - 3600, now + 60)

    assert found.node == "one"
    assert found.watched_hours < 0.1
    assert found.tolerance == 5.0
    assert not found.gated
    assert "to tell" in found.forecast() or "recall" in found.forecast()
    assert "one" in as_html(make_report([found], now - 3600, now))


def node(**given) -> NodePeriod:
    fields = {
        "node": "n", "watched_hours": 100.0, "contended_hours": 5.0, "refused_hours": 5.0,
        "preferred_away_hours": 0.0, "closed_hours": 0.0, "held_open_hours": 0.0, "ready_mean": 1.0, "ready_max": 9.0,
        "tolerance": 5.0,
    }  # fmt: skip
    return NodePeriod(**{**fields, **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, []),
        ({"contended_hours": 80.0}, ["full most of the time"]),
        ({"watched_hours": 10.0}, ["watched for 10.0 of 100.0 hours"]),
        # So little says nothing of the rest.
        ({"watched_hours": 10.0, "contended_hours": 10.0}, ["watched for 10.0 of 100.0 hours"]),
        ({"record": {"signal": {"better_than_coin": False}}}, ["the forecast is no better than a coin"]),
        (
            {"record": {"signal": {"better_than_coin": True}}, "probes": {"told": True, "needed": 0}},
            ["refusals meet real slowdown and beat a coin"],
        ),
        ({"probes": {"told": False, "needed": None}}, ["probes are no slower while it refuses"]),
        ({"held_open_hours": 9.0}, ["held open longer than it refused"]),
    ],
)
def test_advice_follows_from_what_was_measured(given, said):
    found = advise(node(**given), 100.0)

    assert len(found) == len(said)
    assert all(one.startswith(start) for one, start in zip(found, said, strict=True))


def test_what_to_do_never_denies_what_the_table_shows():
    """Contended for 20 of 100 hours: nothing has to be done, and yet there was contention."""
    text = as_text(make_report([node(contended_hours=20.0)], 0.0, 360_000.0))

    assert "20.0 h (20%)" in text
    assert "Nothing: no node was contended most of the time" in text
    assert "Contended is ten minutes whose mean CPU Ready was 5 % or more." in text
    assert make_report([], 0.0, 3600.0).advice() == ["Nothing is known: no node was watched."]


def test_who_used_cpus_once_is_no_chronic_offender():
    found = make_report([node(consumers=[("backup.service", 2), ("once.service", 1)])], 0.0, 3600.0)

    assert found.offenders() == ["backup.service used CPUs in 2 refused stretches of n"]


def test_times_come_with_their_zone(monkeypatch):
    monkeypatch.setenv("TZ", "ABC-5")
    time.tzset()
    try:
        text = as_text(make_report([], 0.0, 3600.0))
    finally:
        monkeypatch.undo()
        time.tzset()

    assert text.startswith("Pronto report, 1970-01-01 05:00 ABC to 1970-01-01 06:00 ABC, 1.0 hours")


def test_hours_of_another_interval_are_no_longer_than_they_were(tmp_path):
    """Decided every second then and every ten now: a minute of then is no ten minutes."""
    log = DecisionLog(tmp_path / "linux.decisions.sqlite")
    log.write([DecisionRow(float(t), "n", False, True, 0.1, 0.5, 1.0, 50.0, 1.0, None) for t in range(3600)])
    points = log.history("n", 0.0, 3600.0, points_of(0.0, 3600.0))
    log.close()

    assert summarise_period("n", points, 0.0, 3600.0, interval=10.0).watched_hours == pytest.approx(1.0)


def test_a_log_that_cannot_be_read_is_no_calm_week(tmp_path):
    (tmp_path / "linux.decisions.sqlite").write_bytes(b"no database at all, but of some length" * 100)

    ran = CliRunner().invoke(cli, ["report", "--agent", "none", "--state", str(tmp_path)])

    assert ran.exit_code == 1
    assert "a decision log must be readable here, got" in str(ran.exception)


def test_an_agent_that_keeps_no_log_says_so_instead_of_having_watched_nothing() -> None:
    port = free_port()
    client = Client(f"http://127.0.0.1:{port}")
    with started("agent", "--synthetic", "1", "--no-keep", "--listen", f"127.0.0.1:{port}"):
        wait_for(lambda: _answers(client))
        with pytest.raises(IntegrationError, match="start it without --no-keep"):
            read_agent(client, 0.0, 60.0)


def _answers(client: Client) -> bool:
    try:
        return bool(client.health())
    except ProntoError:
        return False
