"""`pronto extender`: a Kubernetes scheduler extender in front of the nodes' agents."""

from __future__ import annotations

import ipaddress
import logging
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prontosched.errors import IntegrationError, SettingsError

if TYPE_CHECKING:
    from prontosched.integration.extender_server import Background, Extender
    from prontosched.integration.extender_wake import Waker

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
REFRESH_SECONDS = 15.0


@click.command()
@click.option("--listen", default="127.0.0.1:7090", show_default=True, help="HOST:PORT to be asked at.")
@click.option(
    "--agents",
    default="http://{address}:7070",
    show_default=True,
    metavar="URL",
    help="Where agents listen; {node} and {address} stand for the node's name and internal address.",
)
@click.option("--agents-file", type=FILE, help="File with a node and its agent's URL on each line.")
@click.option("--agents-token-file", type=FILE, help="File with the token that agents ask for.")
@click.option("--agents-ca", type=FILE, help="PEM file with whom to trust when agents speak TLS.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds between two questions to one agent.",
)
@click.option(
    "--enforce/--shadow",
    default=False,
    show_default=True,
    help="Refuse nodes, or only log which would be refused.",
)
@click.option(
    "--max-refusing",
    type=click.FloatRange(min=0.0, max=1.0, min_open=True),
    default=0.25,
    show_default=True,
    help="Largest share of the nodes that may refuse at once.",
)
@click.option(
    "--valid-seconds",
    type=click.FloatRange(min=2.0),
    default=60.0,
    show_default=True,
    help="Longest time that one answer of an agent counts.",
)
@click.option(
    "--min-hold-seconds",
    type=click.FloatRange(min=0.0),
    default=20.0,
    show_default=True,
    help="Shortest time that a node refuses.",
)
@click.option(
    "--min-accept-seconds",
    type=click.FloatRange(min=0.0),
    default=20.0,
    show_default=True,
    help="Shortest time that a node accepts.",
)
@click.option(
    "--wake/--no-wake",
    default=True,
    show_default=True,
    help="Tell the API server when a node opens, so that pending pods are tried again.",
)
@click.option("--token-file", type=FILE, help="File with the token that schedulers must show.")
@click.option("--certificate", type=FILE, help="PEM file with this server's certificate.")
@click.option("--key", type=FILE, help="PEM file with the certificate's key.")
@click.option(
    "--client-ca", type=FILE, help="PEM file; only clients with a certificate signed by it are let in."
)
def command(listen: str, **options: Any) -> None:
    r"""Answer kube-scheduler which nodes may take a pod.

    Asks the agent of every node for its decision. A node whose agent is silent, or whose
    decision is old, counts as fit. Listens on this machine only, unless a certificate, its
    key, and a token or a client authority are given.

    \b
    Example:
        pronto extender --agents 'http://{node}:7070' --enforce
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    host, port = _split(listen)
    context = _tls(host, options)
    try:
        from aiohttp import web
    except ImportError as error:
        raise IntegrationError(
            f"pronto extender needs aiohttp, got {error}: pip install 'prontosched[agent]'"
        ) from error
    server, waker = build(**options)
    click.echo(
        f"extender on {'https' if context else 'http'}://{host}:{port}, "
        f"mode {'enforce' if options['enforce'] else 'shadow'}, "
        f"waking pods: {'yes' if waker else 'no'}",
        err=True,
    )
    try:
        web.run_app(
            server.application(), host=host, port=port, ssl_context=context, print=None, access_log=None
        )
    except OSError as error:
        raise IntegrationError(f"cannot listen on {listen}: {error.strerror or error}") from error
    finally:
        if waker is not None and options["enforce"]:
            waker.release()


def build(**options: Any) -> tuple[Extender, Waker | None]:
    """Make the extender that the options ask for, and the waker beside it where there is one."""
    from prontosched.integration.extender_decisions import Addresses, PolledDecisions
    from prontosched.integration.extender_ledger import Ledger
    from prontosched.integration.extender_server import Extender
    from prontosched.integration.policy import Rules

    file = options["agents_file"]
    addresses = Addresses.read(file, options["agents"]) if file else Addresses(options["agents"])
    decisions = PolledDecisions(
        addresses,
        interval_seconds=options["interval"],
        valid_seconds=options["valid_seconds"],
        token=_secret(options["agents_token_file"]),
        ca_file=options["agents_ca"],
    )
    names = ("enforce", "valid_seconds", "min_hold_seconds", "min_accept_seconds", "max_refusing")
    ledger = Ledger(decisions, Rules(**{name: options[name] for name in names}))
    waker = (
        _waker(options["agents"], needed=not file and "{address}" in options["agents"])
        if options["wake"]
        else None
    )
    background: list[Background] = [lambda: decisions.run(lambda: ledger.known)]
    if waker is not None:
        background.append(lambda: _refreshing(waker, ledger, addresses.internal))
    announce = waker.announce if waker is not None else None
    return Extender(
        ledger, announce=announce, token=_secret(options["token_file"]), background=background
    ), waker


async def _refreshing(waker: Waker, ledger: Any, internal: dict[str, str]) -> None:
    import asyncio
    import time

    while True:
        now = time.time()
        refusing = [name for name in ledger.known if ledger.rules.enforce and ledger.refusal(name, now)]
        try:
            found = await asyncio.to_thread(waker.refresh, refusing)
            internal.update({name: address for name, address in found.items() if address})
            ledger.see(found, now)
        except IntegrationError as error:
            logging.getLogger(__name__).warning("cannot list the nodes: %s", error)
        await asyncio.sleep(REFRESH_SECONDS)


def _waker(template: str, *, needed: bool) -> Waker | None:
    from prontosched.integration.extender_wake import Waker
    from prontosched.integration.kubernetes_client import ApiServer

    try:
        return Waker(ApiServer.find())
    except IntegrationError as error:
        if needed:
            raise IntegrationError(
                f"--agents {template} needs the API server for addresses: {error}"
            ) from error
        click.echo(f"pods will not be woken when a node opens: {error}", err=True)
        return None


def _split(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise click.BadParameter(f"must be HOST:PORT, got {listen!r}", param_hint="--listen")
    return host.strip("[]"), int(port)


def _tls(host: str, options: dict[str, Any]) -> ssl.SSLContext | None:
    certificate, key, authority = options["certificate"], options["key"], options["client_ca"]
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local and not (certificate and key and (options["token_file"] or authority)):
        raise click.UsageError(
            f"beyond this machine ({host}) a certificate, its key, and a token file or a client authority "
            "must be given: pass --certificate, --key and --token-file or --client-ca"
        )
    if not certificate and not key and not authority:
        return None
    if not (certificate and key):
        raise click.UsageError("--certificate and --key must be given together")
    context = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cafile=str(authority) if authority else None
    )
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise SettingsError(f"{certificate} and {key} must be a certificate and its key in PEM, got {error}") from error
    if authority:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _secret(path: Path | None) -> str:
    if path is None:
        return ""
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < 16:
        raise SettingsError(f"{path} must hold a token of at least 16 characters, got {len(token)}")
    return token
