"""The self-thinning sample, for one stream and for many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.signals.arithmetic import Many, One
from prontosched.signals.quantiles import WHOLE_PAST, ManySamples, OneSample


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60), st.floats(0.0, 1.0))
def test_few_values_are_ranked_exactly(values, level):
    sample = OneSample(One())
    for value in values:
        sample.add(value)

    assert sample.quantile(level) == sorted(values)[min(int(level * len(values)), len(values) - 1)]


def test_a_thinned_sample_covers_the_whole_past_evenly():
    sample = OneSample(One(), 64, longest_stride=WHOLE_PAST)
    for value in range(10_000):
        sample.add(float(value))

    for level in (0.1, 0.5, 0.9):
        assert sample.quantile(level) == pytest.approx(10_000 * level, abs=600)


def test_a_sample_with_a_longest_stride_forgets_the_old():
    sample = OneSample(One(), 64, longest_stride=2)
    for value in [1000.0] * 500 + [1.0] * 500:
        sample.add(value)

    assert sample.quantile(0.99) == 1.0


def test_many_samples_answer_as_single_ones(rng):
    ones = [OneSample(One(), 16, 4) for _ in range(3)]
    many = ManySamples(Many(3), 16, 4)
    for t in range(300):
        values = rng.normal(size=3).round(1)
        nodes = np.flatnonzero(rng.random(3) < 0.8)
        if not nodes.size:
            continue
        part = many.take(nodes)
        changed = part.add(values[nodes])
        many.put(nodes, part)
        for k, node in enumerate(nodes):
            assert ones[node].add(float(values[node])) == changed[k]
        if t > 40:
            assert many.quantile(0.7).tolist() == [one.quantile(0.7) for one in ones]
            assert many.exceeding(0.2).tolist() == [one.exceeding(0.2) for one in ones]


def test_many_samples_cover_an_endless_stream_evenly_at_several_levels_at_once(rng):
    many = ManySamples(Many(2), 256, WHOLE_PAST)
    values = rng.gamma(2.0, size=(20_000, 2))
    for row in values:
        many.add(row)

    found = many.quantiles(np.array([[0.1, 0.5, 0.9]]))

    ranks = [[(values[:, k] < found[k, j]).mean() for j in range(3)] for k in range(2)]
    assert np.allclose(ranks, [[0.1, 0.5, 0.9]] * 2, atol=0.06)


def test_several_levels_are_answered_as_one_by_one(rng):
    many = ManySamples(Many(3), 16)
    levels = rng.random((3, 4))
    for row in rng.normal(size=(100, 3)):
        many.add(row)

    one_by_one = [many.quantile(level) for level in levels.T]

    assert np.array_equal(many.quantiles(levels), np.stack(one_by_one, axis=1))


def test_a_value_that_is_not_there_leaves_a_sample_as_it_was(rng):
    one, many = OneSample(One(), 16, 4), ManySamples(Many(2), 16, 4)
    for value in rng.normal(size=200).tolist():
        one.add(value)
        many.add(np.array([value, value]))
        assert one.add(np.nan) is False
        assert not many.add(np.array([np.nan, np.nan])).any()

    assert one.seen == 200
    assert many.seen.tolist() == [200, 200]
    assert many.quantile(0.5).tolist() == [one.quantile(0.5)] * 2


def test_a_stream_without_values_has_an_infinite_quantile():
    assert ManySamples(Many(2)).quantiles(np.array([[0.1, 0.9]])).tolist() == [[np.inf] * 2] * 2


def test_a_sample_that_cannot_be_halved_is_refused():
    with pytest.raises(ValueError, match="even and at least 2, got 5"):
        ManySamples(Many(1), 5)


def test_one_value_over_and_over_is_never_exceeded():
    sample = OneSample(One())
    for _ in range(100):
        sample.add(3.0)

    assert sample.exceeding(0.95) == np.inf


def test_uniform_numbers_agree_between_one_and_many():
    seeds, counters = np.array([0, 7, 2**40]), np.array([0, 12, 99_999])

    together = Many(3).uniform(seeds, counters)

    assert together.tolist() == [One().uniform(int(s), int(c)) for s, c in zip(seeds, counters, strict=True)]


def test_uniform_numbers_are_uniform():
    drawn = Many(1).uniform(np.full(20_000, 3), np.arange(20_000))

    assert np.histogram(drawn, bins=10, range=(0.0, 1.0))[0] == pytest.approx(2000, abs=200)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.03


def test_spans_take_in_what_single_values_do(rng: np.random.Generator) -> None:
    """Streams that know nothing for a while, or never, are put in order at other times than their neighbours."""
    values = rng.normal(size=(3000, 5)).round(2)
    values[100:700, 1] = values[:, 2] = values[:25, 3] = np.nan
    by_step, by_span = (ManySamples(Many(5), size=64, longest_stride=8) for _ in range(2))
    levels = np.array([[0.1, 0.5, 0.95]])
    expected, seen = [], []
    for row in values:
        expected.append(by_step.quantiles(levels))
        seen.append(by_step.seen.copy())
        by_step.add(row)
    for part in np.array_split(values, 7):
        for span, before in by_span.spans(part):
            for counted in before:
                assert np.array_equal(by_span.quantiles(levels), expected.pop(0))
                assert np.array_equal(counted, seen.pop(0))
            assert span.stop - span.start == len(before)

    assert expected == []
    assert np.array_equal(by_step.ordered, by_span.ordered)
    assert np.array_equal(by_step.seen, by_span.seen)
