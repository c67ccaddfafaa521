"""What anything that is told of every timestep must do."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from prontosched.agent.loop import Agent


class Follower(Protocol):
    """Something told of every timestep: a federation, a gate, a watchdog. It returns at once.

    One that meets errors in a thread of its own counts them in `errors`, has the newest in
    `last_error`, and names them in the log itself.
    """

    name: str

    def follow(self, agent: Agent) -> Awaitable[None] | None:
        """Take note of the timestep that `agent` has just made; one with much to do is awaited."""
        ...

    def status(self) -> dict[str, Any]:
        """Return where it stands, as plain values for `/v1/status`."""
        ...

    def close(self) -> None:
        """Let go; called once, when the agent stops."""
        ...


@runtime_checkable
class NodeHolder(Protocol):
    """A follower that carries refusals out, and may leave a node open although it refuses."""

    @property
    def enforcing(self) -> bool:
        """Whether refusals are carried out at the scheduler; False in shadow mode."""
        ...

    def held_open(self, node: str) -> str:
        """Say why `node` is held open, for instance by the capacity floor; empty where it is not."""
        ...
