"""The paper, rendered plainly: what a careful reader would write in an afternoon.

A thin SVD of each block, the QR merge, deques for the windows and numpy for
their means. Correct, and the yardstick for how much the shipped node saves.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from prontosched.subspace import Array


class PlainScaling:
    """Exponentially weighted mean and variance, updated at every vector."""

    def __init__(self, features: int, half_life: float = 600.0, clip: float = 8.0) -> None:
        self.mean = np.zeros(features)
        self.variance = np.ones(features)
        self.weight = 1.0 - 0.5 ** (1.0 / half_life)
        self.clip = clip

    def scale(self, y: Array) -> Array:
        """Return the vector on the scale of its past."""
        known = np.isfinite(y)
        y = np.where(known, y, self.mean)
        away = y - self.mean
        scaled = away / np.sqrt(np.maximum(self.variance, 1e-12))
        self.mean = self.mean + self.weight * away
        self.variance = (1.0 - self.weight) * (self.variance + self.weight * away**2)
        return np.clip(scaled, -self.clip, self.clip)


class PlainNode:
    """FPCA-Edge and Reject-Job as the paper's listings read, with their misprints mended."""

    def __init__(
        self,
        features: int,
        *,
        rank: int = 4,
        block_size: int = 10,
        lag: int = 10,
        scaling: PlainScaling | None = None,
    ) -> None:
        self.rank = rank
        self.block_size = block_size
        self.lag = lag
        self.scaling = scaling
        self.block: list[Array] = []
        self.basis: Array | None = None
        self.strengths = np.zeros(0)
        self.windows: list[deque[float]] = [deque(maxlen=lag) for _ in range(rank)]

    def step(self, y: Array) -> bool:
        """Return whether the signal is raised, then learn."""
        if self.scaling is not None:
            y = self.scaling.scale(y)
        raised = False
        if self.basis is not None:
            raised = self._reject(self.basis.T @ y)
        self.block.append(y)
        if len(self.block) == self.block_size:
            self._update(np.column_stack(self.block))
            self.block.clear()
        return raised

    def _reject(self, projections: Array) -> bool:
        score = 0.0
        for i, value in enumerate(projections):
            window = self.windows[i]
            if len(window) < self.lag:
                window.append(float(value))
                continue
            mean, deviation = float(np.mean(window)), float(np.std(window))
            if abs(value - mean) > 3.5 * max(deviation, 1e-9):
                score += float(self.strengths[i] / self.strengths[0]) * (1.0 if value > mean else -1.0)
                value = 0.5 * value + 0.5 * window[-1]
            window.append(float(value))
        return bool(score >= 1.0)

    def _update(self, block: Array) -> None:
        basis, strengths, _ = np.linalg.svd(block, full_matrices=False)
        basis, strengths = basis[:, : self.rank], strengths[: self.rank]
        if self.basis is None:
            self.basis, self.strengths = basis, strengths
            return
        overlap = self.basis.T @ basis
        extra, mixing = np.linalg.qr(basis - self.basis @ overlap)
        core = np.block(
            [
                [np.diag(self.strengths), overlap * strengths],
                [np.zeros((self.rank, self.rank)), mixing * strengths],
            ]
        )
        rotation, merged, _ = np.linalg.svd(core, full_matrices=False)
        turned = (np.hstack([self.basis, extra]) @ rotation)[:, : self.rank]
        signs = np.sign(np.sum(turned * self.basis, axis=0))
        self.basis = turned * np.where(signs == 0, 1.0, signs)
        self.strengths = merged[: self.rank]
