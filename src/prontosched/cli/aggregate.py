"""`pronto aggregate`: run aggregators of the federation."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Literal

import click

from prontosched.cli.options import Duration, stopped_by_signals


@click.command()
@click.option("--nats", metavar="ADDRESS", required=True, help="Bus: nats://host:port/group?creds=FILE.")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="PLACE",
    help="Aggregator to run, such as paris/row2; may be repeated.  [default: all that nodes need]",
)
@click.option("--rank", type=click.IntRange(1, 32), default=4, help="Directions of interest.")
@click.option("--spare", type=click.IntRange(0, 32), default=4, help="Directions kept beyond those.")
@click.option("--fan-out", type=click.IntRange(1, 65536), default=1024, help="Children at most.")
@click.option(
    "--expiry", type=Duration(1.0), default="3m", metavar="TIME", help="Silence after which a child is gone."
)
@click.option("--epsilon", type=click.FloatRange(0, 1), default=0.05, help="Change worth propagating.")
@click.option(
    "--max-age", type=Duration(0.1), default="1m", metavar="TIME", help="Longest time between two messages."
)
@click.option(
    "--trigger",
    type=click.Choice(["projector", "elementwise"]),
    default="projector",
    help="How change is measured; elementwise is the paper's.",
)
@click.option(
    "--takeover",
    type=Duration(0.1),
    default="5s",
    metavar="TIME",
    help="Silence after which a standby takes over.",
)
@click.option(
    "--for", "seconds", type=Duration(0.1), metavar="TIME", help="Stop after this long.  [default: never]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the final state as one JSON object.")
def command(
    nats: str,
    names: tuple[str, ...],
    rank: int,
    spare: int,
    fan_out: int,
    expiry: float,
    epsilon: float,
    max_age: float,
    trigger: Literal["projector", "elementwise"],
    takeover: float,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Run aggregators: merge what nodes know and publish the global view.

    Run it twice and the second stands by until the first falls silent. With --name it
    runs only that part of the tree, on a machine of its own.

    \b
    Example:
        pronto aggregate --nats nats://127.0.0.1:4222
    """
    from prontosched.agent.logs import log_to_stderr
    from prontosched.agent.store import default_folder
    from prontosched.federation.address import KEY_FILES, Address
    from prontosched.federation.aggregator import Aggregator
    from prontosched.federation.leases import LeaderLease
    from prontosched.federation.nats import NatsLink
    from prontosched.federation.publisher import Propagation
    from prontosched.federation.service import AggregatorDiscovery, AggregatorService, run_services
    from prontosched.federation.tree import split

    log_to_stderr(verbose=False)
    place = Address.parse(nats)
    for name in filter(None, names):
        split(name)
    holder = f"{os.uname().nodename}-{os.getpid()}"
    link = NatsLink(place, name=f"aggregate-{holder}", identity=default_folder() / KEY_FILES["aggregator"])
    stop = stopped_by_signals()
    if seconds is not None:
        timer = threading.Timer(seconds, stop.set)
        timer.daemon = True
        timer.start()

    def make(name: str) -> AggregatorService:
        return AggregatorService(
            link,
            Aggregator(name, rank=rank, spare=spare, expiry_seconds=expiry, fan_out=fan_out),
            tree=place.tree,
            rule=Propagation(epsilon=epsilon, max_age_seconds=max_age, kind=trigger, rank=rank),
            lease=LeaderLease(link, name, holder, seconds=takeover),
        )

    named = [make(name) for name in names]
    services: Callable[[], list[AggregatorService]] = (
        (lambda: named) if named else AggregatorDiscovery(link, place.tree, make).services
    )
    try:
        click.echo(f"aggregating {', '.join(n or 'root' for n in names) or 'all'} of {place.group}", err=True)
        run_services(services, stop, lambda text: click.echo(text, err=True))
    finally:
        states = [service.status() for service in services()]
        link.close()
    if as_json:
        click.echo(json.dumps({"aggregators": states}))
    else:
        for state in states:
            click.echo(f"{state['aggregator']}: {state['children']} children, {state['sent']} sent")
