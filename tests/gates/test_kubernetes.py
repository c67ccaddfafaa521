"""The taint gate against Node objects recorded from a real API server."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.gate import Rank, Verdict
from prontosched.gates.kubernetes import (
    ANNOTATIONS,
    KEY,
    VALID_UNTIL,
    KubernetesGate,
    accepting,
    contention,
    observed,
    preferring,
    refusing,
    slug,
)
from prontosched.gates.kubernetes_client import ApiError, ApiServer
from tests.gates.verdicts import DEDICATED, recorded

BUSY = Verdict(True, 0.8, "cpu_user is rising", valid_until=1_700_000_000.0)


def merged(target: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Apply a JSON merge patch (RFC 7386) as the API server does."""
    result = dict(target)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merged(result.get(key) or {}, value)
        else:
            result[key] = value
    return result


class ReplayingServer(ThreadingHTTPServer):
    """Holds one node as an API server does: a patch against an old version gets 409."""

    daemon_threads = True

    def __init__(self, node: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.node = node
        self.version = 100
        self.rivals = 0
        self.pods: list[dict[str, Any]] = []
        self.patches: list[dict[str, Any]] = []
        self.bump()

    def bump(self) -> None:
        self.version += 1
        self.node["metadata"]["resourceVersion"] = str(self.version)


class _Handler(BaseHTTPRequestHandler):
    server: ReplayingServer

    def do_GET(self) -> None:
        if self.path.startswith("/api/v1/nodes?"):
            self._pages()
        elif self.path.startswith("/api/v1/pods?"):
            self._answer(200, {"items": self.server.pods, "metadata": {}})
        elif self.path == "/api/v1/nodes/n2":
            self._answer(200, self.server.node)
        elif self.path == "/api/v1/nodes/silent":
            self.close_connection = True
        else:
            self._answer(404, {"message": f'nodes "{self.path.rpartition("/")[2]}" not found'})

    def do_PATCH(self) -> None:
        change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/status"):
            self._patch_status(change)
            return
        if self.server.rivals > 0:
            self.server.rivals -= 1
            self.server.node["spec"]["taints"] = [
                *self.server.node["spec"].get("taints", []),
                {"key": f"rival-{self.server.rivals}", "effect": "NoSchedule"},
            ]
            self.server.bump()
        if change["metadata"]["resourceVersion"] != self.server.node["metadata"]["resourceVersion"]:
            self._answer(409, {"message": "the object has been modified"})
            return
        self.server.patches.append(change)
        self.server.node = merged(self.server.node, change)
        self.server.bump()
        self._answer(200, self.server.node)

    def _patch_status(self, change: dict[str, Any]) -> None:
        """Merge conditions by their type, as a strategic merge patch does, and the annotations."""
        node = self.server.node
        conditions = {one["type"]: one for one in node["status"]["conditions"]}
        for one in change["status"]["conditions"]:
            if one.get("$patch") == "delete":
                conditions.pop(one["type"], None)
            else:
                conditions[one["type"]] = {**conditions.get(one["type"], {}), **one}
        node["status"]["conditions"] = list(conditions.values())
        self.server.node = merged(node, {"metadata": change["metadata"]})
        self.server.bump()
        self._answer(200, self.server.node)

    def _pages(self) -> None:
        items = recorded("nodes.json")["items"]
        second = "continue=two" in self.path
        page = {
            "items": items[2:] if second else items[:2],
            "metadata": {"continue": "" if second else "two"},
        }
        self._answer(200, page)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[ReplayingServer]:
    replaying = ReplayingServer(recorded("node.json"))
    thread = threading.Thread(target=replaying.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield replaying
    replaying.shutdown()
    thread.join()
    replaying.server_close()


@pytest.fixture
def gate(server: ReplayingServer) -> KubernetesGate:
    return KubernetesGate(ApiServer(f"http://127.0.0.1:{server.server_port}"))


def test_refusal_adds_one_taint_and_keeps_everyone_elses() -> None:
    change = refusing(recorded("node.json"), BUSY)

    assert change is not None
    assert change["spec"]["taints"] == [
        DEDICATED,
        {"key": KEY, "value": "cpu_user-is-rising", "effect": "NoSchedule"},
    ]


def test_accepting_takes_off_our_taint_and_notes_and_nothing_else() -> None:
    node = recorded("node-refusing.json")
    node["metadata"]["annotations"]["team"] = "physics"
    change = accepting(node)

    assert change is not None
    after = merged(node, change)
    assert after["spec"]["taints"] == [DEDICATED]
    assert after["metadata"]["annotations"] == {"team": "physics"}


def test_every_change_names_the_version_that_was_read() -> None:
    node, refused = recorded("node.json"), recorded("node-refusing.json")

    for before, change in ((node, refusing(node, BUSY)), (refused, accepting(refused))):
        assert change is not None
        assert change["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_recorded_refusal_reads_back_as_ours_with_score_and_expiry() -> None:
    seen = observed(recorded("node-refusing.json"))

    assert (seen.state, seen.score, seen.valid_until) == ("closed-by-us", 0.8, 1_700_000_000.0)
    assert "cpu_user is rising" in seen.detail


def test_renewal_leaves_the_taint_alone_and_moves_the_expiry() -> None:
    later = Verdict(True, 0.9, "cpu_system is rising too", valid_until=1_700_000_060.0)
    change = refusing(recorded("node-refusing.json"), later)

    assert change is not None
    assert "spec" not in change
    assert change["metadata"]["annotations"][VALID_UNTIL] == "2023-11-14T22:14:20Z"


def test_preference_is_a_softer_taint_beside_the_veto_from_the_middle_level_on() -> None:
    node = recorded("node-refusing.json")
    assert preferring(node, ranked(1), "busy") is None
    change = preferring(node, ranked(2), "CPU Ready 12 % expected")
    assert change is not None
    after = merged(node, change)
    ours = [taint for taint in after["spec"]["taints"] if taint["key"] == KEY]
    assert [taint["effect"] for taint in ours] == ["NoSchedule", "PreferNoSchedule"]
    assert preferring(after, ranked(4), "still busy") is None
    back = preferring(after, ranked(1), "")

    assert back is not None
    assert merged(after, back)["spec"]["taints"] == node["spec"]["taints"]


@pytest.mark.parametrize(("level", "status"), [(0, "False"), (2, "False"), (3, "True"), (4, "True")])
def test_condition_says_whether_cpus_are_contended_and_when_that_changed(level: int, status: str) -> None:
    node = recorded("node.json")
    change = contention(node, ranked(level), BUSY)
    (condition,) = change["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("CPUContended", status)
    assert condition["message"] == "pronto: cpu_user is rising"
    assert condition["lastTransitionTime"] == condition["lastHeartbeatTime"]
    node["status"]["conditions"].append(condition)
    (again,) = contention(node, ranked(level), BUSY)["status"]["conditions"]

    assert "lastTransitionTime" not in again, "a heartbeat is no transition"
    assert observed(merged(node, {"metadata": change["metadata"]})).rank == ranked(level)


@pytest.mark.parametrize("left", ["condition", "taint"])
def test_rank_whose_note_is_gone_counts_as_lapsed(left: str) -> None:
    node = recorded("node.json")
    if left == "condition":
        node["status"]["conditions"].append({"type": "CPUContended", "status": "False"})
    else:
        node["spec"]["taints"].append({"key": KEY, "value": "x", "effect": "PreferNoSchedule"})
    found = observed(node).rank

    assert found is not None
    assert found.expired(0.0)


def ranked(level: int) -> Rank:
    return Rank(level, 0.62, False, 1_700_000_000.0)


@pytest.mark.parametrize(
    ("message", "starved"),
    [
        ("0/3 nodes are available: 1 node(s) had untolerated taint {pronto.io/reject: busy}.", True),
        ("0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu.", True),
        ("0/3 nodes are available: 1 node(s) had untolerated taint {dedicated: gpu}.", False),
        ("0/3 nodes are available: 3 Insufficient cpu.", False),
    ],
)
def test_pod_that_waits_for_our_taint_starves_the_queue_and_others_do_not(
    server: ReplayingServer, gate: KubernetesGate, message: str, starved: bool
) -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    server.pods = [{"status": {"conditions": [unscheduled]}}]

    assert gate.starved() is starved


def test_preferring_and_restoring_leave_no_trace(server: ReplayingServer, gate: KubernetesGate) -> None:
    before = json.loads(json.dumps(server.node))
    gate.prefer("n2", ranked(3), BUSY)
    seen = gate.observe("n2")
    assert (seen.state, seen.rank) == ("open", ranked(3))
    gate.restore("n2")
    gate.restore("n2")

    server.node["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
    assert server.node["metadata"].pop("annotations") == {}
    assert server.node == before


def test_dedicated_node_counts_as_open() -> None:
    assert observed(recorded("node.json")).state == "open"


@pytest.mark.parametrize(
    "spec",
    [
        {"unschedulable": True},
        {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
        {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]},
    ],
)
def test_node_closed_by_others_is_left_alone(spec: dict[str, Any]) -> None:
    node = {"metadata": {"name": "n1", "resourceVersion": "1"}, "spec": spec}

    assert observed(node).state == "closed-by-other"
    assert refusing(node, BUSY) is None
    assert accepting(node) is None


def test_cordoned_node_that_bears_our_taint_keeps_its_cordon_when_it_opens() -> None:
    node = recorded("node-refusing.json")
    node["spec"]["unschedulable"] = True

    change = accepting(node)
    assert observed(node).ours
    assert change is not None
    assert merged(node, change)["spec"]["unschedulable"] is True


@pytest.mark.parametrize("notes", [{}, {VALID_UNTIL: "soon"}, {VALID_UNTIL: "2023-11-14T22:13:20Z"}])
def test_mark_with_damaged_notes_counts_as_lapsed(notes: dict[str, str]) -> None:
    node = recorded("node-refusing.json")
    node["metadata"]["annotations"] = notes
    seen = observed(node)

    assert seen.ours
    assert math.isnan(seen.valid_until)
    assert seen.lapsed(0.0)


@given(st.text())
def test_any_reason_makes_a_value_that_kubernetes_allows(reason: str) -> None:
    value = slug(reason)

    assert 0 < len(value) <= 63
    assert value[0].isalnum()
    assert value[-1].isalnum()
    assert all(c.isascii() and (c.isalnum() or c in "-._") for c in value)


taints = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["a", "b/c", KEY, "node.kubernetes.io/memory-pressure"]),
            "effect": st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
        }
    ),
    max_size=6,
)


@given(taints, st.booleans())
def test_refusing_and_accepting_never_change_what_others_set(
    present: list[dict[str, str]], cordoned: bool
) -> None:
    node: dict[str, Any] = {
        "metadata": {"name": "n", "resourceVersion": "1", "annotations": {"mine": "1"}},
        "spec": {"taints": present, "unschedulable": cordoned},
    }
    others = [taint for taint in present if taint["key"] != KEY or taint["effect"] == "NoExecute"]

    for change in (
        refusing(node, BUSY),
        accepting(node),
        preferring(node, ranked(3), "busy"),
        preferring(node, None, ""),
    ):
        after = node if change is None else merged(node, change)
        left = [t for t in after["spec"]["taints"] if t["key"] != KEY or t["effect"] == "NoExecute"]
        assert left == others
        assert after["metadata"]["annotations"]["mine"] == "1"
        assert after["spec"]["unschedulable"] is cordoned


def test_lost_race_is_read_again_and_the_rivals_taint_survives(
    server: ReplayingServer, gate: KubernetesGate
) -> None:
    server.rivals = 2
    gate.refuse("n2", BUSY)

    assert [taint["key"] for taint in server.node["spec"]["taints"]] == [
        "dedicated",
        "rival-1",
        "rival-0",
        KEY,
    ]


def test_race_that_is_never_won_ends_in_an_error(server: ReplayingServer, gate: KubernetesGate) -> None:
    server.rivals = 99
    with pytest.raises(IntegrationError, match=r"node n2 was changed by others 6 times"):
        gate.refuse("n2", BUSY)


def test_accepting_a_node_that_is_not_ours_writes_nothing(
    server: ReplayingServer, gate: KubernetesGate
) -> None:
    gate.accept("n2")

    assert server.patches == []


def test_refuse_and_accept_can_be_repeated(server: ReplayingServer, gate: KubernetesGate) -> None:
    for _ in range(2):
        gate.refuse("n2", BUSY)
    assert gate.observe("n2").ours
    for _ in range(2):
        gate.accept("n2")

    assert gate.observe("n2").state == "open"
    assert server.node["spec"]["taints"] == [DEDICATED]
    assert not set(ANNOTATIONS) & set(server.node["metadata"]["annotations"])


def test_all_pages_of_nodes_are_read(gate: KubernetesGate) -> None:
    states = Counter(one.state for one in gate.observe_all().values())

    assert states == {"open": 2, "closed-by-us": 1, "closed-by-other": 1}
    assert gate.owned() == ["n2"]


def test_unknown_node_is_an_error_with_its_name(gate: KubernetesGate) -> None:
    with pytest.raises(ApiError, match=r'404 nodes "nowhere" not found') as caught:
        gate.observe("nowhere")

    assert caught.value.status == 404


def test_server_that_hangs_up_is_an_integration_error(gate: KubernetesGate) -> None:
    with pytest.raises(IntegrationError, match=r"did not answer GET /api/v1/nodes/silent"):
        gate.observe("silent")


@pytest.mark.parametrize("name", ["../secrets", "a/b", "N1", "", "a?b", "n1\n"])
def test_name_that_no_node_can_have_never_reaches_the_server(gate: KubernetesGate, name: str) -> None:
    with pytest.raises(IntegrationError, match=r"node name must be"):
        gate.observe(name)


def test_token_is_never_sent_in_the_clear_beyond_this_machine() -> None:
    with pytest.raises(SettingsError, match=r"must be https beyond this machine, got 'http://10.0.0.1:6443'"):
        ApiServer("http://10.0.0.1:6443", token="secret")


def test_pod_finds_its_api_server_and_reads_the_token_anew_each_time(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    environment = {
        "PRONTO_KUBERNETES_URL": "http://127.0.0.1:1",
        "PRONTO_KUBERNETES_TOKEN_FILE": str(tmp_path / "token"),
    }
    api = ApiServer.find(environment)
    assert api.headers()["Authorization"] == "Bearer first"
    (tmp_path / "token").write_text("second\n")

    assert api.headers()["Authorization"] == "Bearer second"


def test_no_api_server_says_what_to_set() -> None:
    with pytest.raises(IntegrationError, match=r"set PRONTO_KUBERNETES_URL"):
        ApiServer.find({})


def test_service_account_without_its_authority_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"ca.crt must be a readable PEM file"):
        ApiServer.find({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, account=tmp_path)
