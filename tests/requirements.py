"""What a test needs beyond Python: programs, reference data, root. Without it the test skips and is counted."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pytest

from examples.slurm_cluster import missing_programs

# Debian keeps daemons where a user's PATH does not look.
PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
DAEMONS = "make daemons"
_REASON = re.compile(r"needs (?P<what>[^:]+): (?P<remedy>.+)")


def find_program(*names: str) -> str | None:
    """Return the path of the first program that is installed."""
    return next((found for name in names if (found := shutil.which(name, path=PATH))), None)


def missing_reason(what: str, remedy: str) -> str:
    """Say why a test is skipped: what it needs, and the command that brings it."""
    return f"needs {what}: {remedy}"


def skip(what: str, remedy: str) -> NoReturn:
    """Skip this test for want of `what`."""
    pytest.skip(missing_reason(what, remedy))


def require_program(*names: str) -> str:
    """Return the path of the first program that is installed, or skip."""
    return find_program(*names) or skip(names[0], DAEMONS)


def require_slurm() -> None:
    """Skip where a program of `examples.slurm_cluster` is missing."""
    if missing_programs():
        skip("Slurm", DAEMONS)


def require_root() -> None:
    """Skip where the test may not do what only root may."""
    if os.geteuid() != 0:
        skip("root", "sudo make test")


def require_data() -> Path:
    """Return the folder with reference outputs and real traces, or skip."""
    folder = os.environ.get("PRONTO_TEST_DATA", "")
    if not folder or not Path(folder).is_dir():
        skip("reference data", "PRONTO_TEST_DATA=FOLDER make test")
    return Path(folder)


def summary(reasons: Iterable[str]) -> str:
    """Count in one line what was skipped for want of something, by the command that brings it; empty for nothing."""
    found = [match.groups() for reason in reasons if (match := _REASON.search(reason))]
    if not found:
        return ""
    remedies: dict[str, Counter[str]] = {}
    for what, remedy in found:
        remedies.setdefault(remedy, Counter())[what] += 1
    parts = [
        f"{', '.join(f'{what} ({count})' for what, count in sorted(counts.items()))}: {remedy}"
        for remedy, counts in sorted(remedies.items())
    ]
    return f"skipped for want of programs, data or rights: {len(found)} tests. Needed are " + "; ".join(parts)
