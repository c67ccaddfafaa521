"""Scaling of past windows to [0, 1] and of forecasts back, as the paper does before every error."""

from __future__ import annotations

from prontosched.subspace import Array


class WindowScale:
    """The range of each node in one past window.

    Parameters
    ----------
    past
        Past windows, one row per node, `(M, n)`.

    Examples
    --------
    >>> import numpy as np
    >>> scale = WindowScale(np.array([[10.0, 30.0, 20.0]]))
    >>> scale.scaled
    array([[0. , 1. , 0.5]])
    >>> scale.back(np.array([0.5]))
    array([20.])
    """

    def __init__(self, past: Array) -> None:
        from sklearn.preprocessing import MinMaxScaler

        self._scaler = MinMaxScaler().fit(past.T)
        self.scaled: Array = self._scaler.transform(past.T).T

    def forward(self, values: Array) -> Array:
        """Return one value per node, `(M,)`, in the scale of its window."""
        scaled: Array = self._scaler.transform(values[None, :])[0]
        return scaled

    def back(self, forecasts: Array) -> Array:
        """Return one forecast per node, `(M,)`, in the unit of the past windows."""
        plain: Array = self._scaler.inverse_transform(forecasts[None, :])[0]
        return plain
