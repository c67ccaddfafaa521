"""One TOML file ↔ the options of the command line, same names.

Covers: what the agent can be told (`AgentSettings`), reading the file, and telling
which key is not known and what was probably meant. A table of the file is a command
(`[agent]`, `[run]`), a key is one of its options with or without its dashes. What is
given on the command line comes first, then the environment (`PRONTO_AGENT_BUDGET`),
then the file. `[agent]` also holds for `pronto up`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prontosched.errors import SettingsError, nearest, suggestion

MAX_FILE_BYTES = 1024 * 1024
DEEPEST = 100
INHERITS = {"up": "agent"}
# What is the signal's to check: options of the same names, passed on as they are.
SIGNAL_SETTINGS = (
    *("budget", "tolerance", "horizon", "quota", "likelihood", "reopen"),
    *("calm", "hold", "hourly_limit", "explore", "weights"),
)
# Variables that are no options: credentials of sources and gates, and what a hook's command is told.
OTHER_VARIABLES = frozenset(
    f"PRONTO_{name}"
    for name in (
        *("PROMETHEUS_TOKEN", "VSPHERE_USER", "VSPHERE_PASSWORD", "VSPHERE_CREDENTIALS", "HTCONDOR_FOLDER"),
        *("KUBERNETES_URL", "KUBERNETES_TOKEN", "KUBERNETES_TOKEN_FILE", "KUBERNETES_CA"),
        *("EVENT", "NODE", "REASON", "SCORE", "VALID_UNTIL"),
    )
)
# Kubernetes gives every pod the addresses of services in such variables, as of one called `pronto`.
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$")
_DURATION = re.compile(
    r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Everything an agent can be told: the options of `pronto agent`, by their names (`prontosched.cli.options`).

    Times are in seconds. None leaves a setting to who knows it: `interval` to the source, `name`, `cpus` and `state`
    to the machine, `preset` and `signal` to each other, `SIGNAL_SETTINGS` to the signal; `valid` is then ten intervals,
    at least 10 s, and without `nats` the agent stays alone.
    """

    source: str = "linux"
    root: str = "/"
    target: tuple[str, ...] = ()
    trace: Path | None = None
    repeat: bool = False
    synthetic: int | None = None
    source_option: tuple[str, ...] = ()
    interval: float | None = None
    name: str | None = None
    preset: str | None = None
    signal: str | None = None
    embedding: str = "fpca"
    energy_bounds: str | None = None
    budget: float | None = None
    tolerance: str | None = None
    horizon: int | None = None
    quota: bool | None = None
    likelihood: float | None = None
    reopen: float | None = None
    calm: float | None = None
    hold: float | None = None
    hourly_limit: float | None = None
    explore: float | None = None
    weights: str | None = None
    valid: float | None = None
    when_silent: Literal["accept", "reject"] = "accept"
    cpus: float | None = None
    capacity_factor: float = 1.25
    probe: bool = True
    offenders: Literal["names", "hashed", "off"] = "names"
    gate: str | None = None
    gate_option: tuple[str, ...] = ()
    enforce: bool = False
    max_refusing: float = 0.25
    nats: str | None = None
    state: Path | None = None
    keep: bool = True
    log_age: float = 604800.0
    log_megabytes: int = 64
    listen: str = "127.0.0.1:7077"
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None


def seconds(text: str) -> float:
    """Read a length of time: `90`, `60s`, `10m`, `1h30m`, `2d`.

    Examples
    --------
    >>> seconds("1h30m"), seconds("0.5")
    (5400.0, 0.5)
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or not any(found.groups()):
        raise SettingsError(f"a length of time must look like 90s, 10m or 1h30m, got {text!r}")
    days, hours, minutes, rest = (float(part or 0) for part in found.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + rest


def with_durations(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with every length of time as a number: of `timeout` and of all that end in `_seconds`.

    Examples
    --------
    >>> with_durations({"min_hold_seconds": "1m30s", "conf": "1m"})
    {'min_hold_seconds': '90', 'conf': '1m'}
    """
    return {
        key: f"{seconds(value):g}" if key == "timeout" or key.endswith("_seconds") else value
        for key, value in options.items()
    }


def pairs(given: Collection[str], option: str) -> dict[str, str]:
    """Read `KEY=VALUE` texts.

    Examples
    --------
    >>> pairs(["user=me"], "--gate-option")
    {'user': 'me'}
    """
    found = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise SettingsError(f"{option} must be KEY=VALUE, got {text!r}")
        found[key.strip().replace("-", "_")] = value
    return found


def plain_value(text: str) -> str | float | bool:
    """Return a text as the number or truth value it reads as, else as it is.

    Examples
    --------
    >>> plain_value("2.5"), plain_value("true"), plain_value("n1")
    (2.5, True, 'n1')
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        return text


def find_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the settings file in its standard place: the user's, else the machine's, else None."""
    home = environment.get("XDG_CONFIG_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path(environment.get("HOME", "/")) / ".config"
    for path in (base / "pronto" / "pronto.toml", Path("/etc/pronto/pronto.toml")):
        if os.access(path, os.R_OK) and path.is_file():
            return path
    return None


def unknown_variables(
    known: Collection[str],
    checked: Collection[str],
    commands: Collection[str],
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """Return a line for every variable `PRONTO_*` that sets nothing.

    `checked` and `commands` are the words that follow `PRONTO_`: of the command that runs, and of all; `known` are the
    variables of those in `checked`. Variables of commands that do not run are left to them. `SettingsError` for one
    that looks like a setting: of the command that runs, or of one that is nearly called so.

    Examples
    --------
    >>> names = {"PRONTO_AGENT_BUDGET"}
    >>> unknown_variables(names, {"AGENT"}, {"AGENT"}, {"PRONTO_AGENT_BUDGTE": "0.1"})
    Traceback (most recent call last):
    prontosched.errors.SettingsError: PRONTO_AGENT_BUDGTE sets nothing: did you mean 'PRONTO_AGENT_BUDGET'?
    """
    found = []
    others = {name.split("_")[1] for name in OTHER_VARIABLES}
    for name in sorted(environment):
        word = name.removeprefix("PRONTO_").partition("_")[0]
        ours = name.startswith("PRONTO_") and not (
            name.startswith("PRONTO_TEST_") or _SERVICE_LINK.search(name)
        )
        if not ours or name in known or name in OTHER_VARIABLES or word in set(commands) - set(checked):
            continue
        if word in checked or word in others:
            raise SettingsError(f"{name} sets nothing{suggestion(name, {*known, *OTHER_VARIABLES})}")
        near = nearest(word, [*commands, *others])
        if near and name != f"PRONTO_{word}":
            raise SettingsError(f"{name} sets nothing: did you mean 'PRONTO_{near[0]}_…'?")
        found.append(
            f"{name} sets nothing: a variable is PRONTO_, a command and its option (PRONTO_AGENT_BUDGET)"
        )
    return found


def read_file(path: Path) -> dict[str, dict[str, Any]]:
    """Read a settings file: tables of plain values."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"the settings file must be readable, got {error.strerror} for {path}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise SettingsError(f"{path}: a settings file must be at most {MAX_FILE_BYTES} bytes, got more")
    if any(piece.count(b".") > DEEPEST for piece in re.split(rb"[=\n{},\[\]]", raw)):
        # The parser takes minutes for a name of thousands of parts.
        raise SettingsError(f"{path}: a name must have at most {DEEPEST} parts, got more")
    try:
        tables = tomllib.loads(raw.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: must be TOML: {error}") from error
    except (
        RecursionError,
        ValueError,
        OverflowError,
    ) as error:  # deep tables, numbers of thousands of digits
        raise SettingsError(f"{path}: must be TOML of plain values, got {type(error).__name__}") from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise SettingsError(
                f"{path}: {name} must stand in a table such as [agent], got it outside of any"
            )
        for key, value in table.items():
            if isinstance(value, dict):
                raise SettingsError(f"{path}: [{name}] {key} must be a plain value, got a table")
    return tables


def default_map(
    tables: Mapping[str, Mapping[str, Any]],
    known: Mapping[str, Mapping[str, str]],
    path: Path | str = "settings",
) -> dict[str, dict[str, Any]]:
    """Return the file's values as defaults per command, or raise naming the key that is not known.

    `known` has the settings of each command: the name a file gives, with underscores, and the command's own.

    Examples
    --------
    >>> default_map({"run": {"time-out": 3}}, {"run": {"time_out": "limit"}})
    {'run': {'limit': 3}}
    """
    found: dict[str, dict[str, Any]] = {}
    for command, table in tables.items():
        if command not in known:
            raise SettingsError(f"{path}: no command for table [{command}]{suggestion(command, known)}")
        for key, value in table.items():
            option = key.replace("-", "_")
            if option not in known[command]:
                raise SettingsError(
                    f"{path}: [{command}] has no setting {key!r}{suggestion(option, known[command])}"
                )
            found.setdefault(command, {})[known[command][option]] = value
    for command, parent in INHERITS.items():
        names = set(known.get(command, {}).values())
        inherited = {k: v for k, v in found.get(parent, {}).items() if k in names}
        if inherited or command in found:
            found[command] = {**inherited, **found.get(command, {})}
    return found
