"""One process of the load: spin, fork, write or hold memory for a stated time, then end.

Run as a script by `run`, so it imports only the standard library and starts quickly. It ends by itself when
its time is over and when its parent is gone.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

SLICE_SECONDS = 0.02
CHILD_SECONDS = 0.05
FILE_BYTES = 64 * 1024 * 1024
PIECE_BYTES = 256 * 1024


class _Clock:
    """How much time is left, and how far along it is."""

    def __init__(self, seconds: float, parent: int) -> None:
        self.started = time.monotonic()
        self.seconds = seconds
        self.parent = parent

    def going(self) -> bool:
        return time.monotonic() - self.started < self.seconds and os.getppid() == self.parent

    def part(self) -> float:
        return min(1.0, (time.monotonic() - self.started) / self.seconds)


def _burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for _ in range(200):
            pass


def spin(clock: _Clock, level: float, ramp: bool) -> None:
    """Use a share of one CPU."""
    while clock.going():
        share = level * (clock.part() if ramp else 1.0)
        started = time.monotonic()
        if share >= 1.0:
            while time.monotonic() - started < SLICE_SECONDS:
                pass
            continue
        _burn(SLICE_SECONDS * share)
        time.sleep(max(0.0, SLICE_SECONDS - (time.monotonic() - started)))


def forks(clock: _Clock, level: float, ramp: bool) -> None:
    """Start processes that live for 50 ms of CPU time, a number of them at a time."""
    children: set[int] = set()
    while clock.going():
        most = max(1, round(level * (clock.part() if ramp else 1.0)))
        while len(children) < most:
            child = os.fork()
            if child == 0:
                _burn(CHILD_SECONDS * (0.2 if ramp else 1.0))
                os._exit(0)
            children.add(child)
            if ramp:
                time.sleep(0.1 * (1.0 - 0.8 * clock.part()))
        children.discard(os.wait()[0])
    while children:
        children.discard(os.wait()[0])


def io(clock: _Clock, level: float, ramp: bool) -> None:
    """Write megabytes per second to a file that is cut off at 64 MiB, and read them back."""
    piece = os.urandom(PIECE_BYTES)
    with tempfile.TemporaryFile(prefix="pronto-load-") as file:
        descriptor = file.fileno()
        written, place = 0.0, 0
        while clock.going():
            rate = level * 1e6 * (clock.part() if ramp else 1.0)
            due = rate * (time.monotonic() - clock.started) * (0.5 if ramp else 1.0)
            if written >= due:
                time.sleep(SLICE_SECONDS)
                continue
            os.pwrite(descriptor, piece, place)
            place += PIECE_BYTES
            written += PIECE_BYTES
            if place % (16 * PIECE_BYTES) == 0:
                os.fdatasync(descriptor)
                os.pread(descriptor, PIECE_BYTES, 0)
            if place >= FILE_BYTES:
                os.ftruncate(descriptor, 0)
                place = 0


def memory(clock: _Clock, level: float, ramp: bool) -> None:
    """Hold megabytes, all touched; with a ramp they grow over the first half of the time."""
    held: list[bytearray] = []
    while clock.going():
        wanted = level * (min(1.0, 2.0 * clock.part()) if ramp else 1.0)
        if len(held) < wanted:
            held.append(bytearray(1_000_000))
        else:
            time.sleep(0.05)


ACTIONS = {"spin": spin, "forks": forks, "io": io, "memory": memory}


def main(arguments: list[str]) -> None:
    """Do one action: KIND SECONDS LEVEL RAMP [PARENT]."""
    kind, seconds, level, ramp, *parent = arguments
    # Given by the parent itself: it may be gone before this process asks.
    clock = _Clock(float(seconds), int(parent[0]) if parent else os.getppid())
    ACTIONS[kind](clock, float(level), ramp == "1")


if __name__ == "__main__":
    main(sys.argv[1:])
