"""What is asked of an evaluation: one value that travels to every worker."""

from __future__ import annotations

from dataclasses import dataclass

from prontosched.errors import SettingsError

BUDGETS = (0.02, 0.03, 0.05, 0.07, 0.10, 0.14, 0.20, 0.30)
LOW_DOWNTIME = 0.05
MOST_HORIZON = 240


@dataclass(frozen=True, slots=True)
class Setting:
    """How methods are run and judged.

    Attributes
    ----------
    methods
        Names of the methods, as in `methods.METHODS`.
    truth
        What counts as a spike, as `truth.Truth.parse` reads it.
    horizon
        Timesteps ahead in which a spike counts.
    window
        The paper's window w.
    budget
        Downtime at which methods are compared.
    tolerance
        What signals are told contention is; None for the truth itself.
    hourly_limit
        Downtime allowed in any one hour, whose price is reported.
    seed
        Of everything drawn.
    with_ready
        CPU Ready is one of the metrics too, though the answer is then among the questions.
    sweeps
        `(name, values)`: variants of the published signal.
    """

    methods: tuple[str, ...]
    truth: str = "p95"
    horizon: int = 5
    window: int = 10
    budget: float = 0.10
    tolerance: str | None = None
    hourly_limit: float = 0.4
    seed: int = 7
    with_ready: bool = False
    sweeps: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.horizon <= MOST_HORIZON:
            raise SettingsError(f"horizon must be from 1 to {MOST_HORIZON} timesteps, got {self.horizon}")
        if not 2 <= self.window <= MOST_HORIZON:
            raise SettingsError(f"window must be from 2 to {MOST_HORIZON} timesteps, got {self.window}")
        if not BUDGETS[0] <= self.budget <= BUDGETS[-1]:
            raise SettingsError(
                f"budget must be from {BUDGETS[0]:.0%} to {BUDGETS[-1]:.0%} of the time, got {self.budget:.0%}: "
                "methods are only compared where their curves were measured"
            )

    @property
    def budgets(self) -> tuple[float, ...]:
        """Downtimes at which every method runs: from 2 to 30 %, the chosen one among them."""
        return tuple(sorted({*BUDGETS, self.budget}))

    @property
    def targets(self) -> tuple[float, float]:
        """The low and the chosen downtime at which methods are compared."""
        return (min(LOW_DOWNTIME, self.budget), self.budget)
