"""The machine itself as a source: /proc and /sys, read from any root folder."""

from prontosched.telemetry.linux.source import LinuxSource

__all__ = ["LinuxSource"]
