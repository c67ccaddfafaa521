"""Write the golden traces anew: `python -m tests.golden.make`. A change of them belongs in the changelog."""

from __future__ import annotations

import json
from pathlib import Path

from prontosched.pipeline.presets import make_node
from tests.test_node import stream

CASES = {
    "paper-signed": {"preset": "paper"},
    "paper-absolute": {"preset": "paper", "absolute": True, "hold": 3},
    "paper-adaptive": {"preset": "paper", "embedding_options": {"energy_bounds": (0.01, 0.1)}},
    "paper-spirit": {"preset": "paper", "embedding": "spirit"},
    "paper-frequent-directions": {"preset": "paper", "embedding": "frequent-directions"},
    "paper-power-method": {"preset": "paper", "embedding": "power-method"},
    "learned": {"preset": "default", "tolerance": "p90"},
}


def main() -> None:
    """Replay every case and freeze the timesteps at which it refuses."""
    for name, options in CASES.items():
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
    main()
