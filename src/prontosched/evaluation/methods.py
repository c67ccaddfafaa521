"""The methods under evaluation: what each is called, what it needs, how it is made.

New signals need no entry here: whatever is registered in `prontosched.signals` appears by itself. `scorers` has the
arithmetic of all others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from prontosched.errors import SettingsError
from prontosched.evaluation.competitors import COMPETITORS, SOURCES
from prontosched.evaluation.inputs import Setting
from prontosched.evaluation.scorers import (
    Boosting,
    Coin,
    CompetitorScorer,
    DistanceMeans,
    HalfSpaceTrees,
    ReadyZScore,
    RejectJobScorer,
    Scorer,
    SignalScorer,
    SmoothedReady,
    always_accept,
    clock,
    current_ready,
    utilisation,
)
from prontosched.evaluation.subspaces import SubspaceReplay
from prontosched.pipeline import EMBEDDINGS
from prontosched.pipeline.presets import PRESETS
from prontosched.signals import all_signals, find_signal

EMBEDDING_LABELS = {
    "fpca": "FPCA-Edge",
    "spirit": "SPIRIT",
    "frequent-directions": "Frequent Directions",
    "power-method": "power method",
}
COMPETITOR_LABELS = {
    "psi": "KEP-5394 (PSI)",
    "trimaran": "Trimaran",
    "koordinator": "Koordinator",
    "r15s": "LSF r15s",
    "r1m": "LSF r1m",
    "volcano": "Volcano",
    "n-sigma": "N-sigma",
    "peak-percentile": "past percentile",
    "peak-max": "greater of both peaks",
}
# Rules that compare CPU Ready itself, or what it stands for, with a published limit.
ON_READY = ("psi", "r15s", "r1m")
# How long a method that holds its raises does so: the paper's window.
HELD_STEPS = 10


@dataclass(frozen=True)
class MethodContext:
    """What a method is told of the nodes it runs for."""

    nodes: tuple[str, ...]
    features: int
    interval_seconds: float
    tolerance: str
    setting: Setting
    ready_unit: str = "percent"

    @cached_property
    def distances(self) -> DistanceMeans:
        """T² and SPE relative to their means, for all methods that score by them."""
        return DistanceMeans(len(self.nodes))


@dataclass(frozen=True, slots=True)
class Method:
    """One method."""

    name: str  # on the command line
    label: str  # in tables
    family: str  # learned, competitor, published, subspace, plain, null or reference
    about: str
    make: Callable[[MethodContext], Scorer]
    embedding: str = ""  # of the paper's preset, whose spikes and distances it sees; or none
    options: tuple[tuple[str, Any], ...] = ()  # other settings of that embedding
    needs_vectors: bool = False  # it looks at the metrics without an embedding, or through one of its own
    default: bool = True
    percent_only: bool = False  # its own decisions mean something only where CPU Ready is in percent of a CPU

    def subspaces(self, context: MethodContext) -> SubspaceReplay:
        """Return its embedding on every node."""
        settings = {**PRESETS["paper"].embedding[self.embedding], **dict(self.options)}
        lag = int(settings.pop("lag", PRESETS["paper"].lag))
        settings["rank"] = min(int(settings["rank"]), context.features)
        if "block_size" in settings:
            settings["block_size"] = max(int(settings["block_size"]), settings["rank"])
        kind = EMBEDDINGS[self.embedding]
        return SubspaceReplay(lambda: kind(**settings), len(context.nodes), context.features, lag)


def _signal(name: str, *, blind: bool = False) -> Callable[[MethodContext], Scorer]:
    def make(context: MethodContext) -> Scorer:
        kind, setting = find_signal(name), context.setting
        known = {
            "horizon": setting.horizon,
            "tolerance": context.tolerance,
            "interval_seconds": context.interval_seconds,
            "features": context.features,
            "seed": setting.seed,
        }
        accepted = inspect.signature(kind.one).parameters
        options = {key: value for key, value in known.items() if key in accepted}
        return SignalScorer(kind, options, len(context.nodes), 0 if blind else context.features).score

    return make


def _paper(**options: Any) -> Callable[[MethodContext], Scorer]:
    return lambda context: RejectJobScorer(len(context.nodes), **options).score


def _rule(name: str) -> Callable[[MethodContext], Scorer]:
    def make(context: MethodContext) -> Scorer:
        interval = context.interval_seconds
        rule = COMPETITORS[name](len(context.nodes), interval if interval > 0 else 1.0)
        return CompetitorScorer(rule, context.ready_unit, interval).score

    return make


def methods() -> dict[str, Method]:
    """Return every method by name: registered signals first, then the rest."""
    signals = [name for name in all_signals() if name not in ("paper", "learned")]
    found = [
        Method("learned", "Pronto (default)", "learned",
               "refuses while contention is likely: the default signal and policy", _signal("learned"),
               needs_vectors=True),
        Method("learned-blind", "Pronto (no embedding)", "learned", "the same, from CPU Ready's history alone",
               _signal("learned", blind=True), default=False),
        *(Method(name, f"{name} signal", "learned", "a registered signal", _signal(name), needs_vectors=True)
          for name in signals),
        # The one line that an operator would write, and what other schedulers publish.
        Method("ready", "current CPU Ready", "competitor", "one line: refuse while CPU Ready reaches the tolerance",
               lambda c: current_ready),
        *(Method(name, label, "competitor", SOURCES[name], _rule(name), percent_only=name in ON_READY)
          for name, label in COMPETITOR_LABELS.items()),
        Method("t2", "T²", "subspace", "how unusual a vector is within the subspace",
               lambda c: c.distances.scorer(0), embedding="fpca"),
        Method("spe", "SPE", "subspace", "how far a vector lies outside the subspace",
               lambda c: c.distances.scorer(1), embedding="fpca"),
        Method("t2+spe", "T² + SPE", "subspace", "both, each relative to its recent mean",
               lambda c: c.distances.scorer(0, 1), embedding="fpca"),
        Method("ewma", "EWMA(0.3) of CPU Ready", "plain", "refuse while its smoothed value is high",
               lambda c: SmoothedReady(len(c.nodes)).score),
        Method("zscore", "z-score of CPU Ready", "plain", "deviations above its recent mean",
               lambda c: ReadyZScore(len(c.nodes)).score),
        Method("utilisation", "CPU utilisation", "plain", "refuse while utilisation is high", lambda c: utilisation),
        Method("random", "random", "null", "a coin", lambda c: Coin(c.nodes, c.setting.budget, c.setting.seed).score),
        Method("clock", "clock", "null", "every tenth timestep, looking at nothing", lambda c: clock),
        Method("accept", "always accept", "null", "never refuse", lambda c: always_accept),
        # Frequent Directions and the power method take 1, 1/2, 1/3, … for singular values, as in the paper.
        *(Method(name, f"Reject-Job ({EMBEDDING_LABELS[embedding]})", "published",
                 f"Reject-Job of the paper on {EMBEDDING_LABELS[embedding]}", _paper(weights=weights),
                 embedding=embedding)
          for name, embedding, weights in (("paper", "fpca", "normalised"), ("paper-spirit", "spirit", "normalised"),
                                           ("paper-fd", "frequent-directions", "harmonic"),
                                           ("paper-pm", "power-method", "harmonic"))),
        Method("paper-absolute", "Reject-Job (either sign)", "published",
               "Reject-Job counting spikes up and down alike", _paper(absolute=True), embedding="fpca"),
        Method("paper-raw", "Reject-Job (raw σ)", "published", "Reject-Job weighted by singular values as printed",
               _paper(weights="raw"), embedding="fpca", default=False),
        Method("paper-hold", "Reject-Job (held)", "published", f"Reject-Job, every raise held for {HELD_STEPS} steps",
               _paper(hold=HELD_STEPS), embedding="fpca", default=False),
        Method("paper-adaptive", "Reject-Job (adaptive rank)", "published",
               "Reject-Job with a rank that adapts within energies of 1 and 10 %", _paper(), embedding="fpca",
               options=(("energy_bounds", (0.01, 0.1)),), default=False),
        Method("half-space-trees", "HalfSpaceTrees", "reference", "river's online anomaly detector on all metrics",
               lambda c: HalfSpaceTrees(c.nodes, c.setting.seed).score, needs_vectors=True, default=False),
        Method("boosting", "gradient boosting", "reference",
               "scikit-learn, trained again on all the past every 4,000 steps",
               lambda c: Boosting(len(c.nodes), c.setting.horizon, c.setting.seed).score, default=False),
    ]  # fmt: skip
    return {method.name: method for method in found}


def default_methods() -> tuple[str, ...]:
    """Return the names of the methods that run without being named."""
    return tuple(name for name, method in methods().items() if method.default)


def choose(names: tuple[str, ...], sweeps: tuple[tuple[str, tuple[float, ...]], ...] = ()) -> list[Method]:
    """Return the methods called `names`, and the variants of the published signal that are swept."""
    known = methods()
    for name in names:
        if name not in known:
            raise SettingsError(f"method must be one of {', '.join(known)}, got '{name}'")
    chosen = [known[name] for name in dict.fromkeys(names)]
    for option, values in sweeps:
        for value in values:
            number = int(value) if float(value).is_integer() else value
            base = known["paper"]
            chosen.append(
                replace(base, name=f"paper[{option}={number}]", label=f"Reject-Job ({option} {number})", family="sweep",
                        about=f"the published signal with {option} {number}", options=((option, number),))
            )  # fmt: skip
    return chosen
