"""A small machine whose files are kept as they once were, and reading one metric of a sample."""

from __future__ import annotations

from pathlib import Path

from prontosched.telemetry.source import Sample

# Two states of /proc and /sys, some seconds apart: `first` and `second`.
FROZEN = Path(__file__).parents[1] / "data" / "proc" / "small-vm"


def value(sample: Sample, name: str) -> float:
    """One metric of a sample, by its name."""
    return float(sample.vector[sample.metrics.index(name)])
