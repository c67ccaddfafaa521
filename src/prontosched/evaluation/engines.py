"""Spread chunks of nodes over processes or a Dask cluster; the numbers are the same everywhere.

A worker that dies loses only its chunk, which is done again by another.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from prontosched.errors import SettingsError
from prontosched.evaluation.inputs import Part
from prontosched.evaluation.replay import PartResult, Progress, evaluate_part
from prontosched.evaluation.setting import Setting
from prontosched.extras import missing_extra
from prontosched.threads import ONE_THREAD

# How often a chunk is tried again after its worker died.
ATTEMPTS = 3
POLL_SECONDS = 0.2
WATCH_SECONDS = 1.0
STOP = -(2**62)

_done: Any = None


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(
    parts: Sequence[Part],
    setting: Setting,
    *,
    engine: str = "local",
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> list[PartResult]:
    """Evaluate all parts and return their results in the order of the parts.

    Parameters
    ----------
    engine
        `local` for processes on this machine, `dask` for a cluster.
    workers
        Processes; by default all cores.
    scheduler
        Address of a Dask scheduler; without one a cluster is started on this machine.
    progress
        Called with the rows done since it was last called.
    """
    if engine == "dask":
        return _run_dask(parts, setting, workers, scheduler, progress)
    if engine != "local":
        raise SettingsError(f"engine must be local or dask, got '{engine}'")
    if scheduler is not None:
        raise SettingsError("a scheduler's address needs --engine dask")
    workers = min(workers or cores(), len(parts))
    if workers <= 1:
        return [evaluate_part(part, setting, progress) for part in parts]
    return _run_processes(parts, setting, workers, progress)


def _run_processes(
    parts: Sequence[Part], setting: Setting, workers: int, progress: Progress | None
) -> list[PartResult]:
    context = multiprocessing.get_context("spawn")
    results: dict[int, PartResult] = {}
    reported = 0
    for attempt in range(1, ATTEMPTS + 1):
        counter = context.Value("q", 0)
        left = [place for place in range(len(parts)) if place not in results]
        base = sum(result.node_steps for result in results.values())
        with _one_thread(), ProcessPoolExecutor(workers, context, _begin, (counter, os.getpid())) as pool:
            waiting = {pool.submit(_work, parts[place], setting): place for place in left}
            try:
                while waiting:
                    for future in [future for future in waiting if future.done()]:
                        results[waiting.pop(future)] = future.result()
                    done = base + counter.value
                    if progress is not None and done > reported:
                        progress(done - reported)
                        reported = done
                    if waiting:
                        time.sleep(POLL_SECONDS)
            except KeyboardInterrupt:
                # Workers look at the counter as they go on: a negative one sends them home.
                counter.value = STOP
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            except BrokenProcessPool as error:
                if attempt == ATTEMPTS:
                    raise SettingsError(
                        f"workers died {ATTEMPTS} times with {len(parts) - len(results)} chunks left: "
                        "is there enough memory? try --workers 1"
                    ) from error
                continue
        break
    return [results[place] for place in range(len(parts))]


def _begin(counter: Any, parent: int) -> None:
    global _done
    _done = counter
    # Ctrl-C reaches the whole process group: the parent alone acts on it, and tells workers by the counter.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    """End this process once its parent has gone: nobody is left to report to, or to end it."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


def _work(part: Part, setting: Setting) -> PartResult:
    return evaluate_part(part, setting, _report)


def _report(rows: int) -> None:
    with _done.get_lock():
        stopped = _done.value < 0
        if not stopped:
            _done.value += rows
    if stopped:
        raise KeyboardInterrupt


def _run_dask(
    parts: Sequence[Part],
    setting: Setting,
    workers: int | None,
    scheduler: str | None,
    progress: Progress | None,
) -> list[PartResult]:
    try:
        from distributed import as_completed
    except ImportError as error:
        raise SettingsError(missing_extra("engine dask", "dask")) from error
    with _client(workers or cores(), scheduler) as client:
        futures = [
            client.submit(evaluate_part, part, setting, pure=False, retries=ATTEMPTS, key=f"pronto-{place}")
            for place, part in enumerate(parts)
        ]
        for future in as_completed(futures):
            if progress is not None and future.status == "finished":
                progress(future.result().node_steps)
        return [future.result() for future in futures]


@contextmanager
def _client(workers: int, scheduler: str | None) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    if scheduler is not None:
        try:
            client = Client(scheduler, timeout="5s", set_as_default=False)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"no Dask scheduler answers at {scheduler}: is it running, and its address right?"
            ) from error
        with client, client.as_current():
            yield client
        return
    with (
        _one_thread(),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
        client.as_current(),
    ):
        yield client


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let workers started meanwhile use one thread each."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
