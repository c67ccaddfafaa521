"""The values that gates speak in."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from prontosched.decision import Decision
from prontosched.gates.gate import PREFIX, Observed, Verdict, label, read_label

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(reason=st.text(max_size=400), score=FINITE, until=st.floats(1.0, 2**40))
def test_label_reads_back_as_ours_with_score_and_expiry(reason: str, score: float, until: float) -> None:
    observed = read_label(label(Verdict(True, score, reason, until)))

    assert observed is not None
    assert observed.ours
    assert math.isclose(observed.score, score, rel_tol=1e-3, abs_tol=1e-6) or score == 0
    assert observed.valid_until <= until
    assert until > 253402300799 or until - observed.valid_until < 1.0


@given(reason=st.text(max_size=4000))
def test_label_is_one_short_printable_line_without_quotes_or_fields(reason: str) -> None:
    text = label(Verdict(True, 0.5, reason, 1e9))

    assert len(text) < 240
    assert text.isprintable()
    assert not set(text) & set("\"'`\\\n=")


@given(text=st.text(max_size=200).filter(lambda text: not text.startswith(PREFIX)))
def test_text_without_our_prefix_is_not_ours(text: str) -> None:
    assert read_label(text) is None


@given(rest=st.text(max_size=200))
def test_edited_label_is_ours_and_lapsed(rest: str) -> None:
    observed = read_label(PREFIX + rest + "!")

    assert observed is not None
    assert observed.lapsed(0.0)


def test_label_with_an_impossible_date_is_lapsed() -> None:
    observed = read_label("pronto: busy (score 0.5, until 2026-13-45T99:99:99Z)")

    assert observed is not None
    assert observed.lapsed(0.0)


def test_verdict_without_a_time_has_ended() -> None:
    assert Verdict(True, 1.0, "busy", math.nan).expired(0.0)
    assert read_label(label(Verdict(True, 1.0, "busy", math.nan))).lapsed(1.0)  # type: ignore[union-attr]


def test_open_node_never_lapses() -> None:
    assert not Observed("open").lapsed(1e12)


def test_verdict_of_a_decision_takes_its_probability_as_score() -> None:
    decision = Decision(True, 12.0, 1.0, "cpu_user spikes", probability=0.7)

    assert Verdict.of(decision, now=100.0, valid_seconds=60.0) == Verdict(True, 0.7, "cpu_user spikes", 160.0)


def test_verdict_of_a_decision_without_probability_takes_its_bare_word() -> None:
    quiet, busy = (Decision(raised, 2.5, 1.0, "why") for raised in (False, True))

    assert Verdict.of(quiet, now=0.0, valid_seconds=5.0) == Verdict(False, 0.0, "why", 5.0)
    assert Verdict.of(busy, now=0.0, valid_seconds=5.0) == Verdict(True, 1.0, "why", 5.0)
