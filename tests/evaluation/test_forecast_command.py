"""`pronto forecast` and `pronto generate` as they are called."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from prontosched.cli import cli, main
from prontosched.evaluation.forecast import models
from prontosched.telemetry.trace import open_trace


@pytest.fixture
def trace(tmp_path: Path, rng: np.random.Generator) -> Path:
    path = tmp_path / "host.csv"
    rows = [f"{1_700_000_000 + 60 * at},{5 * value:.4f},{at % 3}" for at, value in enumerate(rng.random(90))]
    path.write_text("timestamp,ready,mem_free\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_forecast_prints_json_with_the_papers_numbers_apart(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "MOST_TERMS", 0)
    done = CliRunner().invoke(
        cli, ["forecast", str(trace), "--no-generated", "--json", "--jobs", "1", "--fresh"]
    )
    result = json.loads(done.stdout)

    assert done.exit_code == 0
    (data_set,) = result["data_sets"]
    assert set(data_set["results"]["windows"]) == {"15 min", "30 min"}
    assert data_set["results"]["windows"]["15 min"]["naive"]["mean"] > 0.0
    assert data_set["card"]["rows"] == "90 read, 0 dropped"
    assert result["published"]["windows"]["naive"][0] == 122.39


def test_forecast_without_traces_and_without_generated_data_is_asked_wrongly() -> None:
    done = CliRunner().invoke(cli, ["forecast", "--no-generated"])

    assert done.exit_code == 2
    assert "there is nothing else to forecast" in done.stderr


def test_trace_of_one_row_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.csv"
    path.write_text("timestamp,ready,a\n1,2,3\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="1"):
        main(["forecast", str(path), "--no-generated", "--fresh"])

    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("pronto: a trace must hold at least two windows of 15 minutes with 8 samples each")


@pytest.mark.parametrize(
    ("kind", "metrics", "ready"),
    [("vms", 52, "cpu_ready_ms"), ("hosts", 134, "cpu_ready_ms"), ("positive", 24, "cpu_ready_percent")],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_generated_traces_can_be_read_back(
    tmp_path: Path, kind: str, metrics: int, ready: str, suffix: str
) -> None:
    arguments = ["generate", kind, str(tmp_path), "--nodes", "3", "--length", "72m", "--format", suffix]
    done = CliRunner().invoke(cli, [*arguments, "--clusters", "2", "--json"])
    files = [Path(file["path"]) for file in json.loads(done.stdout)["files"]]
    source = open_trace(files[0], ready=ready)
    chunks = list(source.chunks())

    assert done.exit_code == 0
    assert len(files) == 2
    assert len(source.metrics) == metrics
    assert source.interval_seconds == 20.0
    assert sum(len(chunk) for chunk in chunks) == 3 * 216
    assert source.counts.warnings() == []
    assert min(chunk.ready.min() for chunk in chunks) >= 0.0


def test_generating_does_not_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "vms-000.csv").write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit, match="1"):
        main(["generate", "vms", str(tmp_path), "--length", "15m", "--format", "csv"])

    assert "the file must not exist yet" in capsys.readouterr().err
    assert (tmp_path / "vms-000.csv").read_text(encoding="utf-8") == "mine"
