"""Carry the agent's answers to a scheduler's gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from prontosched.agent.loop import Agent
from prontosched.agent.record import plain
from prontosched.agent.store.decision_log import CLOSED_LEVEL
from prontosched.gates.controller import Controller, vetoes
from prontosched.gates.gate import Gate, LeaseTable, Verdict, chance
from prontosched.gates.policy import Rules
from prontosched.gates.preference import CONTENDED

SUMS = ("refusals", "withheld", "rankings", "errors", "refused_seconds")


class GateFollower:
    """Hand every answer to a controller of its node, which calls the scheduler in a thread of its own.

    `name_of` gives a node's name at the scheduler; `leases` is permission to refuse from the bus.
    """

    name = "gate"

    def __init__(
        self,
        gate: Gate,
        rules: Rules,
        *,
        name_of: Callable[[str], str] = lambda name: name.rpartition("/")[2],
        leases: LeaseTable | None = None,
    ) -> None:
        self.gate = gate
        self.rules = rules
        self._name_of = name_of
        self._leases = leases
        self._controllers: dict[str, Controller] = {}
        self._beyond = 0
        # Sums over nodes that have left.
        self._left = dict.fromkeys(SUMS, 0.0)

    async def follow(self, agent: Agent) -> None:
        """Hand over the answers of all nodes."""
        now, beyond, why = agent.wall(), 0, ""
        for node in list(agent.nodes):
            name = node.name
            found = agent.answer(name, own=True)
            if name not in self._controllers:
                self._controllers[name] = Controller(
                    self.gate, self._name_of(name), rules=self.rules, leases=self._leases
                )
            # Old telemetry says nothing of the present: then only the stated policy counts.
            score = chance(None if found.stale else found.probability, refuse=not found.accept)
            if not found.accept and found.announced_cpus:
                # What is only announced ranks the node as contended, and never closes it.
                score = max(score, CONTENDED)
                found = agent.answer(name, own=True, jobs=False)
            verdict = Verdict(not found.accept, score, found.reason, now + self.rules.valid_seconds)
            try:
                self._controllers[name].apply(verdict, now)
            except RuntimeError as error:  # each has a thread, and the system gives no more
                beyond, why = beyond + 1, str(error)
            await agent.give_way()
        self._beyond = beyond
        if len(self._controllers) > len(agent.nodes):
            self._part(set(agent.nodes.names))
        if beyond:
            raise RuntimeError(f"{beyond} nodes go without a gate: {why}")

    def _part(self, staying: set[str]) -> None:
        """Open the nodes that have left, each in its controller's own time."""
        for name in self._controllers.keys() - staying:
            controller = self._controllers.pop(name)
            controller.close(timeout=0.0)
            for what in SUMS:
                self._left[what] += getattr(controller.status, what)

    @property
    def enforcing(self) -> bool:
        """Whether refusals are carried out; False in shadow mode."""
        return self.rules.enforce

    def held_open(self, node: str) -> str:
        """Say why a node that refuses is left open at the scheduler; empty where it is not."""
        controller = self._controllers.get(node)
        return "" if controller is None else controller.status.held_open

    def gate_level(self, node: str) -> int:
        """Return what the gate has done with a node, as the decision log keeps it; 0 in shadow mode."""
        if not self.rules.enforce or (controller := self._controllers.get(node)) is None:
            return 0
        status = controller.status
        return CLOSED_LEVEL if status.state == "closed-by-us" else status.level or 0

    @property
    def errors(self) -> int:
        """Calls to the scheduler that failed, over all nodes."""
        return int(self._left["errors"]) + sum(
            controller.status.errors for controller in self._controllers.values()
        )

    @property
    def last_error(self) -> str:
        """What the scheduler last answered to a node that cannot reach it."""
        return next((k.status.last_error for k in self._controllers.values() if k.status.last_error), "")

    def status(self) -> dict[str, Any]:
        """Return where each node stands with the scheduler, and the sums over all."""
        statuses = [controller.status for controller in self._controllers.values()]
        found: dict[str, Any] = {
            "gate": self.gate.name,
            "mode": "enforce" if self.rules.enforce else "shadow",
            "veto": vetoes(self.gate, self.rules),
            "refusing": sum(status.state == "closed-by-us" for status in statuses),
            "levels": dict(sorted(Counter(s.level for s in statuses if s.level is not None).items())),
            "held_open": sum(bool(status.held_open) for status in statuses),
            "nodes_beyond": self._beyond,
        }
        for what in SUMS:
            total = self._left[what] + sum(getattr(status, what) for status in statuses)
            found[what] = plain(total) if what == "refused_seconds" else int(total)
        if len(statuses) <= 64:
            found["nodes"] = [{k: plain(v) for k, v in asdict(s).items()} for s in statuses]
        return found

    def close(self) -> None:
        """Open what is ours, and stop."""
        if self._controllers:
            # Side by side: a scheduler that hangs is waited for once, not once per node.
            with ThreadPoolExecutor(min(32, len(self._controllers))) as hands:
                list(hands.map(lambda controller: controller.close(timeout=5.0), self._controllers.values()))
