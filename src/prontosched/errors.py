"""The errors a user can act on.

A programmer's mistake raises `ValueError` or `TypeError` instead. The command
line shows the errors below as one line; anything else keeps its traceback,
because it is a bug. `suggestion` adds to a message what was probably meant.
"""

from __future__ import annotations

from collections.abc import Iterable

SHOWN = 12
LIKENESS = 0.6


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words that come nearest to a word, at most three and about equally near.

    Examples
    --------
    >>> nearest("BUDGTE", ["budget", "gate", "for"])
    ['budget']
    """
    from difflib import SequenceMatcher  # slow to import, and rarely needed

    likely = [(SequenceMatcher(None, word.lower(), name.lower()).ratio(), name) for name in known]
    best = max((ratio for ratio, _ in likely), default=0.0)
    found = sorted((-ratio, name) for ratio, name in likely if ratio >= max(LIKENESS, best - 0.05))
    return [name for _, name in found[:3]]


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the nearest known ones, else all of them.

    Examples
    --------
    >>> suggestion("statsu", ["status", "run"]), suggestion("x", ["status", "run"])
    (": did you mean 'status'?", ': known are run, status')
    """
    names = sorted(known)
    if found := nearest(word, names):
        return f": did you mean {' or '.join(repr(name) for name in found)}?"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f": known are {', '.join(names[:SHOWN])}{more}" if names else ""


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
