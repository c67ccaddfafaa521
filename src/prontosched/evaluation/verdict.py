"""What the numbers say, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from prontosched.evaluation.methods import Method
from prontosched.evaluation.study import VARIANTS, Study


def verdict(study: Study) -> str:
    """Say which methods are better than their null, and which better than current CPU Ready."""
    if not study.nodes:
        return "Nothing could be scored: no node has enough moments whose future is known."
    if not any(node.spikes for node in study.nodes):
        return "There is no spike in these traces: nothing to foretell, and every refusal was one too many."
    found = study.better_than_null["recall"]
    beats = _listed([method.label for method in named(study) if method.name in found])
    at = f"{study.setting.budget:.0%} downtime"
    first = (
        f"At {at}, better than the same signal shifted in time: {beats}"
        if beats
        else f"At {at}, no method is better than the same signal shifted in time"
    )
    if "ready" not in study:
        return f"{first}."
    better = _listed([method.label for method in named(study) if method.name in study.better_than_ready])
    second = f"better than current CPU Ready: {better}" if better else "none is better than current CPU Ready"
    return f"{first}; {second}."


def anticipation(study: Study) -> str:
    """Say which methods foretell contention out of quiet."""
    if not study.nodes:
        return ""
    found = study.better_than_null["quiet"]
    better = _listed([method.label for method in named(study) if method.name in found])
    if not better:
        return "Out of quiet, no method foretells contention better than chance."
    return f"Out of quiet (CPU Ready still below its threshold), better than chance: {better}."


def named(study: Study) -> list[Method]:
    """Return the methods a verdict names: no variants of another."""
    return [m for m in study.methods if m.family != "sweep" and m.name not in VARIANTS]


def _listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
