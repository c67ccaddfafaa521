"""Ready-made nodes and fleets, by name.

`paper` follows the paper, with the repairs listed in `docs/paper.md`. `default`
is what Pronto uses unless told otherwise: it forgets, and it decides by the
learned signal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from prontosched.errors import SettingsError
from prontosched.pipeline import Embedding, find_embedding
from prontosched.pipeline.embedding import check_energy_bounds
from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.node import Node
from prontosched.pipeline.projection import Projector, SpikeDetector
from prontosched.signals import find_signal
from prontosched.telemetry.scaling import Scaling


class Preset(NamedTuple):
    """Settings that belong together."""

    signal: str
    embedding: Mapping[str, Mapping[str, Any]]  # settings per embedding, by its name
    lag: int = 10  # vectors the detector looks back on


PRESETS: dict[str, Preset] = {
    "paper": Preset(
        "paper",
        {
            "fpca": {"rank": 4, "block_size": 10, "forgetting": 1.0},
            "spirit": {"rank": 4, "forgetting": 0.96},
            "frequent-directions": {"rank": 4},
            "power-method": {"rank": 4},
        },
    ),
    "default": Preset(
        "learned",
        {
            "fpca": {"rank": 4, "block_size": 10, "forgetting": 0.98, "spare": 1},
            "spirit": {"rank": 4, "forgetting": 0.98},
            "frequent-directions": {"rank": 4},
            "power-method": {"rank": 4},
        },
    ),
}


def make_node(
    preset: str | None = None,
    *,
    metrics: tuple[str, ...] | None = None,
    embedding: str = "fpca",
    embedding_options: Mapping[str, Any] | None = None,
    signal: str | None = None,
    lag: int | None = None,
    influence: float = 0.5,
    scaling: bool = True,
    **signal_options: Any,
) -> Node:
    """Return a node by the name of its preset.

    Parameters
    ----------
    preset
        One of `PRESETS`; None takes the signal's own: `paper` for the paper's signal, else `default`.
    metrics
        Names of the metrics, for reasons a person can read.
    embedding, embedding_options
        Another embedding, or other settings of it.
    signal, signal_options
        Another signal, or other settings of it.
    lag, influence
        Vectors the detector looks back on, and how much a spike shifts its range.
    scaling
        Off takes vectors as they are.

    Examples
    --------
    >>> node = make_node("paper")
    >>> node.signal.name, node.embedding.rank
    ('paper', 4)
    """
    chosen, tracker = _choose(preset_name(preset, signal), embedding, embedding_options)
    name = signal or chosen.signal
    lag = chosen.lag if lag is None else lag
    # The paper's stand-in for embeddings that give no singular values it trusts.
    if name == "paper" and embedding in ("frequent-directions", "power-method"):
        signal_options.setdefault("weights", "harmonic")
    return Node(
        tracker,
        find_signal(name).one(**signal_options),
        scaling=Scaling() if scaling else None,
        projector=Projector(lag),
        detector=SpikeDetector(lag, influence=influence),
        metrics=metrics,
    )


def make_fleet(
    preset: str | None = None,
    *,
    nodes: int,
    features: int,
    metrics: tuple[str, ...] | None = None,
    embedding_options: Mapping[str, Any] | None = None,
    signal: str | None = None,
    lag: int | None = None,
    scaling: bool = True,
    **signal_options: Any,
) -> Fleet:
    """Return `nodes` nodes that step together, all with FPCA-Edge; arguments as for `make_node`."""
    chosen, tracker = _choose(preset_name(preset, signal), "fpca", embedding_options)
    return Fleet(
        nodes,
        features,
        find_signal(signal or chosen.signal).fleet(nodes, **signal_options),
        lag=chosen.lag if lag is None else lag,
        scaling=Scaling() if scaling else None,
        metrics=metrics,
        **tracker.settings(),
    )


def preset_name(preset: str | None, signal: str | None) -> str:
    """Return the name of the preset that holds: the one given, or the one that belongs to the signal.

    Examples
    --------
    >>> preset_name(None, "paper"), preset_name("default", "paper"), preset_name(None, None)
    ('paper', 'default', 'default')
    """
    return preset or ("paper" if signal == "paper" else "default")


def rank_options(energy_bounds: str | None) -> dict[str, Any]:
    """Return the options of an embedding whose rank adapts within bounds of energy given as text; none without.

    Examples
    --------
    >>> rank_options("0.01,0.1"), rank_options(None)
    ({'energy_bounds': (0.01, 0.1)}, {})
    """
    if energy_bounds is None:
        return {}
    try:
        low, high = (float(part) for part in energy_bounds.split(","))
        return {"energy_bounds": check_energy_bounds((low, high))}
    except ValueError as error:
        raise SettingsError(
            "energy-bounds must be two shares of energy, the lower first, such as 0.01,0.1; "
            f"got {energy_bounds!r}"
        ) from error


def _choose(
    preset: str, embedding: str, embedding_options: Mapping[str, Any] | None
) -> tuple[Preset, Embedding]:
    if preset not in PRESETS:
        raise SettingsError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    chosen = PRESETS[preset]
    kind, options = find_embedding(embedding), dict(embedding_options or {})
    if options and (unknown := sorted(options.keys() - kind().settings().keys())):
        raise SettingsError(f"embedding {embedding} has no {unknown[0].replace('_', '-')}: leave it out")
    return chosen, kind(**{**chosen.embedding.get(embedding, {}), **options})
