"""HTCondor's gate: the exact output of the cron job, and a real pool where there is one."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.slurm_cluster import wait_for
from prontosched.gates.gate import Rank, Verdict, rank_text
from prontosched.gates.htcondor import HTCondorGate, refusal_attributes
from tests.gates.condor_pool import DEPLOY, CondorPool, running_pool
from tests.gates.verdicts import busy
from tests.requirements import skip

ACCEPTING = "ProntoReject = false\n-\n"
PAGE = DEPLOY.parents[1] / "docs" / "integrations" / "htcondor.md"


def printed(folder: Path, node: str = "execute-1") -> str:
    done = subprocess.run(
        [str(DEPLOY / "pronto_startd_cron"), node],
        env={**os.environ, "PRONTO_HTCONDOR_FOLDER": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert done.stderr == ""
    return done.stdout


def test_cron_job_prints_that_an_unknown_node_accepts(tmp_path: Path) -> None:
    assert printed(tmp_path) == ACCEPTING


def test_cron_job_prints_a_refusal_as_attributes(tmp_path: Path) -> None:
    verdict = busy()
    HTCondorGate(folder=tmp_path).refuse("execute-1", verdict)
    lines = printed(tmp_path).splitlines()

    assert lines[:2] == ["ProntoReject = true", "ProntoScore = 0.8"]
    assert lines[2].startswith('ProntoReason = "pronto: cpu_user is rising (score 0.8, until ')
    assert lines[3:] == [f"ProntoValidUntil = {int(verdict.valid_until)}", "-"]


def test_cron_job_prints_that_a_node_accepts_after_its_verdict_ended(tmp_path: Path) -> None:
    HTCondorGate(folder=tmp_path).refuse("execute-1", busy(-1))

    assert printed(tmp_path) == ACCEPTING


@pytest.mark.parametrize(
    "text", ["", "ProntoReject = true\n", "ProntoValidUntil = soon\n", "\0\0\0", "x" * 9000]
)
def test_cron_job_prints_that_a_node_accepts_where_the_file_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "execute-1.ad").write_text(text)

    assert printed(tmp_path) == ACCEPTING


def test_cron_job_prints_nothing_of_another_node(tmp_path: Path) -> None:
    HTCondorGate(folder=tmp_path).refuse("execute-1", busy())

    assert printed(tmp_path, "execute-2") == ACCEPTING


@given(reason=st.text(max_size=300), score=st.floats())
def test_no_reason_breaks_out_of_its_attribute(reason: str, score: float) -> None:
    lines = refusal_attributes(Verdict(True, score, reason, 2e9)).splitlines()

    assert [line.split(" = ")[0] for line in lines] == [
        "ProntoReject",
        "ProntoScore",
        "ProntoReason",
        "ProntoValidUntil",
    ]
    assert lines[2].count('"') == 2
    assert "\\" not in lines[2]


def test_cron_job_prints_a_rank_until_it_ends_beside_a_refusal_or_without(tmp_path: Path) -> None:
    gate, rank = HTCondorGate(folder=tmp_path), Rank(3, 0.62, False, time.time() + 60)
    gate.prefer("execute-1", rank, busy())
    alone = printed(tmp_path).splitlines()
    assert alone[:3] == ["ProntoReject = false", "ProntoContention = 0.62", "ProntoLevel = 3"]
    assert alone[3:] == [
        f"ProntoContentionUntil = {int(rank.valid_until)}",
        f'ProntoRank = "{rank_text(rank)}"',
        "-",
    ]
    gate.refuse("execute-1", busy())
    both = printed(tmp_path).splitlines()
    assert (both[0], both[4:]) == ("ProntoReject = true", alone[1:])
    gate.prefer("execute-1", Rank(3, 0.62, False, time.time() - 1), busy())

    assert printed(tmp_path).splitlines() == [*both[:4], "-"]


def test_configuration_for_operators_has_the_documented_expressions() -> None:
    page = PAGE.read_text()
    for file, name in (("pronto.config", "ProntoStart"), ("pronto-negotiator.config", "ProntoLevelNow")):
        found = re.search(rf"^{name} = (.+)$", (DEPLOY / file).read_text(), re.MULTILINE)

        assert found is not None
        assert found[1] in page


def test_configuration_for_operators_leaves_claims_as_they_are() -> None:
    """In shadow mode nothing may change, and jobs that share no claim wait for a negotiation each."""
    assert re.findall(r"^#?CLAIM_WORKLIFE.*$", (DEPLOY / "pronto.config").read_text(), re.MULTILINE) == [
        "#CLAIM_WORKLIFE = 0"
    ]


@pytest.fixture(scope="module")
def pool() -> Iterator[CondorPool]:
    tree = os.environ.get("PRONTO_TEST_HTCONDOR", "")
    if not tree or not (Path(tree) / "usr/sbin/condor_master").exists():
        skip("HTCondor", "sh tests/engines/htcondor.sh FOLDER, then PRONTO_TEST_HTCONDOR=FOLDER make test")
    with running_pool(Path(tree)) as pool:
        yield pool


def ran(pool: CondorPool, count: int = 8, *lines: str) -> Counter[str]:
    cluster = pool.submit(count, *lines)
    wait_for(lambda: len(pool.hosts(cluster)) == count, 60, f"{count} jobs", pool.logs)
    return Counter(pool.hosts(cluster))


def rejecting(pool: CondorPool) -> set[str]:
    return {name.split("@")[1] for name, (reject, _) in pool.status().items() if reject == "true"}


def test_jobs_of_a_real_pool_avoid_a_refusing_node_and_return(pool: CondorPool) -> None:
    gate = HTCondorGate(folder=pool.ads)
    before = ran(pool)
    gate.refuse("node_a", busy(90))
    wait_for(lambda: rejecting(pool) == {"node_a"}, 30, "the refusal in the collector", pool.logs)
    during = ran(pool)
    opted_out = ran(pool, 4, "+ProntoOptOut = true")
    gate.accept("node_a")
    wait_for(lambda: rejecting(pool) == set(), 30, "the node to accept", pool.logs)
    after = ran(pool)

    assert before["node_a"] > 0
    assert after["node_a"] > 0
    assert during == {"node_b": 8}
    assert opted_out["node_a"] > 0


def test_jobs_of_a_real_pool_prefer_the_calm_node_and_use_the_other_when_it_is_full(pool: CondorPool) -> None:
    gate = HTCondorGate(folder=pool.ads)
    gate.prefer("node_a", Rank(4, 0.9, False, time.time() + 120), busy())
    wait_for(
        lambda: {n.split("@")[1] for n, c in pool.contention().items() if c.startswith("0.9")} == {"node_a"},
        30,
        "the rank in the collector",
        pool.logs,
    )
    few = Counter[str]()
    for _ in range(4):
        # A slot whose job has just ended is still claimed for a moment, and cannot be preferred.
        wait_for(pool.unclaimed, 60, "all slots to be free", pool.logs)
        few.update(ran(pool, 2))
    many = ran(pool, 8)
    gate.restore("node_a")

    assert few == {"node_b": 8}
    assert many["node_a"] > 0


def test_start_itself_opens_when_the_verdict_ends_and_the_cron_job_is_stuck(pool: CondorPool) -> None:
    script = pool.folder / "pronto_startd_cron"
    original = script.read_text()
    script.write_text('#!/bin/sh\ncat "$PRONTO_HTCONDOR_FOLDER/$1.ad" 2>/dev/null || echo -\n')
    try:
        verdict = busy(25)
        HTCondorGate(folder=pool.ads).refuse("node_a", verdict)
        wait_for(lambda: rejecting(pool) == {"node_a"}, 30, "the refusal in the collector", pool.logs)
        assert ran(pool, 4) == {"node_b": 4}
        wait_for(lambda: time.time() > verdict.valid_until + 1, 40, "the verdict to end")

        assert ran(pool)["node_a"] > 0
        assert rejecting(pool) == {"node_a"}  # stale, and without effect
    finally:
        script.write_text(original)
        HTCondorGate(folder=pool.ads).accept("node_a")
