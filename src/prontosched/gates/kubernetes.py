"""The taint gate: nodes that expect contention bear `pronto.io/reject`, and new pods go elsewhere.

`KubernetesGate` writes the taint `PreferNoSchedule` from a middle level on (the preference),
`NoSchedule` (the veto) and the node condition `CPUContended`. `ConditionWriter` writes the
condition `ProntoAccepting` for the extender. Pods that tolerate the taint, and pods that
already run, are not affected.

The taint's value is a short form of the reason, because that is what `kubectl describe
pod` shows; the whole reason, the score, the expiry and the rank are annotations.
"""

from __future__ import annotations

import logging
import math
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from prontosched.errors import IntegrationError
from prontosched.gates.gate import (
    DAMAGED_RANK,
    Observed,
    Rank,
    Verdict,
    clock_text,
    label,
    rank_text,
    read_clock,
    read_rank,
)
from prontosched.gates.kubernetes_client import STRATEGIC, ApiError, ApiServer
from prontosched.gates.sweep import sweep

log = logging.getLogger(__name__)

KEY = "pronto.io/reject"
REASON = "pronto.io/reason"
VALID_UNTIL = "pronto.io/valid-until"
SCORE = "pronto.io/score"
RANK = "pronto.io/rank"
ANNOTATIONS = (REASON, VALID_UNTIL, SCORE)
CONTENDED_CONDITION = "CPUContended"
ACCEPTING_CONDITION = "ProntoAccepting"
# From this level on the scheduler is asked to prefer other nodes.
PREFER_LEVEL = 2
# From this level on another job is expected to meet contention.
CONTENDED_LEVEL = 3
ATTEMPTS = 6
# Nodes that are read at a time beside a server: while a page is parsed, nobody is answered (250 take 50 ms).
SHORT_PAGE = 25

Node = Mapping[str, Any]
Patch = dict[str, Any]

# Set by Kubernetes itself when a node is cordoned or ill. Other taints (`dedicated=gpu`)
# only say for whom a node is; such a node is open, and may refuse like any other.
_CLOSING = "node.kubernetes.io/"
# Newer schedulers do not say which taint keeps a pod away.
_UNNAMED_TAINT = "untolerated taint(s)"
_WAITING = "/api/v1/pods?fieldSelector=" + quote("status.phase=Pending,spec.nodeName=") + "&limit=500"


class KubernetesGate:
    """Rank nodes, and refuse pods, by taints and a condition of our own.

    The API server is found by itself in a pod or from `PRONTO_KUBERNETES_URL`, unless settings
    name its `url`. The list of taints can only be replaced as a whole, so every change is made
    against the version that was read; when someone else was faster (409), it is read again.
    Needs the rights `get` and `patch` on `nodes` and `patch` on `nodes/status`; to close
    nodes also `list` on `nodes` (the floor) and `list` on `pods` (who waits).
    """

    name = "kubernetes"
    level_seconds = 60.0
    marks_calm = True

    def __init__(
        self,
        api: ApiServer | None = None,
        *,
        url: str = "",
        token_file: str = "",
        ca_file: str = "",
        timeout_seconds: float = 5.0,
    ) -> None:
        if api is None and url:
            api = ApiServer(
                url,
                token_file=Path(token_file) if token_file else None,
                ca_file=Path(ca_file) if ca_file else None,
            )
        self.api = api or ApiServer.find()
        self.api.timeout_seconds = timeout_seconds
        self._left_out: set[str] = set()

    @staticmethod
    def present() -> bool:
        """Tell whether this runs in a pod with an account, or is told of an API server."""
        return ApiServer.named()

    @staticmethod
    def missing(**options: Any) -> str:
        """Return what is missing to reach an API server, empty where nothing is."""
        if options.get("url") or ApiServer.named():
            return ""
        return "an API server must be named, got none: run in a pod with an account, or give url=URL"

    def observe(self, node: str) -> Observed:
        """Return whether `node` is open, ours, or closed by an administrator or by Kubernetes."""
        return observed(self.api.node(node))

    def refuse(self, node: str, verdict: Verdict) -> None:
        """Taint `node`, or renew reason and expiry where it bears our taint already."""
        self._change(node, lambda found: refusing(found, verdict))

    def accept(self, node: str) -> None:
        """Take our veto off `node`; its rank and everyone else's taints stay."""
        self._change(node, accepting)

    def prefer(self, node: str, rank: Rank, verdict: Verdict) -> None:
        """Write the rank and the condition of `node`, and the taint that goes with its level."""
        found = self._change(node, lambda found: preferring(found, rank, verdict.reason))
        self.api.patch_node(node, contention(found, rank, verdict), kind=STRATEGIC, status=True)

    def restore(self, node: str) -> None:
        """Take our rank, its taint and the condition off `node`."""
        found = self._change(node, lambda found: preferring(found, None, ""))
        if RANK in _annotations(found) or _condition(found, CONTENDED_CONDITION) is not None:
            gone = {"type": CONTENDED_CONDITION, "$patch": "delete"}
            change = {"metadata": {"annotations": {RANK: None}}, "status": {"conditions": [gone]}}
            self.api.patch_node(node, change, kind=STRATEGIC, status=True)

    def starved(self) -> bool:
        """Tell whether a pod waits that our veto keeps from a node, as far as its scheduler says which."""
        for pod in self.api.items(_WAITING):
            placed = _condition(pod, "PodScheduled") or {}
            message = str(placed.get("message"))
            if placed.get("status") == "False" and (KEY in message or _UNNAMED_TAINT in message):
                return True
        return False

    def owned(self) -> list[str]:
        """Return every node of the cluster that bears a taint or a rank of ours."""
        return sorted(name for name, one in self.observe_all().items() if one.marked)

    def observe_all(self) -> dict[str, Observed]:
        """Return what the scheduler says about every node, in one call."""
        found: dict[str, Observed] = {}
        odd: set[str] = set()
        for node in self.api.nodes():
            try:
                found[str(node["metadata"]["name"])] = observed(node)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                # One node that cannot be read hides no other.
                odd.add(words := str(node)[:80])
                if words not in self._left_out:
                    log.warning("left out, for it cannot be read (%r): %s", error, words)
        self._left_out = odd
        return found

    def _change(self, node: str, change: Callable[[Node], Patch | None]) -> Node:
        """Read, change and write back, again whenever someone else wrote in between; return the node."""
        for attempt in range(ATTEMPTS):
            found = self.api.node(node)
            wanted = change(found)
            if wanted is None:
                return found
            try:
                return self.api.patch_node(node, wanted)
            except ApiError as error:
                if error.status != 409:
                    raise
            # Whoever was faster may be another agent in the same race: step apart.
            time.sleep(random.uniform(0.0, 0.02 * 2**attempt))
        raise IntegrationError(
            f"node {node} was changed by others {ATTEMPTS} times while its taints were written: will retry"
        )


def observed(node: Node) -> Observed:
    """Read from a Node object who keeps pods away from it, if anyone, and its rank.

    A node that bears our taint is ours even when it is cordoned as well: taking our
    taint off leaves it cordoned.

    Examples
    --------
    >>> observed({"metadata": {"name": "n1"}, "spec": {"unschedulable": True}}).state
    'closed-by-other'
    """
    return replace(_closure(node), rank=_rank(node))


def refusing(node: Node, verdict: Verdict) -> Patch | None:
    """Return the patch that closes `node`, or renews our mark; None to leave it alone."""
    if observed(node).state == "closed-by-other":
        return None
    notes = {
        REASON: label(verdict),
        VALID_UNTIL: clock_text(verdict.valid_until),
        SCORE: f"{verdict.score:.4g}",
    }
    if _has(node, "NoSchedule"):
        # The taint stays as it is: a new value would only wake the scheduler for nothing.
        return _guarded(node, notes)
    ours = {"key": KEY, "value": slug(verdict.reason), "effect": "NoSchedule"}
    return _guarded(node, notes, [*_taints(node), ours])


def accepting(node: Node) -> Patch | None:
    """Return the patch that takes our veto off `node`; None when there is none."""
    notes = {key: None for key in ANNOTATIONS if key in _annotations(node)}
    if _has(node, "NoSchedule"):
        return _guarded(node, notes, _without(node, "NoSchedule"))
    return _guarded(node, notes) if notes else None


def preferring(node: Node, rank: Rank | None, reason: str) -> Patch | None:
    """Return the patch that puts the taint of a rank on `node`, or takes it off; None where it is so."""
    wanted = rank is not None and rank.level >= PREFER_LEVEL
    if _has(node, "PreferNoSchedule") == wanted:
        return None
    others = _without(node, "PreferNoSchedule")
    ours = {"key": KEY, "value": slug(reason), "effect": "PreferNoSchedule"}
    return _guarded(node, {}, [*others, ours] if wanted else others)


def contention(node: Node, rank: Rank, verdict: Verdict) -> Patch:
    """Return the patch of a node's status that tells whether its CPUs are contended, and its rank.

    True means that another pod is expected to wait for CPUs that others use. Unlike CPU
    pressure (PSI) it leaves out what a quota holds back.
    """
    contended = rank.level >= CONTENDED_LEVEL
    before = _condition(node, CONTENDED_CONDITION)
    condition = _condition_patch(
        CONTENDED_CONDITION,
        contended,
        "ContentionExpected" if contended else "NoContentionExpected",
        verdict.reason,
    )
    if before is not None and before.get("status") == condition["status"]:
        del condition["lastTransitionTime"]
    return {"metadata": {"annotations": {RANK: rank_text(rank)}}, "status": {"conditions": [condition]}}


def slug(reason: str) -> str:
    """Return `reason` as Kubernetes allows it for the value of a taint: 63 plain characters.

    Examples
    --------
    >>> slug("CPU Ready expected at 12.5 %")
    'cpu-ready-expected-at-12.5'
    """
    plain = re.sub(r"[^a-z0-9._]+", "-", reason.lower())
    return plain[:63].strip("-._") or "refused"


def _closure(node: Node) -> Observed:
    """Return whether the node is closed, and by whom."""
    if _has(node, "NoSchedule"):
        notes = _annotations(node)
        # A taint of ours whose notes are gone or altered is still ours; without an expiry
        # that can be read it counts as lapsed, and any watchdog may take it off.
        until = read_clock(str(notes.get(VALID_UNTIL, "")))
        try:
            score = float(notes[SCORE])
        except (KeyError, ValueError):
            until = score = math.nan
        return Observed("closed-by-us", str(notes.get(REASON, "")), score=score, valid_until=until)
    if (node.get("spec") or {}).get("unschedulable"):
        return Observed("closed-by-other", "cordoned")
    for taint in _taints(node):
        closes = taint.get("effect") in ("NoSchedule", "NoExecute")
        if closes and str(taint.get("key", "")).startswith(_CLOSING):
            return Observed("closed-by-other", f"tainted {taint['key']}")
    return Observed("open")


def _rank(node: Node) -> Rank | None:
    text = _annotations(node).get(RANK)
    if text is not None:
        return read_rank(str(text))
    # A taint or a condition whose note is gone is still ours, and has lapsed.
    left = _condition(node, CONTENDED_CONDITION) is not None or _has(node, "PreferNoSchedule")
    return DAMAGED_RANK if left else None


def _condition(found: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return the condition of a kind of a node or a pod."""
    conditions = (found.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one.get("type") == kind), None)


def _condition_patch(kind: str, status: bool, reason: str, message: str) -> Patch:
    # Conditions merge by their type: nobody else's are touched, and no version is needed.
    now = clock_text(time.time())
    return {
        "type": kind,
        "status": str(status),
        "reason": reason,
        "message": f"pronto: {message}"[:1000],
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }


def _guarded(node: Node, notes: Mapping[str, str | None], taints: list[Any] | None = None) -> Patch:
    version = node["metadata"]["resourceVersion"]
    change: Patch = {"metadata": {"resourceVersion": version, "annotations": dict(notes)}}
    if taints is not None:
        change["spec"] = {"taints": taints}
    return change


def _has(node: Node, effect: str) -> bool:
    """Tell whether the node bears our taint with this effect."""
    return len(_without(node, effect)) < len(_taints(node))


def _without(node: Node, effect: str) -> list[Any]:
    return [one for one in _taints(node) if (one.get("key"), one.get("effect")) != (KEY, effect)]


def _taints(node: Node) -> list[Any]:
    return list((node.get("spec") or {}).get("taints") or [])


def _annotations(node: Node) -> Mapping[str, Any]:
    return (node.get("metadata") or {}).get("annotations") or {}


class RefusalChange(NamedTuple):
    """A node began to refuse, or opened again."""

    node: str
    refuse: bool
    reason: str


def cpu_quantity(text: object) -> float:
    """Read CPUs as Kubernetes writes them; 0 where that cannot be read.

    Examples
    --------
    >>> cpu_quantity("500m"), cpu_quantity("2"), cpu_quantity(None)
    (0.5, 2.0, 0.0)
    """
    words = str(text or "0")
    try:
        found = float(words[:-1]) / 1000.0 if words.endswith("m") else float(words)
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0


class ConditionWriter:
    """Write an extender's refusals to the nodes' condition `ProntoAccepting`, and take it off where they end.

    `kubectl describe node` shows why a node refuses. A node that opens again is a Node event, at
    which the scheduler tries pods again that wait. Needs the rights `list` on `nodes` and `patch`
    on `nodes/status`; to take off lapsed taints also `get` and `patch` on `nodes`.
    """

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.cpus: dict[str, float] = {}
        self._closed: set[str] = set()

    def announce(self, changes: Iterable[RefusalChange]) -> None:
        """Write each change; those that fail are raised at the end, and written with the next `refresh`."""
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

        A condition on a node that does not refuse was left by an extender
        that is gone, or could not be undone before. Taints and ranks of agents that have
        lapsed are taken off. How many CPUs each node has is kept in `cpus`.
        """
        gate = KubernetesGate(self.api, timeout_seconds=self.api.timeout_seconds)
        now = time.time()
        addresses, left, lapsed = {}, [], []
        self.cpus.clear()
        for node in self.api.nodes(page=SHORT_PAGE):
            name = str(node["metadata"]["name"])
            seen, status = observed(node), node.get("status") or {}
            if seen.lapsed(now) or (seen.rank is not None and seen.rank.expired(now)):
                lapsed.append(name)
            if seen.state != "closed-by-other":
                internal = (a for a in status.get("addresses") or [] if a.get("type") == "InternalIP")
                addresses[name] = next((str(one["address"]) for one in internal), "")
                self.cpus[name] = cpu_quantity((status.get("allocatable") or {}).get("cpu"))
            if _condition(node, ACCEPTING_CONDITION) is not None and not refusing(name):
                left.append(name)
        for name in lapsed:
            log.info("node %s: taking off what an agent left and what has lapsed", name)
            for words in sweep(gate, now=now, node=name).failed.values():
                log.warning("node %s stays tainted for now: %s", name, words)
        self.announce(RefusalChange(name, False, "nothing refuses any longer") for name in left)
        return addresses

    def release(self) -> None:
        """Undo every condition that this writer set and has not undone yet."""
        self.announce(RefusalChange(name, False, "the extender has stopped") for name in sorted(self._closed))

    def _write(self, node: str, *, refuse: bool, message: str) -> None:
        condition: Patch = {"type": ACCEPTING_CONDITION, "$patch": "delete"}
        if refuse:
            condition = _condition_patch(ACCEPTING_CONDITION, False, "Refusing", message)
        self.api.patch_node(node, {"status": {"conditions": [condition]}}, kind=STRATEGIC, status=True)
        (self._closed.add if refuse else self._closed.discard)(node)
