"""Some nodes of a federation as a process of their own, told by lines on standard input.

`step N` takes N timesteps of every node and answers with one line of JSON; `save FILE`
keeps the state of the first node; `view` tells the global view as the members know it.
Between commands the members stay in the federation, as an agent between timesteps does.
"""

from __future__ import annotations

import argparse
import json
import select
import sys
import time
from pathlib import Path

AHEAD = 0.0
_true_time = time.time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nats", required=True)
    parser.add_argument("--names", nargs="+", required=True)
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--clock-ahead", type=float, default=0.0)
    options = parser.parse_args()
    if options.clock_ahead:
        # The whole process lives that far ahead; set before anything of ours is imported.
        time.time = lambda: _true_time() + options.clock_ahead
    Worker(options).run()


class Worker:
    def __init__(self, options: argparse.Namespace) -> None:
        from prontosched.decision import Decision
        from prontosched.federation.member import Member
        from prontosched.federation.nats import NatsLink
        from prontosched.federation.publisher import Propagation
        from prontosched.pipeline.node import Node
        from prontosched.pipeline.presets import make_node

        from .simulated import METRICS, Stream

        self.link = NatsLink(f"{options.nats}/faults", name=options.names[0].replace("/", "-"), timeout=0.5)
        self.nodes = []
        self.decisions = 0
        for index, (name, seed) in enumerate(zip(options.names, options.seeds, strict=True)):
            node = make_node("paper", metrics=METRICS)
            stream = Stream(seed)
            if options.load and index == 0:
                node = Node.from_bytes(options.load.read_bytes())
            for _ in range(options.skip if options.load and index == 0 else 0):
                stream.read()
            rule = Propagation(epsilon=0.0, epsilon_strength=0.0, max_age_seconds=1.0)
            member = Member(self.link, name, rule=rule, decision_seconds=5.0, adopt_seconds=0.5)
            self.nodes.append([node, member, stream, Decision(False, 0.0, 1.0, "not asked yet")])

    def run(self) -> None:
        print(json.dumps({"ready": True}), flush=True)
        while True:
            readable, _, _ = select.select([sys.stdin], [], [], 0.05)
            if not readable:
                for node, member, _, decision in self.nodes:
                    member.step(node, decision)
                continue
            line = sys.stdin.readline()
            if not line or line.startswith("quit"):
                self.link.close()
                return
            verb, _, rest = line.strip().partition(" ")
            print(json.dumps(getattr(self, verb)(rest)), flush=True)

    def step(self, count: str) -> dict:
        before = self.decisions
        for _ in range(int(count)):
            for row in self.nodes:
                node, member, stream, _ = row
                row[3] = node.step(stream.read(), time=time.time())
                self.decisions += 1
                member.step(node, row[3])
        return {
            "decided": (self.decisions - before) // len(self.nodes),
            "connected": self.link.connected,
            "errors": [row[1].last_error for row in self.nodes if row[1].errors],
        }

    def status(self, _: str) -> dict:
        return {
            "connected": self.link.connected,
            "sessions": self.link.sessions,
            "link_error": self.link.last_error,
            "unsent": len(self.link._outbox),
            "members": {
                row[1].name: [
                    row[1].summaries._incarnation,
                    row[1].summaries._sequence,
                    row[0].embedding.samples,
                    row[1].last_error,
                    row[1].view.revision if row[1].view else None,
                ]
                for row in self.nodes
            },
        }

    def save(self, path: str) -> dict:
        Path(path).write_bytes(self.nodes[0][0].to_bytes())
        return {"saved": path}

    def view(self, _: str) -> dict:
        for node, member, _stream, decision in self.nodes:
            member.step(node, decision)
        views = [row[1].view for row in self.nodes if row[1].view is not None]
        if not views:
            return {"revision": None}
        view = max(views, key=lambda v: v.revision)
        return {
            "revision": view.revision,
            "samples": view.samples,
            "nodes": view.nodes,
            "basis": view.subspace.basis.tolist() if view.subspace else None,
            "strengths": view.subspace.singular_values.tolist() if view.subspace else None,
        }


if __name__ == "__main__":
    main()
