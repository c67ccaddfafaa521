"""Put an agent together from its settings: the source, nodes with what they knew, and what follows them."""

from __future__ import annotations

import inspect
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from prontosched.agent.followers import GateFollower, make_probe
from prontosched.agent.loop import Agent, Follower, Reader
from prontosched.agent.nodes import LiveNode, NodeTable, Silence
from prontosched.agent.pace import Pace
from prontosched.agent.store import default_folder
from prontosched.agent.store.state import Disk, restore
from prontosched.errors import IntegrationError, SettingsError, TelemetryError, suggestion
from prontosched.gates.gate import Gate
from prontosched.gates.policy import Rules
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import PRESETS, make_node, preset_name, rank_options
from prontosched.settings import SIGNAL_SETTINGS, AgentSettings, pairs, plain_value, with_durations
from prontosched.signals import find_signal
from prontosched.signals.policy import read_tolerance
from prontosched.telemetry import SOURCES, open_source, source_maker, source_names
from prontosched.telemetry.source import Sample, Source

SHORTEST_TIMEOUT_SECONDS = 0.5
TOLERANCE = "5%"
HORIZON = 5
# Its directions come without singular values, so that nothing says how much they weigh beside others.
UNMERGEABLE = "power-method"


def node_builder(settings: AgentSettings) -> Callable[[tuple[str, ...]], Node]:
    """Return what makes a cold node for a list of metrics."""
    options = signal_options(settings)
    embedding_options = rank_options(settings.energy_bounds)

    def build(metrics: tuple[str, ...]) -> Node:
        return make_node(
            settings.preset,
            metrics=metrics,
            signal=settings.signal,
            embedding=settings.embedding,
            embedding_options=embedding_options,
            **options,
        )

    return build


def closes_nodes(settings: AgentSettings) -> bool:
    """Tell whether a refusal really keeps jobs away: a gate that only ranks nodes does not."""
    if settings.gate is None or not settings.enforce:
        return False
    from prontosched.gates.policy import take_veto
    from prontosched.gates.registry import prefers

    veto = take_veto(pairs(settings.gate_option, "--gate-option"))
    return not prefers(settings.gate) if veto is None else veto


def signal_options(settings: AgentSettings) -> dict[str, Any]:
    """Return the options of the signal that were given, once the signal itself has taken them."""
    preset = preset_name(settings.preset, settings.signal)
    if preset not in PRESETS:
        raise SettingsError(f"no preset is called {preset!r}{suggestion(preset, PRESETS)}")
    given = {name: getattr(settings, name) for name in SIGNAL_SETTINGS}
    chosen = {name: value for name, value in given.items() if value is not None}
    name = settings.signal or PRESETS[preset].signal
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
    """Refuse settings that cannot work: of the node and its signal, and of the gate and its engine."""
    node_builder(settings)(())
    if settings.nats is not None and settings.embedding == UNMERGEABLE:
        raise SettingsError(
            f"embedding {UNMERGEABLE} has no singular values, and a federation merges by them: "
            "take another embedding, or leave out --nats"
        )
    if settings.gate is None:
        return
    from prontosched.gates.registry import missing_engine

    if settings.source == "prometheus":
        hosts = [name_at_scheduler(settings, one.partition("://")[2] or one) for one in settings.target]
        if twice := sorted({host for host in hosts if hosts.count(host) > 1}):
            raise SettingsError(
                f"targets of an agent with a gate must be one for each node, got {hosts.count(twice[0])} for "
                f"{twice[0]}: give each node once, and no --gate-option node= for several"
            )
    _, options, _ = gate_of(settings)
    if words := missing_engine(settings.gate, **options):
        raise IntegrationError(f"gate {settings.gate}: {words}")


def make_agent(settings: AgentSettings, source: Source, *, embed: bool = False) -> Agent:
    """Return an agent that is ready to run; with `embed`, with a federation of its own."""
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
    probe = make_probe(source) if settings.probe else None
    return Agent(
        Reader(source, timeout=max(SHORTEST_TIMEOUT_SECONDS, 0.9 * interval)),
        nodes,
        pace,
        silence=Silence(settings.valid or max(10.0, 10 * interval), settings.when_silent),
        capacity=settings.cpus or float(os.cpu_count() or 1),
        capacity_factor=settings.capacity_factor,
        cpus_known=settings.cpus is not None or source.name == "linux",
        count_cpus=settings.cpus is None,
        disk=disk,
        followers=[*([probe] if probe else []), *make_followers(settings, embed=embed)],
        offenders=settings.offenders,
    )


def make_followers(settings: AgentSettings, *, embed: bool = False) -> list[Follower]:
    """Return what is told of every timestep: federation and gate."""
    found: list[Follower] = []
    link: Any = None
    if settings.nats is not None:
        from prontosched.agent.federation import FederationFollower
        from prontosched.federation.address import KEY_FILES, Address
        from prontosched.federation.nats import NatsLink
        from prontosched.federation.tree import split

        address = Address.parse(settings.nats)
        if settings.name is not None:
            split(settings.name)
        identity = (settings.state or default_folder()) / KEY_FILES["node"]
        link = NatsLink(address, name=settings.name or os.uname().nodename, identity=identity)
        # Who looks is to the bus the same user, and signs nothing.
        looking = replace(address, sign=address.sign or str(identity)) if address.keys else address
        found.append(
            FederationFollower(
                link,
                name_of=lambda name: place_of(settings, name),
                tree=address.tree,
                open_link=lambda: NatsLink(looking, name=f"look-{os.uname().nodename}", quiet=True),
            )
        )
    elif embed and settings.embedding != UNMERGEABLE:
        from prontosched.agent.federation import FederationFollower

        found.append(FederationFollower.embedded())
    if settings.gate is not None:
        found.append(_gate(settings, link))
    return found


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


def name_at_scheduler(settings: AgentSettings, node: str) -> str:
    """Return what a node is called by its scheduler: an exporter's is its host without the port.

    Examples
    --------
    >>> name_at_scheduler(AgentSettings(source="prometheus", target=("n1:9100",)), "n1:9100")
    'n1'
    >>> name_at_scheduler(AgentSettings(source="prometheus", target=("[fe80::1]:9100",)), "[fe80::1]:9100")
    'fe80::1'
    >>> name_at_scheduler(AgentSettings(), "rack/n1")
    'n1'
    """
    if given := pairs(settings.gate_option, "--gate-option").get("node"):
        return given
    if settings.source != "prometheus":
        return node.rpartition("/")[2]
    return re.sub(r"^\[(.*?)\].*|[:/].*", r"\1", node)


def _gate(settings: AgentSettings, link: Any) -> Follower:
    from prontosched.gates.policy import closed_nodes

    gate, _, rules = gate_of(settings)
    leases = None
    if link is not None:
        from prontosched.federation.leases import NodeCount, RefusalLeases

        def rule(words: Mapping[str, tuple[bool, float, bool]], nodes: int) -> frozenset[str]:
            return closed_nodes(words, nodes=nodes, share=settings.max_refusing)

        leases = RefusalLeases(link, rule, nodes=NodeCount(link))
    return GateFollower(
        gate,
        rules,
        name_of=lambda name: name_at_scheduler(settings, name),
        leases=leases,
    )


def gate_of(settings: AgentSettings) -> tuple[Gate, dict[str, str], Rules]:
    """Return the gate that the settings name, its own options and the rules that hold for any."""
    from prontosched.gates.policy import take_rules
    from prontosched.gates.registry import make_gate

    assert settings.gate is not None
    options = with_durations(pairs(settings.gate_option, "--gate-option"))
    options.pop("node", None)
    rules = take_rules(options, enforce=settings.enforce, max_refusing=settings.max_refusing)
    return make_gate(settings.gate, **options), options, rules


def tolerance_of(settings: AgentSettings) -> float:
    """Return the CPU Ready that counts as contention before a signal tells, in percent."""
    kind, value = read_tolerance(settings.tolerance or TOLERANCE)
    return value if kind == "absolute" else read_tolerance(TOLERANCE)[1]


def make_nodes(settings: AgentSettings, source: Source) -> NodeTable:
    """Return the nodes a source feeds, still without any."""
    build, horizon, tolerance = node_builder(settings), settings.horizon or HORIZON, tolerance_of(settings)

    def make(name: str, now: float) -> LiveNode:
        return LiveNode(build, name=name, now=now, tolerance=tolerance, horizon=horizon)

    name = settings.name or str(getattr(source, "node", None) or "node")
    nodes = NodeTable(make, name=name)
    nodes.enforcing = closes_nodes(settings)
    return nodes


# Known to an agent alone: there is nothing in it to record.
GENERATED = "generated"


class RepeatingSource:
    """A source that begins again when it has ended; one that ends at once has ended for good."""

    def __init__(self, reopen: Callable[[], Source]) -> None:
        self._reopen = reopen
        self._source = reopen()
        self.name = self._source.name
        self.interval_seconds = self._source.interval_seconds

    def read(self) -> list[Sample]:
        """Read once, from the beginning where the end was reached."""
        try:
            return self._source.read()
        except EOFError:
            self._source.close()
            self._source = self._reopen()
            return self._source.read()

    def close(self) -> None:
        """Let go of the files."""
        self._source.close()


def source_of(settings: AgentSettings) -> Source:
    """Open the source that the settings name, with what they say of it."""
    name = settings.source
    if name == GENERATED:
        if settings.source_option:
            raise SettingsError(f"source generated has no options, got {settings.source_option[0]!r}")
        return generated_source(settings)
    if name not in SOURCES and name not in source_names():
        raise SettingsError(f"no source is called {name!r}{suggestion(name, (*source_names(), GENERATED))}")
    needed = _needed(settings)
    options = _options(settings, needed)

    def reopen() -> Source:
        return open_source(name, **needed, **options)

    return RepeatingSource(reopen) if name == "trace" and settings.repeat else reopen()


def _options(settings: AgentSettings, needed: Collection[str]) -> dict[str, Any]:
    """Return the source's own options as it takes them; refuse those it does not have."""
    given = with_durations(pairs(settings.source_option, "--source-option"))
    parameters = inspect.signature(source_maker(settings.source)).parameters
    taken = set(parameters) - set(needed)
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    found: dict[str, Any] = {}
    for key, value in given.items():
        if key in needed:
            raise SettingsError(f"--source-option {key} must be left out: the agent has an option for it")
        if key not in taken and not anything:
            raise SettingsError(f"source {settings.source} has no option {key!r}{suggestion(key, taken)}")
        listed = key in parameters and isinstance(parameters[key].default, tuple)
        found[key] = tuple(value.split(",")) if listed else plain_value(value)
    return found


def generated_source(settings: AgentSettings) -> Source:
    """Open a source of made-up telemetry, for want of a real one."""
    from prontosched.telemetry.synthetic import ALONE, SyntheticSource

    return SyntheticSource.live(
        settings.synthetic or 1,
        interval_seconds=settings.interval or 1.0,
        node=settings.name or ALONE,
        clock=time.time,
    )


def _needed(settings: AgentSettings) -> dict[str, Any]:
    """Return what a source must be told besides its own options; nothing for those of other packages."""
    if settings.source == "linux":
        return {
            "root": settings.root,
            "interval_seconds": settings.interval or 1.0,
            "node": settings.name,
        }
    if settings.source == "trace":
        if settings.trace is None:
            raise SettingsError("source trace needs a file, got none: give --trace FILE")
        return {"paths": settings.trace}
    if settings.source == "prometheus":
        if not settings.target:
            raise SettingsError(
                "source prometheus needs an address, got none: give --target URL, once for each node"
            )
        return {"targets": settings.target, "interval_seconds": settings.interval or 10.0}
    if settings.source == "vsphere":
        if len(settings.target) != 1:
            raise SettingsError(
                f"source vsphere needs one vCenter, got {len(settings.target)}: give --target HOST once"
            )
        return {"target": settings.target[0]}
    return {}


def local_source(settings: AgentSettings) -> tuple[AgentSettings, Source, str]:
    """Open the source, or made-up telemetry where this machine cannot be read; say which and why."""
    try:
        return settings, source_of(settings), ""
    except TelemetryError as error:
        if settings.source != "linux":
            raise
        fallback = replace(settings, source=GENERATED, synthetic=1)
        return (
            fallback,
            generated_source(fallback),
            f"replaying a generated trace instead of this machine: {error}",
        )
