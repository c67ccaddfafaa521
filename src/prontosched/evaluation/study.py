"""All nodes together: means, intervals, nulls and comparisons for every method.

Covers: from the results of the nodes to numbers one can print. Words are in `verdict`, figures in `figures`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from prontosched.evaluation.inputs import Setting
from prontosched.evaluation.measures import calibration_error
from prontosched.evaluation.methods import Method
from prontosched.evaluation.nulls import (
    Interval,
    NullTotal,
    column_means,
    excess_p,
    holm,
    mean_interval,
    p_value,
    ratio_draws,
    ratio_interval,
    student_interval,
)
from prontosched.evaluation.record import (
    FEWEST_SCORED,
    HITS,
    NULL_STATISTICS,
    QOS,
    SHIFTS,
    STATISTICS,
    NodeSummary,
)
from prontosched.evaluation.replay import PartResult
from prontosched.subspace import Array
from prontosched.telemetry.trace import TraceCounts

OWN_METHOD = "learned"
VARIANTS = ("learned-blind",)
# Fewer separate onsets of contention, or blocks of time with any, allow no honest interval.
FEWEST_ONSETS = 20
FEWEST_BLOCKS = 8
# So many times fewer runs of blocks with contention than by chance say that it lasts for several blocks.
LASTING = 1.5
# With fewer nodes, drawing nodes again says nothing about other machines: the interval is within these.
FEWEST_NODES = 5
# Chance of any false claim that a method is better than the same signal shifted in time.
NULL_LEVEL = 0.01
# Where nearly every moment has a spike after it, refusing is always right and proves nothing.
MOST_POSITIVE = 0.95


@dataclass(frozen=True, slots=True)
class NullTest:
    """A statistic next to what the same signal scores when shifted in time."""

    observed: float
    null: float
    p: float


class Study:
    """The evaluation of some methods, in the order of the results' arrays, on some nodes."""

    def __init__(self, results: list[PartResult], setting: Setting, methods: list[Method]) -> None:
        self.results = results
        self.setting = setting
        self.methods = methods
        self._places = {method.name: place for place, method in enumerate(methods)}
        every = [node for result in results for node in result.nodes]
        self.nodes: list[NodeSummary] = [node for node in every if node.scored >= FEWEST_SCORED]
        self.too_short: list[NodeSummary] = [node for node in every if node.scored < FEWEST_SCORED]

    @cached_property
    def passes(self) -> list[TraceCounts]:
        """What reading each file met, once, however many parts its nodes were cut into."""
        once = {result.paths or (str(place),): result.counts for place, result in enumerate(self.results)}
        return list(once.values())

    def __contains__(self, name: str) -> bool:
        """Tell whether a method ran."""
        return name in self._places

    @cached_property
    def _statistics(self) -> Array:
        return np.stack([node.statistics for node in self.nodes])

    @cached_property
    def _draws(self) -> Array:
        return np.stack([node.draws for node in self.nodes]).astype(np.float64)

    def values(self, name: str, statistic: str) -> Array:
        """Return one statistic of one method for every node."""
        return np.asarray(self._statistics[:, self._places[name], STATISTICS.index(statistic)])

    def interval(self, name: str, statistic: str, *, over: bool = True) -> Interval:
        """Return the mean over nodes, with the interval over nodes or only within them."""
        k, s = self._places[name], STATISTICS.index(statistic)
        generator = np.random.default_rng([self.setting.seed, s])
        return mean_interval(self._statistics[:, k, s], self._draws[:, k, s], over=over, generator=generator)

    def ratio(self, name: str, other: str, statistic: str) -> Interval:
        """Return how many times better one method is than another, node by node in pairs."""
        return ratio_interval(*self._pair(name, other, statistic), over=True, seed=self.setting.seed)

    def _pair(self, name: str, other: str, statistic: str) -> tuple[Array, Array, Array, Array]:
        """Return the values and draws of one method, then those of another."""
        k, j, s = self._places[name], self._places[other], STATISTICS.index(statistic)
        statistics, draws = self._statistics[..., s], self._draws[:, :, s]
        return statistics[:, k], draws[:, k], statistics[:, j], draws[:, j]

    def null_test(self, name: str, statistic: str) -> NullTest:
        """Return whether chance, in the shape of the shifted signal, could have done as well."""
        k = self._places[name]
        total = self._nulls.get(statistic)
        if total is None or not total.nodes[k]:
            observed = np.array([node.seen[statistic][k] for node in self.nodes])
            return NullTest(_mean(observed), float("nan"), float("nan"))
        null, seen = total.shifted[k] / total.nodes[k], float(total.seen[k] / total.nodes[k])
        return NullTest(seen, float(np.mean(null)), p_value(seen, null, self._distinct_shifts))

    @cached_property
    def _distinct_shifts(self) -> float:
        """How many ways there are to shift all nodes together."""
        guard = 5 * max(self.setting.horizon, self.setting.window)
        return float(max([0, *(min(node.on_tape, node.scored) - 2 * guard for node in self.nodes)]))

    @cached_property
    def _nulls(self) -> dict[str, NullTotal]:
        totals: dict[str, NullTotal] = {}
        for result in self.results:
            for name, part in result.nulls.items():
                totals[name] = totals[name] + part if name in totals else part
        return totals

    @cached_property
    def onsets(self) -> int:
        """Separate onsets of contention, over all nodes."""
        return sum(node.onsets for node in self.nodes)

    @cached_property
    def contended_blocks(self) -> int:
        """Blocks of time with contention on any node; what comes over several at once is counted once."""
        return _apart(np.concatenate([node.contended for node in self.nodes]))

    @cached_property
    def _observations(self) -> int:
        """Times of contention that tell more than one another: blocks, or runs of neighbours where it outlasts blocks.

        It does where blocks with contention stand in far fewer runs than by chance (the test of Wald and Wolfowitz).
        """
        spans, by_chance = [np.empty((0, 2))], 0.0
        for node in (node for node in self.nodes if len(node.contended)):
            begin, end = node.contended.T
            first = np.flatnonzero(np.diff(begin, prepend=-math.inf) > 1.5 * (end - begin))
            spans.append(np.stack([begin[first], end[np.append(first[1:], begin.size) - 1]], axis=1))
            by_chance += begin.size * (node.blocks - begin.size + 1) / node.blocks
        runs = np.concatenate(spans)
        return _apart(runs) if by_chance >= LASTING * len(runs) else self.contended_blocks

    @cached_property
    def hours(self) -> float:
        """Mean length of a node's record in hours, rows without CPU Ready included."""
        read = [result for result in self.results if result.nodes]
        seconds = sum(result.node_steps * (result.interval_seconds or 1.0) for result in read)
        return seconds / max(1, sum(len(result.nodes) for result in read)) / 3600.0

    @property
    def enough(self) -> bool:
        """Tell whether there is enough contention, and calm, for an honest interval."""
        scored, positive = sum(n.scored for n in self.nodes), sum(n.positive for n in self.nodes)
        apart = self.onsets >= FEWEST_ONSETS and self.contended_blocks >= FEWEST_BLOCKS
        return apart and 0 < positive <= MOST_POSITIVE * scored

    @property
    def _over(self) -> bool:
        return len(self.nodes) >= FEWEST_NODES

    @property
    def _degrees(self) -> int:
        return (min(len(self.nodes), self.contended_blocks) if self._over else self._observations) - 1

    def lift(self, name: str) -> Interval:
        """Return how many times more moments before a spike a method's own refusals met than chance would.

        Chance is a coin of the same downtime on the same node. The interval is Student's, on the logarithm:
        few blocks make it wide.
        """
        k, (hits, chance) = self._places[name], (STATISTICS.index(statistic) for statistic in HITS)
        met, luck = self._statistics[:, k, hits].sum(), self._statistics[:, k, chance].sum()
        if not (luck > 0 and met > 0):
            return Interval(0.0 if luck > 0 else math.nan, math.nan, math.nan, len(self.nodes))
        with np.errstate(invalid="ignore", divide="ignore"):
            draws = np.divide(*self._drawn_sums(k, [hits, chance]))
        return student_interval(met / luck, draws, self._degrees, len(self.nodes), positive=True)

    def most_lift(self, name: str) -> float:
        """Return the lift if contention followed every refusal: near 1 where it follows most moments anyway."""
        luck = self.values(name, "own_hits_by_chance").sum()
        refused = np.nansum(self.values(name, "own_downtime") * [node.scored for node in self.nodes])
        return float(refused / luck) if luck > 0 else math.inf

    def _drawn_sums(self, method: int, statistics: list[int]) -> Array:
        """Return sums over nodes of some counts on every draw, `(statistics, draws)`; nodes drawn too if many."""
        drawn = self._draws[:, method][:, statistics]
        if self._over:
            generator = np.random.default_rng([self.setting.seed, 3])
            chosen = generator.integers(0, len(drawn), size=(len(drawn), 1, drawn.shape[2]))
            drawn = np.take_along_axis(drawn, chosen, axis=0)
        return np.asarray(drawn.sum(axis=0))

    def qos(self, name: str) -> dict[str, Interval] | None:
        """Return what jobs suffered after all, accepted and refused moments, all nodes together.

        `saved` is how much lower the mean over accepted moments is than over all, `apart` how many times
        higher it is over refused moments than over accepted ones. None where nobody looked.
        """
        k, at = self._places[name], [STATISTICS.index(statistic) for statistic in QOS]
        exact = self._statistics[:, k][:, at].sum(axis=0)
        if not exact[0] > 0:
            return None
        # The value first, then the draws.
        moments, total, moments_refused, refused = np.column_stack([exact, self._drawn_sums(k, at)])
        with np.errstate(invalid="ignore", divide="ignore"):
            every, refusing = total / moments, refused / moments_refused
            accepting = (total - refused) / (moments - moments_refused)
            found = {
                "all": every,
                "accepted": accepting,
                "refused": refusing,
                "saved": every - accepting,
                "apart": refusing / accepting,
            }
        return {
            key: student_interval(v[0], v[1:], self._degrees, len(self.nodes), positive=key != "saved")
            for key, v in found.items()
        }

    def refusals(self, name: str) -> int:
        """Return how often a method began to refuse, over all nodes."""
        return int(sum(node.refusals[self._places[name]] for node in self.nodes))

    @cached_property
    def better_than_null(self) -> dict[str, set[str]]:
        """Methods that chance cannot explain, for each statistic, all methods tested together."""
        if not self.enough:
            return {statistic: set() for statistic in NULL_STATISTICS}
        return {
            statistic: holm({name: self.null_test(name, statistic).p for name in self._tested}, NULL_LEVEL)
            for statistic in NULL_STATISTICS
        }

    @property
    def _tested(self) -> list[str]:
        """Methods of which each is a claim of its own: no variants of another."""
        return [m.name for m in self.methods if m.family not in ("null", "sweep") and m.name not in VARIANTS]

    @property
    def tells_apart(self) -> bool:
        """Tell whether there are enough shifts in time for any of so many methods to be better than all of them."""
        shifts = min(SHIFTS, self._distinct_shifts)
        return 1.0 / (1.0 + shifts) <= NULL_LEVEL / max(1, len(self._tested))

    @cached_property
    def better_than_ready(self) -> set[str]:
        """Methods that find more than current CPU Ready does at the same downtime, surely so."""
        return self._surely(above=True) & self.better_than_null["recall"]

    @cached_property
    def worse_than_ready(self) -> set[str]:
        """Methods that find less than current CPU Ready does at the same downtime, surely so."""
        return self._surely(above=False)

    def _surely(self, *, above: bool) -> set[str]:
        """Methods of which it is sure at 5 % in all: half of it for Pronto's own, half for all others together."""
        if "ready" not in self or not self.enough:
            return set()
        found = {name: self._ready_p(name, above=above) for name in self._tested if name != "ready"}
        own = {name: found.pop(name) for name in (OWN_METHOD,) if name in found}
        return holm(own, level=0.025) | holm(found, level=0.025)

    def _ready_p(self, name: str, *, above: bool) -> float:
        pair = self._pair(name, "ready", "recall")
        value, draws, _ = ratio_draws(*pair, over=self._over, seed=self.setting.seed)
        if not above:
            with np.errstate(divide="ignore"):
                value, draws = 1.0 / value if value > 0 else math.nan, 1.0 / draws
        return excess_p(value, draws, self._degrees)

    def curve(self, name: str) -> tuple[Array, Array]:
        """Return realised downtime and recall at each budget, means over nodes."""
        k = self._places[name]
        downtime = np.stack([node.downtime[k] for node in self.nodes])
        recall = np.stack([node.recall[k] for node in self.nodes])
        return column_means(downtime), column_means(recall)

    def paper(self, name: str, figure: str) -> Array:
        """Return one of the paper's figures for every node."""
        k = self._places[name]
        return np.array([node.paper[figure][k] for node in self.nodes])

    def paper_blocks(self, name: str, figure: str) -> Array:
        """Return one of the paper's figures for every block of time of every node."""
        k = self._places[name]
        return np.concatenate([node.paper_blocks[figure][:, k] for node in self.nodes])

    @property
    def windows(self) -> int:
        """How many blocks of time the nodes have, together, where they are few."""
        return sum(len(node.paper_blocks.get("downtime", ())) for node in self.nodes)

    def lead_time(self, name: str, *, at_budget: bool = True) -> Array:
        """Return how many onsets were first raised 1, 2, … w steps before."""
        k = self._places[name]
        return np.asarray(np.sum([node.leads[k, int(at_budget)] for node in self.nodes], axis=0))

    def calibration(self, name: str, *, contended: bool = False) -> Array | None:
        """Return probabilities against what followed, all nodes together, or of contended moments; None without any."""
        k, every = self._places[name], [node.calibration for node in self.nodes]
        bins = [_moments(one[k], contended) for one in every if one is not None]
        total: Array | None = np.sum(bins, axis=0) if bins else None
        return total if total is not None and total[:, 0].sum() > 0 else None

    def calibration_error(self, name: str, *, contended: bool = False) -> float:
        """Return the expected calibration error over all nodes together."""
        bins = self.calibration(name, contended=contended)
        return float("nan") if bins is None else calibration_error(bins)

    def calibration_errors(self, name: str, *, contended: bool = False) -> Array:
        """Return the expected calibration error of every node."""
        k, every = self._places[name], [node.calibration for node in self.nodes]
        bins = [None if one is None else _moments(one[k], contended) for one in every]
        return np.array([math.nan if one is None else calibration_error(one) for one in bins])

    def mean_of(self, name: str, figure: str) -> float:
        """Return the mean over nodes of a figure that nodes have for each method.

        `cold_average_precision` is that of the first steps, `worst_hour` the most that was refused of one hour.
        """
        return _mean(np.array([getattr(node, figure)[self._places[name]] for node in self.nodes]))


def _apart(spans: Array) -> int:
    """Return how many spans of time, `(n, 2)`, lie apart from one another: of those that overlap one counts."""
    count, free = 0, -math.inf
    for begin, end in sorted(spans.tolist(), key=max):
        # Ends are sums of fractions of a second.
        if begin >= free - 1e-3:
            count, free = count + 1, end
    return count


def median_lead(leads: Array) -> float:
    """Return the median number of steps of warning, NaN without any."""
    total = leads.sum()
    return float(np.searchsorted(np.cumsum(leads), total / 2.0) + 1) if total > 0 else math.nan


def _moments(bins: Array, contended: bool) -> Array:
    """Return the bins of all moments, or only of those contended already."""
    return np.asarray(bins[1] if contended else bins.sum(axis=0))


def _mean(values: Array) -> float:
    return float(column_means(values[:, None])[0])
