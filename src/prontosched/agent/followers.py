"""What is told of every tick beside the federation: gate, probe, service manager, log of changes."""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from prontosched.agent.loop import Agent
from prontosched.agent.record import plain
from prontosched.agent.store.decision_log import CLOSED_LEVEL
from prontosched.gates.controller import Controller, Dispatcher, vetoes
from prontosched.gates.gate import Gate, LeaseTable, Verdict, chance
from prontosched.gates.policy import Rules
from prontosched.gates.preference import CONTENDED
from prontosched.telemetry.probe import Probe, runs_on
from prontosched.telemetry.source import Source

LOG = logging.getLogger("prontosched.agent")
# A watchdog allows at least so many ticks. After three without a decision the agent itself says what is wrong.
WATCHDOG_TICKS = 4
SUMS = ("refusals", "withheld", "rankings", "errors", "refused_seconds")
# What was learned is saved after this, and service managers wait only so long for a process to end.
LONGEST_CLOSING_SECONDS = 20.0
# Lines that one timestep may log.
MOST_LINES = 20


class GateFollower:
    """Hand every answer to a controller of its node, which calls the scheduler outside the loop.

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
        self._dispatcher = Dispatcher(gate)
        self._controllers: dict[str, Controller] = {}
        # Sums over nodes that have left.
        self._left = dict.fromkeys(SUMS, 0.0)

    async def follow(self, agent: Agent) -> None:
        """Hand over the answers of all nodes."""
        now = agent.wall()
        for node in list(agent.nodes):
            name = node.name
            found = agent.answer(name, own=True)
            if name not in self._controllers:
                self._controllers[name] = Controller(
                    self.gate,
                    self._name_of(name),
                    rules=self.rules,
                    leases=self._leases,
                    dispatcher=self._dispatcher,
                )
            # Old telemetry says nothing of the present: then only the stated policy counts.
            score = chance(None if found.stale else found.probability, refuse=not found.accept)
            if not found.accept and found.announced_cpus:
                # What is only announced ranks the node as contended, and never closes it.
                score = max(score, CONTENDED)
                found = agent.answer(name, own=True, jobs=False)
            verdict = Verdict(not found.accept, score, found.reason, now + self.rules.valid_seconds)
            self._controllers[name].apply(verdict, now)
            await agent.give_way()
        if len(self._controllers) > len(agent.nodes):
            self._part(set(agent.nodes.names))

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
            "refusing": sum(status.state in ("closed-by-us", "would-be-closed") for status in statuses),
            "levels": dict(sorted(Counter(s.level for s in statuses if s.level is not None).items())),
            "held_open": sum(bool(status.held_open) for status in statuses),
        }
        for what in SUMS:
            total = self._left[what] + sum(getattr(status, what) for status in statuses)
            found[what] = plain(total) if what == "refused_seconds" else int(total)
        if len(statuses) <= 64:
            found["nodes"] = [plain(asdict(status)) for status in statuses]
        return found

    def close(self) -> None:
        """Open what is ours, closed nodes first, and stop; a scheduler that hangs or is slow does not keep us."""
        for controller in sorted(
            self._controllers.values(), key=lambda one: one.status.state != "closed-by-us"
        ):
            controller.close(timeout=0.0)
        if not self._dispatcher.join(5.0, longest=LONGEST_CLOSING_SECONDS):
            LOG.warning("gate %s is too slow to undo all marks now: they end by themselves", self.gate.name)


class ProbeFollower:
    """Poll a probe at every timestep, which never waits, and count what it finds."""

    name = "probe"

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def follow(self, agent: Agent) -> None:
        """Take what the last probe found, and start the next when it is due."""
        if (node := agent.nodes.only) is None:
            return
        found = agent.answer()
        state = "" if found.stale else found.state
        probed = self.probe.poll(agent.pace.clock(), ready=found.cpu_ready_percent, state=state)
        if probed is not None:
            node.probes.note(probed.state, probed.slowdown)

    def status(self) -> dict[str, Any]:
        """Return the last slowdown and how often it runs."""
        return {
            "slowdown": plain(self.probe.last.slowdown),
            "state": self.probe.last.state,
            "probes": self.probe.count,
            "held_back": self.probe.held_back,
            "every_seconds": self.probe.wait_seconds,
            "note": self.probe.note,
        }

    def close(self) -> None:
        """End the probe's thread."""
        self.probe.close()


def make_probe(source: Source) -> ProbeFollower | None:
    """Return a probe of the machine that a source reads; None where that is not the agent's own."""
    prepare, root = getattr(source, "exclude_thread", None), getattr(source, "root", None)
    if prepare is None or root is None or not runs_on(root):
        return None
    return ProbeFollower(Probe(root, prepare=prepare))


def probe_view(agent: Agent) -> dict[str, Any]:
    """Return the probe's record and last result, or why there is none, as plain values."""
    follower = next((one for one in agent.followers if isinstance(one, ProbeFollower)), None)
    if follower is None:
        source = agent.reader.source
        note = "no probe runs: it is turned off, or the machine that is read is another one"
        if not hasattr(source, "exclude_thread"):
            note = (
                f"no probe runs: it measures the agent's own machine, and source {source.name} reads others"
            )
        return {"running": False, "note": note, "record": None, "last": None}
    record = agent.nodes.only.probes.figures() if agent.nodes.only is not None else None
    return {"running": True, "note": follower.probe.note, "record": record, "last": follower.status()}


class ServiceManager:
    """Tell a service manager how the agent does: ready, alive, stopping; nothing where none listens.

    This is systemd's notification protocol: one datagram to the socket it names.
    """

    name = "service-manager"

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "").replace("@", "\0", 1)
        given = environment.get("WATCHDOG_USEC", "")
        self._watchdog = int(given) if given.isdecimal() else 0
        self._ready = False
        self.sent = self.errors = 0
        self.last_error = ""

    def follow(self, agent: Agent) -> None:
        """Say what the agent answers; one that is not healthy says why, and not that it lives, to be restarted."""
        if not self._address:
            return
        found = None if len(agent.nodes) > 1 else agent.answer()
        line = f"{len(agent.nodes)} nodes"
        if found is not None:
            line = f"{found.state}: {' '.join(found.full_reason.split())[:200]}"
        trouble = agent.health.trouble
        words = [] if self._ready else ["READY=1", *self._patience(agent.pace.interval_seconds)]
        words += [f"STATUS=not deciding: {trouble}"[:257]] if trouble else ["WATCHDOG=1", f"STATUS={line}"]
        self._send("\n".join(words))
        self._ready = True

    def _patience(self, interval_seconds: float) -> list[str]:
        """Ask for a watchdog that outlasts the ticks: at a minute apart it would end an agent that is well."""
        wanted = int(1e6 * WATCHDOG_TICKS * interval_seconds)
        return [f"WATCHDOG_USEC={wanted}"] if 0 < self._watchdog < wanted else []

    def status(self) -> dict[str, Any]:
        """Return how many notes were sent."""
        return {"sent": self.sent}

    def close(self) -> None:
        """Say that the agent is stopping."""
        if self._address:
            self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        """Send one note; that nobody takes it is counted, and is no reason to call the agent unhealthy."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(text.encode(), self._address)
        except OSError as error:
            self.errors, self.last_error = self.errors + 1, str(error)
            if self.errors == 1:
                LOG.warning("the service manager at NOTIFY_SOCKET cannot be told: %s", error)
        else:
            self.sent += 1


class ChangeLog:
    """Log every change of a node's state, with its reason. Memory: one word per node."""

    name = "changes"

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self.logged = 0

    def follow(self, agent: Agent) -> None:
        """Log the changes of the timestep just made."""
        nodes = agent.nodes if agent.logs_every_decision else agent.nodes.changed
        found = [change for node in nodes if (change := self._change(agent, node.name))]
        for change in found[:MOST_LINES]:
            states = [state for state in (change["previous_state"], change["state"]) if state]
            line = f"{change['node']}: {' -> '.join(states)}: {change['reason']}"
            LOG.info("%s", line, extra={"change": change})
        if len(found) > MOST_LINES:
            LOG.info("%d more nodes changed their state", len(found) - MOST_LINES)
        self.logged += len(found)
        if len(self._states) > 2 * len(agent.nodes) + MOST_LINES:
            self._states = {name: state for name, state in self._states.items() if name in agent.nodes}

    def status(self) -> dict[str, Any]:
        """Return how many changes were seen."""
        return {"logged": self.logged}

    def close(self) -> None:
        """Do nothing: there is nothing to let go."""

    def _change(self, agent: Agent, name: str) -> dict[str, Any] | None:
        """Return a change of state as plain values; its previous state is None at a node's first decision."""
        answer, before = agent.answer(name), self._states.get(name)
        if answer.state == before:
            return None
        self._states[name] = answer.state
        return {
            "node": name,
            "state": answer.state,
            "previous_state": before,
            "probability": plain(answer.probability),
            "cpu_ready_percent": plain(answer.cpu_ready_percent),
            "reason": answer.reason,
        }
