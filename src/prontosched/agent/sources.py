"""Open the source that the settings name.

Covers: our own sources, those of other packages (entry-point group `prontosched.sources`),
and what to do where this machine cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any

from prontosched.errors import SettingsError, TelemetryError
from prontosched.settings import AgentSettings, pairs, plain_value
from prontosched.telemetry.source import Sample, Source

OWN_SOURCES = ("linux", "prometheus", "vsphere", "trace", "generated")


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


def open_source(settings: AgentSettings) -> Source:
    """Open the source that the settings name."""
    options = {
        key: plain_value(value) for key, value in pairs(settings.source_option, "--source-option").items()
    }
    if settings.source not in OWN_SOURCES:
        return _foreign_source(settings.source, options)
    opened: dict[str, Callable[[], Source]] = {
        "linux": lambda: _linux(settings, options),
        "trace": lambda: _trace(settings),
        "generated": lambda: generated_source(settings),
        "prometheus": lambda: _prometheus(settings, options),
        "vsphere": lambda: _vsphere(settings, options),
    }
    return opened[settings.source]()


def generated_source(settings: AgentSettings) -> Source:
    """Open a source of made-up telemetry, for want of a real one."""
    import numpy as np

    from prontosched.agent.generated import GeneratedSource

    return GeneratedSource(
        settings.synthetic or 1,
        rng=np.random.default_rng(7),
        interval_seconds=settings.interval or 1.0,
        node=settings.name or "generated",
    )


def _linux(settings: AgentSettings, options: dict[str, Any]) -> Source:
    from prontosched.telemetry.linux import LinuxSource

    return LinuxSource(
        settings.root, interval_seconds=settings.interval or 1.0, node=settings.name, **options
    )


def _trace(settings: AgentSettings) -> Source:
    from prontosched.telemetry.trace import open_trace

    if settings.trace is None:
        raise SettingsError("source trace needs a file, got none: give --trace FILE")
    path = settings.trace
    return Repeating(lambda: open_trace(path)) if settings.repeat else open_trace(path)


def _prometheus(settings: AgentSettings, options: dict[str, Any]) -> Source:
    from prontosched.telemetry.prometheus import PrometheusSource

    if not settings.target:
        raise SettingsError(
            "source prometheus needs an address, got none: give --target URL, once for each node"
        )
    return PrometheusSource(settings.target, interval_seconds=settings.interval or 10.0, **options)


def _vsphere(settings: AgentSettings, options: dict[str, Any]) -> Source:
    from prontosched.telemetry.vsphere import VSphereSource

    if len(settings.target) != 1:
        raise SettingsError(
            f"source vsphere needs one vCenter, got {len(settings.target)}: give --target HOST once"
        )
    return VSphereSource(settings.target[0], **options)


def _foreign_source(name: str, options: dict[str, Any]) -> Source:
    found = {entry.name: entry for entry in entry_points(group="prontosched.sources")}
    if name not in found:
        known = ", ".join(sorted({*OWN_SOURCES, *found}))
        raise SettingsError(f"source must be one of {known}, got {name!r}")
    source: Source = found[name].load()(**options)
    return source


def local_source(settings: AgentSettings) -> tuple[AgentSettings, Source, str]:
    """Open the source, or made-up telemetry where this machine cannot be read; say which and why."""
    try:
        return settings, open_source(settings), ""
    except TelemetryError as error:
        if settings.source != "linux":
            raise
        fallback = replace(settings, source="generated", synthetic=1)
        return (
            fallback,
            generated_source(fallback),
            f"replaying a generated trace instead of this machine: {error}",
        )
