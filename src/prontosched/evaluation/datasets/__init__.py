"""Published data sets, read as traces: SMD, Bitbrains GWA-T-12, and CSV exports of vSphere.

`open_dataset` tells what a file is and opens it with the interface of `telemetry.trace`, so that whatever reads
a trace reads these too. Where each is published, and under which licence, is in docs/datasets.md.
"""

from prontosched.evaluation.datasets.opening import open_dataset, recognise

__all__ = ["open_dataset", "recognise"]
