from __future__ import annotations

import asyncio
import json
import math
import time

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from prontosched.agent.http.api import MAX_BODY_BYTES, build_app
from prontosched.agent.http.auth import Access
from prontosched.agent.http.connections import BoundedSite, Connections
from prontosched.agent.nodes import Silence
from prontosched.agent.store.state import Disk
from prontosched.telemetry.source import Sample
from tests.agent.machine import METRICS, Machine, make_agent, next_tick, sample

TOKEN = "0123456789abcdef"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}


class AgentServer(TestServer):
    """A server of aiohttp's test client with the connections of the agent's own."""

    async def start_server(self, loop=None, **given):
        loop = asyncio.get_running_loop()
        self.runner = await self._make_runner(handler_cancellation=True, **given)
        await self.runner.setup()
        site = BoundedSite(self.runner, Connections(), lambda make: loop.create_server(make, self.host, 0))
        await site.start()
        self.port = self.runner.addresses[0][1]
        self._root = URL(f"http://{self.host}:{self.port}")


def asking(ask, *, machine=None, ticks=30, access=None, extra=(), seconds=30.0, **given):
    """Run an agent for some ticks, then let `ask` speak to it over HTTP; by default with its token."""
    headers = SHOWN if access is None else None
    access = access or Access(token=TOKEN)

    async def go():
        agent = make_agent(machine or Machine(), interval=0.001, **given)
        while agent.pace.ticks < ticks:
            await next_tick(agent)
            await agent.tick()
        try:
            async with TestClient(AgentServer(build_app(agent, access, extra)), headers=headers) as client:
                client.agent = agent
                return await asyncio.wait_for(ask(client), seconds)
        finally:
            await agent.close()

    return asyncio.run(go())


async def get(client, path, **given):
    response = await client.get(path, **given)
    return response.status, await response.json()


async def post(client, body, **given):
    response = await client.post("/v1/jobs", json=body, **given)
    return response.status, await response.json()


def surge(i):
    """A machine on which one metric leaps in the end."""
    vector = np.sin(np.arange(5) * 2.0 + 0.7 * i * np.arange(1, 6)) + 2.0
    if i >= 60:
        vector[2] += 500.0
    return [Sample("n1", METRICS, vector, 1000.0 + i, 1.0, 10.0)]


def test_the_decision_has_what_a_scheduler_needs():
    status, found = asking(lambda client: get(client, "/v1/decision"))

    assert status == 200
    assert found["accept"] is True
    assert set(found) >= {"score", "reason", "since", "valid_until", "age_seconds", "node"}
    assert found["since"] <= time.time() <= found["valid_until"]


def test_asked_again_only_the_age_is_another():
    async def ask(client):
        first = await get(client, "/v1/decision")
        await asyncio.sleep(0.05)
        second = await get(client, "/v1/decision")
        await client.agent.tick()
        third = await get(client, "/v1/decision")
        return first[1], second[1], third[1]

    first, second, third = asking(ask)
    assert second.pop("age_seconds") >= first.pop("age_seconds") + 0.04
    assert first == second
    assert third["timestep"] == first["timestep"] + 1


def test_what_was_said_does_not_outlive_its_time():
    async def ask(client):
        first = await get(client, "/v1/decision")
        await asyncio.sleep(0.3)
        return first[1], (await get(client, "/v1/decision"))[1]

    first, second = asking(ask, silence=Silence(0.2))
    assert not first["stale"]
    assert second["stale"]
    assert second["reason"].startswith("no telemetry for")


def test_an_announcement_is_in_the_very_next_answer():
    async def ask(client):
        await get(client, "/v1/decision")
        for name in "ab":
            await post(client, {"id": name, "cpus": 2, "ttl": 60})
        full = await get(client, "/v1/decision")
        await client.delete("/v1/jobs/a")
        return full[1]["accept"], (await get(client, "/v1/decision"))[1]["accept"]

    assert asking(ask) == (False, True)


def test_a_surge_is_refused_with_its_reason():
    _, found = asking(lambda client: get(client, "/v1/decision"), machine=Machine(surge), ticks=61)

    assert found["accept"] is False
    assert found["reason"]
    assert found["score"] >= found["threshold"]


def test_an_unknown_node_is_not_found_and_says_who_is():
    status, found = asking(lambda client: get(client, "/v1/decision?node=other"))

    assert status == 404
    assert "no node 'other'" in found["error"]


def test_of_several_nodes_one_must_be_named():
    def give(i):
        return [Sample(n, METRICS, np.sin(np.arange(5) + i), 1.0, 1.0, 10.0) for n in ("a/1", "b")]

    async def ask(client):
        return (
            (await get(client, "/v1/decision"))[0],
            (await get(client, "/v1/decision", params={"node": "a/1"}))[1]["node"],
            [n["node"] for n in (await get(client, "/v1/nodes"))[1]["nodes"]],
            (await get(client, "/v1/status"))[0],
            (await get(client, "/v1/recent"))[1]["events"][-1]["state_map"],
        )

    assert asking(ask, machine=Machine(give)) == (400, "a/1", ["a/1", "b"], 200, "aa")


def test_best_nodes_come_calm_first_and_jobs_just_announced_count_at_once():
    def give(i):
        ready = {"busy": 400.0, "calm-1": 0.0, "calm-2": 0.0}
        vector = np.sin(np.arange(5) + i)
        return [Sample(name, METRICS, vector, 1.0 + i, value, 10.0) for name, value in ready.items()]

    async def ask(client):
        first = (await get(client, "/v1/best"))[1]["nodes"]
        placed = []
        for job in range(6):
            node = (await get(client, "/v1/best?cpus=1&limit=1"))[1]["nodes"][0]["node"]
            await post(client, {"id": f"j{job}", "node": node, "cpus": 1})
            placed.append(node)
        return first, placed

    first, placed = asking(ask, machine=Machine(give), ticks=61, preset="default", capacity=8.0)

    assert [one["node"] for one in first][-1] == "busy"
    assert set(first[0]) == {"node", "chance", "state", "why", "placed_cpus"}
    assert (placed.count("calm-1"), placed.count("calm-2")) == (3, 3)


@pytest.mark.parametrize("query", ["cpus=-1", "cpus=x", "limit=0", "limit=1001", "nodes=3"])
def test_a_bad_question_for_the_best_nodes_is_refused(query):
    assert asking(lambda client: get(client, f"/v1/best?{query}"))[0] == 400


def test_announced_jobs_fill_the_node():
    async def ask(client):
        first = await post(client, {"id": "a", "cpus": 2, "ttl": 60, "if_accepted": True})
        second = await post(client, {"id": "b", "cpus": 2, "ttl": 60, "if_accepted": True})
        plain = await get(client, "/v1/decision")
        gone = (await client.delete("/v1/jobs/a")).status
        third = await post(client, {"id": "b", "cpus": 2, "ttl": 60, "if_accepted": True})
        return first, second, plain, gone, third

    first, second, plain, gone, third = asking(ask)
    assert (first[0], first[1]["announced"]) == (200, True)
    assert (second[0], second[1]["announced"]) == (409, False)
    assert "2 announced by 1 job and 2 asked for" in second[1]["reason"]
    assert plain[1]["announced_cpus"] == 2
    assert gone == 204
    assert third[0] == 200


def test_withdrawing_can_be_repeated_without_harm():
    async def ask(client):
        await post(client, {"id": "a", "ttl": 60})
        return [
            (await client.delete(f"/v1/jobs/{name}")).status for name in ("a", "a", "nobody", "bad%20name")
        ]

    assert asking(ask) == [204, 204, 204, 400]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "id must be"),
        ({"id": ""}, "id must be"),
        ({"id": "a\nb"}, "id must be"),
        ({"id": 7}, "id must be"),
        ({"id": "a", "cpus": 0}, "cpus must be a number above 0"),
        ({"id": "a", "cpus": True}, "cpus must be a number"),
        ({"id": "a", "cpus": 1e99}, "cpus must be a number"),
        ({"id": "a", "ttl": -1}, "ttl must be a number above 0"),
        ({"id": "a", "ttl": "10"}, "ttl must be a number"),
        ({"id": "a", "pid": 1.5}, "pid must be a whole number"),
        ({"id": "a", "if_accepted": 1}, "if_accepted must be true or false"),
        ({"id": "a", "colour": 1}, "got 'colour'"),
        ([], "must be a JSON object, got list"),
    ],
)
def test_a_bad_announcement_is_refused_with_what_must_hold(body, words):
    status, found = asking(lambda client: post(client, body), ticks=2)

    assert status == 400
    assert words in found["error"]


def test_bodies_are_bounded_and_must_be_json():
    async def ask(client):
        large = await client.post(
            "/v1/jobs", data=b" " * (MAX_BODY_BYTES + 1), headers={"Content-Type": "application/json"}
        )
        form = await client.post("/v1/jobs", data={"id": "a"})
        nan = await client.post(
            "/v1/jobs", data=b'{"id": "a", "cpus": NaN}', headers={"Content-Type": "application/json"}
        )
        deep = await client.post("/v1/jobs", data=b"[" * 9000, headers={"Content-Type": "application/json"})
        return large.status, form.status, nan.status, deep.status

    assert asking(ask, ticks=2) == (413, 415, 400, 400)


def test_too_many_jobs_are_refused_and_told_to_come_back():
    async def ask(client):
        for i in range(1000):
            client.agent.announce(str(i), cpus=1, ttl=60)
        response = await client.post("/v1/jobs", json={"id": "more"})
        return response.status, response.headers["Retry-After"]

    assert asking(ask, ticks=2) == (503, "5")


def test_a_wrong_method_says_which_are_right():
    async def ask(client):
        response = await client.post("/v1/decision")
        return response.status, response.headers["Allow"], (await response.json())["error"]

    assert asking(ask, ticks=2)[:2] == (405, "GET,HEAD")


@pytest.mark.parametrize(
    "query",
    [
        "from=x",
        "points=0",
        "points=1.5",
        "points=99999",
        "from=-1e13",
        "bogus=1",
        "points=1&points=2",
        "from=nan",
    ],
)
def test_a_bad_stretch_of_history_is_refused(query):
    assert asking(lambda client: get(client, f"/v1/history?{query}"), ticks=2)[0] == 400


def test_history_comes_from_the_log(tmp_path):
    found = asking(
        lambda client: get(client, "/v1/history?points=2000"), ticks=30, disk=Disk(tmp_path, "machine")
    )

    assert found[0] == 200
    assert sum(point["timesteps"] for point in found[1]["points"]) == 30


def test_history_without_a_log_is_empty():
    assert asking(lambda client: get(client, "/v1/history"))[1]["points"] == []


def test_the_stream_sends_every_timestep_and_ends_with_the_agent():
    async def ask(client):
        response = await client.get("/v1/stream")
        events = []
        for _ in range(3):
            await client.agent.tick()
        client.agent.events.close()
        async for line in response.content:
            if line.startswith(b"data: "):
                events.append(json.loads(line[6:]))
        return response.headers["Content-Type"], events, client.agent.events.watchers

    kind, events, watchers = asking(ask)
    assert kind == "text/event-stream"
    assert [event["timestep"] for event in events] == [30, 31, 32]
    assert len(events[0]["projections"]) == len(events[0]["spikes"])
    assert watchers == 0


def test_only_so_many_may_watch():
    async def ask(client):
        for _ in range(64):
            client.agent.events.watch()
        return (await client.get("/v1/stream")).status

    assert asking(ask, ticks=2) == 503


def test_a_slow_watcher_loses_the_oldest_events_only():
    async def ask(client):
        watcher = client.agent.events.watch()
        for _ in range(40):
            await client.agent.tick()
        return watcher.qsize(), json.loads(watcher.get_nowait())["timestep"], client.agent.events.dropped

    assert asking(ask, ticks=1) == (16, 25, 24)


def test_status_tells_what_an_operator_asks_for(tmp_path):
    status, found = asking(lambda client: get(client, "/v1/status"), disk=Disk(tmp_path, "machine"))

    assert status == 200
    assert found["features"] == 5
    assert found["rank"] >= 1
    assert found["loop"]["ticks"] == 30
    assert found["disk"]["folder"] == str(tmp_path)
    assert found["record"]["timesteps"] == 30


def test_explain_names_what_drove_the_last_rejection():
    status, found = asking(lambda client: get(client, "/v1/explain"), machine=Machine(surge), ticks=61)

    assert status == 200
    assert found["last_rejection"]["drivers"][0]["metric"] == "wind"
    assert found["last_rejection"]["words"].startswith("wind up")
    assert sum(part["share"] for part in found["directions"][0]["parts"]) == pytest.approx(1.0, abs=1e-6)
    assert found["change"]["rank"] >= 1


def test_a_rejection_while_warming_up_is_remembered_with_its_reason():
    async def ask(client):
        known = client.agent.known()
        known.decision = known.decision._replace(raised=True, reason="CPU Ready is high now")
        known.note_rejection(time.time(), "")
        return await get(client, "/v1/explain")

    _, found = asking(ask, ticks=2)
    assert found["last_rejection"]["reason"] == "CPU Ready is high now"
    assert found["last_rejection"]["drivers"] == []


def test_every_metric_of_the_page_parses_and_agrees_with_the_status():
    async def ask(client):
        text = await (await client.get("/metrics")).text()
        return text, (await get(client, "/v1/status"))[1]

    text, status = asking(ask)
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["pronto_accepting"] == 1.0
    assert "pronto_record_coin_precision_ratio" not in found  # thirty quiet timesteps cannot carry it
    assert found["pronto_decisions_total"] == status["tally"]["decisions"] == 30
    assert found["pronto_rank"] == status["rank"]
    assert found["pronto_late_ticks_total"] == status["loop"]["late"]
    assert {
        "pronto_score", "pronto_downtime_ratio", "pronto_cpu_ready_ratio", "pronto_singular_value",
        "pronto_loop_lag_seconds", "pronto_faults_total", "pronto_contentions_total",
        "process_resident_memory_bytes",
    } <= set(found)  # fmt: skip


def test_the_state_is_one_of_three_in_the_metrics_and_the_same_in_every_answer():
    async def ask(client):
        text = await (await client.get("/metrics")).text()
        decision = (await get(client, "/v1/decision"))[1]
        status = (await get(client, "/v1/status"))[1]["decision"]
        row = (await get(client, "/v1/nodes"))[1]["nodes"][0]
        explained = (await get(client, "/v1/explain"))[1]["decision"]
        event = (await get(client, "/v1/recent"))[1]["events"][-1]
        return text, [found["state"] for found in (decision, status, row, explained, event)]

    for machine, state in ((Machine(), "accepting"), (Machine(surge), "refusing")):
        text, states = asking(ask, machine=machine, ticks=61)
        families = {family.name: family for family in text_string_to_metric_families(text)}
        values = {one.labels["state"]: one.value for one in families["pronto_state"].samples}

        assert set(states) == {state}
        assert values == {"accepting": 0.0, "contended": 0.0, "refusing": 0.0} | {state: 1.0}


def test_the_chance_within_another_horizon_is_of_the_nearest_offered():
    async def ask(client):
        known = client.agent.known()
        known.decision = known.decision._replace(probability=0.1)
        known.node.signal.outlook = lambda: ((30, 0.2), (120, 0.4), (600, math.nan))
        client.agent.version += 1
        exact = (await get(client, "/v1/decision?horizon=30"))[1]["horizon"]
        other = (await get(client, "/v1/decision?horizon=100"))[1]["horizon"]
        plain = (await get(client, "/v1/decision"))[1]
        wrong = await get(client, "/v1/decision?horizon=0.5")
        return exact, other, plain, wrong

    exact, other, plain, wrong = asking(ask)
    assert exact == {"asked": 30, "steps": 30, "probability": 0.2, "offered": [30, 120, 600]}
    assert other == {"asked": 100, "steps": 120, "probability": 0.4, "offered": [30, 120, 600]}
    assert [(one["steps"], one["probability"]) for one in plain["outlook"]] == [
        (30, 0.2),
        (120, 0.4),
        (600, None),
    ]
    assert wrong[0] == 400
    assert "horizon must be a whole number" in wrong[1]["error"]


def test_metric_and_node_names_with_markup_come_through_whole():
    nasty = '<script>alert("x")</script>\n\\'

    def give(i):
        return [Sample(nasty, (nasty, "b"), np.array([1.0 * i, 2.0]), 1.0, 1.0, 10.0)]

    async def ask(client):
        text = await (await client.get("/metrics")).text()
        families = list(text_string_to_metric_families(text))
        label = next(f for f in families if f.name == "pronto_accepting").samples[0].labels["node"]
        return label, (await get(client, "/v1/decision"))[1]["node"]

    assert asking(ask, machine=Machine(give), ticks=3) == (nasty, nasty)


def test_health_fails_when_the_loop_has_stopped_ticking():
    async def ask(client):
        before = await get(client, "/healthz")
        client.agent.pace._due -= 60.0
        return before, await get(client, "/healthz")

    before, after = asking(ask, ticks=2)
    assert (before[0], before[1]["ok"]) == (200, True)
    assert (after[0], after[1]["ok"]) == (503, False)


def test_before_the_first_sample_everything_answers():
    async def ask(client):
        paths = (
            "/v1/decision",
            "/v1/status",
            "/v1/nodes",
            "/v1/explain",
            "/v1/history",
            "/v1/recent",
            "/metrics",
        )
        return {path: (await client.get(path)).status for path in paths}

    assert set(asking(ask, machine=Machine(lambda i: []), ticks=3).values()) == {200}


def test_a_fault_in_a_handler_is_counted_and_tells_no_secret():
    from aiohttp import web

    async def broken(request):
        raise RuntimeError("the password is swordfish")

    async def ask(client):
        response = await client.get("/broken")
        return response.status, await response.text(), client.agent.faults["http"]

    status, text, faults = asking(ask, extra=[web.get("/broken", broken)], ticks=1)
    assert status == 500
    assert "swordfish" not in text
    assert faults == 1


def test_a_reader_that_obeys_refusals_is_told_that_they_are_enforced():
    async def ask(client):
        plain = await get(client, "/v1/decision")
        declared = await get(client, "/v1/decision?enforcing=true")
        later = await get(client, "/v1/decision")
        wrong = await get(client, "/v1/decision?enforcing=yes")
        return plain[1]["enforced"], declared[1]["enforced"], later[1]["enforced"], wrong

    plain, declared, later, wrong = asking(ask)

    assert (plain, declared, later) == (False, True, True)
    assert wrong == (400, {"error": "enforcing must be true or false, got 'yes'"})


def test_the_best_node_for_a_job_has_its_cpus_free_now():
    """Busy CPUs are those of the newest sample, whether or not a job was ever announced."""
    used = [100.0]
    machine = Machine(lambda i: [sample(i, used=used[0])])

    async def go(client):
        full = await get(client, "/v1/best?cpus=2")
        used[0] = 5.0
        await client.agent.tick()
        return full, await get(client, "/v1/best?cpus=2")

    (_, full), (_, free) = asking(go, machine=machine)

    assert [full["nodes"][0]["state"], free["nodes"][0]["state"]] == ["refusing", "accepting"]
