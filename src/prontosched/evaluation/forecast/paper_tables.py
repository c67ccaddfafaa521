"""The numbers printed in the paper, on the bank's trace. Never computed here, never mixed with ours."""

from __future__ import annotations

SOURCE = "the paper, on the bank's trace of 2012"

# Table "same VM / same cluster VMs": average RMSE in ms by method, in these columns.
DAILY_COLUMNS = ("same node, 14 days", "same node, 21 days", "same cluster, 14 days", "same cluster, 21 days")
DAILY: dict[str, tuple[float, ...]] = {
    "naive": (127.61, 128.79, 145.61, 145.60),
    "expsmo": (127.04, 129.71, 145.59, 148.77),
    "arima": (128.14, 125.69, 131.74, 114.87),
    "svm": (121.92, 118.01, 103.66, 100.23),
}

# Table "similar VMs": average RMSE in ms by grouping, from 14 and 21 days.
SIMILAR: dict[str, tuple[float, ...]] = {
    "ordered": (102.62, 98.88),
    "euclidean": (106.33, 102.42),
    "correlation": (109.91, 106.71),
    "sts": (112.13, 105.59),
    "cort": (113.03, 107.10),
    "acf": (104.31, 102.02),
}

# Table "forecasting windows": method -> average RMSE in ms, from 1 day to 15 min.
WINDOWS: dict[str, tuple[float, ...]] = {
    "naive": (122.39, 219.55, 335.22, 236.8, 1052.41, 837.71, 876.16),
    "expsmo": (123.42, 183.78, 273.81, 269.08, 899.66, 798.21, 933.69),
    "arima": (109.64, 161.22, 217.46, 255.63, 1154.43, 1205.33, 1515.90),
    "svm": (96.15, 130.01, 173.15, 155.58, 912.85, 899.01, 1155.12),
}

# Tables "accuracy": method -> threshold -> accuracy as printed; shares of spikes in percent.
ALARMS: dict[str, dict[str, float]] = {
    method: dict(
        zip(("500ms", "800ms", "1000ms", "p90", "p95", "p99", "3sigma", "xbar", "median"), row, strict=True)
    )
    for method, row in {
        "naive": (0.884, 0.9359, 0.9725, 0.7472, 0.7807, 0.8306, 0.9723, 0.6687, 0.4476),
        "expsmo": (0.8529, 0.9338, 0.9734, 0.7444, 0.7942, 0.8534, 0.9754, 0.5953, 0.3393),
        "arima": (0.894, 0.938, 0.9763, 0.7301, 0.7862, 0.8534, 0.9754, 0.6594, 0.4343),
        "svm cluster": (0.9057, 0.9417, 0.9746, 0.745, 0.7936, 0.8534, 0.9754, 0.6875, 0.4877),
        "svm full": (0.9071, 0.9414, 0.9744, 0.7449, 0.7933, 0.8534, 0.9754, 0.6926, 0.4903),
        "share of spikes": (0.0954, 0.0263, 0.0085, 0.1328, 0.1018, 0.073, 0.046, 0.491, 0.2491),
    }.items()
}

# What the paper answers to its four questions.
ANSWERS = {
    "how many": "Better with data from multiple VMs.",
    "how much past": "Better from a longer window of the past.",
    "how far": "Better for long forecasting windows.",
    "which method": "SVM, but for short windows the naive method and exponential smoothing.",
}
