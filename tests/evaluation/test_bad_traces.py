"""Bad input: one clear line, or a warning and the rest evaluated; every dropped row counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prontosched.errors import ProntoError
from prontosched.evaluation.evaluate import Evaluation, evaluate
from prontosched.evaluation.inputs import Columns, Setting, plan_traces

ROWS = 240


def rows(count: int = ROWS, start: int = 0) -> list[list[str]]:
    generator = np.random.default_rng(1)
    numbers = np.column_stack([generator.gamma(1.0, size=count), generator.normal(size=(count, 2))])
    times = 1_700_000_000 + 20 * (start + np.arange(count))
    return [
        [str(time), *[f"{number:.3f}" for number in row]] for time, row in zip(times, numbers, strict=True)
    ]


def write(path: Path, body: list[list[str]], header: str = "timestamp,cpu_ready,memory,disk") -> str:
    path.write_text("\n".join([header, *[",".join(row) for row in body]]) + "\n")
    return str(path)


def run(*paths: str, **columns: object) -> Evaluation:
    plan = plan_traces(paths, Columns(**columns))  # type: ignore[arg-type]
    return evaluate(plan, Setting(methods=("ready", "random")), workers=1)


def test_a_clean_trace_drops_nothing(tmp_path: Path) -> None:
    found = run(write(tmp_path / "a.csv", rows()))

    assert found.outcome["data"]["rows"] == ROWS
    assert found.outcome["data"]["dropped"] == {}
    assert found.warnings == []


def test_a_trace_without_the_ready_column_says_which_columns_there_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", rows(), header="timestamp,load,memory,disk")

    with pytest.raises(ProntoError, match=r"no column of CPU Ready among 'load', 'memory'.*--ready"):
        run(path)


def test_a_named_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProntoError, match="no column 'steal'"):
        run(write(tmp_path / "a.csv", rows()), ready="steal")


def test_one_bad_trace_does_not_keep_the_others_from_being_evaluated(tmp_path: Path) -> None:
    good = write(tmp_path / "good.csv", rows())
    bad = write(tmp_path / "bad.csv", rows(), header="timestamp,load,memory,disk")

    found = run(good, bad)

    assert found.outcome["data"]["names"] == ["good"]
    assert list(found.outcome["data"]["refused"]) == [bad]
    assert any("bad.csv" in line for line in found.warnings)


def test_a_trace_sorted_backwards_is_left_out_and_named(tmp_path: Path) -> None:
    good = write(tmp_path / "good.csv", rows())
    bad = write(tmp_path / "bad.csv", rows()[::-1])

    found = run(good, bad)

    assert found.outcome["data"]["names"] == ["good"]
    assert "timestamps must ascend" in found.outcome["data"]["refused"][bad]


def test_duplicate_and_late_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    body = rows()
    body.insert(100, body[50])
    body.insert(120, body[119])

    found = run(write(tmp_path / "a.csv", body)).outcome["data"]

    assert found["rows"] == ROWS + 2
    assert found["dropped"] == {"timestamp before that of an earlier row": 1, "timestamp seen before": 1}


def test_gaps_are_counted_and_nothing_is_scored_across_them(tmp_path: Path) -> None:
    body = rows(120) + rows(120, start=5000)

    found = run(write(tmp_path / "a.csv", body)).outcome["data"]

    assert found["gaps"] == 1
    # Twenty steps to learn the threshold, five at the end, five before the gap.
    assert found["scored"] == ROWS - 20 - 5 - 5


def test_text_in_a_number_is_taken_as_unknown_and_counted(tmp_path: Path) -> None:
    body = rows()
    body[50][2] = "n/a"

    found = run(write(tmp_path / "a.csv", body)).outcome["data"]

    assert sum(found["cells_unknown"].values()) == 1
    assert found["dropped"] == {}


def test_one_row_is_too_short_to_score(tmp_path: Path) -> None:
    with pytest.raises(ProntoError, match=r"at least 50 moments .* got 0 from 1 rows .*: record for longer"):
        run(write(tmp_path / "a.csv", rows(1)))


def test_a_short_trace_among_others_is_named(tmp_path: Path) -> None:
    found = run(write(tmp_path / "a.csv", rows()), write(tmp_path / "b.csv", rows(30)))

    assert found.outcome["data"]["too_short"] == ["b"]
    assert any("fewer than 50 moments can be scored, left out: b" in line for line in found.warnings)


def test_a_header_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProntoError, match="at least one row"):
        run(write(tmp_path / "a.csv", []))


def test_a_ready_column_of_nothing_but_nan_is_refused(tmp_path: Path) -> None:
    body = [[row[0], "", row[2], row[3]] for row in rows()]

    with pytest.raises(ProntoError, match="CPU Ready is unknown in every row"):
        run(write(tmp_path / "a.csv", body))


def test_metrics_of_nothing_but_nan_are_refused(tmp_path: Path) -> None:
    body = [[row[0], row[1], "", ""] for row in rows()]

    with pytest.raises(ProntoError, match="no metric has a single number"):
        run(write(tmp_path / "a.csv", body))


def test_files_with_other_columns_are_evaluated_in_chunks_of_their_own(tmp_path: Path) -> None:
    one = write(tmp_path / "a.csv", rows())
    other = write(tmp_path / "b.csv", rows(), header="timestamp,cpu_ready,network,forks")

    found = run(one, other).outcome["data"]

    assert found["names"] == ["a", "b"]
    assert found["metrics"] == [2]


def test_a_node_without_spikes_is_named_and_takes_part_in_downtime_only(tmp_path: Path) -> None:
    calm = [[row[0], "0.0", row[2], row[3]] for row in rows()]

    found = run(write(tmp_path / "a.csv", rows()), write(tmp_path / "calm.csv", calm))

    assert found.outcome["data"]["nodes_without_spikes"] == ["calm"]
    assert any("1 of 2 nodes have no spike" in line for line in found.warnings)


def test_a_file_that_is_no_parquet_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 nonsense")

    with pytest.raises(ProntoError, match=r"a\.parquet: not a whole Parquet file") as caught:
        run(str(path))
    assert "\n" not in str(caught.value)


def test_many_nodes_in_one_file_are_told_apart(tmp_path: Path) -> None:
    body = [[*row, node] for row in rows() for node in ("n1", "n2")]

    found = run(write(tmp_path / "a.csv", body, header="timestamp,cpu_ready,memory,disk,node"))

    assert found.outcome["data"]["names"] == ["n1", "n2"]
    assert found.outcome["data"]["steps"] == 2 * ROWS


def test_rows_of_a_file_read_for_several_chunks_are_counted_once(tmp_path: Path) -> None:
    body = [[*row, f"n{k}"] for row in rows(80) for k in range(6)]
    body.insert(60, body[0])

    found = run(write(tmp_path / "a.csv", body, header="timestamp,cpu_ready,memory,disk,node")).outcome

    assert found["performance"]["chunks"] == 2
    assert found["data"]["rows"] == 6 * 80 + 1
    assert sum(found["data"]["dropped"].values()) == 1


def test_traces_without_any_spike_leave_nothing_to_foretell(tmp_path: Path) -> None:
    calm = [[row[0], "0.0", row[2], row[3]] for row in rows()]

    found = run(write(tmp_path / "calm.csv", calm)).outcome["answer"]

    assert found["answer"] == "too early"
    assert "there was no contention" in found["because"]


def test_cpu_ready_is_a_metric_only_when_asked(tmp_path: Path) -> None:
    plan = plan_traces([write(tmp_path / "a.csv", rows())], Columns())

    leaky = evaluate(plan, Setting(methods=("paper",), with_ready=True), workers=1)

    assert leaky.outcome["data"]["metrics"] == [3]
    assert evaluate(plan, Setting(methods=("paper",)), workers=1).outcome["data"]["metrics"] == [2]


@pytest.mark.parametrize("content", [b"not gzip", b"\x1f\x8b\x08\x00cut off"])
def test_a_broken_gzip_is_one_clear_line(tmp_path, content):
    path = tmp_path / "broken.csv.gz"
    path.write_bytes(content)

    with pytest.raises(ProntoError, match=r"broken\.csv\.gz: cannot be read"):
        plan_traces([str(path)], Columns())
