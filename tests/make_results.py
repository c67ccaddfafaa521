"""Run the studies that the documentation reports, and write their numbers into it.

`python -m tests.make_results [STUDY…]` runs them and writes `docs/results.json` and the tables of
`docs/evaluation.md`. Every number there comes from one run of the command above its table. The machines of SMD
are read from PRONTO_TEST_DATA. A test compares tables and numbers.

`python -m tests.make_results paper` measures, in one run, everything that the paper's claims are judged by: the shipped
trace, all machines of SMD, the forecast study, speed, and what a federation sends. It writes
`src/prontosched/data/paper.json` with the commit that it ran on, and the table of `docs/paper.md`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from prontosched.evaluation import claims
from prontosched.evaluation.datasets import open_dataset, shipped_trace
from prontosched.evaluation.forecast.panel import Level, read_traces, trace_panel, whole_traces
from prontosched.evaluation.forecast.report import as_json
from prontosched.evaluation.forecast.study import (
    Cache,
    DataSetStudy,
    ForecastOutcome,
    StudySettings,
    gather,
    lay_out_tasks,
    run_tasks,
    window_pair,
)
from prontosched.evaluation.inputs import Columns, first_rows, plan_traces
from prontosched.evaluation.speed import performance_table
from prontosched.federation.member import node_summary
from prontosched.federation.publisher import Propagation
from prontosched.pipeline.node import ADOPTED_SAMPLES, Node
from prontosched.pipeline.presets import make_fleet, make_node
from prontosched.subspace import Subspace, merge, merge_all
from prontosched.telemetry.source import samples
from tests.requirements import require_data

ROOT = Path(__file__).parent.parent
NUMBERS = ROOT / "docs" / "results.json"
PAGE = ROOT / "docs" / "evaluation.md"
RULES = "learned,ready,psi,trimaran,koordinator,r15s,r1m,volcano,n-sigma,peak-percentile,peak-max"
STUDIES = {
    "positive": "--control positive --methods learned,learned-blind,t2+spe,paper,ewma,ready,random,clock",
    "negative": "--control negative --methods learned,t2+spe,paper,ewma,ready,random,clock",
    "shipped": "",
    "smd": f"smd/ --methods {RULES},ewma,utilisation,t2+spe,paper,random",
}
CLAIMED = ROOT / "src" / "prontosched" / "data" / "paper.json"
CLAIMS_PAGE = ROOT / "docs" / "paper.md"
OWN_AGE, AHEAD = 4000, 1000
LEVELS: tuple[Level, ...] = ("median", "mean")
FIGURES = ("recall_low", "recall", "precision", "quiet_roc", "quiet_average_precision", "exposure_cut")


def command(study: str) -> str:
    """Return the command of a study, as a reader would type it."""
    return f"pronto evaluate {STUDIES[study]}".strip()


def run(study: str) -> dict[str, Any]:
    """Run a study; return its numbers, rounded to what is worth printing."""
    found = pronto([smd() if word == "smd/" else word for word in command(study).split()[1:]])
    goals = ("what", "value", "low", "high", "goal_in_words", "met")
    return {
        "answer": found["answer"]["sentence"],
        "comparison": found["comparison"],
        "data": {
            key: _round(found["data"][key]) for key in ("nodes", "steps", "spike_share", "positive_share")
        },
        "methods": [
            {
                "label": method["label"],
                "family": method["family"],
                "own": {key: _interval(value) for key, value in method["own"].items()},
                **{key: _interval(method["honest"][key]) for key in FIGURES},
                "against_ready": _interval(method.get("against_ready", {}).get("recall", {})),
                "better_than_null": method["better_than_null"]["recall"],
                "success": [
                    _round(method["paper"]["success"]["mean"]),
                    _round(method["null"]["success"]["shifted"]),
                ],
            }
            for method in found["methods"]
        ],
        "goals": [{key: _round(row.get(key)) for key in goals} for row in found["goals"]],
    }


def _round(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _interval(found: dict[str, Any]) -> list[float | None]:
    return [_round(found.get(key)) for key in ("value", "low", "high")]


def tables(numbers: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the page, by the name in their marks."""
    found = {}
    for study in ("positive", "negative", "shipped", "smd"):
        methods = numbers[study]["methods"]
        found[f"{study}-answer"] = (
            f"`{command(study)}`:\n\n> {numbers[study]['answer']}\n>\n> {numbers[study]['comparison']}"
        )
        found[f"{study}-default"] = _table(
            ("by default", "time refused", "recall", "precision", "contended time accepted", "changes an hour"),
            [
                (m["label"], _percent(own["downtime"]), _span(own["recall"]), _short(own["precision"]),
                 _percent(own["contended_accepted"]), _short(own["changes_per_hour"], 1))
                for m in methods if m["family"] in ("learned", "competitor")
                for own in [m["own"]] if own["downtime"][0] is not None
            ],
        )  # fmt: skip
        found[f"{study}-equal"] = _table(
            ("at equal downtime", "recall at 5 %", "recall at 10 %", "precision at 10 %", "quiet ROC / AP",
             "exposure cut", "against current CPU Ready", "better than shifted"),
            [
                (m["label"], _short(m["recall_low"]), _span(m["recall"]), _short(m["precision"]),
                 f"{_short(m['quiet_roc'])} / {_short(m['quiet_average_precision'])}", _short(m["exposure_cut"]),
                 _span(m["against_ready"]), "yes" if m["better_than_null"] else "no")
                for m in methods
            ],
        )  # fmt: skip
    found["smd-goals"] = _table(
        ("goal", "value", "wanted", "met"),
        [
            (row["what"], _span([row["value"], row["low"], row["high"]], 3), row["goal_in_words"], _met(row["met"]))
            for row in numbers["smd"]["goals"] if row["met"] is not None
        ],
    )  # fmt: skip
    return found


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _short(found: list[float | None], digits: int = 2) -> str:
    value = found[0]
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("0.") else text.replace("-0.", "−.", 1)


def _span(found: list[float | None], digits: int = 2) -> str:
    _, low, high = found
    if low is None or high is None:
        return _short(found, digits)
    return f"{_short(found, digits)} [{_short([low])}, {_short([high])}]"


def _percent(found: list[float | None]) -> str:
    return "–" if found[0] is None else f"{found[0]:.1%}".replace("%", " %")


def _met(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "**no**"


def fill(page: str, numbers: dict[str, Any]) -> str:
    """Return the page with every marked table as the numbers give it."""
    given = tables(numbers)

    def replaced(found: re.Match[str]) -> str:
        return f"<!-- results: {found[1]} -->\n{given[found[1]]}\n<!-- end -->"

    return re.sub(r"<!-- results: (\S+) -->\n.*?\n?<!-- end -->", replaced, page, flags=re.DOTALL)


def pronto(words: list[str]) -> Any:
    """Run a command of Pronto; return what it prints with --json."""
    ran = subprocess.run(
        [sys.executable, "-m", "prontosched", *words, "--json"], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(ran.stdout)


def smd() -> str:
    """Return the folder of the machines of SMD."""
    return str(require_data() / "data" / "smd")


def evaluated(traces: list[str]) -> dict[str, Any]:
    """Run the paper's methods on traces; return the paper's measures of each method."""
    words = claims.EVALUATE.split()[1:]
    place = words.index("[SMD]")
    words[place : place + 1] = traces
    return measured(pronto(words))


def measured(found: dict[str, Any]) -> dict[str, Any]:
    """Return what the claims need of an evaluation."""
    keys = (
        "downtime",
        "left_sided",
        "left_sided_strict",
        "right_sided",
        "raise_ratio",
        "contained_spikes",
        "success",
    )
    return {
        **{key: found["data"][key] for key in ("nodes", "steps", "spikes")},
        "metrics": max(found["data"]["metrics"]),
        "methods": {
            method["name"]: {
                **{key: _round(method["paper"][key]["mean"]) for key in keys},
                "shifted": _round(method["null"]["success"]["shifted"]),
                "recall": _round(method["honest"]["recall"]["value"]),
            }
            for method in found["methods"]
        },
    }


def forecasts(cache: Path | None = None) -> dict[str, Any]:
    """Forecast windows of SMD, with medians and with means, as the command does; return errors by window and method.

    Days and alarms, which no claim is judged by, are left out. A cache keeps what is done of a run in pieces.
    """
    from threadpoolctl import threadpool_limits

    traces = read_traces(whole_traces((Path(smd()),)))
    servers, levels = len(list(Path(smd()).glob("machine-*.parquet"))), {}
    for level in LEVELS:
        settings = StudySettings(servers, 4, 1, level=level)
        panel = trace_panel(traces, windows=settings.windows, level=level)
        tasks = [task for task in lay_out_tasks(panel, settings) if task.work is window_pair]
        with threadpool_limits(1):
            answers = run_tasks(tasks, jobs=os.cpu_count() or 1, cache=Cache(cache, level))
        outcome = ForecastOutcome([DataSetStudy(panel, gather(panel, tasks, answers))])
        levels[level] = errors_by_window(as_json(outcome, claims.FORECAST))
    return {"forecast": levels, "forecast_servers": servers}


def errors_by_window(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the mean RMSE of each window length and method."""
    windows = found["data_sets"][0]["results"]["windows"]
    return {
        length: {name: _round(one["mean"]) for name, one in errors.items() if one["nodes"]}
        for length, errors in windows.items()
        if any(one["nodes"] for one in errors.values())
    }


def speeds() -> dict[str, Any]:
    """Time one node of each embedding on the shipped trace."""
    first = first_rows(plan_traces((shipped_trace(),), Columns()).parts[0], 1000)
    return {
        row["embedding"]: {
            "microseconds": round(row["microseconds_per_vector"], 1),
            "kilobytes": round(row["kilobytes"], 1),
        }
        for row in performance_table(first)
    }


def state_sizes() -> dict[str, int]:
    """Return the bytes of a saved node by its number of metrics."""
    found = {}
    for features in (52, 134, 1000):
        node, rng = make_node("paper"), np.random.default_rng(7)
        for y in rng.standard_normal((100, features)):
            node.step(y)
        found[str(features)] = len(node.to_bytes())
    return found


def _smd_nodes(until: int) -> list[tuple[Node, list[Any], dict[str, int]]]:
    """Carry nodes of the paper's preset over the machines of SMD; return each with the vectors after that.

    The counts are of block ends, and of what the rules of propagation would have sent.
    """
    carried = []
    for path in sorted((require_data() / "data" / "smd").glob("*.parquet")):
        source, _ = open_dataset([path])
        node, ahead, counts = make_node("paper"), [], {"blocks": 0, "sent": 0, "sent_as_printed": 0}
        rule = Propagation(max_age_seconds=1e12)
        before: Subspace | None = None
        for step, (sample,) in enumerate(samples(source)):
            if step >= until + AHEAD:
                break
            if step >= until:
                ahead.append(sample.vector)
                continue
            node.step(sample.vector)
            own = node.embedding.subspace
            if own is None or own is before:
                continue
            counts["blocks"] += 1
            summary = node_summary(node, path.stem, sample.metrics)
            if rule.due(summary, now=float(step)) is not None:
                rule.sent(summary, now=float(step))
                counts["sent"] += 1
            if before is None or before.basis.shape != own.basis.shape or (
                np.abs(np.abs(own.basis) - np.abs(before.basis)).max() > rule.epsilon
            ):  # fmt: skip
                counts["sent_as_printed"] += 1
            before = own
        carried.append((node, ahead, counts))
    return carried


def shared() -> dict[str, dict[str, Any]]:
    """Measure what is sent, and what the global view gives to nodes that have seen much."""
    carried = _smd_nodes(OWN_AGE)
    sending = {
        key: sum(counts[key] for _, _, counts in carried) for key in ("blocks", "sent", "sent_as_printed")
    }
    captured: dict[str, list[float]] = {"alone": [], "faded": [], "merged": []}
    for node, ahead, _ in carried:
        own = node.embedding.subspace
        others = [one.embedding.subspace for one, _, _ in carried if one is not node]
        view = merge_all([one for one in others if one is not None], rank=own.rank)
        weight = np.sqrt(ADOPTED_SAMPLES / (OWN_AGE * len(others)))
        faded = Subspace(view.basis, view.singular_values * weight)
        scaled = np.stack([node.scaling.scale(y) for y in ahead])
        for name, basis in (
            ("alone", own.basis),
            ("faded", merge(faded, own, rank=own.rank).basis),
            ("merged", merge(view, own, rank=own.rank).basis),
        ):
            captured[name].append(float(((scaled @ basis) ** 2).sum() / (scaled**2).sum()))
    means = {name: round(float(np.mean(values)), 4) for name, values in captured.items()}
    return {"sending": sending, "pulling": {**means, "age": OWN_AGE, "counted": ADOPTED_SAMPLES}}


def scale() -> dict[str, float]:
    """Return the processor time of a node and step in microseconds, by the number of nodes."""
    found = {}
    for nodes, steps in ((100, 1000), (10_000, 40)):
        rng = np.random.default_rng(7)
        Y = rng.standard_normal((20, nodes, 52))
        best = float("inf")
        for _ in range(3):
            fleet = make_fleet("paper", nodes=nodes, features=52)
            for step in range(20):
                fleet.step(Y[step])
            began = time.process_time()
            for step in range(steps):
                fleet.step(Y[step % 20])
            best = min(best, time.process_time() - began)
        found[str(nodes)] = round(best / nodes / steps * 1e6, 2)
    return found


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "shipped trace": lambda: {"shipped": evaluated([])},
    "SMD": lambda: {"smd": evaluated([smd()])},
    "speed": lambda: {"speed": speeds(), "speed_metrics": 252, "state_bytes": state_sizes()},
    "federation": shared,
    "scale": lambda: {"scale": scale()},
    "forecast": forecasts,
}


def claims_table(numbers: dict[str, Any]) -> str:
    """Return the table of the paper's claims, as the page has it; the commands, which many share, stand below."""
    rows = claims.claim_rows(numbers)
    letters = claims.command_letters(rows)
    cells = [
        (f"**{row.name}**: {row.says}", row.verdict, row.found, row.why, letters.get(row.command, "–"))
        for row in rows
    ]
    table = _table(("the paper", "verdict", "what came out", "why", "command"), cells)
    commands = "\n".join(f"- {letter}: `{command}`" for command, letter in letters.items())
    counts = Counter(row.verdict for row in rows)
    each = ", ".join(f"{counts[one]} {one}" for one in (claims.REPRODUCED, claims.NOT, claims.OPEN))
    summary = f"{len(rows)} claims: {each}."
    return f"{summary} {claims.data_in_words(numbers)}\n\n{table}\n\nCommands:\n\n{commands}"


def fill_claims(page: str, numbers: dict[str, Any]) -> str:
    """Return the page of the paper with the table as the numbers give it."""
    table = claims_table(numbers)
    return re.sub(
        r"(<!-- claims -->\n).*?\n?(<!-- end -->)",
        lambda found: f"{found[1]}{table}\n{found[2]}",
        page,
        flags=re.DOTALL,
    )


def measure_claims() -> None:
    """Measure everything, then write numbers and page: all of them come from this run."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()
    numbers: dict[str, Any] = {"measured_at": f"commit {commit}"}
    for place, (name, part) in enumerate(PARTS.items(), start=1):
        print(f"paper: {name} ({place} of {len(PARTS)})", file=sys.stderr, flush=True)
        began = time.monotonic()
        numbers.update(part())
        print(f"paper: {name} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    CLAIMED.write_text(json.dumps(numbers, indent=1) + "\n")
    CLAIMS_PAGE.write_text(fill_claims(CLAIMS_PAGE.read_text(), numbers))


def main(studies: list[str]) -> None:
    """Run the named studies, or all, and write numbers and page."""
    if studies == ["paper"]:
        measure_claims()
        return
    numbers = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    for study in studies or STUDIES:
        numbers[study] = run(study)
        NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n")
        print(f"{study}: {numbers[study]['answer']}", file=sys.stderr)
    PAGE.write_text(fill(PAGE.read_text(), numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
