"""Dask: tasks go to workers whose node expects no contention.

`install` registers two plugins. `ProntoPlugin` runs on each worker: it asks the node's
agent, reports the chance of contention with each heartbeat, and pauses the worker where a
veto is asked for. `ProntoScheduler` runs at the scheduler and prefers calm workers.

Both rely on more than Dask's public interface: `_give_back`, `_pause` and `_resume` of
`WorkerMonitor`, and the three scheduler methods that `ProntoScheduler` replaces. Tried with
the versions that `docs/integrations/dask.md` names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from prontosched.decision import Decision
from prontosched.errors import IntegrationError, SettingsError
from prontosched.extras import missing_extra
from prontosched.gates.gate import ANSWER_LIMIT, ENFORCING, Observed, Verdict, read_decision
from prontosched.gates.kubernetes_client import is_loopback
from prontosched.gates.policy import NodeReport, Rules, VetoPolicy, may_close
from prontosched.gates.preference import CONTENDED, LEVELS, level_of

try:
    from distributed import Lock, SchedulerPlugin, WorkerPlugin
    from distributed.core import Status
    from distributed.worker_state_machine import FreeKeysEvent
except ImportError as error:
    raise IntegrationError(missing_extra("the Dask gate", "dask")) from error

WORKER_LOG = logging.getLogger("distributed.worker.pronto")
SCHEDULER_LOG = logging.getLogger("distributed.scheduler.pronto")
METRIC = "pronto"
PREFERENCE = "pronto-preference"
SCHEDULER_SECONDS = 10.0
# Dask's fast path looks at every worker only in clusters smaller than this.
MOST_WORKERS = 20

Decide = Callable[[str], Verdict | Decision | None]


def install(client: Any, **options: Any) -> None:
    """Make a cluster's tasks prefer calm workers; options as for `ProntoPlugin`.

    Replaces what was installed before. Undone by `uninstall`.
    """
    plugin = ProntoPlugin(**options)
    _leave_choices_to_dask(client)
    client.register_plugin(plugin)
    if plugin.rules.enforce:
        client.register_plugin(ProntoScheduler())


def uninstall(client: Any) -> None:
    """Undo `install`: workers that we paused resume, and Dask chooses by itself."""
    client.unregister_worker_plugin(ProntoPlugin.name)
    _leave_choices_to_dask(client)


def _leave_choices_to_dask(client: Any) -> None:
    # Asked first: Dask's scheduler logs an error for a plugin that it does not have.
    if client.run_on_scheduler(lambda dask_scheduler: PREFERENCE in dask_scheduler.plugins):
        client.unregister_scheduler_plugin(PREFERENCE)


class ProntoPlugin(WorkerPlugin):  # type: ignore[misc]
    """Tell Dask's scheduler what the node of each worker expects; pause workers only with a veto.

    Parameters
    ----------
    url
        The agent on the worker's own machine.
    decide
        Asked instead of an agent, with the worker's address; must survive pickling. Runs
        in a thread, and answers None where nothing is known.
    enforce
        False is shadow mode: report and log what would be done, and change nothing.
    rules
        Whether workers may be paused (`veto`), minimum times, and the share that may be
        paused at once; `enforce` comes from the argument above.
    interval_seconds
        Time between two questions.
    keep_capacity
        Pause a worker only while another has a thread to spare, and resume it when none has.

    Examples
    --------
    >>> ProntoPlugin(enforce=True).rules.max_refusing
    0.25
    """

    name = "pronto"

    def __init__(
        self,
        url: str = "http://127.0.0.1:7077",
        *,
        decide: Decide | None = None,
        enforce: bool = False,
        rules: Rules | None = None,
        interval_seconds: float = 1.0,
        keep_capacity: bool = True,
    ) -> None:
        self.rules = replace(rules or Rules(), enforce=enforce)
        self.url = _checked(url)
        self.decide = decide
        if not (math.isfinite(interval_seconds) and interval_seconds > 0):
            raise SettingsError(f"interval_seconds must be above 0, got {interval_seconds}")
        self.interval_seconds = interval_seconds
        self.keep_capacity = keep_capacity
        self._monitor: WorkerMonitor | None = None

    async def setup(self, worker: Any) -> None:
        """Start the monitor; called by Dask on each worker."""
        self._monitor = WorkerMonitor(worker, self)
        self._monitor.start()

    async def teardown(self, worker: Any) -> None:
        """Stop, and resume the worker if it was paused by us; called by Dask."""
        if self._monitor is not None:
            await self._monitor.stop()
            self._monitor = None

    async def ask(self, address: str) -> Verdict | None:
        """Return the newest verdict for the worker at `address`; None when nothing is known."""
        now = time.time()
        if self.decide is None:
            enforcing = self.rules.enforce and bool(self.rules.veto)
            data = await asyncio.to_thread(_fetch, self.url + "/v1/decision", enforcing=enforcing)
            return read_decision(data, now=now, valid_seconds=self.rules.valid_seconds)
        found = await asyncio.to_thread(self.decide, address)
        if isinstance(found, Decision):
            return Verdict.of(found, now=now, valid_seconds=self.rules.valid_seconds)
        return found


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname)):
        raise SettingsError(
            f"url must be an agent on the worker's own machine or begin with https://, got {url!r}"
        )
    return url.rstrip("/")


def _fetch(url: str, *, enforcing: bool) -> bytes:
    """Return the agent's answer; `enforcing` tells it that its refusals are obeyed."""
    # No proxy: the agent is on this machine, whatever the environment says of the network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url + ENFORCING if enforcing else url, timeout=2.0) as answer:
            data: bytes = answer.read(ANSWER_LIMIT + 1)
    except urllib.error.HTTPError as error:
        error.close()
        if not enforcing or error.code != 400:
            raise
        return _fetch(url, enforcing=False)  # an agent of a release that does not know the parameter
    if len(data) > ANSWER_LIMIT:
        raise IntegrationError(f"{url} must answer at most {ANSWER_LIMIT} bytes, got more")
    return data


class WorkerMonitor:
    """Follow the decisions for one worker on its event loop: report them, and pause and resume the worker."""

    def __init__(self, worker: Any, plugin: ProntoPlugin) -> None:
        self.worker = worker
        self.plugin = plugin
        self.rules = plugin.rules
        self.held = False
        self.given_back = 0
        self._policy = VetoPolicy(plugin.rules)
        self._verdict: Verdict | None = None
        self._held_until = math.nan
        self._count_at = -math.inf
        self._pause_fraction: Any = False
        self._silent = ""
        self._lock = Lock("pronto-floor", scheduler_rpc=worker.scheduler, loop=worker.loop)
        self._asking: asyncio.Future[Verdict | None] | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin on the running loop."""
        self.worker.metrics[METRIC] = lambda worker: self.report()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop, and undo what is ours."""
        self._stopping.set()
        if self._task is not None:
            # Not cancelled at once: a lock that is being taken would stay taken for half a minute.
            await asyncio.wait({self._task}, timeout=10.0)
            self._task.cancel()
        if self._asking is not None:
            self._asking.cancel()
        self.worker.metrics.pop(METRIC, None)
        if self.held:
            self._release("the plugin is taken away")

    def report(self) -> dict[str, Any]:
        """Return where the worker stands; Dask carries it to the scheduler with each heartbeat."""
        verdict = self._verdict
        if verdict is None or verdict.expired(time.time()):
            verdict = Verdict(False, math.nan, self._silent or "nothing is known of the node", math.nan)
        return {
            "mode": "enforce" if self.rules.enforce else "shadow",
            "refuse": verdict.refuse,
            "score": None if math.isnan(verdict.score) else verdict.score,
            "reason": verdict.reason,
            "paused": self.held,
        }

    async def settle(self, now: float) -> None:
        """Bring the worker in line with the newest verdict; without a veto that is only reported."""
        if not self.rules.veto:
            return
        step = self._policy.choose(self._verdict, self._observed(), now)
        verdict = self._verdict
        if step.action == "accept":
            self._release(step.why)
        elif verdict is not None and verdict.refuse and (step.action != "leave" or self.held):
            await self._refuse(verdict, now)
        if self.held and self.rules.enforce:
            # What was on its way here when the worker paused, or came since.
            self._give_back()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._ask_agent()
                await self.settle(time.time())
            except Exception:
                WORKER_LOG.exception(
                    "the monitor of %s broke: accepting, will try again", self.worker.address
                )
                if self.held:
                    self._release("the monitor broke")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self.plugin.interval_seconds)

    async def _ask_agent(self) -> None:
        """Ask for the newest verdict; while there is no answer the last one stays until it expires."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self.plugin.ask(self.worker.address))
        # One question at a time: a callable that hangs must neither pile up nor keep us waiting.
        await asyncio.wait({self._asking}, timeout=max(1.0, self.plugin.interval_seconds))
        if not self._asking.done():
            self._note_trouble("no decision: the question is not answered")
            return
        asked, self._asking = self._asking, None
        try:
            newest = asked.result()
            trouble = "" if newest is not None else "nothing is known of the node"
        except (OSError, IntegrationError) as error:
            newest, trouble = None, f"no decision: {error}"
        except Exception as error:  # a decide callable of someone else's
            newest, trouble = None, f"no decision: {type(error).__name__}: {error}"
        self._note_trouble(trouble)
        if newest is not None:
            self._verdict = newest

    def _note_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._silent:
            WORKER_LOG.info("%s: %s", self.worker.address, trouble)
        self._silent = trouble

    def _observed(self) -> Observed:
        status = self.worker.status
        if self.held and (status == Status.paused or not self.rules.enforce):
            return Observed("closed-by-us", valid_until=self._held_until)
        if self.held:
            self._forget_hold()
        if status == Status.running:
            return Observed("open")
        # Out of memory, retiring, or paused by hand: not ours.
        return Observed("closed-by-other", f"the worker is {status.name}")

    async def _refuse(self, verdict: Verdict, now: float) -> None:
        """Pause, or stay paused, if the floor allows it."""
        if not self.rules.enforce or (self.held and now < self._count_at):
            self._hold(verdict, now)
            return
        self._count_at = now + self.rules.observe_seconds / 4
        # A scheduler that hangs must not keep the worker paused beyond its verdict.
        await asyncio.wait_for(self._count(verdict, now), SCHEDULER_SECONDS)

    async def _count(self, verdict: Verdict, now: float) -> None:
        """Ask the scheduler who is paused, one worker at a time, and act on it."""
        if not await self._lock.acquire(timeout="5s"):
            return
        try:
            workers = read_workers(await self.worker.scheduler.identity())
            me = self.worker.address
            if me not in workers:
                return
            spare = not self.plugin.keep_capacity or any(
                view.spare and not view.paused for address, view in workers.items() if address != me
            )
            if not spare or not may_pause(me, verdict.score, workers, self.rules.max_refusing):
                if self.held:
                    self._release(
                        "enough other workers are paused, or worse off"
                        if spare
                        else "no other worker has a thread to spare"
                    )
            elif self.held:
                self._hold(verdict, now)
            elif self.worker.status == Status.running:
                self._hold(verdict, now)
                await self._wait_for_note(me)
        finally:
            await self._lock.release()

    async def _wait_for_note(self, me: str) -> None:
        """Wait until the scheduler has taken note, so that the next worker counts us."""
        for _ in range(100):
            found = (await self.worker.scheduler.identity())["workers"].get(me)
            if found is None or found["status"] != "running":
                return
            await asyncio.sleep(0.02)

    def _hold(self, verdict: Verdict, now: float) -> None:
        self._held_until = verdict.valid_until
        self._policy.done("refuse", now, verdict.valid_until)
        if self.held:
            return
        self.held = True
        if self.rules.enforce:
            self._pause()
        self._log_change("pauses", verdict.reason, verdict.score)

    def _release(self, why: str) -> None:
        self._policy.done("accept", time.time())
        paused = self.worker.status == Status.paused
        self._forget_hold()
        if self.rules.enforce and paused:
            self._resume()
        self._log_change("resumes", why, math.nan)

    def _forget_hold(self) -> None:
        """Forget our hold; the memory monitor is in charge again."""
        self.held = False
        if self.rules.enforce:
            self.worker.memory_manager.memory_pause_fraction = self._pause_fraction

    def _pause(self) -> None:
        manager = self.worker.memory_manager
        # The monitor resumes any paused worker whose memory is low, unless it is off.
        self._pause_fraction = manager.memory_pause_fraction
        manager.memory_pause_fraction = False
        self.worker.status = Status.paused
        self._give_back()

    def _resume(self) -> None:
        manager = self.worker.memory_manager
        limit, fraction = manager.memory_limit, self._pause_fraction
        if limit and fraction and self.worker.monitor.get_process_memory() > fraction * limit:
            return  # out of memory meanwhile: the monitor resumes it in its own time
        self.worker.status = Status.running

    def _give_back(self) -> None:
        """Return the tasks that have not begun; the scheduler then places them elsewhere."""
        state = self.worker.state
        keys = [task.key for queue in (state.ready, state.constrained, state.waiting) for task in list(queue)]
        if not keys:
            return
        stimulus = f"pronto-give-back-{time.time()}"
        self.worker.handle_stimulus(FreeKeysEvent(keys=keys, stimulus_id=stimulus))
        # On the same stream as the change of status and after it, so that none comes back.
        for key in keys:
            self.worker.batched_send({"op": "reschedule", "key": key, "stimulus_id": stimulus})
        self.given_back += len(keys)

    def _log_change(self, what: str, why: str, score: float) -> None:
        would = "" if self.rules.enforce else "shadow mode, enforcing nothing: "
        WORKER_LOG.info("%s%s %s: %s", would, self.worker.address, what, why)
        told = {
            "worker": self.worker.address,
            "action": what,
            "reason": why,
            "score": None if math.isnan(score) else score,
            "enforced": self.rules.enforce,
        }
        self.worker.log_event(METRIC, told)


class WorkerView(NamedTuple):
    """What the scheduler knows of one worker.

    It is paused by whoever paused it; its node wants to refuse, and has a chance of
    contention, as last reported; it has a thread to spare without a task.
    """

    paused: bool
    wants: bool = False
    score: float = math.nan
    spare: bool = True


def read_workers(identity: Mapping[str, Any]) -> dict[str, WorkerView]:
    """Read the workers in service from the scheduler's description of itself."""
    views = {}
    for address, worker in identity["workers"].items():
        if worker["status"] not in ("running", "paused"):
            continue
        metrics = worker.get("metrics") or {}
        tasks = metrics.get("task_counts") or {}
        report = metrics.get(METRIC) or {}
        score = report.get("score")
        views[address] = WorkerView(
            paused=worker["status"] == "paused",
            wants=bool(report.get("refuse")),
            score=math.nan if score is None else float(score),
            spare=tasks.get("executing", 0) + tasks.get("ready", 0) < worker.get("nthreads", 1),
        )
    return views


def may_pause(me: str, score: float, workers: Mapping[str, WorkerView], share: float) -> bool:
    """Tell whether `me` may be paused, or stay so: by `policy.may_close`.

    Workers paused by others are not in service. A calmer worker that is paused gets False
    and resumes; the one that is worse off then finds the place free.

    Examples
    --------
    >>> may_pause("a", 0.9, {"a": WorkerView(False), "b": WorkerView(False)}, 0.25)
    True
    >>> may_pause("a", 0.9, {"a": WorkerView(False), "b": WorkerView(True)}, 0.25)
    False
    """
    serving = {name: view for name, view in workers.items() if name == me or view.wants or not view.paused}
    reports = {name: NodeReport(view.wants, view.score, view.paused) for name, view in serving.items()}
    reports[me] = NodeReport(True, score, workers[me].paused)
    return may_close(me, reports, nodes=len(reports), share=share)


class ProntoScheduler(SchedulerPlugin):  # type: ignore[misc]
    """Choose workers by the soonest expected end of a task, contention included.

    A task on a worker that is sure to meet contention is taken to run twice as long. While
    others are calm, a worker that expects contention is given no task beyond its threads;
    the last tasks of a queue are left to calm workers where those will be free soon.
    """

    name = PREFERENCE

    def __init__(self) -> None:
        self._scheduler: Any = None

    async def start(self, scheduler: Any) -> None:
        """Take the three choices over; called by Dask."""
        self._scheduler = scheduler
        for method, ours in (
            ("worker_objective", self.objective),
            ("decide_worker_rootish_queuing_enabled", self.from_queue),
            ("decide_worker_non_rootish", self.without_dependencies),
        ):
            setattr(scheduler, method, self._or_dasks_own(method, ours))

    def objective(self, ts: Any, ws: Any) -> Any:
        """Return when a task is expected to end on a worker; the soonest wins."""
        own = type(self._scheduler).worker_objective(self._scheduler, ts, ws)
        if ts.actor:
            return own
        duration = self._scheduler._get_prefix_duration(ts.prefix)
        return ((own[0] + duration) * (1.0 + chance_of(ws)), *own[1:])

    def from_queue(self) -> Any:
        """Return the worker for the next task of the queue; None leaves it there."""
        scheduler = self._scheduler
        if not scheduler.idle_task_count:
            return None
        best = min(
            scheduler.idle_task_count, key=lambda ws: (not _free(ws), level_of(chance_of(ws)), _load(ws))
        )
        calm = sum(ws.nthreads for ws in scheduler.running if chance_of(ws) < CONTENDED)
        if chance_of(best) < CONTENDED or not calm:
            return best
        # Calm workers can take all that is queued as soon as they are free. The best has a
        # task that will end, and this is asked again then: nothing waits for ever.
        waits = level_of(chance_of(best)) == LEVELS - 1 and 0 < len(scheduler.queued) <= calm
        return best if _free(best) and not waits else None

    def without_dependencies(self, ts: Any) -> Any:
        """Return the worker for a task that is not of a large bag."""
        scheduler = self._scheduler
        own = type(scheduler).decide_worker_non_rootish
        pool = list((scheduler.idle or scheduler.workers).values())
        free_choice = not ts.dependencies and scheduler.valid_workers(ts) is None
        if not free_choice or len(pool) >= MOST_WORKERS or len(scheduler.running) < len(scheduler.workers):
            return own(scheduler, ts)
        if len({level_of(chance_of(ws)) for ws in pool}) <= 1:
            return own(scheduler, ts)
        return min(pool, key=lambda ws: (self.objective(ts, ws), _load(ws)))

    def _or_dasks_own(self, method: str, ours: Callable[..., Any]) -> Callable[..., Any]:
        scheduler = self._scheduler

        def choose(*arguments: Any) -> Any:
            if scheduler.plugins.get(self.name) is self:
                try:
                    return ours(*arguments)
                except Exception:
                    SCHEDULER_LOG.exception("preference between workers broke: Dask's own choice counts")
            return getattr(type(scheduler), method)(scheduler, *arguments)

        return choose


def chance_of(ws: Any) -> float:
    """Return the chance of contention that a worker last reported; 0 where it reports none."""
    report = ws.metrics.get(METRIC) or {}
    score = report.get("score") if report.get("mode") == "enforce" else None
    least = CONTENDED if report.get("refuse") else 0.0
    return 0.0 if score is None else min(1.0, max(least, float(score)))


def _free(ws: Any) -> bool:
    return bool(len(ws.processing) - len(ws.long_running) < ws.nthreads)


def _load(ws: Any) -> float:
    return float(len(ws.processing) / ws.nthreads)
