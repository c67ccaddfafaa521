"""What a node contributes: its spare directions, and what its signal has learned."""

from __future__ import annotations

import dataclasses

import numpy as np

from prontosched.federation.link import SUMMARIES, LocalBus, LocalLink
from prontosched.federation.member import Member, node_summary, signal_statistics, start_signal
from prontosched.federation.message import Summary
from prontosched.pipeline.presets import make_node
from prontosched.subspace import distance

from .simulated import METRICS, Stream


def test_what_the_learned_signal_shares_survives_the_way_and_starts_another() -> None:
    stream, teacher = Stream(1), make_node("default", metrics=METRICS)
    for step in range(120):
        teacher.step(stream.read(), ready=8.0 if step % 20 < 4 else 1.0, utilisation=50.0, time=float(step))
    sent = dataclasses.replace(node_summary(teacher, "n1", METRICS), statistics=signal_statistics(teacher))
    read = Summary.from_bytes(sent.to_bytes(), lambda _schema: METRICS)
    learner = make_node("default", metrics=METRICS)

    assert start_signal(learner, read.statistics)
    assert len(sent.to_bytes()) < 8_000
    for name, value in sent.statistics.items():
        np.testing.assert_allclose(read.statistics[name], value, rtol=1e-5, atol=1e-5 * np.abs(value).max())
    assert not start_signal(learner, {"learned.information": np.ones(3)})


def test_a_summary_with_statistics_weighs_less_than_ten_kilobytes_and_an_early_one_half_of_that() -> None:
    metrics = tuple(f"m{i:03d}" for i in range(134))
    node = make_node("default", metrics=metrics)
    board = LocalBus(lambda: 1_000_000.0)
    link, rng = LocalLink(board), np.random.default_rng(3)
    link.rule = {"epsilon": 0.0}
    member, sizes = Member(link, "rack/n1"), []
    for step in range(100):
        ready = 8.0 if step % 20 < 4 else 1.0
        member.step(node, node.step(rng.standard_normal(134), ready=ready))
        sizes += [len(entry.value) for entry in board.values[SUMMARIES].values()]

    assert sizes[0] < 4_400
    assert 9_000 < sizes[-1] < 10_240


def test_nothing_is_told_of_fewer_vectors_than_a_block() -> None:
    node, board = make_node("default", metrics=METRICS, signal="paper"), LocalBus()
    member, stream = Member(LocalLink(board), "rack/n1"), Stream(4)
    for _ in range(9):
        member.step(node, node.step(stream.read()))
    assert not board.values[SUMMARIES]
    member.step(node, node.step(stream.read()))

    assert len(board.values[SUMMARIES]) == 1


def test_what_travels_has_the_spare_direction_that_a_node_does_not_show() -> None:
    metrics = tuple(f"m{i:03d}" for i in range(134))
    node = make_node("default", metrics=metrics, signal="paper")
    board = LocalBus(lambda: 1_000_000.0)
    member = Member(LocalLink(board), "rack/n1")
    rng = np.random.default_rng(3)
    for _ in range(60):
        member.step(node, node.step(rng.standard_normal(134)))
    (entry,) = board.values[SUMMARIES].values()
    sent = Summary.from_bytes(entry.value, lambda _: metrics)

    assert node.embedding.subspace.rank == 4
    assert sent.subspace.rank == 5
    assert distance(sent.subspace.cut(4), node.embedding.subspace) < 1e-5
    assert len(entry.value) < 4400
