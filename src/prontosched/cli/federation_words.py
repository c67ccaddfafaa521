"""The federation in words, whoever was asked: the bus itself or an agent on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prontosched.federation.overview import Overview
    from prontosched.federation.tree import Tree


def from_bus(seen: Overview, tree: Tree) -> dict[str, Any]:
    """Return an overview of the bus in the form in which agents answer, with all members."""
    from prontosched.federation.clash import clashing
    from prontosched.federation.overview import misplaced

    notes = []
    if seen.clashes:
        notes.append(clashing(seen.clashes))
    if seen.misplaced:
        notes.append(misplaced(seen.misplaced))
    if seen.denied:
        notes.append(f"this user may not read everything: {seen.denied}; the role viewer may")
    return {
        "joined": True,
        "embedded": False,
        "revision": seen.revision,
        "view_age_seconds": seen.view_age_seconds,
        "nodes": len(seen.nodes),
        "groups": [
            {name: getattr(group, name) for name in ("name", "nodes", "age_seconds", "refusing")}
            for group in seen.groups(tree)
        ],
        "members": [
            {
                name: getattr(row, name)
                for name in ("name", "distance", "age_seconds", "samples", "accept", "reason")
            }
            for row in seen.nodes
        ],
        "more": 0,
        "saved": seen.saved,
        "unreadable": seen.unreadable,
        "note": "\n".join(notes),
    }


def words(found: dict[str, Any], top: int) -> list[str]:
    """Return the lines for people: the tree, then members with the outliers first."""
    if not found["joined"]:
        return ["in no federation: this agent watches one node and was given no bus (--nats)"]
    view = "no global view yet"
    if found["revision"]:
        view = f"global view {found['revision']}, {found['view_age_seconds']:.0f} s old"
    lines = [f"{_count(found['nodes'])}, {view}"]
    groups = [group for group in found["groups"] if group["name"]]
    if not found["revision"] and found["embedded"]:
        lines.append("the first view is being made: nodes speak after ten vectors")
    elif not found["nodes"] and not groups and not found["note"]:
        lines.append("nobody has spoken yet: start `pronto agent --nats ADDRESS`, with the same group")
    elif not found["revision"] and not found["note"]:
        lines.append("nobody merges what nodes know yet: start `pronto aggregate --nats ADDRESS`")
    groups.sort(key=lambda group: group["name"].split("/"))
    lines += [_group(group) for group in groups[:top]]
    if len(groups) > top:
        lines.append(f"  and {len(groups) - top} more aggregators")
    lines += _members(found, top)
    saved = found["saved"]
    if saved["messages_sent"]:
        lines.append(
            f"epsilon saved {saved['messages_saved']} of {saved['messages_sent'] + saved['messages_saved']} "
            f"messages, {_size(saved['bytes_saved'])}"
        )
    if found["unreadable"]:
        lines.append(f"{found['unreadable']} messages on the bus cannot be read")
    if found["note"]:
        lines.append(found["note"])
    return lines


def _group(group: dict[str, Any]) -> str:
    refusing = f", {group['refusing']} refusing" if group["refusing"] else ""
    age = _seconds(group["age_seconds"])
    heard = "not heard yet" if age == "-" else f"{age} old"
    indent = "  " * (group["name"].count("/") + 1)
    return f"{indent}{group['name']}: {_count(group['nodes'])}{refusing}, {heard}"


def _members(found: dict[str, Any], top: int) -> list[str]:
    shown = found["members"][:top]
    lines = []
    if shown:
        width = max(4, *(len(row["name"]) for row in shown))
        lines.append(f"{'node':<{width}}  {'from view':>9}  {'age':>6}  {'samples':>8}  decision")
    for row in shown:
        apart = "-" if _unknown(row["distance"]) else f"{row['distance']:.3f}"
        decision = "unknown"
        if row["accept"] is not None:
            decision = f"{'accepts' if row['accept'] else 'refuses'}: {row['reason']}"
        lines.append(
            f"{row['name']:<{width}}  {apart:>9}  {_seconds(row['age_seconds']):>6}  "
            f"{row['samples']:>8.0f}  {decision}"
        )
    left = len(found["members"]) - len(shown) + found["more"]
    if left:
        lines.append(f"and {left} more")
    return lines


def _unknown(value: float | None) -> bool:
    return value is None or value != value


def _seconds(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.0f} s"


def _count(nodes: int) -> str:
    return f"{nodes} node{'' if nodes == 1 else 's'}"


def _size(length: int) -> str:
    return f"{length / 1e6:.1f} MB" if length >= 1e5 else f"{length / 1e3:.1f} kB"
