"""What engines print, in any form: one node's trouble is not another's, and what administrators wrote is not ours."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from prontosched.errors import IntegrationError
from prontosched.gates.gate import Rank, Verdict, label, rank_text, read_decision, read_label, read_rank
from prontosched.gates.htcondor import HTCondorGate, rank_attributes, refusal_attributes
from prontosched.gates.kubernetes import KEY, KubernetesGate
from prontosched.gates.kubernetes_client import ApiServer
from prontosched.gates.slurm import SlurmCommands, SlurmGate
from tests.fuzzing import broken, fuzz, odd_value

pytestmark = pytest.mark.fuzz

NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 AvailableFeatures=a,b ActiveFeatures=a,b Gres=(null)"
    " NodeAddr={name} State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A Partitions=main"
    " Reason={reason} [root@2026-11-15T21:00:00] Comment={comment} Extra={extra}"
)
VERDICT = Verdict(True, 0.8, "busy", valid_until=1.7e9)
RANK = Rank(3, 0.62, False, 1.7e9)


class Printed(SlurmCommands):
    """What `scontrol` would have printed, as it is decoded."""

    def __init__(self, text: bytes) -> None:
        super().__init__()
        self.text = text

    def _run(self, *arguments: str, program: str = "scontrol") -> str:
        return self.text.decode("utf-8", "replace")


def line(name: str, reason: str, **fields: str) -> bytes:
    given = {"state": "IDLE+DRAIN", "comment": "", "extra": "", **fields}
    return NODE.format(name=name, reason=reason, **given).encode()


def test_what_scontrol_prints_of_one_node_hides_and_moves_no_other():
    def attempt(rng: random.Random) -> None:
        odd = line(
            "odd",
            str(odd_value(rng)).replace("\ud800", "?"),
            comment=str(odd_value(rng)).replace("\ud800", "?"),
        )
        odd = broken(rng, odd.replace(b"\n", b" ")).replace(b"\n", b" ")
        lines = [
            line("ours", label(VERDICT)),
            odd,
            line("theirs", "disk is failing"),
            line("calm", "", state="IDLE"),
        ]
        rng.shuffle(lines)
        gate = SlurmGate()
        gate.commands = Printed(b"\n".join(lines))
        seen = gate.observe_all()
        assert seen["ours"].ours
        assert seen["ours"].valid_until == 1.7e9
        assert seen["theirs"].state == "closed-by-other"
        assert seen["calm"].state == "open"

    assert fuzz("scontrol", attempt, IntegrationError)[1] > 50


def test_marks_of_any_content_are_read_or_have_expired(memory_path):
    gate = HTCondorGate(folder=memory_path)

    def attempt(rng: random.Random) -> None:
        text = broken(rng, label(VERDICT).encode()).decode("utf-8", "replace")
        found = read_label(text)
        assert found is None or not math.isinf(found.valid_until)
        rank = read_rank(broken(rng, rank_text(RANK).encode()).decode("utf-8", "replace"))
        assert rank.expired(0.0) or rank.valid_until > 0.0
        ad = refusal_attributes(VERDICT) + rank_attributes(RANK)
        (memory_path / "n1.ad").write_bytes(broken(rng, ad.encode()))
        gate.observe("n1")

    assert fuzz("marks", attempt, IntegrationError)[1] > 50


def test_what_an_agent_answers_is_a_verdict_of_finite_numbers_or_one_clear_line():
    good = {"accept": True, "valid_until": 1.7e9, "probability": 0.5, "reason": "calm", "offenders": ""}

    def attempt(rng: random.Random) -> None:
        fields = {
            name: odd_value(rng, value) if rng.random() < 0.4 else value for name, value in good.items()
        }
        data = json.dumps(fields).encode()
        found = read_decision(
            broken(rng, data, 2) if rng.random() < 0.4 else data, now=0.0, valid_seconds=60.0
        )
        assert found.valid_until <= 60.0
        assert not math.isinf(found.score)
        label(found)

    assert fuzz("answers", attempt, IntegrationError)[0] > 50


class Listed(ApiServer):
    """What an API server would have listed."""

    def __init__(self, nodes: list[Any]) -> None:
        super().__init__("http://127.0.0.1:9")
        self.listed = nodes

    def nodes(self) -> list[Any]:
        return self.listed


def test_what_kubernetes_lists_of_one_node_hides_and_moves_no_other():
    def node(name: str, **spec: Any) -> dict[str, Any]:
        notes = {f"{KEY}-rank": rank_text(RANK), f"{KEY}-reason": label(VERDICT)}
        return {
            "metadata": {"name": name, "annotations": notes, "resourceVersion": "1"},
            "spec": spec,
            "status": {},
        }

    def attempt(rng: random.Random) -> None:
        odd = node("odd", taints=[{"key": KEY, "effect": "NoSchedule"}])
        part = rng.choice(["metadata", "spec", "status", "annotations", "taints", "name"])
        held = (
            odd["metadata"] if part in ("annotations", "name") else odd["spec"] if part == "taints" else odd
        )
        held[part] = rng.choice([odd_value(rng), {"a": odd_value(rng)}, [odd_value(rng)]])
        gate = KubernetesGate(Listed([node("calm"), odd, node("theirs", unschedulable=True)]))
        seen = gate.observe_all()
        assert seen["calm"].state == "open"
        assert seen["theirs"].state == "closed-by-other"

    assert fuzz("kubernetes", attempt, IntegrationError)[1] > 50
