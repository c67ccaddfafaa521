"""The Helm chart as `helm template` renders it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.requirements import find_program, skip

ENGINES = Path(os.environ.get("PRONTO_TEST_ENGINES") or Path.home() / ".cache" / "pronto" / "engines")
CHART = Path(__file__).parents[2] / "deploy" / "helm" / "pronto"
IMAGES = (
    "image.repository=registry.test/prontosched",
    "extender.schedulerImage=registry.test/kube-scheduler",
)
# Every mode of each gate, and what can be added to it.
MODES = {
    f"{gate}-{name}": (f"gate={gate}", *values)
    for gate in ("taint", "extender")
    for name, values in {
        "shadow": ("mode=shadow",),
        "preference": ("mode=preference",),
        "veto": ("mode=veto",),
        "nats": ("nats.secret=bus",),
        "signed": ("nats.secret=bus", "nats.keys=bus-keys"),
        "monitor": ("monitor.enabled=true",),
        "nats-monitor": ("nats.secret=bus", "monitor.enabled=true"),
    }.items()
}


def require_engine(name: str) -> str:
    """Return the path of a program of `tests/engines/build.sh`, or skip."""
    built = ENGINES / name
    if os.access(built, os.X_OK):
        return str(built)
    return find_program(name) or skip(name, f"sh tests/engines/build.sh {name}")


def helm(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run helm."""
    return subprocess.run(
        [require_engine("helm"), *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, **environment},
    )


def settings(*values: str) -> list[str]:
    """Return the options that give a chart its values, the images among them."""
    return [part for value in (*IMAGES, *values) for part in ("--set", value)]


def render(*values: str, kubernetes: str = "1.36.0") -> list[dict[str, Any]]:
    """Return the manifests that the chart makes of the values."""
    done = helm(
        *("template", "pronto", str(CHART), "--namespace", "pronto", "--kube-version", kubernetes),
        *settings(*values),
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def only(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """Return the one manifest of this kind and name."""
    (found,) = (d for d in documents if (d["kind"], d["metadata"]["name"]) == (kind, name))
    return found
