"""Agreement with reference outputs, within the tolerances stated beside them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from prontosched.pipeline import FPCAEdge, FrequentDirections, PowerMethod, Spirit
from prontosched.subspace import extend, summarise


def angle(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest principal angle between two spans, exact for tiny angles too."""
    one, _ = np.linalg.qr(one.reshape(len(one), -1))
    other, _ = np.linalg.qr(other.reshape(len(other), -1))
    outside = one - other @ (other.T @ one)
    return float(np.arcsin(min(1.0, np.linalg.norm(outside, 2))))


def load(folder: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(folder / "oracle" / name) as file:
        return {key: file[key] for key in file.files}


def cases(arrays: dict[str, np.ndarray]) -> list[tuple[str, str, str]]:
    return sorted({tuple(key.split("__")[:3]) for key in arrays})  # type: ignore[misc]


def numbers(config: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"([a-zA-Z]+)(\d+)", config)}


def test_fpca_with_fixed_rank_agrees_with_the_reference(shared_data: Path) -> None:
    inputs, expected = load(shared_data, "inputs.npz"), load(shared_data, "fpca_fixed.npz")

    for family, name, config in cases(expected):
        options = numbers(config)
        embedding = FPCAEdge(rank=int(options["r"]), block_size=int(options["b"]))
        embedding.learn_many(inputs[name])
        key = f"{family}__{name}__{config}"

        assert embedding.subspace is not None
        assert angle(embedding.subspace.basis, expected[f"{key}__U"]) < 1e-11, key
        np.testing.assert_allclose(
            embedding.subspace.singular_values, expected[f"{key}__S"], rtol=1e-12, err_msg=key
        )


def test_fpca_agrees_with_the_reference_after_every_block(shared_data: Path) -> None:
    inputs, expected = load(shared_data, "inputs.npz"), load(shared_data, "fpca_prefix.npz")
    embedding = FPCAEdge(rank=4, block_size=10)

    for block in range(40):
        embedding.learn_many(inputs["syn20"][:, 10 * block : 10 * (block + 1)])

        assert embedding.subspace is not None
        assert angle(embedding.subspace.basis, expected["fpca_prefix__syn20__r4_b10__U"][:, :, block]) < 1e-12
        np.testing.assert_allclose(
            embedding.subspace.singular_values,
            expected["fpca_prefix__syn20__r4_b10__S"][:, block],
            rtol=1e-12,
        )


def test_extend_with_a_longer_last_block_agrees_with_the_reference(shared_data: Path) -> None:
    inputs, expected = load(shared_data, "inputs.npz"), load(shared_data, "ssvdr.npz")
    data, width = inputs["syn20"], 30
    blocks = data.shape[1] // width
    subspace = summarise(data[:, :width], rank=4)
    for block in range(1, blocks):
        end = data.shape[1] if block == blocks - 1 else width * (block + 1)
        subspace = extend(subspace, data[:, width * block : end], rank=4)

    assert subspace is not None
    assert angle(subspace.basis, expected["ssvdr__syn20__r4_b30__U"]) < 1e-12
    np.testing.assert_allclose(subspace.singular_values, expected["ssvdr__syn20__r4_b30__S"], rtol=1e-12)


def test_fpca_with_the_authors_rank_rule_agrees_with_the_reference(shared_data: Path) -> None:
    inputs, expected = load(shared_data, "inputs.npz"), load(shared_data, "fpca_adaptive_patched.npz")

    for family, name, config in cases(expected):
        options = numbers(config)
        embedding = FPCAEdge(
            rank=int(options["r"]),
            block_size=int(options["b"]),
            energy_bounds=(0.01, 0.10),
            holdoff=int(options.get("h", 0)),
            authors=True,
        )
        embedding.learn_many(inputs[name])
        key = f"{family}__{name}__{config}"

        assert embedding.subspace is not None
        assert embedding.subspace.rank == expected[f"{key}__S"].size, key
        assert angle(embedding.subspace.basis, expected[f"{key}__U"]) < 1e-10, key
        np.testing.assert_allclose(
            embedding.subspace.singular_values, expected[f"{key}__S"], rtol=1e-10, err_msg=key
        )


def test_the_authors_rank_rule_changes_rank_when_the_reference_does(shared_data: Path) -> None:
    inputs, expected = load(shared_data, "inputs.npz"), load(shared_data, "fpca_adaptive_patched.npz")
    embedding = FPCAEdge(rank=10, block_size=20, energy_bounds=(0.01, 0.10), holdoff=2, authors=True)
    ranks = []
    for column in inputs["light"].T:
        embedding.learn_one(column)
        ranks.append(embedding.subspace.rank if embedding.subspace else 10)

    assert ranks == expected["adapatched__light__r10_b20_h2__ranks"].astype(int).tolist()


@pytest.mark.parametrize("name", ["syn20", "light"])
def test_spirit_agrees_with_the_reference(shared_data: Path, name: str) -> None:
    inputs, expected = load(shared_data, "inputs.npz"), load(shared_data, "spirit.npz")

    for key in [k for k in expected if k.endswith("__W") and f"__{name}__" in k]:
        config = key.split("__")[2]
        forgetting = numbers(config)["l"] / 100
        adaptive = config.startswith("ada3")
        spirit = Spirit(
            rank=3 if adaptive else 4,
            forgetting=forgetting,
            energy_bounds=(0.95, 0.98) if adaptive else None,
            holdoff=1,
        )
        ranks = []
        for column in inputs[name].T:
            spirit.learn_one(column)
            ranks.append(spirit.subspace.rank if spirit.subspace else 0)
        if adaptive:
            assert ranks == expected[key.replace("__W", "__ranks")].astype(int).tolist(), key
        assert spirit.subspace is not None
        if key != "spirit__light__ada3_l100__W":  # spans all of the space, and is ill-conditioned
            assert angle(spirit.subspace.basis, expected[key]) < 1e-11, key


@pytest.mark.parametrize("rows", [4, 10])
def test_frequent_directions_with_the_authors_schedule_agrees_with_the_reference(
    shared_data: Path, rows: int
) -> None:
    inputs, expected = load(shared_data, "inputs.npz"), load(shared_data, "fd_patched.npz")
    sketch = FrequentDirections(rank=rows, authors=True)
    sketch.learn_many(inputs["syn20"])
    gram = expected[f"fdpatched__syn20__ell{rows}__B"].T @ expected[f"fdpatched__syn20__ell{rows}__B"]
    assert sketch.subspace is not None
    weighted = sketch.subspace.basis * sketch.subspace.singular_values

    assert np.linalg.norm(weighted @ weighted.T - gram, 2) < 1e-12 * np.linalg.norm(gram, 2)


def test_each_squeeze_of_frequent_directions_makes_room_for_all_but_the_kept_rows(
    rng: np.random.Generator,
) -> None:
    sketch = FrequentDirections(rank=4)
    used = []
    for y in rng.standard_normal((20_000, 6)):
        sketch.learn_one(y)
        used.append(sketch.state()["used"])

    # Of four directions the weakest pays with all it has, so that the next vector is the fourth row.
    assert {now for before, now in itertools.pairwise(used) if now < before} == {4}


def test_power_method_agrees_with_the_reference(shared_data: Path) -> None:
    inputs, expected = load(shared_data, "inputs.npz"), load(shared_data, "pm.npz")

    for key in [k for k in expected if k.endswith("__U")]:
        _, name, config, _ = key.split("__")
        power = PowerMethod(
            rank=4, block_size=int(numbers(config)["B"]), initial_basis=expected[key.replace("__U", "__U0")]
        )
        power.learn_many(inputs[name])

        assert power.subspace is not None
        assert angle(power.subspace.basis, expected[key]) < 1e-10, key
