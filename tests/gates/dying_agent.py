"""An agent that refuses without end, to be killed: `dying_agent.py CONF NODE VALID_SECONDS`."""

import sys
import time

from prontosched.gates.controller import Controller
from prontosched.gates.gate import Verdict
from prontosched.gates.policy import Rules
from prontosched.gates.slurm import SlurmGate

conf, node, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
rules = Rules(enforce=True, veto=True, min_accept_seconds=0, prefer_seconds=seconds)
controller = Controller(SlurmGate(conf=conf), node, rules=rules)
for _ in range(600):
    now = time.time()
    controller.apply(Verdict(True, 0.9, "this agent will be killed", now + seconds), now)
    time.sleep(0.1)
