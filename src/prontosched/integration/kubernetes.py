"""The taint gate: a node that refuses bears `pronto.io/reject`, and new pods stay away.

Covers: what is written to a Node object and how it is told from what others wrote.
Pods that tolerate the taint, and pods that already run, are not affected. Does not
cover: the central way through the scheduler, `prontosched.integration.extender`;
speaking HTTP, `prontosched.integration.kubernetes_client`.

The taint's value is a short form of the reason, because that is what `kubectl describe
pod` shows; the whole reason, the score and the expiry are annotations of the node.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from prontosched.errors import IntegrationError, SettingsError
from prontosched.integration.gate import Census, Observed, Verdict, label
from prontosched.integration.kubernetes_client import ApiError, ApiServer

KEY = "pronto.io/reject"
REASON = "pronto.io/reason"
VALID_UNTIL = "pronto.io/valid-until"
SCORE = "pronto.io/score"
ANNOTATIONS = (REASON, VALID_UNTIL, SCORE)
ATTEMPTS = 6

Effect = Literal["NoSchedule", "PreferNoSchedule"]
Node = Mapping[str, Any]
Change = dict[str, Any]

# Set by Kubernetes itself when a node is cordoned or ill. Other taints (`dedicated=gpu`)
# only say for whom a node is; such a node is open, and may refuse like any other.
_CLOSING = "node.kubernetes.io/"


class KubernetesGate:
    """Refuse pods by a taint of our own on the node.

    Parameters
    ----------
    api
        The API server; found by itself in a pod, or from `PRONTO_KUBERNETES_URL`.
    effect
        `NoSchedule` refuses. `PreferNoSchedule` only asks: the scheduler still uses the
        node when there is no other.
    url, token_file, ca_file
        Instead of `api`, as settings give them.
    timeout_seconds
        Longest wait for the API server at any one point of a call.

    Notes
    -----
    The list of taints can only be replaced as a whole, so every change is made against
    the version that was read; when someone else was faster (409), it is read again.
    Needs the rights `get`, `list` and `patch` on `nodes`.
    """

    name = "kubernetes"

    def __init__(
        self,
        api: ApiServer | None = None,
        *,
        effect: Effect = "NoSchedule",
        url: str = "",
        token_file: str = "",
        ca_file: str = "",
        timeout_seconds: float = 5.0,
    ) -> None:
        if effect not in ("NoSchedule", "PreferNoSchedule"):
            raise SettingsError(f"effect must be NoSchedule or PreferNoSchedule, got {effect!r}")
        self.effect: Effect = effect
        if api is None and url:
            api = ApiServer(
                url,
                token_file=Path(token_file) if token_file else None,
                ca_file=Path(ca_file) if ca_file else None,
            )
        self.api = api or ApiServer.find()
        self.api.timeout_seconds = timeout_seconds

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
        self._change(node, lambda found: refusing(found, verdict, effect=self.effect))

    def accept(self, node: str) -> None:
        """Take our taint off `node`; everyone else's stay."""
        self._change(node, accepting)

    def owned(self) -> list[str]:
        """Return every node of the cluster that bears our taint."""
        return sorted(self.census().refusals)

    def census(self) -> Census:
        """Count the nodes in service and name those that bear our taint."""
        in_service, refusals = 0, {}
        for node in self.api.nodes():
            seen = observed(node)
            in_service += seen.state != "closed-by-other"
            if seen.ours:
                refusals[node["metadata"]["name"]] = seen
        return Census(in_service, refusals)

    def _change(self, node: str, change: Callable[[Node], Change | None]) -> None:
        """Read, change and write back, again whenever someone else wrote in between."""
        for attempt in range(ATTEMPTS):
            wanted = change(self.api.node(node))
            if wanted is None:
                return
            try:
                self.api.patch_node(node, wanted)
                return
            except ApiError as error:
                if error.status != 409:
                    raise
            # Whoever was faster may be another agent in the same race: step apart.
            time.sleep(random.uniform(0.0, 0.02 * 2**attempt))
        raise IntegrationError(
            f"node {node} was changed by others {ATTEMPTS} times while its taints were written: will retry"
        )


def observed(node: Node) -> Observed:
    """Read from a Node object who keeps pods away from it, if anyone.

    A node that bears our taint is ours even when it is cordoned as well: taking our
    taint off leaves it cordoned.

    Examples
    --------
    >>> observed({"metadata": {"name": "n1"}, "spec": {"unschedulable": True}}).state
    'closed-by-other'
    """
    taints = _taints(node)
    if any(_is_ours(taint) for taint in taints):
        return _own_mark(node)
    if (node.get("spec") or {}).get("unschedulable"):
        return Observed("closed-by-other", "cordoned")
    for taint in taints:
        closes = taint.get("effect") in ("NoSchedule", "NoExecute")
        if closes and str(taint.get("key", "")).startswith(_CLOSING):
            return Observed("closed-by-other", f"tainted {taint['key']}")
    return Observed("open")


def refusing(node: Node, verdict: Verdict, *, effect: Effect = "NoSchedule") -> Change | None:
    """Return the patch that closes `node`, or renews our mark; None to leave it alone."""
    if observed(node).state == "closed-by-other":
        return None
    text = label(verdict)
    notes = {
        REASON: text,
        VALID_UNTIL: text.rpartition("until ")[2].removesuffix(")"),
        SCORE: f"{verdict.score:.4g}",
    }
    taints = _taints(node)
    if any(_is_ours(taint) and taint["effect"] == effect for taint in taints):
        # The taint stays as it is: a new value would only wake the scheduler for nothing.
        return _guarded(node, notes)
    others = [taint for taint in taints if not _is_ours(taint)]
    ours = {"key": KEY, "value": slug(verdict.reason), "effect": effect}
    return _guarded(node, notes, [*others, ours])


def accepting(node: Node) -> Change | None:
    """Return the patch that takes our mark off `node`; None when there is none."""
    taints = _taints(node)
    kept = [taint for taint in taints if not _is_ours(taint)]
    notes = {key: None for key in ANNOTATIONS if key in _annotations(node)}
    if len(kept) == len(taints) and not notes:
        return None
    return _guarded(node, notes, kept if len(kept) < len(taints) else None)


def slug(reason: str) -> str:
    """Return `reason` as Kubernetes allows it for the value of a taint: 63 plain characters.

    Examples
    --------
    >>> slug("CPU Ready expected at 12.5 %")
    'cpu-ready-expected-at-12.5'
    """
    plain = re.sub(r"[^a-z0-9._]+", "-", reason.lower())
    return plain[:63].strip("-._") or "refused"


def _guarded(node: Node, notes: Mapping[str, str | None], taints: list[Any] | None = None) -> Change:
    version = node["metadata"]["resourceVersion"]
    change: Change = {"metadata": {"resourceVersion": version, "annotations": dict(notes)}}
    if taints is not None:
        change["spec"] = {"taints": taints}
    return change


def _own_mark(node: Node) -> Observed:
    notes = _annotations(node)
    # A taint of ours whose notes are gone or altered is still ours; without an expiry
    # that can be read it counts as lapsed, and any watchdog may take it off.
    try:
        until = datetime.strptime(str(notes[VALID_UNTIL]), "%Y-%m-%dT%H:%M:%S%z").timestamp()
        score = float(notes[SCORE])
    except (KeyError, ValueError):
        until = score = math.nan
    return Observed("closed-by-us", str(notes.get(REASON, "")), score=score, valid_until=until)


def _is_ours(taint: Mapping[str, Any]) -> bool:
    return taint.get("key") == KEY and taint.get("effect") in ("NoSchedule", "PreferNoSchedule")


def _taints(node: Node) -> list[Any]:
    return list((node.get("spec") or {}).get("taints") or [])


def _annotations(node: Node) -> Mapping[str, Any]:
    return (node.get("metadata") or {}).get("annotations") or {}
