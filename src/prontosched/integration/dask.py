"""A Dask worker plugin: a worker takes no new tasks while its node refuses.

Covers: pausing and resuming workers, giving back what they had been assigned, keeping
the memory monitor from undoing it, the capacity floor through Dask's own scheduler. Does
not cover: deciding, which the node's agent does (or any callable); when to close and
open, `prontosched.integration.policy`.

Everything happens on the worker's own event loop. Tasks that already run go on.
Tried with the versions that `docs/integrations/dask.md` names; the three places that
rely on more than Dask's public interface are `_give_back`, `_pause` and `_resume`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from prontosched.decision import Decision
from prontosched.errors import IntegrationError, SettingsError
from prontosched.integration.dask_floor import METRIC, may_pause, read_workers
from prontosched.integration.extender_decisions import ANSWER_LIMIT, read_decision
from prontosched.integration.gate import Observed, Verdict
from prontosched.integration.policy import Policy, Rules

try:
    from distributed import Lock, WorkerPlugin
    from distributed.core import Status
    from distributed.worker_state_machine import FreeKeysEvent
except ImportError as error:
    raise IntegrationError(
        f"the Dask gate needs distributed, got {error}: pip install 'prontosched[dask]'"
    ) from error

LOG = logging.getLogger("distributed.worker.pronto")
Decide = Callable[[str], Verdict | Decision | None]


class ProntoPlugin(WorkerPlugin):  # type: ignore[misc]
    """Pause Dask workers by the decision of the node they run on.

    Parameters
    ----------
    url
        The agent on the worker's own machine.
    decide
        Asked instead of an agent, with the worker's address; must survive pickling. Runs
        in a thread, and answers None where nothing is known.
    enforce
        False is shadow mode: log and report what would be done, and pause nobody.
    rules
        Minimum times, and the share of the workers that may be paused at once;
        `enforce` comes from the argument above.
    interval_seconds
        Time between two questions.

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
    ) -> None:
        given = rules or Rules()
        self.rules = Rules(
            **{name: getattr(given, name) for name in given.__dataclass_fields__ if name != "enforce"},
            enforce=enforce,
        )
        self.url = _checked(url)
        self.decide = decide
        if not (math.isfinite(interval_seconds) and interval_seconds > 0):
            raise SettingsError(f"interval_seconds must be above 0, got {interval_seconds}")
        self.interval_seconds = interval_seconds
        self._watch: Watch | None = None

    async def setup(self, worker: Any) -> None:
        """Begin to watch; called by Dask on each worker."""
        self._watch = Watch(worker, self.ask, self.rules, self.interval_seconds)
        self._watch.start()

    async def teardown(self, worker: Any) -> None:
        """Stop, and resume the worker if it was paused by us; called by Dask."""
        if self._watch is not None:
            await self._watch.stop()
            self._watch = None

    async def ask(self, address: str) -> Verdict | None:
        """Return the newest verdict for the worker at `address`; None when nothing is known."""
        now = time.time()
        if self.decide is None:
            data = await asyncio.to_thread(_fetch, self.url + "/v1/decision")
            return read_decision(data, now=now, clock_ahead=0.0, valid_seconds=self.rules.valid_seconds)
        found = await asyncio.to_thread(self.decide, address)
        if isinstance(found, Decision):
            return Verdict.of(found, now=now, valid_seconds=self.rules.valid_seconds)
        return found


class Watch:
    """One worker under watch: asks, decides by the rules of every gate, pauses and resumes.

    Parameters
    ----------
    worker
        A `distributed.Worker`.
    ask
        Returns the newest verdict for a worker's address.

    Notes
    -----
    Memory: one verdict and one policy.
    """

    def __init__(
        self,
        worker: Any,
        ask: Callable[[str], Awaitable[Verdict | None]],
        rules: Rules,
        interval_seconds: float,
    ) -> None:
        self.worker = worker
        self.rules = rules
        self.interval_seconds = interval_seconds
        self.held = False
        self.given_back = 0
        self._ask = ask
        self._policy = Policy(rules)
        self._verdict: Verdict | None = None
        self._held_since = self._held_until = math.nan
        self._count_at = -math.inf
        self._pause_fraction: Any = False
        self._silent = ""
        self._lock = Lock("pronto-floor", scheduler_rpc=worker.scheduler, loop=worker.loop)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch on the running loop."""
        self.worker.metrics[METRIC] = lambda worker: self.report()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the watch and undo what is ours."""
        self._stopping.set()
        if self._task is not None:
            # Not cancelled at once: a lock that is being taken would stay taken for half a minute.
            await asyncio.wait({self._task}, timeout=10.0)
            self._task.cancel()
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
        """Bring the worker in line with the newest verdict."""
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
                await self._listen()
                await self.settle(time.time())
            except Exception:
                LOG.exception("the watch of %s broke: accepting, will try again", self.worker.address)
                if self.held:
                    self._release("the watch broke")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self.interval_seconds)

    async def _listen(self) -> None:
        """Ask for the newest verdict; while there is no answer the last one stays until it expires."""
        try:
            heard = await self._ask(self.worker.address)
            trouble = "" if heard is not None else "nothing is known of the node"
        except (OSError, IntegrationError) as error:
            heard, trouble = None, f"no decision: {error}"
        except Exception as error:  # a decide callable of someone else's
            heard, trouble = None, f"no decision: {type(error).__name__}: {error}"
        if trouble != self._silent and trouble:
            LOG.info("%s: %s", self.worker.address, trouble)
        self._silent = trouble
        if heard is not None:
            self._verdict = heard

    def _observed(self) -> Observed:
        status = self.worker.status
        if self.held and (status == Status.paused or not self.rules.enforce):
            return Observed("closed-by-us", valid_until=self._held_until)
        if self.held:
            self._let_go()
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
        if not await self._lock.acquire(timeout="5s"):
            return
        try:
            workers = read_workers(await self.worker.scheduler.identity())
            me = self.worker.address
            if me not in workers:
                return
            rested = now - self._held_since >= self.rules.min_hold_seconds
            if not may_pause(me, verdict.score, workers, self.rules.max_refusing, rested=rested):
                if self.held:
                    self._release("enough other workers are paused, and they are more certain")
                return
            if not self.held and self.worker.status == Status.running:
                self._hold(verdict, now)
                await self._seen_paused(me)
            elif self.held:
                self._hold(verdict, now)
        finally:
            await self._lock.release()

    async def _seen_paused(self, me: str) -> None:
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
        self.held, self._held_since = True, now
        if self.rules.enforce:
            self._pause()
        self._tell("pauses", verdict.reason, verdict.score)

    def _release(self, why: str) -> None:
        self._policy.done("accept", time.time())
        paused = self.worker.status == Status.paused
        self._let_go()
        if self.rules.enforce and paused:
            self._resume()
        self._tell("resumes", why, math.nan)

    def _let_go(self) -> None:
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

    def _tell(self, what: str, why: str, score: float) -> None:
        would = "" if self.rules.enforce else "shadow mode, enforcing nothing: "
        LOG.info("%s%s %s: %s", would, self.worker.address, what, why)
        told = {
            "worker": self.worker.address,
            "action": what,
            "reason": why,
            "score": None if math.isnan(score) else score,
            "enforced": self.rules.enforce,
        }
        self.worker.log_event(METRIC, told)


def _checked(url: str) -> str:
    parts = urlsplit(url)
    try:
        local = parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        local = False
    if parts.scheme not in ("http", "https") or (parts.scheme == "http" and not local):
        raise SettingsError(
            f"url must be an agent on the worker's own machine or begin with https://, got {url!r}"
        )
    return url.rstrip("/")


def _fetch(url: str) -> bytes:
    # No proxy: the agent is on this machine, whatever the environment says of the network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=2.0) as answer:
        data: bytes = answer.read(ANSWER_LIMIT + 1)
    if len(data) > ANSWER_LIMIT:
        raise IntegrationError(f"{url} must answer at most {ANSWER_LIMIT} bytes, got more")
    return data
