"""Open the source that the settings name.

Covers: what the settings of an agent mean to a source, made-up telemetry, and what to do
where this machine cannot be read. Making a source by its name is `prontosched.telemetry`.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from prontosched.errors import SettingsError, TelemetryError, suggestion
from prontosched.settings import AgentSettings, pairs, plain_value, with_durations
from prontosched.telemetry import SOURCES, open_source, source_maker, source_names
from prontosched.telemetry.source import Sample, Source

# Known to an agent alone: there is nothing in it to record.
GENERATED = "generated"


class Repeating:
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

    return Repeating(reopen) if name == "trace" and settings.repeat else reopen()


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
