"""The errors a user can act on.

A programmer's mistake raises `ValueError` or `TypeError` instead. The command
line shows the errors below as one line; anything else keeps its traceback,
because it is a bug.
"""


class ProntoError(Exception):
    """Something a user can act on: what must hold, what was given, what to do."""


class SettingsError(ProntoError):
    """A setting is missing, unknown or out of range."""


class TelemetryError(ProntoError):
    """A source or a trace cannot give what is asked of it."""


class StateError(ProntoError):
    """Saved state cannot be used: truncated, altered, or of another version."""


class NewerStateError(StateError):
    """Saved state is from a newer version: overwriting it would lose what that one knew."""


class FederationError(ProntoError):
    """A summary, a view or a link of the federation cannot be used."""


class IntegrationError(ProntoError):
    """A scheduler refused, or is not there."""
