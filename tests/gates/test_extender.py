"""The extender's answers to requests recorded from a real kube-scheduler, and its ledger."""

from __future__ import annotations

import json
import math
import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.agent.http.connections import MOST_CONNECTIONS
from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.agent_client import Addresses
from prontosched.gates.extender import (
    FORGET_SECONDS,
    ExtenderRequest,
    Ledger,
    filter_answer,
    prioritize_answer,
    read_request,
    suitabilities,
)
from prontosched.gates.gate import Verdict, read_decision
from prontosched.gates.kubernetes import KEY
from prontosched.gates.policy import HELD_MARGIN, Rules, places
from prontosched.gates.preference import LONGEST_SECONDS, MOST_NAMES, Placements
from tests.gates.verdicts import GivenDecisions, recorded
from tests.processes import free_port, started, wait_for

BUSY = Verdict(True, 0.8, "cpu_user is rising", valid_until=100.0)
QUIET = Verdict(False, 0.1, "nothing spikes", valid_until=100.0)
QUICK = Rules(enforce=True, veto=True, min_hold_seconds=0.0, min_accept_seconds=0.0, max_refusing=1.0)


def old_style(request: dict[str, Any]) -> dict[str, Any]:
    """Write the keys of a request as older schedulers do."""
    return {key.lower(): value for key, value in request.items()}


N1_REFUSES = {"n1": BUSY.reason}


def priorities(question: ExtenderRequest, chances: Iterable[float]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        prioritize_answer(question, suitabilities(np.array(list(chances))))
    )
    return found


def test_names_come_back_without_those_that_refuse_and_with_the_reason() -> None:
    answer = filter_answer(read_request(recorded("filter-names.json")), N1_REFUSES)

    assert answer == {
        "NodeNames": ["n4"],
        "Nodes": None,
        "FailedAndUnresolvableNodes": {"n1": "pronto: cpu_user is rising"},
        "Error": "",
    }


def test_whole_nodes_come_back_as_whole_nodes_unchanged() -> None:
    request = recorded("filter-nodes.json")
    answer = filter_answer(read_request(request), N1_REFUSES)

    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == [n for n in request["Nodes"]["items"] if n["metadata"]["name"] != "n1"]
    assert list(answer["FailedAndUnresolvableNodes"]) == ["n1"]


@pytest.mark.parametrize("file", ["filter-names.json", "filter-nodes.json"])
def test_keys_in_lower_case_are_read_as_older_schedulers_write_them(file: str) -> None:
    found = read_request(old_style(recorded(file)))

    assert found == read_request(recorded(file))
    assert set(found.names) == {"n4", "n1"}


def test_priorities_run_from_ten_for_a_calm_node_down_to_zero() -> None:
    chances = {"n4": 0.04, "n1": 0.96}
    question = read_request(recorded("prioritize-names.json"))
    answer = priorities(question, map(chances.__getitem__, question.names))

    assert answer == [{"Host": "n4", "Score": 10}, {"Host": "n1", "Score": 0}]


def test_pod_is_never_left_pending_by_refusals_alone() -> None:
    """Where nothing else is open the gate opens, and preference decides."""
    question = read_request(recorded("filter-names.json"))
    answer = filter_answer(question, {"n1": "busy", "n4": "busy"})

    assert answer["NodeNames"] == ["n4", "n1"]
    assert answer["FailedAndUnresolvableNodes"] == {}


def test_node_nothing_is_known_of_passes_with_a_neutral_score() -> None:
    question = read_request(recorded("filter-names.json"))

    assert filter_answer(question, {})["NodeNames"] == ["n4", "n1"]
    assert {row["Score"] for row in priorities(question, [math.nan] * len(question.names))} == {5}


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": KEY, "operator": "Exists", "effect": "NoSchedule"},
        {"key": KEY, "operator": "Exists"},
        {"operator": "Exists"},
    ],
)
def test_pod_that_tolerates_the_taint_may_go_anywhere(toleration: dict[str, str]) -> None:
    request = recorded("filter-names.json")
    request["Pod"]["spec"]["tolerations"] = [toleration]

    assert filter_answer(read_request(request), N1_REFUSES)["NodeNames"] == ["n4", "n1"]


def test_pod_that_tolerates_other_taints_is_refused_like_any() -> None:
    request = recorded("filter-names.json")
    request["Pod"]["spec"]["tolerations"] = [
        {"key": "dedicated", "operator": "Exists"},
        {"key": KEY, "operator": "Exists", "effect": "NoExecute"},
    ]

    assert filter_answer(read_request(request), N1_REFUSES)["NodeNames"] == ["n4"]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ([], r"must be a JSON object, got list"),
        ({}, r"Pod must be an object, got NoneType"),
        ({"Pod": {}, "NodeNames": "n1"}, r"NodeNames must be a list"),
        ({"Pod": {}, "NodeNames": [1]}, r"NodeNames must be a list"),
        ({"Pod": {}, "Nodes": [1]}, r"Nodes must be a NodeList"),
        ({"Pod": {}, "Nodes": {"items": [1]}}, r"Nodes must be a NodeList"),
        ({"Pod": {}, "Nodes": {"items": [{"metadata": None}]}}, r"NodeNames must be a list"),
        ({"Pod": {}, "NodeNames": ["n"] * 50_001}, r"at most 50000 names"),
    ],
)
def test_request_that_no_scheduler_sends_is_refused(body: object, problem: str) -> None:
    with pytest.raises(IntegrationError, match=problem):
        read_request(body)


@pytest.mark.parametrize(
    "body", [{"Pod": {}}, {"Pod": {}, "Nodes": {"items": None}}, {"Pod": {"spec": None}}]
)
def test_question_about_no_node_at_all_is_answered(body: dict[str, Any]) -> None:
    assert filter_answer(read_request(body), N1_REFUSES)["FailedAndUnresolvableNodes"] == {}


names = st.lists(st.text(min_size=1, max_size=20), max_size=30, unique=True)


@given(names, st.sets(st.text(min_size=1, max_size=20)), st.booleans(), st.booleans())
def test_answer_never_holds_a_name_that_was_not_sent(
    sent: list[str], refusing: set[str], whole: bool, lower: bool
) -> None:
    nodes = {"items": [{"metadata": {"name": name}} for name in sent]}
    request: dict[str, Any] = {
        "Pod": {},
        "NodeNames": None if whole else sent,
        "Nodes": nodes if whole else None,
    }
    question = read_request(old_style(request) if lower else request)
    answer = filter_answer(question, dict.fromkeys(refusing, "busy"))

    passed = answer["NodeNames"] if not whole else [n["metadata"]["name"] for n in answer["Nodes"]["items"]]
    failed = set() if set(sent) <= refusing else set(sent) & refusing
    assert [*passed] == [name for name in sent if name not in failed]
    assert set(answer["FailedAndUnresolvableNodes"]) == failed
    assert [
        next(iter(row.values())) for row in priorities(question, [math.nan] * len(question.names))
    ] == sent


@given(st.floats())
def test_scores_are_whole_numbers_that_the_scheduler_allows(chance: float) -> None:
    (found,) = suitabilities(np.array([chance]))

    assert isinstance(found, int)
    assert 0 <= found <= 10


def ledger_of(verdicts: dict[str, Verdict], rules: Rules = QUICK, known: int = 4) -> Ledger:
    ledger = Ledger(GivenDecisions(verdicts), rules)
    ledger.see([f"n{i}" for i in range(1, known + 1)], now=0.0)
    return ledger


def refusing_in(ledger: Ledger, now: float) -> list[str]:
    return sorted(ledger.refusals(now))


def test_refusal_lasts_only_as_long_as_it_is_valid() -> None:
    ledger = ledger_of({"n1": BUSY})
    ledger.settle(0.0)

    assert refusing_in(ledger, 99.0) == ["n1"]
    assert refusing_in(ledger, 100.0) == []


def test_changes_are_told_once_each_way() -> None:
    verdicts = {"n1": BUSY}
    ledger = ledger_of(verdicts)
    told = [ledger.settle(0.0), ledger.settle(1.0)]
    verdicts["n1"] = QUIET
    told += [ledger.settle(2.0), ledger.settle(3.0)]

    assert [[(change.node, change.refuse) for change in step] for step in told] == [
        [("n1", True)],
        [],
        [("n1", False)],
        [],
    ]


def test_silent_agent_opens_its_node_when_the_verdict_ends() -> None:
    ledger = ledger_of({"n1": BUSY})
    ledger.settle(0.0)

    assert [(change.node, change.refuse) for change in ledger.settle(100.5)] == [("n1", False)]


def test_floor_lets_only_those_that_are_worst_off_refuse() -> None:
    chances = {"n1": 0.1, "n2": 0.2, "n3": 0.6, "n4": 0.8}
    verdicts = {name: Verdict(True, chance, "busy", valid_until=100.0) for name, chance in chances.items()}
    ledger = ledger_of(verdicts, Rules(enforce=True, veto=True, max_refusing=0.5, min_accept_seconds=0))
    ledger.settle(0.0)

    assert refusing_in(ledger, 1.0) == ["n3", "n4"]


def test_calmer_node_gives_way_to_one_that_is_worse_off() -> None:
    verdicts = {"n1": BUSY}
    ledger = ledger_of(
        verdicts, Rules(enforce=True, veto=True, max_refusing=0.25, min_accept_seconds=0, min_hold_seconds=20)
    )
    ledger.settle(0.0)
    verdicts["n2"] = Verdict(True, 0.95, "busier", valid_until=100.0)
    changes = ledger.settle(20.0)

    assert {(change.node, change.refuse) for change in changes} == {("n1", False), ("n2", True)}
    assert refusing_in(ledger, 20.0) == ["n2"]


def test_equally_contended_newcomer_moves_nobody() -> None:
    verdicts = {"n1": BUSY}
    ledger = ledger_of(verdicts, Rules(enforce=True, veto=True, max_refusing=0.25, min_accept_seconds=0))
    ledger.settle(0.0)
    verdicts["n2"] = BUSY

    assert ledger.settle(1.0) == []
    assert refusing_in(ledger, 1.0) == ["n1"]


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.floats(0, 50)), min_size=1, max_size=12),
    st.floats(0.05, 1.0),
)
def test_never_more_than_the_share_refuse_and_none_calmer_than_one_left_open(
    wishes: list[tuple[bool, float, float]], share: float
) -> None:
    verdicts = {f"n{i}": Verdict(refuse, s, "x", until) for i, (refuse, s, until) in enumerate(wishes, 1)}
    ledger = ledger_of(verdicts, Rules(enforce=True, veto=True, max_refusing=share), known=len(wishes))

    for now in (0.0, 10.0, 25.0, 60.0):
        ledger.settle(now)
        closed = refusing_in(ledger, now)
        assert len(closed) <= places(len(wishes), share)
        open_chances = [v.score for n, v in verdicts.items() if n not in closed and not v.expired(now)]
        calmest = min((verdicts[name].score for name in closed), default=1.0)
        assert max(open_chances, default=0.0) <= calmest + HELD_MARGIN


def test_node_stays_refused_for_the_minimum_time_while_its_agent_is_alive() -> None:
    verdicts = {"n1": Verdict(True, 0.8, "busy", valid_until=5.0)}
    ledger = ledger_of(
        verdicts, Rules(enforce=True, veto=True, max_refusing=1.0, min_accept_seconds=0, min_hold_seconds=20)
    )
    ledger.settle(0.0)
    verdicts["n1"] = Verdict(False, 0.1, "quiet", valid_until=15.0)
    ledger.settle(4.0)
    assert refusing_in(ledger, 10.0) == ["n1"]
    verdicts["n1"] = Verdict(False, 0.1, "quiet", valid_until=30.0)
    ledger.settle(20.0)

    assert refusing_in(ledger, 20.0) == []


def test_node_stays_open_for_the_minimum_time() -> None:
    verdicts = {"n1": BUSY}
    ledger = ledger_of(
        verdicts, Rules(enforce=True, veto=True, max_refusing=1.0, min_hold_seconds=0, min_accept_seconds=20)
    )
    ledger.settle(0.0)
    verdicts["n1"] = QUIET
    ledger.settle(1.0)
    verdicts["n1"] = BUSY
    ledger.settle(2.0)
    assert refusing_in(ledger, 2.0) == []
    ledger.settle(21.0)

    assert refusing_in(ledger, 21.0) == ["n1"]


def test_without_a_veto_nothing_is_refused_and_the_calm_preferred() -> None:
    ledger = ledger_of({"n1": BUSY, "n2": QUIET}, Rules(enforce=True))

    assert ledger.settle(0.0) == []
    assert suitabilities(ledger.chances(("n1", "n2", "n3"), 1.0)) == [2, 9, 5]


def test_node_that_refuses_is_preferred_to_no_calm_one_whatever_its_chance() -> None:
    """As one that is full by the jobs announced to it, of which telemetry shows nothing yet."""
    full = Verdict(True, 0.01, "CPUs 0.8 busy and 8 announced exceed 8", valid_until=100.0)
    ledger = ledger_of({"n1": full, "n2": QUIET}, Rules(enforce=True))

    assert suitabilities(ledger.chances(("n1", "n2"), 1.0)) == [5, 9]


def test_fleet_that_is_contended_throughout_stays_open() -> None:
    ledger = ledger_of({f"n{i}": BUSY for i in range(1, 5)})

    assert ledger.settle(0.0) == []


def test_best_nodes_come_first_with_chance_state_and_why() -> None:
    verdicts = {"n1": BUSY, "n2": QUIET, "n4": Verdict(False, 0.6, "held open", valid_until=100.0)}
    best = ledger_of(verdicts, Rules(enforce=True)).best(1.0)

    assert [(one.node, one.state) for one in best] == [
        ("n2", "accepting"),
        ("n3", "unknown"),
        ("n4", "contended"),
        ("n1", "refusing"),
    ]
    assert best[0].as_json() == {
        "node": "n2",
        "chance": 0.1,
        "state": "accepting",
        "why": "nothing spikes",
        "placed_cpus": 0.0,
    }
    assert best[1].as_json()["chance"] is None


def test_pods_placed_one_after_another_do_not_meet_on_the_calmest_node() -> None:
    """Nothing of them shows in the nodes' chances yet."""
    chances = {"n1": 0.05, "n2": 0.10, "n3": 0.15, "n4": 0.9}
    verdicts = {name: Verdict(False, chance, "", valid_until=100.0) for name, chance in chances.items()}
    ledger, placed = ledger_of(verdicts, Rules(enforce=True)), Counter[str]()
    for job in range(12):
        best = ledger.best(0.1 * job)[0].node
        ledger.placements.add(f"job-{job}", [best], 2.0, 0.1 * job)
        placed[best] += 1

    assert placed == {"n1": 4, "n2": 4, "n3": 4}
    assert ledger.best(100.0 - 1.0)[0].node == "n1", "forgotten once telemetry can show them"


def test_pod_that_is_asked_for_again_counts_once() -> None:
    ledger = ledger_of({"n1": QUIET}, Rules(enforce=True))
    for _ in range(5):
        ledger.placements.add("pod", ["n1"], 2.0, 0.0)

    assert ledger.placements.on(["n1", "n2"], 0.0).tolist() == [2.0, 0.0]
    ledger.placements.add("pod", ["n2"], 2.0, 0.0)
    assert ledger.placements.on(["n1", "n2"], 0.0).tolist() == [0.0, 2.0]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.floats(0, 4)), max_size=80))
def test_placements_end_by_themselves_and_are_bounded(steps: list[tuple[int, int, float]]) -> None:
    placements, now = Placements(), 0.0
    for job, node, wait in steps:
        now += wait
        placements.add(f"j{job}", [f"n{node}"], 1.0, now)
        assert len(placements) <= 31
    assert not placements.on([f"n{node}" for node in range(6)], now + LONGEST_SECONDS + 1.0).any()


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), st.floats(-20, 20)), min_size=1, max_size=30))
def test_placements_are_the_sum_of_what_is_left_of_each_job(steps: list[tuple[int, int, float]]) -> None:
    """A clock that is set back makes nothing younger or older, and a job that is placed again moves."""
    placements, now, passed = Placements(), 0.0, 0.0
    placed: list[tuple[int, int, float]] = []
    for job, node, wait in steps:
        now, passed = now + wait, passed + max(0.0, wait)
        placements.add(f"j{job}", [f"n{node}", "everywhere"], 2.0 + job, now)
        placed = [one for one in placed if one[0] != job or passed - one[2] > LONGEST_SECONDS]
        placed.append((job, node, passed))
    *found, everywhere = placements.on([*(f"n{node}" for node in range(4)), "everywhere"], now)
    left = [(node, (1.0 + job / 2) * 2.0 ** ((at - passed) / 10.0)) for job, node, at in placed]
    for node in range(4):
        assert found[node] == pytest.approx(sum(c for on, c in left if on == node), abs=1e-4)
    assert everywhere == pytest.approx(sum(cpus for _, cpus in left), abs=1e-4)


def test_placements_of_many_pods_on_many_nodes_are_bounded() -> None:
    placements, nodes = Placements(), [f"n{number}" for number in range(5000)]
    for pod in range(300):
        placements.add(f"pod-{pod}", nodes, 1.0, 0.0)

    assert len(placements) == MOST_NAMES // len(nodes)


def test_pod_is_known_by_its_uid_and_its_requests() -> None:
    request = recorded("filter-names.json")
    container = {"resources": {"requests": {"cpu": "1500m"}}}
    request["Pod"] = {"metadata": {"uid": "u-1"}, "spec": {"containers": [container, {}, "x", container]}}
    question = read_request(request)
    assert (question.job, question.cpus) == ("u-1", 3.0)
    request["Pod"] = {"metadata": {"namespace": "default", "name": "p"}, "spec": {"containers": [{}]}}
    question = read_request(request)

    assert (question.job, question.cpus) == ("default/p", 0.5)


def test_nodes_not_heard_of_for_an_hour_are_forgotten() -> None:
    ledger = ledger_of({})
    ledger.see(["n1"], FORGET_SECONDS)
    ledger.settle(FORGET_SECONDS + 1.0)

    assert ledger.known == ["n1"]


def test_agents_answer_becomes_a_verdict_by_our_clock() -> None:
    answer = {"accept": False, "score": 7.0, "probability": 0.6, "reason": "busy", "valid_until": 1010.0}
    verdict = read_decision(json.dumps(answer).encode(), now=900.0, clock_ahead=100.0, valid_seconds=60.0)

    assert verdict == Verdict(True, 0.6, "busy", valid_until=910.0)


def test_no_answer_counts_for_longer_than_is_allowed_here() -> None:
    answer = json.dumps({"accept": False, "score": None, "valid_until": 1e12}).encode()
    verdict = read_decision(answer, now=900.0, clock_ahead=0.0, valid_seconds=60.0)

    assert (verdict.valid_until, verdict.score) == (960.0, 1.0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"accept": 1, "valid_until": 5}',
        b'{"accept": true}',
        b'{"accept": true, "valid_until": "x"}',
    ],
)
def test_answer_that_is_no_decision_is_an_error_and_not_an_accept(data: bytes) -> None:
    with pytest.raises(IntegrationError, match=r"must (answer with|be true or false)"):
        read_decision(data, now=0.0, clock_ahead=0.0, valid_seconds=60.0)


def test_agents_file_comes_before_the_template(tmp_path: Path) -> None:
    path = tmp_path / "agents"
    path.write_text("# where agents listen\nn1 https://10.0.0.1:7077  # the first\n\n")
    addresses = Addresses.read(path, "http://{node}:7077")

    assert addresses.of("n1") == "https://10.0.0.1:7077"
    assert addresses.of("n2") == "http://n2:7077"


def test_internal_address_is_used_once_it_is_known() -> None:
    addresses = Addresses("http://{address}:7077")
    assert addresses.of("n1") is None
    addresses.internal["n1"] = "fd00::1"

    assert addresses.of("n1") == "http://[fd00::1]:7077"


def test_node_name_cannot_smuggle_an_address(tmp_path: Path) -> None:
    with pytest.raises(IntegrationError, match=r"node name must be"):
        Addresses("http://{node}:7077").of("evil.example/x?")


@pytest.mark.parametrize("template", ["ftp://{node}", "{node}:7077", "http://{host}:1", "http://{node"])
def test_template_that_is_no_address_is_refused(template: str) -> None:
    with pytest.raises(SettingsError, match=r"address of"):
        Addresses(template)


def test_agents_file_with_a_broken_line_names_it(tmp_path: Path) -> None:
    path = tmp_path / "agents"
    path.write_text("n1 http://10.0.0.1:7077 extra\n")
    with pytest.raises(SettingsError, match=r"agents:1 must be a node and its agent's address"):
        Addresses.read(path)


def test_the_command_bounds_its_connections_and_ends_when_asked() -> None:
    port = free_port()
    with started(
        "extender", "--listen", f"127.0.0.1:{port}", "--agents", "http://{node}:1", "--no-wake"
    ) as process:

        def connect() -> socket.socket | None:
            with suppress(OSError):
                return socket.create_connection(("127.0.0.1", port), timeout=10)
            return None

        idle = [wait_for(connect) for _ in range(MOST_CONNECTIONS + 50)]
        asking = connect()
        assert asking is not None
        asking.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nExpect: \xff\r\n\r\n")
        answer = asking.recv(64)
        asking.close()
        dropped = sum(_ended(one) for one in idle)
        process.terminate()
        code = process.wait(30)
        for one in idle:
            one.close()

    assert answer.split()[1] == b"417"
    assert dropped >= 50
    assert code == 0


def _ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
