"""`pronto federation`: the tree as it is now, and the keys of those who take part."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from prontosched.cli.options import Duration, asking_options, find


@click.group(invoke_without_command=True)
@click.option("--nats", metavar="ADDRESS", help="Bus to ask instead: nats://host:port/group?creds=FILE.")
@asking_options
@click.option("--top", type=click.IntRange(0), default=20, help="Nodes shown, outliers first.")
@click.option(
    "--wait", type=Duration(0.1), default="5s", metavar="TIME", help="How long to wait for the bus."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    ctx: click.Context, /, nats: str | None, top: int, wait: float, as_json: bool, **asked: Any
) -> None:
    """Show the federation: who is there, how old, how far from the global view.

    Asks the agent of this machine, or the bus itself with --nats.

    \b
    Example:
        pronto federation --nats nats://127.0.0.1:4222
    """
    if ctx.invoked_subcommand is not None:
        return
    if nats is not None:
        _ask_bus(nats, top, wait, as_json)
        return
    client, _ = find(**asked)
    if client is None:
        raise click.UsageError(
            "no agent answers on this machine: start one, or name the bus with --nats ADDRESS"
        )
    found = client.get("/v1/federation")
    click.echo(json.dumps(found) if as_json else "\n".join(_lines(found, top)))


@command.command()
@click.option(
    "--name", metavar="PLACE", help="Place to register, such as paris/rack7/n3.  [default: host name]"
)
@click.option(
    "--role",
    type=click.Choice(["node", "aggregator", "viewer"]),
    default="node",
    help="Whose key: the agent's, that of `pronto aggregate`, or one who only looks.",
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where the key lies.  [default: $XDG_STATE_HOME/pronto]",
)
@click.option("--renew", is_flag=True, help="Make the next key, which follows once it is registered.")
def keys(name: str | None, role: str, state: Path | None, renew: bool) -> None:
    """Print the line that registers this machine's public key.

    Makes the private key at the first call. Collect the lines of all machines in one file and
    give it to all: --nats nats://bus/group?keys=FILE.

    \b
    Example:
        pronto federation keys --name paris/rack7/n3
    """
    from prontosched.agent.store import default_folder
    from prontosched.federation.address import KEY_FILES
    from prontosched.federation.signing import next_path, read_identity

    path = (state or default_folder()) / KEY_FILES[role]
    found = read_identity(next_path(path) if renew else path)
    place = name or ("*" if role == "aggregator" else os.uname().nodename)
    click.echo(f"{role} {place} {found.public} {found.user}")


@command.command(short_help="Print the accounts of a nats-server, one user for each key.")
@click.option(
    "--keys",
    "path",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the registered keys.",
)
@click.option("--group", default="default", help="Name of the federation.")
@click.option("--depth", type=int, help="As in the address.")
@click.option("--shards", type=int, default=1, help="As in the address.")
def users(path: Path, group: str, depth: int | None, shards: int) -> None:
    """Print the accounts of a nats-server: one user for each registered key, with the least rights.

    \b
    Example:
        pronto federation users --keys keys --group prod > accounts.conf
    """
    from prontosched.federation.accounts import server_accounts
    from prontosched.federation.address import checked_group
    from prontosched.federation.signing import KeyRing
    from prontosched.federation.tree import Tree

    try:
        tree = Tree(depth=depth, shards=shards)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(server_accounts(KeyRing(path, tree).lines, checked_group(group), tree), nl=False)


def _ask_bus(address: str, top: int, wait: float, as_json: bool) -> None:
    from prontosched.federation.address import Address
    from prontosched.federation.monitor import plain_fields, take_snapshot
    from prontosched.federation.nats import NatsLink

    place = Address.parse(address)
    link = NatsLink(place, name="overview", quiet=True)
    try:
        seen = take_snapshot(link, tree=place.tree, seconds=wait)
    finally:
        link.close()
    found = seen.as_dict(place.tree, max_groups=sys.maxsize, max_members=sys.maxsize)
    notes = list(seen.warnings)
    if seen.denied:
        notes.append(f"this user may not read everything: {seen.denied}; the role viewer may")
    found |= {"joined": True, "embedded": False, "note": "\n".join(notes)}
    if not as_json:
        click.echo("\n".join(_lines(found, top)))
        return
    rows = [plain_fields(row) for row in seen.rows]
    click.echo(json.dumps({**found, "misplaced": seen.misplaced, "denied": seen.denied, "rows": rows}))


def _lines(found: dict[str, Any], top: int) -> list[str]:
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
            f"{saved['messages_saved']} of {saved['messages_sent'] + saved['messages_saved']} summaries were not "
            f"sent ({_size(saved['bytes_saved'])}): too little had changed"
        )
    if found["unreadable"]:
        lines.append(f"{found['unreadable']} messages on the bus cannot be read")
    if found["dropped"]:
        lines.append(f"{found['dropped']} messages were dropped: not rightly signed")
    if not found["signed"] and not found["embedded"]:
        lines.append("messages are not signed: whoever is on the bus can speak for anyone (docs/security.md)")
    if found["note"]:
        lines.append(found["note"])
    return lines


def _group(group: dict[str, Any]) -> str:
    refusing = f", {group['refusing']} refusing" if group["refusing"] else ""
    heard = "not heard yet" if group["age_seconds"] is None else f"{_seconds(group['age_seconds'])} old"
    indent = "  " * (group["name"].count("/") + 1)
    return f"{indent}{group['name']}: {_count(group['nodes'])}{refusing}, {heard}"


def _members(found: dict[str, Any], top: int) -> list[str]:
    shown = found["members"][:top]
    lines = []
    if shown:
        width = max(4, *(len(row["name"]) for row in shown))
        lines.append(f"{'node':<{width}}  {'from view':>9}  {'age':>6}  {'samples':>8}  decision")
    for row in shown:
        apart = "-" if row["distance"] is None else f"{row['distance']:.3f}"
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


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"


def _count(nodes: int) -> str:
    return f"{nodes} node{'' if nodes == 1 else 's'}"


def _size(length: int) -> str:
    return f"{length / 1e6:.1f} MB" if length >= 1e5 else f"{length / 1e3:.1f} kB"
