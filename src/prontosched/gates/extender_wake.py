"""Tell Kubernetes what an extender did, so that pods that wait are looked at again.

Covers: the node condition `ProntoAccepting`, by which a node that opens again becomes a
Node event (without one, pods that an extender refused stay pending) and by which
`kubectl describe node` shows why a node refuses; undoing conditions left by an extender
that died, and taints left by agents that did.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from prontosched.errors import IntegrationError
from prontosched.gates.extender import cpu_quantity
from prontosched.gates.extender_ledger import Change
from prontosched.gates.kubernetes import KubernetesGate, observed
from prontosched.gates.kubernetes_client import STRATEGIC, ApiServer
from prontosched.gates.sweep import sweep

log = logging.getLogger(__name__)

CONDITION = "ProntoAccepting"


class Waker:
    """Write changes of the ledger to the nodes' conditions.

    Needs the rights `list` on `nodes` and `patch` on `nodes/status`; to take off lapsed
    taints also `get` and `patch` on `nodes`.

    Parameters
    ----------
    api
        The API server.
    """

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.cpus: dict[str, float] = {}
        self._closed: set[str] = set()

    def announce(self, changes: Iterable[Change]) -> None:
        """Write each change; one node that fails does not keep the others waiting.

        Raises
        ------
        IntegrationError
            At least one change could not be written; tried again with the next `refresh`.
        """
        failed = []
        for change in changes:
            try:
                self._write(change.node, refuse=change.refuse, message=change.reason)
            except IntegrationError as error:
                failed.append(f"{change.node}: {error}")
        if failed:
            raise IntegrationError(f"{len(failed)} nodes could not be told, first {failed[0]}")

    def refresh(self, refusing: Callable[[str], bool]) -> dict[str, str]:
        """Bring left-over marks in line, and return the nodes in service with their addresses.

        A condition that says False on a node that does not refuse was left by an extender
        that is gone, or could not be undone before. Taints and ranks of agents that have
        lapsed are taken off. How many CPUs each node has is kept in `cpus`.

        Parameters
        ----------
        refusing
            Tells whether a node refuses now.
        """
        gate = KubernetesGate(self.api, timeout_seconds=self.api.timeout_seconds)
        addresses, left, lapsed = {}, [], []
        self.cpus.clear()
        for node in self.api.nodes():
            name = str(node["metadata"]["name"])
            seen = observed(node)
            if seen.lapsed(time.time()) or (seen.rank is not None and seen.rank.expired(time.time())):
                lapsed.append(name)
            if seen.state != "closed-by-other":
                addresses[name] = _internal(node)
                self.cpus[name] = cpu_quantity(_allocatable(node))
            if _says_closed(node) and not refusing(name):
                left.append(name)
        for name in lapsed:
            log.info("node %s: taking off what an agent left and what has lapsed", name)
            try:
                sweep(gate, now=time.time(), node=name)
            except IntegrationError as error:
                log.warning("node %s stays tainted for now: %s", name, error)
        self.announce([Change(name, False, "nothing refuses any longer", 0.0) for name in left])
        return addresses

    def release(self) -> None:
        """Undo every condition that this waker wrote and has not undone yet."""
        self.announce([Change(name, False, "the extender has stopped", 0.0) for name in sorted(self._closed)])

    def _write(self, node: str, *, refuse: bool, message: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": CONDITION,
            "status": "False" if refuse else "True",
            "reason": "Refusing" if refuse else "Accepting",
            "message": f"pronto: {message}"[:1000],
            "lastTransitionTime": now,
            "lastHeartbeatTime": now,
        }
        # Conditions merge by their type: nobody else's are touched, and no version is needed.
        self.api.patch_node(node, {"status": {"conditions": [condition]}}, kind=STRATEGIC, status=True)
        (self._closed.add if refuse else self._closed.discard)(node)


def _says_closed(node: Mapping[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(one.get("type") == CONDITION and one.get("status") == "False" for one in conditions)


def _allocatable(node: Mapping[str, Any]) -> object:
    return ((node.get("status") or {}).get("allocatable") or {}).get("cpu")


def _internal(node: Mapping[str, Any]) -> str:
    addresses = (node.get("status") or {}).get("addresses") or []
    return next((str(one["address"]) for one in addresses if one.get("type") == "InternalIP"), "")
