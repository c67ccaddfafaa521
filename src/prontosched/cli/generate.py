"""`pronto generate`: data sets made up by Pronto, streamed to files."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from prontosched.cli.options import Duration

STEPS_PER_DAY = 4320


@click.command()
@click.argument("kind", type=click.Choice(["vms", "hosts", "positive", "negative"]))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--clusters", type=click.IntRange(1, 1000), default=1, help="One file each.")
@click.option("--nodes", type=click.IntRange(1, 100_000), default=20, help="Nodes per cluster.")
@click.option("--length", type=Duration(60.0), default="1d", metavar="TIME", help="Time that is covered.")
@click.option(
    "--format",
    "suffix",
    type=click.Choice(["parquet", "csv"]),
    default="csv",
    help="Kind of file; Parquet needs the extra `trace`.",
)
@click.option("--seed", type=click.IntRange(min=0), default=7, help="Same seed, same data.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    kind: str, folder: Path, clusters: int, nodes: int, length: float, suffix: str, seed: int, as_json: bool
) -> None:
    """Write generated traces to FOLDER, one file per cluster, never holding more than an hour.

    `vms` (52 metrics) and `hosts` (134 metrics) have the shape of the paper's data set: 20 s, CPU Ready in ms.
    `positive` is a fleet whose contention other metrics announce, `negative` one where they do not: a sound
    evaluator finds the first and rejects the second.

    \b
    Example:
        pronto generate vms made --clusters 3 --nodes 10 --length 1d
        pronto evaluate made --ready cpu_ready_ms
    """
    from prontosched.evaluation.generators import TraceWriter

    folder.mkdir(parents=True, exist_ok=True)
    steps = max(1, round(length / 86400.0 * STEPS_PER_DAY))
    written: list[dict[str, Any]] = []
    for cluster in range(clusters):
        feed = _feed(kind, clusters, cluster, nodes, steps, seed)
        path = folder / f"{kind}-{cluster:03d}.{suffix}"
        with (
            closing(TraceWriter(path, feed.metrics, ready_column=feed.ready_column)) as writer,
            click.progressbar(length=nodes * steps, label=path.name, file=sys.stderr) as bar,
        ):
            for chunks in feed.aligned(rows=180):
                writer.write(chunks)
                bar.update(sum(len(chunk) for chunk in chunks))
        written.append({"path": str(path), "nodes": nodes, "metrics": len(feed.metrics), "rows": writer.rows})
    if as_json:
        click.echo(json.dumps({"files": written, "ready": feed.ready_column, "seed": seed}))
        return
    for file in written:
        click.echo(f"{file['path']}: {file['rows']} rows, {file['nodes']} nodes, {file['metrics']} metrics")


def _feed(kind: str, clusters: int, cluster: int, nodes: int, steps: int, seed: int) -> Any:
    if kind in ("positive", "negative"):
        from prontosched.evaluation.generators import Control

        return Control(kind, seed + cluster, 0, nodes, steps)
    from prontosched.evaluation.datasets.paper_shape import PaperShape
    from prontosched.evaluation.generators import PaperShapeFeed

    days = -(-steps // STEPS_PER_DAY)
    if kind == "hosts":
        shape = PaperShape(clusters, hosts=nodes, vms=20 * nodes, days=days, seed=seed)
        return PaperShapeFeed(shape, cluster, "host", steps)
    # About as many VMs to a host as in the paper's clusters.
    shape = PaperShape(clusters, hosts=max(1, nodes // 20), vms=nodes, days=days, seed=seed)
    return PaperShapeFeed(shape, cluster, "vm", steps)
