"""An evaluation from beginning to end: parts to workers, results to numbers.

Parts are spread over processes or a Dask cluster; the numbers are the same everywhere. A worker that dies loses
only its part, which is done again by another.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np

from prontosched.errors import SettingsError, TelemetryError
from prontosched.evaluation.inputs import FEWEST_VALUES, Part, Plan, Setting, Truth, first_rows
from prontosched.evaluation.methods import choose
from prontosched.evaluation.record import FEWEST_SCORED
from prontosched.evaluation.replay import PartResult, Progress, evaluate_part
from prontosched.evaluation.report import Evaluation, outcome
from prontosched.evaluation.speed import TIMED_VECTORS, paper_scale, timing
from prontosched.evaluation.study import Study
from prontosched.evaluation.verdict import goals
from prontosched.extras import missing_extra
from prontosched.threads import ONE_THREAD

# How often a chunk is tried again after its worker died.
ATTEMPTS = 3
POLL_SECONDS = 0.2
WATCH_SECONDS = 1.0
STOP = -(2**62)
ADDRESS = re.compile(r"((tcp|tls|wss?|ucx)://)?([^\s/:\[\]]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})/?")
# A threshold that more of the steps reach tells nothing apart.
MOST_SPIKES = 0.5
# Where fewer of the rows can be scored, or more say again what the row before did, it is said.
LEAST_SCORED = 0.5
MOST_REPEATED = 0.45

_done: Any = None


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_parts(
    parts: Sequence[Part],
    setting: Setting,
    *,
    engine: str = "local",
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> list[PartResult]:
    """Evaluate all parts and return their results in the order of the parts.

    The engine is `local` (processes) or `dask`: the cluster of a scheduler, or one started on this machine. `progress`
    is called with the rows done since it was last called.
    """
    if engine == "dask":
        return _run_dask(parts, setting, workers, scheduler, progress)
    if engine != "local":
        raise SettingsError(f"engine must be local or dask, got '{engine}'")
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
        with _one_thread(), process_pool(workers, _begin, counter, os.getpid()) as pool:
            waiting = {pool.submit(evaluate_part, parts[place], setting, _report): place for place in left}
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
    end_with(parent)


@contextmanager
def process_pool(workers: int, begin: Callable[..., None], *arguments: Any) -> Iterator[ProcessPoolExecutor]:
    """Start workers that each call `begin` first; Ctrl-C reaches the parent alone, which acts on it."""
    # A fresh interpreter each: forking a process with BLAS threads can hang.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), begin, arguments) as pool:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        for _ in range(workers):
            pool.submit(os.getpid)  # starts a worker, and what is blocked here is blocked there
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        yield pool


def end_with(parent: int) -> None:
    """Let this worker end once its parent has gone: nobody is left to report to, or to end it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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
        found = ADDRESS.fullmatch(scheduler)
        if found is None or not 0 < int(found["port"]) < 65536:
            raise SettingsError(
                f"a scheduler's address must be such as tcp://10.0.0.4:8786, got '{scheduler}': "
                "give the one that dask-scheduler prints"
            )
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
        for name in ONE_THREAD:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in before.items() if value is not None})


def evaluate(
    plan: Plan,
    setting: Setting,
    *,
    engine: str = "local",
    workers: int | None = None,
    command: str = "",
    data: str = "traces",
    timed: bool = False,
    **spread: Any,
) -> Evaluation:
    """Evaluate all parts of a plan, spread as `run_parts` says; raise `TelemetryError` if not a single node could be.

    `data` says what they are: `traces`, `shipped` for Pronto's own, or the name of a generated fleet. With `timed`, a
    bare step of a node is measured too.
    """
    methods = choose(setting.methods, setting.sweeps)
    began = time.perf_counter()
    results = run_parts(plan.parts, setting, engine=engine, workers=workers, **spread)
    elapsed = time.perf_counter() - began
    study = Study(results, setting, methods)
    for result in results:
        plan.refused.update(result.refused)
    if not study.nodes:
        raise TelemetryError(_nothing(study, plan))
    found = outcome(study)
    found["data"]["refused"] = plan.refused
    # The machines that were looked at while the signals were made.
    developed_on = all(node.node.startswith("machine-1-") for node in study.nodes)
    found["development"] = data == "shipped" or developed_on
    found["goals"] = goals(study, data)
    found["command"] = command
    found["version"] = version("prontosched")
    steps, spent = (sum(getattr(result, name) for result in results) for name in ("node_steps", "seconds"))
    used = workers or cores()
    found["performance"] = {
        **{"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()},
        **{"engine": engine, "workers": used, "chunks": len(plan.parts), "node_steps": steps},
        **{"seconds": round(elapsed, 3), "processor_seconds": round(spent, 3)},
        "paper_data_set": paper_scale(steps, spent, elapsed, used),
    }
    if timed:
        found["performance"]["timing"] = timing(results, first_rows(plan.parts[0], TIMED_VECTORS))
    return Evaluation(study, found, plan.parts[0], _warnings(study, plan))


def _nothing(study: Study, plan: Plan) -> str:
    if plan.refused and not study.too_short:
        return next(iter(plan.refused.values()))
    node = study.too_short[0] if study.too_short else None
    if node is None:
        return "no trace has a single row that can be used"
    if node.steps == 0:
        return (
            f"{node.node}: CPU Ready is unknown in every row: scoring needs it, name its column with --ready"
        )
    horizon = study.setting.horizon
    what = "record for longer"
    if node.steps > 2 * (FEWEST_SCORED + FEWEST_VALUES + horizon):
        what = "keep the rows in which CPU Ready was measured, at even distances in time"
    return (
        f"{node.node}: at least {FEWEST_SCORED} moments whose next {horizon} steps are known are needed, "
        f"got {node.scored} from {node.steps} rows with CPU Ready: {what}"
    )


def _warnings(study: Study, plan: Plan) -> list[str]:
    lines = [f"left out: {reason}" for reason in plan.refused.values()]
    seen = Counter(line for counts in study.passes for line in counts.warnings())
    lines += [line if n == 1 else f"{line} ({n} times)" for line, n in seen.items()]
    if study.too_short:
        names = ", ".join(node.node for node in study.too_short[:4])
        more = f" and {len(study.too_short) - 4} more" if len(study.too_short) > 4 else ""
        lines.append(f"fewer than {FEWEST_SCORED} moments can be scored, left out: {names}{more}")
    lines += _about_truth(study) + _about_rows(study)
    quiet = [node.node for node in study.nodes if node.spikes == 0]
    if quiet and len(quiet) < len(study.nodes):
        few = f"{len(quiet)} of {len(study.nodes)} nodes"
        lines.append(f"{few} have no spike: they count towards downtime only")
    thin = [result.thinning for result in study.results if result.thinning > 1]
    if thin:
        stretch = f"every {max(thin)}. stretch of {max(result.stretch for result in study.results)} steps"
        lines.append(f"ranking measures and nulls are from {stretch}, to bound memory")
    return lines


def _about_rows(study: Study) -> list[str]:
    """Warn of rows that cannot be scored, and of rows that repeat a measurement."""
    lines, horizon = [], study.setting.horizon
    steps, scored = (sum(getattr(node, count) for node in study.nodes) for count in ("steps", "scored"))
    if scored < LEAST_SCORED * (steps - len(study.nodes) * (FEWEST_VALUES + horizon)):
        lines.append(
            f"only {scored / steps:.0%} of the rows with CPU Ready can be scored: around the others it is unknown, or "
            f"time is missing, within {horizon} steps"
        )
    again, above = np.sum([result.repeated for result in study.results], axis=0)
    if again >= max(FEWEST_SCORED, MOST_REPEATED * above):
        lines.append(
            f"CPU Ready equals that of the row before in {again / above:.0%} of the rows above its lowest value: if it "
            "is measured less often than rows are written, old contention counts as contention foretold: keep one row "
            "a measurement"
        )
    return lines


def _about_truth(study: Study) -> list[str]:
    """Warn of a threshold that nearly every step, or of a fixed one that none reaches, and suggest another."""
    truth = Truth.parse(study.setting.truth)
    share = sum(node.spikes for node in study.nodes) / max(1, sum(node.steps for node in study.nodes))
    usual = {"percentile": 1.0 - truth.value / 100.0, "median": 0.5}.get(truth.kind, 0.0)
    if truth.kind != "fixed" and share >= max(MOST_SPIKES, 2.0 * usual):
        return [
            f"{share:.0%} of the steps are a spike by --truth {study.setting.truth}: CPU Ready grows over the record, "
            "or is often at its highest value; try a fixed --truth"
        ]
    if truth.kind != "fixed" or 0 < share < MOST_SPIKES:
        return []
    result = next(result for result in study.results if result.nodes)
    middle, high = result.ready_levels
    unit = {"percent": "%", "ms": "ms"}.get(result.ready_unit, "")
    what = f"{share:.0%} of the steps are" if share else "no step is"
    return [
        f"{what} a spike by --truth {study.setting.truth}: CPU Ready in '{result.ready_column}' is usually "
        f"{_digits(middle, 3)}{unit} and above {_digits(high, 3)}{unit} a twentieth of the time; "
        f"try --truth p95 or --truth {_digits(high, 2)}{unit}"
    ]


def _digits(value: float, digits: int) -> str:
    """Return a number of so many digits as --truth reads it: without an exponent."""
    return np.format_float_positional(float(f"{value:.{digits}g}"), trim="-")
