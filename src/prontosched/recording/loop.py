"""Read a source on time and record what it sees."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from prontosched.recording.parts import Recorder, finite_mean
from prontosched.telemetry.probe import Probe
from prontosched.telemetry.source import Source

POLL_SECONDS = 0.1


@dataclass(slots=True)
class Progress:
    """How far a recording is.

    Attributes
    ----------
    timesteps
        Readings so far.
    rows
        Rows written so far: one per node and timestep.
    late
        Readings that started more than half an interval late.
    seconds
        Time since the start.
    probes
        Probes whose slowdown was recorded.
    ready
        CPU Ready of the last reading, the mean over nodes; NaN if unknown.
    """

    timesteps: int = 0
    rows: int = 0
    parts: int = 0
    metrics: int = 0
    late: int = 0
    probes: int = 0
    seconds: float = 0.0
    ready: float = math.nan


def record(
    source: Source,
    recorder: Recorder,
    *,
    seconds: float = math.inf,
    probe: Probe | None = None,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[Progress], None] = lambda now: None,
) -> Progress:
    """Record until the time is over, the source ends, or `stopped`; the recorder is left to be finished.

    Readings keep to a grid: a late one does not shift those after it. The first reading only sets the
    counters and is not recorded. With a `probe`, what it finds goes to the reading after it.
    """
    state = Progress()
    begun = time.monotonic()
    source.read()
    grid = 0
    while not stopped():
        grid += 1
        due = begun + grid * source.interval_seconds
        if due - begun > seconds:
            break
        if not _sleep_until(due, stopped):
            break
        late = time.monotonic() - due
        if late > source.interval_seconds / 2:
            state.late += 1
            grid += int(late // source.interval_seconds)
        try:
            samples = source.read()
        except EOFError:
            break
        if probe is not None and samples:
            found = probe.poll(time.monotonic(), ready=samples[0].ready)
            if found is not None:
                samples = [replace(samples[0], probe_slowdown=found.slowdown), *samples[1:]]
                state.probes += 1
        recorder.write(samples)
        state.timesteps += 1
        state.rows, state.parts = recorder.rows, recorder.parts
        state.metrics = len(samples[0].metrics) if samples else state.metrics
        state.seconds = time.monotonic() - begun
        state.ready = finite_mean([sample.ready for sample in samples])
        progress(state)
    return state


def _sleep_until(due: float, stopped: Callable[[], bool]) -> bool:
    """Sleep until then; return whether to go on."""
    while (left := due - time.monotonic()) > 0:
        if stopped():
            return False
        time.sleep(min(left, POLL_SECONDS))
    return True
