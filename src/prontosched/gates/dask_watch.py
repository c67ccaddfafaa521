"""One Dask worker under watch: paused and resumed on its own event loop.

Covers: what is done to a worker, and the three places that rely on more than Dask's
public interface: `_give_back`, `_pause` and `_resume`. Does not cover: the plugin and
where verdicts come from, `prontosched.gates.dask`; who may be paused at once,
`prontosched.gates.dask_floor`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from distributed import Lock
from distributed.core import Status
from distributed.worker_state_machine import FreeKeysEvent

from prontosched.errors import IntegrationError
from prontosched.gates.dask_floor import METRIC, may_pause, read_workers
from prontosched.gates.gate import Observed, Verdict
from prontosched.gates.policy import Policy, Rules

LOG = logging.getLogger("distributed.worker.pronto")
SCHEDULER_SECONDS = 10.0


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
        *,
        keep_capacity: bool = True,
    ) -> None:
        self.worker = worker
        self.rules = rules
        self.interval_seconds = interval_seconds
        self.keep_capacity = keep_capacity
        self.held = False
        self.given_back = 0
        self._ask = ask
        self._policy = Policy(rules)
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
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask(self.worker.address))
        # One question at a time: a callable that hangs must neither pile up nor keep us waiting.
        await asyncio.wait({self._asking}, timeout=max(1.0, self.interval_seconds))
        if not self._asking.done():
            self._complain("no decision: the question is not answered")
            return
        asked, self._asking = self._asking, None
        try:
            heard = asked.result()
            trouble = "" if heard is not None else "nothing is known of the node"
        except (OSError, IntegrationError) as error:
            heard, trouble = None, f"no decision: {error}"
        except Exception as error:  # a decide callable of someone else's
            heard, trouble = None, f"no decision: {type(error).__name__}: {error}"
        self._complain(trouble)
        if heard is not None:
            self._verdict = heard

    def _complain(self, trouble: str) -> None:
        if trouble and trouble != self._silent:
            LOG.info("%s: %s", self.worker.address, trouble)
        self._silent = trouble

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
            spare = not self.keep_capacity or any(
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
                await self._seen_paused(me)
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
        self.held = True
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
