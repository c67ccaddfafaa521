"""The Grafana dashboard asks only for what agents really serve, in the right units."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.dashboard.conftest import Start, planted

BOARD = Path(__file__).parent.parent.parent / "deploy" / "grafana" / "pronto.json"
SELECTOR = re.compile(r"\b(pronto_[a-z_]+|process_[a-z_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|=)\s*"([^"]*)"')
UNITS = {"_percent": "percent", "_ratio": "percentunit", "_seconds": "s", "_bytes": "bytes"}

Served = dict[str, list[dict[str, str]]]


def queries(board: dict[str, Any]) -> list[tuple[str, str | None, str]]:
    """Return title, unit and expression of every query, variables' included."""
    found = [
        (panel["title"], panel["fieldConfig"]["defaults"].get("unit"), target["expr"])
        for panel in board["panels"]
        for target in panel["targets"]
    ]
    variables = [v for v in board["templating"]["list"] if v["type"] == "query"]
    return found + [(v["name"], None, v["query"]["query"]) for v in variables]


def unserved(board: dict[str, Any], served: Served) -> list[str]:
    """Name every metric, label and value that is asked for and not served."""
    wrong = []
    for title, _, expression in queries(board):
        for name, matchers in SELECTOR.findall(expression):
            if name not in served:
                wrong.append(f"{title}: no metric {name}")
                continue
            labels = {label for labels in served[name] for label in labels} | {"instance"}
            for label, kind, value in MATCHER.findall(matchers):
                if label not in labels:
                    wrong.append(f"{title}: {name} has no label {label}")
                elif kind == "=" and all(series.get(label) != value for series in served[name]):
                    wrong.append(f"{title}: {name} has no {label} {value}")
    return wrong


def read_metrics(url: str) -> Served:
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: Served = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


@pytest.fixture(scope="module")
def served(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """All that one node with a record and several in a federation serve together."""
    folder = tmp_path_factory.mktemp("often")
    # Contention every 0.4 s, so that there is soon enough of it to tell what refusals are worth.
    trace = planted(folder / "often.csv", quiet=14, busy=6)
    state = str(folder / "state")
    gate = ("--gate", "hook", "--gate-option", "command=true", "--gate-option", f"folder={folder}")
    node = start("--trace", trace, "--repeat", "--interval", "0.02", "--state", state, *gate)
    several = start("--synthetic", "3", "--no-keep", "--interval", "0.2")
    board = json.loads(BOARD.read_text())
    deadline = time.monotonic() + 90
    while True:
        found = read_metrics(node)
        for name, series in read_metrics(several).items():
            found[name] = found.get(name, []) + series
        if not unserved(board, found) or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def test_every_metric_label_and_value_asked_for_is_served(served: Served) -> None:
    board = json.loads(BOARD.read_text())

    assert len({name for _, _, expression in queries(board) for name, _ in SELECTOR.findall(expression)}) > 15
    assert unserved(board, served) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("pronto_stale", "pronto_stales"),
        ('state=\\"refusing\\"', 'state=\\"refused\\"'),
        ("node=~", "nodes=~"),
        ("label_values(pronto_accepting,", "label_values(pronto_accepts,"),
    ],
)
def test_a_wrong_name_in_the_dashboard_is_found(served: Served, right: str, wrong: str) -> None:
    text = BOARD.read_text()

    assert right in text
    assert unserved(json.loads(text.replace(right, wrong)), served) != []


def test_units_are_those_of_the_metrics() -> None:
    for title, unit, expression in queries(json.loads(BOARD.read_text())):
        for name, _ in SELECTOR.findall(expression):
            for ending, right in UNITS.items():
                plain = expression.startswith((name, "avg(", "topk(")) and "*" not in expression
                if unit is not None and plain and name.endswith(ending):
                    assert unit == right, title


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(BOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        assert panel["title"]
        taken |= cells


def test_the_page_on_monitoring_lists_every_metric_that_is_served(served: Served) -> None:
    page = BOARD.parents[2] / "docs" / "monitoring.md"
    listed: set[str] = set()
    group = ""  # `pronto_gate_refusals_total`, `_errors_total` are both of pronto_gate
    for name in re.findall(r"`(pronto_\w+\*?|_\w+)", page.read_text()):
        group = "_".join(name.split("_")[:2]) if name.startswith("pronto_") else group
        listed.add(name if name.startswith("pronto_") else group + name)
    parts = r"_(bucket|count|sum)$"
    whole = {re.sub(parts, "", name) if "slowdown" in name else name for name in served}
    missing = {
        name
        for name in whole
        if name.startswith("pronto_")
        and name not in listed
        and not any(one.endswith("*") and name.startswith(one[:-1]) for one in listed)
    }

    assert missing == set()
