"""Dask: tasks go to workers whose node expects no contention.

Covers: `install`, the worker plugin, and hearing the node's decision from its agent or any
callable. Does not cover: choosing a worker, `prontosched.gates.dask_preference`;
pausing, for those who ask for a veto, `prontosched.gates.dask_watch`.

Tried with the versions that `docs/integrations/dask.md` names.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from prontosched.decision import Decision
from prontosched.errors import IntegrationError, SettingsError
from prontosched.extras import missing_extra
from prontosched.gates.extender_decisions import ANSWER_LIMIT, read_decision
from prontosched.gates.gate import Verdict
from prontosched.gates.policy import Rules

try:
    from distributed import WorkerPlugin

    from prontosched.gates.dask_preference import NAME, ProntoScheduler
    from prontosched.gates.dask_watch import Watch
except ImportError as error:
    raise IntegrationError(missing_extra("the Dask gate", "dask")) from error

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
    with contextlib.suppress(ValueError):  # nothing of ours is at the scheduler
        client.unregister_scheduler_plugin(NAME)


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
        self._watch: Watch | None = None

    async def setup(self, worker: Any) -> None:
        """Begin to watch; called by Dask on each worker."""
        self._watch = Watch(
            worker, self.ask, self.rules, self.interval_seconds, keep_capacity=self.keep_capacity
        )
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
