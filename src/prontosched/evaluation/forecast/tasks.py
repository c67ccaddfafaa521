"""Many small pieces of work: spread over processes, shown as they finish, kept so that a run can go on.

Each piece has a name. Its answer is written to the cache folder as JSON as soon as it is known; a run that is
stopped and started again with the same settings and data asks only for what is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Part of every key: answers of another version of the methods are not taken up.
VERSION = 2


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work: a function that can be sent to another process, and its arguments."""

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...]


class Cache:
    """A folder of answers that belong to one set of settings and data.

    Parameters
    ----------
    folder
        Where runs are kept; None keeps nothing.
    identity
        All that an answer depends on.
    """

    def __init__(self, folder: Path | None, identity: str) -> None:
        key = hashlib.sha256(f"{VERSION}\n{identity}".encode()).hexdigest()[:16]
        self.folder = None if folder is None else folder / key
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str) -> Any:
        """Return the answer kept under a name, None if there is none or it is damaged."""
        if self.folder is None:
            return None
        try:
            return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def put(self, name: str, answer: Any) -> None:
        """Keep an answer; a reader never sees half of it."""
        if self.folder is None:
            return
        path = self.folder / f"{name}.json"
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps(answer), encoding="utf-8")
        draft.replace(path)


def run_tasks(
    tasks: Sequence[Task], *, jobs: int, cache: Cache, advance: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Do all tasks, those with a kept answer excepted; return the answers by name.

    Parameters
    ----------
    jobs
        Processes; 1 works in this one.
    advance
        Hears how many tasks were finished since it was last called.
    """
    answers = {task.name: kept for task in tasks if (kept := cache.get(task.name)) is not None}
    advance(len(answers))
    missing = [task for task in tasks if task.name not in answers]
    if not missing:
        return answers
    from joblib import Parallel, delayed, parallel_config

    inner = {} if jobs == 1 else {"inner_max_num_threads": 1}
    backend = "sequential" if jobs == 1 else "loky"
    with parallel_config(backend=backend, n_jobs=jobs, **inner):
        finished = Parallel(return_as="generator_unordered", batch_size=1)(
            delayed(_do)(task) for task in missing
        )
        for name, answer in finished:
            answers[name] = answer
            cache.put(name, answer)
            advance(1)
    return answers


def _do(task: Task) -> tuple[str, Any]:
    return task.name, task.work(*task.arguments)
