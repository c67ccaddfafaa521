"""`pronto extender`: a Kubernetes scheduler extender in front of the nodes' agents."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prontosched.cli.options import FILE, Duration, together
from prontosched.errors import IntegrationError

if TYPE_CHECKING:
    from aiohttp import web

    from prontosched.agent.http.auth import Access
    from prontosched.cli.extender_bus import BusDecisions
    from prontosched.gates.agent_client import PolledDecisions
    from prontosched.gates.extender import Background, Extender, Ledger
    from prontosched.gates.kubernetes import ConditionWriter

REFRESH_SECONDS, RETRY_SECONDS = 60.0, 5.0
_times = together(
    *(
        click.option(flag, name, type=Duration(least), default=default, metavar="TIME", help=words)
        for flag, name, least, default, words in (
            ("--interval", "interval", 0.1, "2s", "Time between two questions to one agent."),
            ("--valid", "valid_seconds", 2.0, "60s", "Longest time that one answer of an agent counts."),
            ("--min-hold", "min_hold_seconds", 0.0, "5s", "Shortest time that a node refuses."),
            ("--min-accept", "min_accept_seconds", 0.0, "5s", "Shortest time that a node accepts."),
        )
    )
)


@click.command()
@click.option("--listen", default="127.0.0.1:7090", help="HOST:PORT to be asked at.")
@click.option(
    "--agents",
    default="https://{address}:7077",
    metavar="URL",
    help="Where agents listen; {node} and {address} stand for the node's name and internal address.",
)
@click.option(
    "--nats", metavar="URL", help="Read decisions from the bus of the federation instead of asking agents."
)
@click.option("--agents-file", type=FILE, help="File with a node and its agent's URL on each line.")
@click.option("--agents-token-file", type=FILE, help="File with the token that agents ask for.")
@click.option("--agents-ca", type=FILE, help="PEM file with whom to trust when agents speak TLS.")
@click.option(
    "--agents-server-name",
    default="",
    show_default=False,
    metavar="NAME",
    help="Name in the certificate of every agent, where it is not their address.",
)
@_times
@click.option(
    "--enforce/--shadow",
    default=False,
    help="Prefer nodes (and refuse them with --veto), or only log what would be.",
)
@click.option(
    "--veto/--no-veto", default=False, help="Also refuse nodes that are contended while most others are calm."
)
@click.option(
    "--max-refusing",
    type=click.FloatRange(min=0.0, max=1.0, min_open=True),
    default=0.25,
    help="Largest share of the nodes that may refuse at once.",
)
@click.option(
    "--wake/--no-wake",
    default=True,
    help="Learn nodes, addresses and sizes from the API server, and show refusals there as a node condition.",
)
@click.option("--token-file", type=FILE, help="File with the token that schedulers must show.")
@click.option("--tls-cert", type=FILE, help="PEM file with this server's certificate.")
@click.option("--tls-key", type=FILE, help="PEM file with the certificate's key.")
def command(
    listen: str, token_file: Path | None, tls_cert: Path | None, tls_key: Path | None, **options: Any
) -> None:
    """Answer kube-scheduler which nodes to prefer for a pod, and which may take it.

    Asks the agent of every node for its decision, or reads it from the federation's bus. A
    node whose agent is silent, or whose decision is old, counts as fit. Beyond this machine
    it listens only with a certificate, its key and a token.

    \b
    Example:
        pronto extender --agents 'https://{node}:7077' --agents-ca ca.crt --agents-token-file token
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    import asyncio

    from prontosched.agent.http.auth import Access, guard
    from prontosched.agent.http.connections import keep_while_answering, raise_descriptors

    raise_descriptors()  # a connection to each agent is kept
    access = Access.read(listen, token_file, tls_cert, tls_key)
    server, writer = build(**options)
    mode = "enforce" if options["enforce"] else "shadow"
    waking = "yes" if writer else "no"
    click.echo(f"extender on {access.scheme}://{listen}, mode {mode}, waking pods: {waking}", err=True)
    try:
        asyncio.run(_serve(server.application([keep_while_answering, guard(access)]), access))
    except OSError as error:
        raise IntegrationError(f"cannot listen on {listen}: {error.strerror or error}") from error
    finally:
        if writer is not None and options["enforce"]:
            writer.release()


async def _serve(application: web.Application, access: Access) -> None:
    """Answer until the process is asked to end."""
    from aiohttp import web

    from prontosched.agent.http.connections import Connections, listen
    from prontosched.agent.http.server import stop_on_signals

    stop = stop_on_signals()
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await listen(runner, Connections(), access, access.port)
        await stop.wait()
    finally:
        await runner.cleanup()


def build(**options: Any) -> tuple[Extender, ConditionWriter | None]:
    """Make the extender that the options ask for, and the writer of node conditions beside it where there is one."""
    from prontosched.gates.extender import Extender, Ledger
    from prontosched.gates.policy import Rules

    names = ("enforce", "veto", "valid_seconds", "min_hold_seconds", "min_accept_seconds", "max_refusing")
    rules = Rules(**{name: options[name] for name in names})
    background: list[Background] = []
    internal: dict[str, str] = {}
    needed = ""
    if options["nats"]:
        ledger = Ledger(_bus(options, background), rules)
    else:
        polled = _polled(options, internal)
        needed = options["agents"] if polled.addresses.needs_internal else ""
        ledger = Ledger(polled, rules)
        background.append(lambda: polled.run(lambda: ledger.known))
    if needed and not options["wake"]:
        raise click.UsageError(
            "--agents with {address} learns addresses where --wake does: use {node} instead"
        )
    writer = _condition_writer(needed) if options["wake"] else None
    if writer is not None:
        background.append(lambda: _refreshing(writer, ledger, internal))
    announce = writer.announce if writer is not None else None
    return Extender(ledger, announce=announce, background=background), writer


def _polled(options: dict[str, Any], internal: dict[str, str]) -> PolledDecisions:
    from prontosched.agent.http.auth import read_token
    from prontosched.gates.agent_client import Addresses, PolledDecisions

    file, token_file = options["agents_file"], options["agents_token_file"]
    addresses = Addresses.read(file, options["agents"]) if file else Addresses(options["agents"])
    addresses.internal = internal
    return PolledDecisions(
        addresses,
        interval_seconds=options["interval"],
        valid_seconds=options["valid_seconds"],
        token=read_token(token_file) if token_file else "",
        ca_file=options["agents_ca"],
        server_name=options["agents_server_name"],
        enforcing=options["enforce"] and options["veto"],
    )


def _bus(options: dict[str, Any], background: list[Background]) -> BusDecisions:
    import asyncio

    from prontosched.cli.extender_bus import BusDecisions
    from prontosched.federation.nats import NatsLink

    link = NatsLink(options["nats"], name="extender")

    async def close_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            link.close()

    background.append(close_at_the_end)
    return BusDecisions(link, valid_seconds=options["valid_seconds"])


async def _refreshing(writer: ConditionWriter, ledger: Ledger, internal: dict[str, str]) -> None:
    import asyncio
    import time

    def refusing(node: str) -> bool:
        return ledger.rules.enforce and node in ledger.refusals(time.time())

    while True:
        pause = REFRESH_SECONDS
        try:
            found = await asyncio.to_thread(writer.refresh, refusing)
            internal.update({name: address for name, address in found.items() if address})
            ledger.see(list(found), time.time())
            for name, cpus in writer.cpus.items():
                ledger.size(name, cpus)
        except IntegrationError as error:
            logging.getLogger(__name__).warning("cannot list the nodes: %s", error)
            pause = RETRY_SECONDS
        await asyncio.sleep(pause)


def _condition_writer(needed: str) -> ConditionWriter | None:
    from prontosched.gates.kubernetes import ConditionWriter
    from prontosched.gates.kubernetes_client import ApiServer

    try:
        return ConditionWriter(ApiServer.find())
    except IntegrationError as error:
        if needed:
            raise IntegrationError(
                f"--agents {needed} needs the API server for addresses: {error}"
            ) from error
        click.echo(f"pods will not be woken when a node opens: {error}", err=True)
        return None
