"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

# Small matrices: threads of the BLAS only get in each other's way. Read when numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator whose seed CI may vary with PRONTO_TEST_SEED."""
    return np.random.default_rng(int(os.environ.get("PRONTO_TEST_SEED", "7")))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with reference outputs and real traces; skips where it is absent."""
    folder = os.environ.get("PRONTO_TEST_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("PRONTO_TEST_DATA does not name a folder with reference data")
    return Path(folder)
