"""ARIMA with its order chosen by the AIC, from statsmodels."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from prontosched.subspace import Array

# Largest sum of p and q tried, with d up to 1. Windows of 14 to 45 points hold no more.
MOST_TERMS = 2
MOST_DIFFERENCES = 1
# Steps of the optimiser per order; what has not settled by then rarely wins.
MOST_ITERATIONS = 30


class Arima:
    """The ARIMA model of one course whose order has the smallest AIC.

    Parameters
    ----------
    course
        The course it is built on, `(n,)`: a node's own, or that of the average node.
    most_terms
        Largest sum of p and q tried; 2 if not given.

    Attributes
    ----------
    order
        The (p, d, q) chosen; None for a constant course, which is forecast as it is.

    Examples
    --------
    >>> Arima(np.full(14, 0.25)).forecast(np.full(14, 0.5), steps=2)
    array([0.5, 0.5])
    """

    def __init__(self, course: Array, most_terms: int | None = None) -> None:
        self.order: tuple[int, int, int] | None = None
        self._fitted: Any = None
        if np.ptp(course) < 1e-9:
            return
        best = np.inf
        for order in _orders(MOST_TERMS if most_terms is None else most_terms):
            fitted = _fit(course, order)
            if fitted is not None and fitted.aic < best:
                best, self.order, self._fitted = fitted.aic, order, fitted

    def forecast(self, course: Array, *, steps: int) -> Array:
        """Return the next `steps` values of a course that need not be the one the model is built on."""
        if self._fitted is None or np.ptp(course) < 1e-9:
            return np.full(steps, course[-1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ahead = np.asarray(self._fitted.apply(course).forecast(steps), dtype=float)
        # A model of another course can run away on this one: then its last value is the best it says.
        return (
            ahead if np.isfinite(ahead).all() and np.abs(ahead).max() < 10.0 else np.full(steps, course[-1])
        )


def _orders(most_terms: int) -> list[tuple[int, int, int]]:
    sizes = range(most_terms + 1)
    return [
        (p, d, q) for d in range(MOST_DIFFERENCES + 1) for p in sizes for q in sizes if p + q <= most_terms
    ]


def _fit(course: Array, order: tuple[int, int, int]) -> Any:
    from statsmodels.tsa.arima.model import ARIMA

    with warnings.catch_warnings():
        # Short windows often do not converge: the AIC then speaks for another order.
        warnings.simplefilter("ignore")
        try:
            fitted = ARIMA(course, order=order).fit(
                cov_type="none", method_kwargs={"maxiter": MOST_ITERATIONS, "disp": 0}
            )
        except (np.linalg.LinAlgError, ValueError, IndexError):
            return None
    return fitted if np.isfinite(fitted.aic) else None
