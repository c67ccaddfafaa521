"""What a Kubernetes scheduler asks of an extender, and the answers: no clock, no socket.

Covers: reading `filter` and `prioritize` requests of old and new schedulers, answering
in the form that was asked for, never with a name that was not sent. Does not cover: who
is refused at present, `prontosched.gates.extender_ledger`; the server,
`prontosched.gates.extender_server`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prontosched.errors import IntegrationError
from prontosched.gates.gate import Verdict
from prontosched.gates.kubernetes import KEY

BEST = 10
# For a node nothing is known of: neither better nor worse than the others.
NEUTRAL = 5
MOST_NODES = 50_000
# What a pod that asks for no CPUs is taken to use, and the most that is believed.
USUAL_CPUS = 0.5
MOST_CPUS = 10_000.0


@dataclass(frozen=True, slots=True)
class Question:
    """Where the scheduler could put one pod, as it asks.

    Attributes
    ----------
    pod
        The Pod object.
    names
        The nodes in question, in the order they were sent.
    nodes
        The same as whole Node objects, when they came so; None when only names came.
    lower
        True when the keys came in lower case, as older schedulers write them.
    """

    pod: Mapping[str, Any]
    names: tuple[str, ...]
    nodes: tuple[Mapping[str, Any], ...] | None
    lower: bool

    @property
    def job(self) -> str:
        """A name by which the pod is known again when it is asked for twice."""
        metadata = self.pod.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        return str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}")[:300]

    @property
    def cpus(self) -> float:
        """The CPUs that the pod's containers ask for, or a guess where they ask for none."""
        spec = self.pod.get("spec")
        containers = spec.get("containers") if isinstance(spec, Mapping) else None
        asked = sum(_cpus(one) for one in (containers if isinstance(containers, list) else []))
        return asked if 0.0 < asked <= MOST_CPUS else USUAL_CPUS

    @property
    def tolerant(self) -> bool:
        """True when the pod tolerates our taint: the same word opts out of both gates."""
        spec = self.pod.get("spec")
        tolerations = spec.get("tolerations") if isinstance(spec, Mapping) else None
        return any(_tolerates(one) for one in (tolerations if isinstance(tolerations, list) else []))


def read_question(body: object) -> Question:
    """Read a request; keys may come as `NodeNames`, `nodeNames` or `nodenames`.

    Raises
    ------
    IntegrationError
        The request is not what a scheduler sends.
    """
    if not isinstance(body, Mapping):
        raise IntegrationError(f"a scheduler's request must be a JSON object, got {type(body).__name__}")
    fields = {key.lower(): value for key, value in body.items()}
    lower = "pod" in body or "nodenames" in body or "nodes" in body
    pod, names, nodes = fields.get("pod"), fields.get("nodenames"), fields.get("nodes")
    if not isinstance(pod, Mapping):
        raise IntegrationError(f"Pod must be an object, got {type(pod).__name__}")
    if names is not None:
        return Question(pod, _names(names), None, lower)
    if nodes is None:
        return Question(pod, (), None, lower)
    items = _items(nodes)
    return Question(pod, _names([_name_of(node) for node in items]), tuple(items), lower)


def filter_answer(question: Question, refusal: Callable[[str], Verdict | None]) -> dict[str, Any]:
    """Answer which of the nodes may take the pod, and why the others may not.

    Parameters
    ----------
    refusal
        Gives the verdict by which a node refuses; None where it does not.

    Notes
    -----
    Where every node that could take the pod refuses, none does: a pod is never kept
    waiting by us alone. Refusals are said to be unresolvable, so that no pod is evicted
    from a node for a passing burst; schedulers before 1.21 read the other map.
    """
    failed = {}
    if not question.tolerant:
        for name in question.names:
            if (verdict := refusal(name)) is not None:
                failed[name] = f"pronto: {verdict.reason}"
    if len(failed) == len(question.names):
        failed = {}
    if question.nodes is None:
        names, nodes = [name for name in question.names if name not in failed], None
    else:
        kept = [node for node in question.nodes if _name_of(node) not in failed]
        names, nodes = None, {"metadata": {}, "items": kept}
    if question.lower:
        unresolvable = {"failedAndUnresolvableNodes": failed}
        return {"nodenames": names, "nodes": nodes, "failedNodes": failed, **unresolvable, "error": ""}
    unresolvable = {"FailedAndUnresolvableNodes": failed}
    return {"NodeNames": names, "Nodes": nodes, "FailedNodes": failed, **unresolvable, "Error": ""}


def prioritize_answer(question: Question, chance: Callable[[str], float]) -> list[dict[str, Any]]:
    """Answer how well each node suits, from 0 to 10: the lower its chance of contention, the better.

    Parameters
    ----------
    chance
        Gives the chance of contention on a node; NaN where nothing is known of it.
    """
    host, score = ("host", "score") if question.lower else ("Host", "Score")
    return [{host: name, score: suitability(chance(name))} for name in question.names]


def suitability(chance: float) -> int:
    """Return 0 for a node that is sure to be contended, up to 10 for a calm one.

    Examples
    --------
    >>> suitability(math.nan), suitability(0.2)
    (5, 8)
    """
    return NEUTRAL if math.isnan(chance) else round(BEST * (1.0 - min(1.0, max(0.0, chance))))


def probable_places(answer: list[dict[str, Any]], cpus: float) -> dict[str, float]:
    """Return where the pod of an answer probably goes: its CPUs, shared by the nodes that suit best.

    Examples
    --------
    >>> probable_places([{"Host": "n1", "Score": 9}, {"Host": "n2", "Score": 9}, {"Host": "n3", "Score": 2}], 2.0)
    {'n1': 1.0, 'n2': 1.0}
    """
    rows = [tuple(row.values()) for row in answer]
    top = max((score for _, score in rows), default=0)
    best = [name for name, score in rows if score == top]
    return {name: cpus / len(best) for name in best}


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


def _tolerates(toleration: object) -> bool:
    if not isinstance(toleration, Mapping) or toleration.get("operator") != "Exists":
        return False
    return toleration.get("key") in (KEY, "", None) and toleration.get("effect") in ("NoSchedule", "", None)


def _cpus(container: object) -> float:
    """Return the CPUs that a container requests."""
    found: object = container
    for key in ("resources", "requests", "cpu"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return cpu_quantity(found)


def _names(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or len(names) > MOST_NODES or not all(isinstance(n, str) for n in names):
        raise IntegrationError(
            f"NodeNames must be a list of at most {MOST_NODES} names, got {str(names)[:80]}"
        )
    return tuple(names)


def _items(nodes: object) -> list[Mapping[str, Any]]:
    items = nodes.get("items", nodes.get("Items")) if isinstance(nodes, Mapping) else None
    if items is None and isinstance(nodes, Mapping):
        return []
    if not isinstance(items, list) or not all(isinstance(node, Mapping) for node in items):
        raise IntegrationError(f"Nodes must be a NodeList, got {str(nodes)[:80]}")
    return items


def _name_of(node: Mapping[str, Any]) -> object:
    metadata = node.get("metadata")
    return metadata.get("name") if isinstance(metadata, Mapping) else None
