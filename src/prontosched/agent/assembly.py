"""Put an agent together from its settings.

Covers: making nodes, restoring what they knew, and finding what follows the decisions.
Nothing here runs longer than a moment. Opening the source is `prontosched.agent.sources`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from prontosched.agent.access import Access, read_token, split_address, tls_context
from prontosched.agent.answer import Silence
from prontosched.agent.disk import Disk, restore
from prontosched.agent.follower import Follower
from prontosched.agent.loop import Agent
from prontosched.agent.nodes import LiveNode, NodeTable
from prontosched.agent.pace import Pace
from prontosched.agent.reading import Reader
from prontosched.agent.service import ServiceManager
from prontosched.agent.state import default_folder
from prontosched.errors import IntegrationError, SettingsError, suggestion
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import PRESETS, make_node
from prontosched.settings import SIGNAL_SETTINGS, AgentSettings, pairs, with_durations
from prontosched.signals import find_signal
from prontosched.signals.policy import read_tolerance
from prontosched.telemetry.source import Source

if TYPE_CHECKING:
    from prontosched.gates.gate import Gate
    from prontosched.gates.policy import Rules

SHORTEST_TIMEOUT_SECONDS = 0.5
TOLERANCE = "5%"
HORIZON = 5


def node_builder(settings: AgentSettings) -> Callable[[tuple[str, ...]], Node]:
    """Return what makes a cold node for a list of metrics."""
    options = signal_options(settings)

    return lambda metrics: make_node(settings.preset, metrics=metrics, signal=settings.signal, **options)


def closes_nodes(settings: AgentSettings) -> bool:
    """Tell whether a refusal really keeps jobs away: a gate that only ranks nodes does not."""
    if settings.gate is None or not settings.enforce:
        return False
    from prontosched.gates.policy import take_veto
    from prontosched.gates.registry import prefers

    veto = take_veto(pairs(settings.gate_option, "--gate-option"))
    return not prefers(settings.gate) if veto is None else veto


def signal_options(settings: AgentSettings) -> dict[str, Any]:
    """Return the options of the signal that were given, once the signal itself has taken them.

    Raises
    ------
    SettingsError
        The signal has no such option, or does not take the value.
    """
    if settings.preset not in PRESETS:
        raise SettingsError(f"no preset is called {settings.preset!r}{suggestion(settings.preset, PRESETS)}")
    given = {name: getattr(settings, name) for name in SIGNAL_SETTINGS}
    chosen = {name: value for name, value in given.items() if value is not None}
    name = settings.signal or PRESETS[settings.preset].signal
    make = find_signal(name).one
    accepted = inspect.signature(make).parameters
    if unknown := [option for option in chosen if option not in accepted]:
        raise SettingsError(f"signal {name} has no {unknown[0]}, got {chosen[unknown[0]]!r}: leave it out")
    try:
        make(**chosen)
    except ValueError as error:
        raise SettingsError(f"signal {name}: {error}") from error
    return chosen


def check(settings: AgentSettings) -> None:
    """Refuse settings that cannot work: of the signal, and of the gate and its engine."""
    signal_options(settings)
    if settings.gate is None:
        return
    from prontosched.gates.registry import missing_engine

    _, options, _ = _made_gate(settings)
    if words := missing_engine(settings.gate, **options):
        raise IntegrationError(f"gate {settings.gate}: {words}")


def make_access(settings: AgentSettings) -> Access:
    """Return where to listen and whom to let in."""
    host, port = split_address(settings.listen)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise SettingsError("--tls-cert and --tls-key must come together, got only one of them")
    tls = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = tls_context(settings.tls_cert, settings.tls_key)
    token = None if settings.token_file is None else read_token(settings.token_file)
    return Access(host, port, token, tls)


def make_agent(settings: AgentSettings, source: Source, *, embed: bool = False) -> Agent:
    """Return an agent that is ready to run; with `embed`, with a federation of its own.

    Raises
    ------
    StateError
        Another agent uses the same state, or it is from a newer version.
    """
    # What cannot work is refused before anything is opened.
    check(settings)
    # A trace of an hour apart is still to be looked at today.
    interval = settings.interval or (1.0 if source.name == "trace" else source.interval_seconds)
    pace = Pace(interval)
    folder = settings.state or default_folder()
    disk = None
    if settings.keep:
        disk = Disk(
            folder,
            source.name,
            log_seconds=settings.log_age,
            log_bytes=settings.log_megabytes * 1024 * 1024,
        )
    nodes = make_nodes(settings, source)
    if disk is not None:
        restore(nodes, disk)
    return Agent(
        Reader(source, timeout=max(SHORTEST_TIMEOUT_SECONDS, 0.9 * interval)),
        nodes,
        pace,
        silence=Silence(settings.valid or max(10.0, 10 * interval), settings.when_silent),
        capacity=settings.cpus or float(os.cpu_count() or 1),
        capacity_factor=settings.capacity_factor,
        cpus_known=settings.cpus is not None or source.name == "linux",
        disk=disk,
        followers=[*_probe(settings, source), *make_followers(settings, embed=embed)],
        offenders=settings.offenders,
    )


def _probe(settings: AgentSettings, source: Source) -> list[Follower]:
    from prontosched.agent.probe import make_probe

    found = make_probe(source) if settings.probe else None
    return [] if found is None else [found]


def make_followers(settings: AgentSettings, *, embed: bool = False) -> list[Follower]:
    """Return what is told of every timestep: federation, gate, service manager."""
    found: list[Follower] = []
    link: Any = None
    if settings.nats is not None:
        from prontosched.agent.federating import FederationFollower
        from prontosched.federation.address import Address
        from prontosched.federation.nats_link import NatsLink
        from prontosched.federation.tree import split

        address = Address.parse(settings.nats)
        if settings.name is not None:
            split(settings.name)
        link = NatsLink(address, name=settings.name or os.uname().nodename)
        found.append(
            FederationFollower(
                link,
                name_of=lambda name: place_of(settings, name),
                tree=address.tree,
                open_link=lambda: NatsLink(address, name=f"look-{os.uname().nodename}", quiet=True),
            )
        )
    elif embed:
        from prontosched.agent.federating import FederationFollower

        found.append(FederationFollower.embedded())
    if settings.gate is not None:
        found.append(_gate(settings, link))
    return [*found, ServiceManager()]


def place_of(settings: AgentSettings, node: str) -> str:
    """Return a node's place in the tree: the name that was given, and under it each of several targets.

    Examples
    --------
    >>> place_of(AgentSettings(name="rack/n1", synthetic=1), "rack/n1")
    'rack/n1'
    >>> place_of(AgentSettings(name="rack", target=("a:9100", "b:9100")), "a:9100")
    'rack/a:9100'
    """
    # A made-up node is named after the given name already.
    if settings.name is None or settings.synthetic is not None or settings.source == "generated":
        return node
    return f"{settings.name}/{node}" if settings.target else settings.name


def _gate(settings: AgentSettings, link: Any) -> Follower:
    from prontosched.agent.gating import GateFollower
    from prontosched.gates.floor import closed_nodes

    at_scheduler = pairs(settings.gate_option, "--gate-option").get("node")
    gate, _, rules = _made_gate(settings)
    leases = None
    if link is not None:
        from prontosched.federation.census import Census
        from prontosched.federation.leases import RefusalLeases

        def rule(words: Mapping[str, tuple[bool, float, bool]], nodes: int) -> frozenset[str]:
            return closed_nodes(words, nodes=nodes, share=settings.max_refusing)

        leases = RefusalLeases(link, rule, nodes=Census(link))
    return GateFollower(
        gate,
        rules,
        name_of=lambda name: at_scheduler or name.rpartition("/")[2],
        leases=leases,
    )


def _made_gate(settings: AgentSettings) -> tuple[Gate, dict[str, str], Rules]:
    """Return the gate, its own options and the rules that hold for any."""
    from prontosched.gates.policy import take_rules
    from prontosched.gates.registry import make_gate

    assert settings.gate is not None
    options = with_durations(pairs(settings.gate_option, "--gate-option"))
    options.pop("node", None)
    rules = take_rules(options, enforce=settings.enforce, max_refusing=settings.max_refusing)
    return make_gate(settings.gate, **options), options, rules


def make_nodes(settings: AgentSettings, source: Source) -> NodeTable:
    """Return the nodes a source feeds, still without any."""
    build, options = node_builder(settings), _record_options(settings)

    def make(name: str, now: float) -> LiveNode:
        return LiveNode(build, name=name, now=now, **options)

    name = settings.name or str(getattr(source, "node", None) or "node")
    nodes = NodeTable(make, name=name, tolerance=options["tolerance"])
    nodes.enforcing = closes_nodes(settings)
    return nodes


def _record_options(settings: AgentSettings) -> dict[str, Any]:
    kind, value = read_tolerance(settings.tolerance or TOLERANCE)
    return {"tolerance": value if kind == "absolute" else 5.0, "horizon": settings.horizon or HORIZON}
