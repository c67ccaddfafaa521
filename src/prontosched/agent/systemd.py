"""Tell a service manager how the agent does: ready, alive, stopping.

Speaks systemd's notification protocol: one datagram to the socket it names.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from prontosched.agent.loop import Agent


class ServiceManager:
    """Follow the agent and pass its health on; does nothing where no manager listens."""

    name = "service-manager"

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "").replace("@", "\0", 1)
        self._ready = False
        self.sent = 0

    def follow(self, agent: Agent) -> None:
        """Say with what answer the loop ticks; ready from the first tick on.

        An agent that is not healthy says why and no longer that it lives, so that its manager
        starts it anew.
        """
        if not self._address:
            return
        found = None if len(agent.nodes) > 1 else agent.answer()
        line = f"{len(agent.nodes)} nodes" if found is None else _line(found.state, found.full_reason)
        trouble = agent.health.trouble
        words = ["STATUS=" + (f"not deciding: {trouble}"[:250] if trouble else line)]
        if not trouble:
            words.insert(0, "WATCHDOG=1")
        if not self._ready:
            words.insert(0, "READY=1")
        self._send("\n".join(words))
        self._ready = True

    def status(self) -> dict[str, Any]:
        """Return how many notes were sent."""
        return {"sent": self.sent}

    def close(self) -> None:
        """Say that the agent is stopping."""
        if self._address:
            self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(text.encode(), self._address)
        self.sent += 1


def _line(state: str, reason: str) -> str:
    return f"{state}: {' '.join(reason.split())[:200]}"
