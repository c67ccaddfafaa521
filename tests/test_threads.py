"""Linear algebra runs on one thread, and commands of the user do not notice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prontosched.threads import ONE_THREAD

PROGRAM = """
import os
from prontosched.cli import main
try:
    main(["--version"])
except SystemExit:
    pass
import numpy
from prontosched.threads import given_environment
print(len(os.listdir("/proc/self/task")), given_environment().get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has no threads to spare")
@pytest.mark.parametrize(("given", "threads"), [(None, 1), ("2", 2)])
def test_numpy_starts_no_threads_unless_asked_to(given: str | None, threads: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ONE_THREAD}
    if given is not None:
        environment["OPENBLAS_NUM_THREADS"] = given
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert ran.stdout.splitlines()[-1] == f"{threads} {given}"


@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C.UTF-8"}])
def test_a_command_without_a_locale_is_given_none(given):
    """Python sets one for itself; in cron a command would take its bytes for other letters."""
    program = "from prontosched.threads import given_environment as given; print(given().get('LC_CTYPE'))"
    bare = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sys.path), **given}
    told = subprocess.run(
        [sys.executable, "-c", program], env=bare, capture_output=True, text=True, check=True
    )

    assert told.stdout.strip() == str(given.get("LC_CTYPE"))
