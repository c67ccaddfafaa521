"""Gates by name: our own, and those of other packages.

Covers: finding a gate for a name in the settings. A package adds one by an entry
point in the group `prontosched.gates`, naming a callable that takes keyword options
and returns a `Gate`. A name of ours cannot be taken over.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from prontosched.errors import IntegrationError, SettingsError, suggestion
from prontosched.gates.gate import Gate
from prontosched.gates.policy import RULE_OPTIONS

GROUP = "prontosched.gates"
# Imported only when asked for: some need an extra to be installed.
BUILT_IN: dict[str, str] = {
    "slurm": "prontosched.gates.slurm:SlurmGate",
    "slurm-feature": "prontosched.gates.slurm:SlurmFeatureGate",
    "kubernetes": "prontosched.gates.kubernetes:KubernetesGate",
    "htcondor": "prontosched.gates.htcondor:HTCondorGate",
    "hook": "prontosched.gates.hook:HookGate",
}


def gate_names() -> list[str]:
    """Return the names of all gates that are installed, ours first."""
    others = {point.name for point in entry_points(group=GROUP)} - set(BUILT_IN)
    return [*BUILT_IN, *sorted(others)]


def make_gate(name: str, **options: Any) -> Gate:
    """Make the gate called `name`.

    Options that come as text, from a command line or a file, become numbers and truth
    values where the gate's own default is one.

    Raises
    ------
    SettingsError
        No gate has that name, or it does not take these options.
    IntegrationError
        The gate's package cannot be imported.

    Examples
    --------
    >>> make_gate("slurm", timeout="5").name
    'slurm'
    """
    maker = _maker(name)
    parameters = inspect.signature(maker).parameters
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
        for option in options.keys() - parameters.keys():
            known = {*parameters, *RULE_OPTIONS, "node", "veto"} - {"api"}
            raise SettingsError(f"gate {name} has no option {option!r}{suggestion(option, known)}")
    try:
        return maker(**_typed(maker, options))
    except TypeError as error:
        needed = [p.name for p in parameters.values() if p.default is p.empty and p.name not in options]
        if needed:
            raise SettingsError(
                f"gate {name} needs the option {needed[0]}: give {needed[0]}=VALUE"
            ) from error
        raise SettingsError(f"gate {name} does not take the options {sorted(options)}: {error}") from error


def missing_engine(name: str, **options: Any) -> str | None:
    """Return what a gate's engine lacks on this machine, empty where it is here, None where a gate cannot tell.

    A gate says so by a static method `missing` that takes the gate's options.
    """
    ask: Callable[..., str | None] | None = getattr(_maker(name), "missing", None)
    return None if ask is None else ask(**options)


def present_gates() -> list[str]:
    """Return the gates whose scheduler, or whose marks, are on this machine.

    A gate says so by a static method `present`; those of other packages and those that
    cannot tell are left to be asked for by name.
    """
    found = []
    for name in gate_names():
        with contextlib.suppress(
            IntegrationError
        ):  # its extra is not installed: then nothing of ours is there
            if getattr(_maker(name), "present", bool)():
                found.append(name)
    return found


def prefers(name: str) -> bool:
    """Tell whether the gate called `name` can prefer one node to another, without making it."""
    return hasattr(_maker(name), "prefer")


def _typed(maker: Callable[..., Gate], options: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(maker).parameters
    typed = {}
    for key, value in options.items():
        default = parameters[key].default if key in parameters else None
        typed[key] = value
        if isinstance(value, str) and isinstance(default, bool):
            if value.lower() not in ("true", "false"):
                raise SettingsError(f"{key} must be true or false, got {value!r}")
            typed[key] = value.lower() == "true"
        elif isinstance(value, str) and isinstance(default, int | float):
            try:
                typed[key] = type(default)(value)
            except ValueError as error:
                raise SettingsError(f"{key} must be a number, got {value!r}") from error
    return typed


def _maker(name: str) -> Callable[..., Gate]:
    try:
        if name in BUILT_IN:
            module, _, attribute = BUILT_IN[name].partition(":")
            found: Callable[..., Gate] = getattr(importlib.import_module(module), attribute)
            return found
        for point in entry_points(group=GROUP):
            if point.name == name:
                loaded: Callable[..., Gate] = point.load()
                return loaded
    except (ImportError, AttributeError) as error:
        raise IntegrationError(
            f"gate {name} cannot be imported ({error}): install the package that it needs"
        ) from error
    raise SettingsError(f"no gate is called {name!r}{suggestion(name, gate_names())}")
