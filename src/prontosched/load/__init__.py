"""A load generator: real contention on a real machine, bounded in time and CPU share, and repeatable.

`schedule` plans what happens when from a seed, `run` carries it out with the processes of `worker`. What
makes it worth predicting: part of the contention is announced by other metrics, part comes out of the
blue, and part of what looks like an announcement is followed by nothing.
"""

from prontosched.load.run import LoadReport, run_load
from prontosched.load.schedule import Action, Event, Schedule, plan_load

__all__ = ["Action", "Event", "LoadReport", "Schedule", "plan_load", "run_load"]
