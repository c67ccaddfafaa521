"""Fixtures for all tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Small matrices: threads of the BLAS only get in each other's way. Read when numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest

from tests.fuzzing import counted
from tests.requirements import require_data, summary

# Sockets of agents go here and not into the machine's own folder, which root's would take.
RUNTIME = tempfile.mkdtemp(prefix="pronto-run-")
os.chmod(RUNTIME, 0o755)
os.environ["RUNTIME_DIRECTORY"] = RUNTIME

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile(
    "pronto", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("pronto")

# Files that take longest, first: a run on several processes then ends on short ones.
LONGEST = (
    "tests/federation/test_robustness.py",
    "tests/test_examples.py",
    "tests/test_demo.py",
    "tests/dashboard",
    "tests/agent/test_many_nodes.py",
    "tests/agent/test_process.py",
    "tests/gates",
    "tests/test_notebooks.py",
    "tests/simulation",
    "tests/python",
    "tests/agent",
    "tests/federation",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring the longest files to the front."""

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(config.rootpath).as_posix()
        return next((i for i, name in enumerate(LONGEST) if path.startswith(name)), len(LONGEST))

    items.sort(key=place)


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator whose seed CI may vary with PRONTO_TEST_SEED."""
    return np.random.default_rng(int(os.environ.get("PRONTO_TEST_SEED", "7")))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with reference outputs and real traces; skips where it is absent."""
    return require_data()


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: a fuzzer writes a file for each of its inputs."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="pronto-fuzz-", dir=memory) as folder:
        yield Path(folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End with one line that counts what was skipped for want of something, and one that counts fuzzers' inputs."""
    shutil.rmtree(RUNTIME, ignore_errors=True)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    if line := summary(report.longrepr[2] for report in reporter.stats.get("skipped", [])):
        reporter.write_line(line, yellow=True)
    if line := counted():
        reporter.write_line(line)
