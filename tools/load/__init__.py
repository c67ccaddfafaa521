"""A load generator: real contention on a real machine, bounded in time and CPU share, and repeatable.

`schedule` plans what happens when from a seed, `run` carries it out with the processes of `worker`. Part of
the contention is announced by other metrics, part comes without a sign, and some signs are followed by nothing.
"""
