"""Run probes beside the loop, and show what they found.

The probe itself is `prontosched.telemetry.probe`, the record of what it found `probe_record`.
"""

from __future__ import annotations

from typing import Any

from prontosched.agent.loop import Agent
from prontosched.agent.record import plain
from prontosched.telemetry.probe import Probe, Probed, runs_on
from prontosched.telemetry.source import Source


class ProbeFollower:
    """Run a probe beside the loop and count what it finds.

    Parameters
    ----------
    probe
        Polled at every timestep; it never waits.
    """

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

    @property
    def last(self) -> Probed:
        """What the last probe found; a slowdown of NaN before the first."""
        return self.probe.last

    def status(self) -> dict[str, Any]:
        """Return the last slowdown and how often it runs."""
        return {
            "slowdown": plain(self.last.slowdown),
            "state": self.last.state,
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
        own = hasattr(agent.reader.source, "exclude_thread")
        note = (
            "no probe runs: it is turned off, or the machine that is read is another one"
            if own
            else f"a probe tells of the machine that the agent runs on; source {agent.reader.source.name} has others"
        )
        return {"running": False, "note": note, "record": None, "last": None}
    record = agent.nodes.only.probes.figures() if agent.nodes.only is not None else None
    return {"running": True, "note": follower.probe.note, "record": record, "last": follower.status()}
