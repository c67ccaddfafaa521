"""One thread for linear algebra.

The matrices here are small: threads of the BLAS get in each other's way, spin while they
wait, and take memory each. It reads how many to start when numpy is imported.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
LOCALE = "LC_CTYPE"

_set_here: set[str] = set()


def use_one_thread() -> None:
    """Let numpy start no threads, unless the user has asked for some; call before it is imported."""
    for name, value in ONE_THREAD.items():
        if name not in os.environ:
            os.environ[name] = value
            _set_here.add(name)


def given_environment() -> dict[str, str]:
    """Return the environment as the user gave it, for commands of theirs."""
    ours = {*_set_here, LOCALE} if LOCALE in os.environ and _python_set_the_locale() else _set_here
    return {name: value for name, value in os.environ.items() if name not in ours}


@cache
def _python_set_the_locale() -> bool:
    """Tell whether Python itself set the locale of its process, as it does where there is none, such as in cron."""
    try:
        begun = Path("/proc/self/environ").read_bytes()
    except OSError:
        return False
    return not any(one.startswith(f"{LOCALE}=".encode()) for one in begun.split(b"\0"))


def engine_environment() -> dict[str, str]:
    """Return the environment for commands of engines and hooks: without Pronto's settings, some of which are secret."""
    return {name: value for name, value in given_environment().items() if not name.startswith("PRONTO_")}
