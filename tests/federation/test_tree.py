"""The federation tree: parents and keys from names alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.errors import FederationError
from prontosched.federation.link import matches
from prontosched.federation.tree import MAX_LEVELS, ROOT, Tree, child_pattern, level, name_of, place

parts = st.text(
    st.characters(codec="utf-8", exclude_characters="/~%").filter(str.isprintable), min_size=1, max_size=8
)
names = st.lists(parts, min_size=1, max_size=5).map("/".join)
trees = st.builds(Tree, depth=st.none() | st.integers(1, 4), shards=st.integers(1, 5))


@given(tree=trees, name=names)
def test_every_name_reaches_the_root_in_as_many_steps_as_the_depth_allows(tree: Tree, name: str) -> None:
    above, steps = tree.parent(name), 1
    while above != ROOT:
        above, steps = tree.parent(above), steps + 1

    assert steps <= (tree.depth or MAX_LEVELS) + (tree.shards > 1)


@given(tree=trees, name=names)
def test_an_aggregator_hears_its_children_and_no_one_else(tree: Tree, name: str) -> None:
    key = tree.key(name)

    assert matches(child_pattern(tree.parent(name)), key)
    for other in ("elsewhere", "elsewhere/row", ROOT):
        if other != tree.parent(name):
            assert not matches(child_pattern(other), key)


@given(name=names)
def test_a_key_leads_back_to_its_name(name: str) -> None:
    assert name_of(Tree().key(name)) == name
    assert name_of(place(name)) == name


@given(name=names)
def test_keys_have_only_characters_that_any_bus_can_carry(name: str) -> None:
    assert set(Tree().key(name)) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=./")


def test_shards_spread_flat_names_evenly() -> None:
    tree = Tree.balanced(10_000, fan_out=100)
    counts: dict[str, int] = {}
    for index in range(10_000):
        above = tree.parent(f"host-{index}")
        counts[above] = counts.get(above, 0) + 1

    assert len(counts) == 100
    assert max(counts.values()) < 1.5 * 100


def test_aggregators_come_deepest_first_and_end_with_the_root() -> None:
    needed = Tree().aggregators(["paris/r1/n1", "paris/r2/n1", "rome/n9", "lone"])

    assert needed[-1] == ROOT
    assert sorted(needed) == ["", "paris", "paris/r1", "paris/r2", "rome"]
    assert [level(name) for name in needed] == sorted((level(name) for name in needed), reverse=True)


@pytest.mark.parametrize("name", ["", "/n1", "a//b", "a/", "x" * 201, "/".join("abcdefghi")])
def test_a_name_that_is_no_place_is_refused(name: str) -> None:
    with pytest.raises(FederationError, match="a name must be 1 to 8 parts"):
        Tree().parent(name)
