"""`python -m benchmarks`: speed, size and worth, as ratios in one run."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks.row import Row
from prontosched.cli.options import Duration
from prontosched.errors import FederationError, ProntoError
from prontosched.threads import ONE_THREAD


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def benchmarks() -> None:
    """Measure Pronto against references and peers.

    Figures are ratios within one run where they can be, so that a busy machine does not
    decide the result.
    """


def printed(measure: Callable[..., Iterable[Row]]) -> Callable[..., None]:
    """Make a command of a function that yields rows; it takes `--json`."""

    @functools.wraps(measure)
    def run(*, as_json: bool, **options: Any) -> None:
        rows = []
        if not as_json:
            click.echo(f"{'what':<72} {'figure':>10} {'goal':>12}")
        for row in measure(**options):
            rows.append(row.as_json())
            if not as_json:
                click.echo(_line(row))
        if as_json:
            click.echo(json.dumps(rows, indent=1))

    return click.option("--json", "as_json", is_flag=True, help="Print a list with one object per row.")(run)


@benchmarks.command()
@printed
def core() -> Iterable[Row]:
    """Speed and size of the numerical core against a plain rendering of the paper and peers."""
    from benchmarks.core import core_rows

    return core_rows()


@benchmarks.command()
@printed
def study() -> Iterable[Row]:
    """What `pronto evaluate` takes for a node-step, with few nodes and with many."""
    from benchmarks.study import study_rows

    return study_rows()


@benchmarks.command()
@printed
def agent() -> Iterable[Row]:
    """Latency, lateness and memory of a real agent under 200 connections."""
    from benchmarks.agent import agent_rows

    return agent_rows()


@benchmarks.command()
@printed
def extender() -> Iterable[Row]:
    """What the Kubernetes extender adds to a scheduling cycle of 1,000 nodes."""
    from benchmarks.extender import extender_rows

    return extender_rows()


@benchmarks.command()
@printed
@click.option("--nodes", type=click.IntRange(100, 100_000), default=10_000, help="Largest fleet.")
def federation(nodes: int) -> Iterable[Row]:
    """How exact a tree of aggregators is, and what it costs as the fleet grows."""
    from benchmarks.federation import federation_rows

    return federation_rows(nodes)


@benchmarks.command()
@printed
@click.option(
    "--smd",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder with the Server Machine Dataset, to measure on real machines as well.",
)
@click.option("--quick", is_flag=True, help="Fewer machines and steps.")
def worth(smd: Path | None, quick: bool) -> Iterable[Row]:
    """What the global view is worth to a new node, also where it is worth nothing."""
    from benchmarks.worth import worth as measure

    return measure(smd, quick=quick)


@benchmarks.command()
@click.option("--rows", type=click.IntRange(200), default=4000, help="Vectors of each stream.")
@click.option(
    "--figure",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw error against throughput as well; the name's ending is the format.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a list with one object per method and stream.")
def embeddings(rows: int, figure: Path | None, as_json: bool) -> None:
    """Streaming PCA compared: FPCA-Edge, scikit-learn, gensim, SPIRIT, Frequent Directions, power method, Oja.

    Every method gets the same vectors in the same order, four directions to follow and blocks of ten. The error is
    the root mean square sine of the angles to the leading directions of an SVD of all vectors (of the second half,
    where directions change). Methods whose package is not installed are left out. River has no streaming PCA.
    """
    from benchmarks.embeddings import compare, draw, table

    found = list(compare(rows))
    click.echo(json.dumps([asdict(one) for one in found], indent=1) if as_json else table(found))
    if figure is not None:
        draw(found, figure)


@benchmarks.command("all")
@printed
def every_section() -> Iterable[Row]:
    """Core, federation and agent, one after the other."""
    from benchmarks.agent import agent_rows
    from benchmarks.core import core_rows
    from benchmarks.federation import federation_rows

    for measure in (core_rows, federation_rows, agent_rows):
        yield from measure()


@benchmarks.command()
@click.option("--nats", metavar="ADDRESS", required=True, help="Bus: nats://host:port/group.")
@click.option("--agents", type=click.IntRange(1, 5000), default=100, help="Agents to simulate.")
@click.option("--for", "seconds", type=Duration(1.0), default="30s", metavar="TIME", help="How long.")
@click.option("--every", type=Duration(0.1), default="2s", metavar="TIME", help="Time between two messages.")
@click.option("--prefix", default="load", help="Beginning of the agents' names.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def traffic(nats: str, agents: int, seconds: float, every: float, prefix: str, as_json: bool) -> None:
    """Put the traffic of many simulated agents on a bus, to see what it carries.

    Use a group of its own: the simulated agents take part in the global view.
    """
    from benchmarks.traffic import traffic as send
    from prontosched.federation.address import Address
    from prontosched.federation.nats import NatsLink

    place = Address.parse(nats)
    link = NatsLink(place, name=f"load-{prefix}", quiet=True)
    try:
        found = send(link, agents=agents, seconds=seconds, every=every, prefix=prefix, tree=place.tree)
    except TimeoutError as error:
        raise FederationError(str(error)) from error
    finally:
        link.close()
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(
            f"{found['summaries']} summaries and {found['decisions']} decisions of {agents} agents in "
            f"{found['seconds']:.0f} s, {found['bytes'] / 1e6:.1f} MB, "
            f"{'all arrived' if found['arrived'] and not found['refused'] else 'NOT all arrived'}"
        )


def _line(row: Row) -> str:
    text = f"{row.name:<72} {row.value:>7.4g} {row.unit:<2}"
    if row.goal is None:
        return text
    mark = click.style("met", fg="green") if row.met else click.style("missed", fg="red")
    return f"{text} {'≥' if row.better == 'more' else '≤'} {row.goal:>6g} {row.unit:<2}  {mark}"


if __name__ == "__main__":
    # Before numpy is imported, and for the processes that a benchmark starts.
    os.environ.update(ONE_THREAD)
    try:
        benchmarks(prog_name="python -m benchmarks")
    except ProntoError as error:
        sys.exit(f"benchmarks: {error}")
