"""The paper claim by claim: page, command and numbers agree, and verdicts follow from the numbers."""

from __future__ import annotations

import copy
import json

from click.testing import CliRunner

from prontosched.cli import cli
from prontosched.evaluation.claims import NOT, OPEN, REPRODUCED, claim_rows, paper_numbers
from tests import make_results

NAMED = (
    "sides",
    "contained",
    "downtime",
    "downtime of FD",
    "fastest",
    "shorter windows",
    "long windows",
    "rank",
    "window",
    "merging",
    "scalability",
    "a decision",
)


def test_the_page_has_the_table_that_the_numbers_give() -> None:
    page = make_results.CLAIMS_PAGE.read_text()

    assert make_results.fill_claims(page, paper_numbers()) == page
    assert json.loads(make_results.CLAIMED.read_text()) == paper_numbers()


def test_the_command_prints_every_claim_with_its_verdict() -> None:
    rows = claim_rows(paper_numbers())
    text = CliRunner().invoke(cli, ["evaluate", "--paper"])
    plain = json.loads(CliRunner().invoke(cli, ["evaluate", "--paper", "--json"]).output)

    assert text.exit_code == 0
    assert [row._asdict() for row in rows] == plain["claims"]
    for row in rows:
        assert f"{row.name}: {row.verdict.upper()}" in text.output
        assert row.found in text.output
        assert row.command == "–" or text.output.count(f"  {row.command}\n") == 1  # many claims share it


def test_every_claim_has_a_verdict_and_says_why() -> None:
    rows = {row.name: row for row in claim_rows(paper_numbers())}

    assert set(NAMED) <= set(rows)
    assert all(row.verdict in (REPRODUCED, NOT, OPEN) and row.why and row.found for row in rows.values())


def test_verdicts_follow_from_the_numbers() -> None:
    numbers = copy.deepcopy(paper_numbers())
    for data in ("shipped", "smd"):
        measured = numbers[data]["methods"]
        measured["paper"].update(
            recall=0.4, success=0.97, left_sided_strict=2.0 * measured["paper"]["right_sided"]
        )
        measured["paper-fd"]["downtime"] = 0.6
        for name in ("paper", "paper-spirit", "paper-fd", "paper-pm"):
            measured[name]["raise_ratio"] = 1.1
    numbers["speed"]["spirit"]["microseconds"] = 1.0
    found = {row.name: row.verdict for row in claim_rows(numbers)}

    for name in ("prediction", "preceded", "sides", "contained", "downtime of FD", "fastest"):
        assert found[name] == REPRODUCED, name
    numbers["speed"]["spirit"]["microseconds"] = 2e6
    assert {row.name: row.verdict for row in claim_rows(numbers)}["a decision"] == NOT
