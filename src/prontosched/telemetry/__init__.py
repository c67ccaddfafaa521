"""Stage 1: machine to vectors.

`open_source` makes any source by its name; sources of other packages join through the entry-point group
`prontosched.sources`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from prontosched.errors import TelemetryError
from prontosched.telemetry.source import Source

__all__ = ["SOURCES", "open_source", "source_maker", "source_names"]

# Imported when opened: nobody pays for a source they do not use.
SOURCES = {
    "linux": "prontosched.telemetry.linux:LinuxSource",
    "prometheus": "prontosched.telemetry.prometheus:PrometheusSource",
    "vsphere": "prontosched.telemetry.vsphere:VSphereSource",
    "trace": "prontosched.telemetry.trace:open_trace",
}


def source_names() -> tuple[str, ...]:
    """Return the names of all sources, our own first."""
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    others = {point.name for point in entry_points(group="prontosched.sources")} - SOURCES.keys()
    return (*SOURCES, *sorted(others))


def source_maker(name: str) -> Callable[..., Source]:
    """Return what makes a source, by its name."""
    if name in SOURCES:
        module, _, attribute = SOURCES[name].partition(":")
        made: Callable[..., Source] = getattr(import_module(module), attribute)
        return made
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    for point in entry_points(group="prontosched.sources", name=name):
        made = point.load()
        return made
    raise TelemetryError(f"source must be one of {', '.join(source_names())}, got '{name}'")


def open_source(name: str, **options: Any) -> Source:
    """Make a source by its name.

    Parameters
    ----------
    options
        What the source's own constructor takes.
    """
    return source_maker(name)(**options)
