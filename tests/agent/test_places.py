"""Who has which place, whatever comes and goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prontosched.agent.places import Arrangement, welcome, without


@st.composite
def situations(draw):
    """A crowd, newcomers some of whom were waited for, and places that may be given away."""
    names = [f"n{i}" for i in range(draw(st.integers(0, 12)))]
    listed = draw(st.integers(0, len(names)))
    size = len(names) + draw(st.integers(0, 4))
    back = draw(st.lists(st.sampled_from(names[listed:]), unique=True)) if names[listed:] else []
    new = draw(st.permutations([*back, *(f"x{i}" for i in range(draw(st.integers(0, 12))))]))
    free = [at for at, name in enumerate(names) if name not in back]
    gone = draw(st.lists(st.sampled_from(free), unique=True)) if free else []
    return Arrangement(names, listed, size), new, gone


@given(situations(), st.integers(12, 20))
def test_whoever_is_listed_keeps_its_place_and_nobody_has_two(situation, most):
    held, new, gone = situation
    found = welcome(held, new, gone, most=max(most, held.size))

    assert len(set(found.names)) == len(found.names) <= found.size <= max(most, held.size)
    for at, name in enumerate(held.names[: held.listed]):
        assert found.names[at] == name or at in gone
    left = [name for name in new if name not in found.names[: found.listed]]
    assert len(left) == found.left_out
    assert not left or found.size == len(found.names) == max(most, held.size)
    lost = set(held.names) - set(found.names)
    assert lost <= {held.names[at] for at in gone}


@given(situations())
def test_there_are_more_places_only_when_nobody_can_give_one_up(situation):
    held, new, gone = situation
    found = welcome(held, new, gone)

    if found.size > held.size:
        assert all(held.names[at] not in found.names for at in gone)


@given(situations())
def test_those_who_stay_keep_their_order_when_others_are_forgotten(situation):
    held, _, gone = situation
    found = without(held, gone)

    assert found.names == [name for at, name in enumerate(held.names) if at not in gone]
    assert found.names[: found.listed] == [
        n for at, n in enumerate(held.names[: held.listed]) if at not in gone
    ]
