"""Extras: what parts of Pronto need beyond numpy and click, and how to install what is missing here."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.util import find_spec

from prontosched.errors import SettingsError

# The modules that each extra of the package brings.
EXTRAS = {
    "agent": ("aiohttp", "prometheus_client", "nats", "nkeys", "nacl"),
    "trace": ("pyarrow",),
    "vsphere": ("pyVmomi", "pyVim"),
    "dask": ("distributed",),
    "evaluation": ("pyarrow", "matplotlib", "sklearn", "statsmodels", "pandas", "jinja2", "river", "joblib"),
}


def extra_of(module: str) -> str | None:
    """Return the first extra that brings a module, or None for a module of no extra."""
    top = module.partition(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if top in modules), None)


def missing_extras() -> list[str]:
    """Return the extras of which this installation lacks something."""
    return [extra for extra, modules in EXTRAS.items() if not all(map(find_spec, modules))]


def require_extra(what: str, extra: str) -> None:
    """Refuse at the start what would fail for want of an extra at the end."""
    if extra in missing_extras():
        raise SettingsError(missing_extra(what, extra))


def missing_extra(what: str, extra: str) -> str:
    """Say in one line that `what` needs an extra, and the command that adds it to this installation."""
    return f"{what} needs the extra '{extra}': {install_command(extra)}"


def install_command(extra: str) -> str:
    """Return the command that adds an extra's packages beside this Python, however Pronto was installed."""
    import importlib.metadata  # here, since it is slow to import and rarely needed

    try:
        requirements = importlib.metadata.requires("prontosched") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        requirements = []
    marker = re.compile(rf"""extra\s*==\s*["']{extra}["']""")
    names = [each.partition(";")[0].strip() for each in requirements if marker.search(each)]
    # An environment made by uv has no pip of its own.
    pip = [sys.executable, "-m", "pip", "install"]
    uv = ["uv", "pip", "install", "--python", sys.executable]
    return shlex.join([*(pip if find_spec("pip") else uv), *(names or [f"prontosched[{extra}]"])])
