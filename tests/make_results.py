"""Run the studies that the documentation reports, and write their numbers into it.

`python -m tests.make_results [STUDY…]` runs them and writes `docs/results.json` and the tables of
`docs/evaluation.md`. Every number there comes from one run of the command above its table. The machines of SMD
are read from PRONTO_TEST_DATA. A test compares tables and numbers.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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
FIGURES = ("recall_low", "recall", "precision", "quiet_roc", "quiet_average_precision", "exposure_cut")


def command(study: str) -> str:
    """Return the command of a study, as a reader would type it."""
    return f"pronto evaluate {STUDIES[study]}".strip()


def run(study: str) -> dict[str, Any]:
    """Run a study; return its numbers, rounded to what is worth printing."""
    words = [sys.executable, "-m", "prontosched", *command(study).split()[1:], "--json"]
    smd = require_data() / "data" / "smd" if study == "smd" else Path()
    words = [str(smd) if word == "smd/" else word for word in words]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
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


def main(studies: list[str]) -> None:
    """Run the named studies, or all, and write numbers and page."""
    numbers = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    for study in studies or STUDIES:
        numbers[study] = run(study)
        NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n")
        print(f"{study}: {numbers[study]['answer']}", file=sys.stderr)
    PAGE.write_text(fill(PAGE.read_text(), numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
