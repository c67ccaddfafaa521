"""Odd values, and a loop that tries them: nothing unexpected, nothing slow, nothing large.

Each fuzzer takes 3 seconds in the tests and 200 in `make soak`; `PRONTO_TEST_FUZZ_SECONDS` sets another time. A run
ends with how many inputs each fuzzer has tried.
"""

from __future__ import annotations

import logging
import os
import random
import resource
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

SECONDS = float(os.environ.get("PRONTO_TEST_FUZZ_SECONDS", "3"))
SEED = int(os.environ.get("PRONTO_TEST_SEED", "7"))
# Of the processor's time; of the clock's, which a loaded machine takes from all, so much says that it hangs.
LONGEST_SECONDS, HANGS_SECONDS = 2.0, 30.0
MOST_MEGABYTES = 512

NUMBERS = [None, True, False, 0, 1, -1, 7, 2**31, 2**62, -(2**70), 10**400, -(10**400)]
FLOATS = [0.1, -0.5, 1e-300, 1e39, -1e155, 1e155, 1e308, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", "a", "..", "a/" * 150, "\ud800", "x" * 5000, "\x00", "\n", "'\"`\\=", "1e999", "é" * 300]
NESTED = [[], [[]], ["\ud800"], [1, 2], {}, {"a": {"b": []}}, [None] * 40, ["n"] * 33]
ODD: list[Any] = [*NUMBERS, *FLOATS, *TEXTS, *NESTED]
ODD_BYTES = [str(one).encode("utf-8", "surrogatepass")[:200] for one in ODD]

COUNTS: Counter[str] = Counter()


def odd_value(rng: random.Random, old: Any = None) -> Any:
    """Return something that a field may hold and should not; of an array mostly another array."""
    if isinstance(old, np.ndarray) and rng.random() < 0.8:
        return odd_array(rng, old)
    if isinstance(old, float) and rng.random() < 0.5:
        return rng.choice([old * 1e6, -old, old + 1e-9, *FLOATS])
    if isinstance(old, int) and not isinstance(old, bool) and rng.random() < 0.5:
        return rng.choice([old + 1, old - 1, -old, old * 1000, 10**9])
    return rng.choice(ODD)


def odd_array(rng: random.Random, old: np.ndarray) -> np.ndarray:
    """Return an array like another, with a number, the shape, the kind or the scale changed."""
    new = old.copy()
    kind = rng.randrange(7)
    with np.errstate(all="ignore"):
        if kind <= 1 and new.size:
            value = rng.choice([np.nan, np.inf, -np.inf, 1e308, -1e308, 1e155, 1e-320, -1.0, 0.0, 1e9])
            if new.dtype.kind != "f":
                value = rng.choice([0, 1, -1 if new.dtype.kind == "i" else 1, 2**7])
            new.flat[rng.randrange(new.size)] = value
        elif kind == 2:
            new = (new * rng.choice([0.0, -1.0, 1e20, 1e300, 1e-300])).astype(old.dtype)
        elif kind == 3:
            new = new[..., :-1] if new.ndim else new
        elif kind == 4:
            new = new.astype(rng.choice(["float32", "int64", "bool", "float64"]))
        elif kind == 5:
            new = np.atleast_2d(new).T
        else:
            new = np.zeros(rng.choice([(0,), (0, 5), (3, 0), (1, 1, 1), (2000,)]), old.dtype)
    return new


def broken(rng: random.Random, data: bytes, most: int = 6) -> bytes:
    """Return bytes with some changed, cut out, doubled or put in."""
    found, chance = bytearray(data), rng.random  # `randrange` would take most of the time
    for _ in range(1 + int(chance() * most)):
        if not found:
            break
        at = int(chance() * len(found))
        kind = int(chance() * 5)
        if kind == 0:
            found[at] = int(chance() * 256)
        elif kind == 1:
            del found[at : at + 1 + int(chance() * 40)]
        elif kind == 2:
            found[at:at] = found[at : at + 1 + int(chance() * 40)]
        elif kind == 3:
            found[at:at] = ODD_BYTES[int(chance() * len(ODD_BYTES))]
        else:
            found[at:at] = rng.randbytes(1 + int(chance() * 8))
    return bytes(found)


def fuzz(
    name: str,
    attempt: Callable[[random.Random], object],
    refusals: type[Exception] | tuple[type[Exception], ...],
    *,
    seconds: float = SECONDS,
) -> tuple[int, int]:
    """Try until the time is over; return how many were refused in words, and how many taken.

    Any other exception, a warning, an attempt of over 2 seconds or a process of 512 MB more fails.
    """
    refused = taken = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = zlib.crc32(f"{name}/{SEED}".encode()) << 32
    rng = random.Random()
    begin = now = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while now - begin < seconds:
            number, worked = refused + taken, time.thread_time()
            rng.seed(first + number)
            try:
                attempt(rng)
                taken += 1
            except refusals as error:
                words = str(error)
                assert 0 < len(words) < 20_000, f"{name}/{SEED}/{number}: {words[:200]!r}"
                refused += 1
            except Exception as error:
                raise AssertionError(f"{name}/{SEED}/{number}: {error!r}") from error
            assert time.thread_time() - worked < LONGEST_SECONDS, f"{name}/{SEED}/{number} is slow"
            then, now = now, time.monotonic()
            assert now - then < HANGS_SECONDS, f"{name}/{SEED}/{number} hangs"
            if number % 64 == 0:
                for handler in logging.getLogger().handlers:
                    if hasattr(handler, "reset"):  # pytest keeps every line that is logged
                        handler.reset()
                grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
                assert grown < MOST_MEGABYTES, f"{name}/{SEED}/{number}: {grown:.0f} MB more"
    count_inputs(name, refused + taken)
    return refused, taken


def count_inputs(name: str, tried: int) -> None:
    """Add to what the last line of a run counts."""
    COUNTS[name] += tried


def counted() -> str:
    """Say in one line how many inputs were tried; empty where there was no fuzzer."""
    each = ", ".join(f"{name} {tried:,}" for name, tried in sorted(COUNTS.items()))
    return f"fuzzers tried {COUNTS.total():,} inputs: {each}" if COUNTS else ""
