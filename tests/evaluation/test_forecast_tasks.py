"""Pieces of work: spread over processes, kept on disk."""

from __future__ import annotations

from pathlib import Path

from prontosched.evaluation.forecast.study import Cache, Task, run_tasks

PIECES = [Task(f"power-{n}", pow, (2, n)) for n in range(6)]


def test_answers_do_not_depend_on_the_number_of_processes() -> None:
    answers = [run_tasks(PIECES, jobs=jobs, cache=Cache(None, "")) for jobs in (1, 2)]

    assert answers[0] == answers[1] == {f"power-{n}": 2**n for n in range(6)}


def test_progress_counts_kept_and_done_pieces_alike(tmp_path: Path) -> None:
    cache = Cache(tmp_path, "a")
    for n in (1, 4):
        cache.put(f"power-{n}", 2**n)
    heard: list[int] = []
    run_tasks(PIECES, jobs=1, cache=cache, advance=heard.append)

    assert heard == [2, 1, 1, 1, 1]


def test_answers_of_other_settings_are_not_taken_up(tmp_path: Path) -> None:
    Cache(tmp_path, "seed 1").put("power-3", "wrong")

    assert run_tasks(PIECES, jobs=1, cache=Cache(tmp_path, "seed 2"))["power-3"] == 8


def test_half_written_answers_are_never_read(tmp_path: Path) -> None:
    cache = Cache(tmp_path, "a")
    cache.put("x", [1, 2])

    assert cache.folder is not None
    assert [path.name for path in cache.folder.iterdir()] == ["x.json"]
    (cache.folder / "x.json").write_text('{"a": ', encoding="utf-8")
    assert cache.get("x") is None
