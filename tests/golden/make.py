"""Write golden traces: `python -m tests.golden.make NAME…`. A change of one belongs in the changelog."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from prontosched.pipeline.presets import make_node
from tests.pipeline.test_node import stream

CASES = {
    "paper-signed": {"preset": "paper"},
    "paper-absolute": {"preset": "paper", "absolute": True, "hold": 3},
    "paper-adaptive": {"preset": "paper", "embedding_options": {"energy_bounds": (0.01, 0.1)}},
    "paper-spirit": {"preset": "paper", "embedding": "spirit", "influence": 1.0},
    "paper-spirit-dampened": {"preset": "paper", "embedding": "spirit"},
    "paper-frequent-directions": {"preset": "paper", "embedding": "frequent-directions", "influence": 1.0},
    "paper-frequent-directions-dampened": {"preset": "paper", "embedding": "frequent-directions"},
    "paper-power-method": {"preset": "paper", "embedding": "power-method"},
    "learned": {"preset": "default", "tolerance": "p90"},
}


def main(names: list[str]) -> None:
    """Replay the cases named and freeze the timesteps at which each refuses."""
    for name in names:
        options = CASES[name]
        made = {"steps": 900, "seed": 5, "features": 32, "announced": 6, "burst_every": 60.0}
        node = make_node(**options)  # type: ignore[arg-type]
        raised = [
            t
            for t, (y, ready, busy) in enumerate(stream(**made))  # type: ignore[arg-type]
            if node.step(y, ready=ready, utilisation=busy, time=float(t)).raised
        ]
        golden = {"node": options, "stream": made, "raised": raised}
        (Path(__file__).parent / f"{name}.json").write_text(json.dumps(golden) + "\n")
        print(name, len(raised))


if __name__ == "__main__":
    main(sys.argv[1:])
