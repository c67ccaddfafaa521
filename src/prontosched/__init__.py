"""Pronto: every node decides for itself, in microseconds, whether it can take another job.

The map. A telemetry vector passes these folders, in this order:

- `telemetry`   machine to vectors, all metrics on one scale
- `pipeline`    vectors to a subspace, its projections and their spikes, in memory that never grows
- `signals`     that evidence to a decision with its reason (`decision`)
- `agent`       the live process: one node or thousands, their state, answers over HTTP
- `federation`  nodes to one global view, without sharing telemetry
- `gates`       decisions to schedulers

Beside them: `evaluation` and `simulation` measure what it is worth, `dashboard` has the pages,
`cli` the commands, `tables`, `sklearn` and `river` are for notebooks.

Start at `pipeline.node`: it carries a vector to a decision. `pipeline.fleet` does it for many
nodes at once, `pipeline.presets` makes both by name. `docs/journey.md` names every hop.

Examples
--------
>>> import numpy as np
>>> from prontosched import make_node
>>> node = make_node("paper")
>>> node.step(np.ones(8)).accept
True
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing has the same, and takes long to import
if TYPE_CHECKING:
    from typing import Any

    __version__: str
    from prontosched.decision import Decision, Evidence, Signal
    from prontosched.errors import ProntoError
    from prontosched.pipeline import Embedding, FPCAEdge, FrequentDirections, PowerMethod, Spirit
    from prontosched.pipeline.fleet import Fleet
    from prontosched.pipeline.node import Node
    from prontosched.pipeline.presets import make_fleet, make_node
    from prontosched.pipeline.projection import Projector, SpikeDetector
    from prontosched.signals import LearnedSignal, RejectJob
    from prontosched.subspace import Subspace, distance, extend, merge, summarise
    from prontosched.tables import replay
    from prontosched.telemetry.scaling import Scaling

# Where each public name lives; imported when first asked for, so that `pronto status` stays quick.
_HOMES = {
    "Scaling": "telemetry.scaling",
    "Subspace": "subspace",
    "summarise": "subspace",
    "extend": "subspace",
    "merge": "subspace",
    "distance": "subspace",
    "Embedding": "pipeline",
    "FPCAEdge": "pipeline",
    "Spirit": "pipeline",
    "FrequentDirections": "pipeline",
    "PowerMethod": "pipeline",
    "Projector": "pipeline.projection",
    "SpikeDetector": "pipeline.projection",
    "Decision": "decision",
    "Evidence": "decision",
    "Signal": "decision",
    "RejectJob": "signals",
    "LearnedSignal": "signals",
    "Node": "pipeline.node",
    "Fleet": "pipeline.fleet",
    "make_node": "pipeline.presets",
    "make_fleet": "pipeline.presets",
    "ProntoError": "errors",
    "replay": "tables",
}

__all__ = [
    "Decision",
    "Embedding",
    "Evidence",
    "FPCAEdge",
    "Fleet",
    "FrequentDirections",
    "LearnedSignal",
    "Node",
    "PowerMethod",
    "Projector",
    "ProntoError",
    "RejectJob",
    "Scaling",
    "Signal",
    "SpikeDetector",
    "Spirit",
    "Subspace",
    "distance",
    "extend",
    "make_fleet",
    "make_node",
    "merge",
    "replay",
    "summarise",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("prontosched")
    if name not in _HOMES:
        raise AttributeError(f"module 'prontosched' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"prontosched.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
