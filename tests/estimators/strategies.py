"""Batches of log-probabilities with masks, and the containers that users keep them in."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from reference.estimators import Token


class Batch(list[list[Token]]):
    """Sequences; a long one is not printed."""

    def __repr__(self) -> str:
        if sum(map(len, self)) > 100:
            return f"<{len(self)} sequences, the first starts with {self[0][:3]}>"
        return super().__repr__()


log_probabilities = (
    st.floats(-20, 0) | st.floats(-1e-3, 0) | st.sampled_from([0.0, -1.0, -700.0, -1e-300])
)
not_finite = st.sampled_from([float("nan"), float("inf"), float("-inf")])


@st.composite
def tokens(draw: st.DrawFn, broken: bool = False) -> Token:
    """One token; the reference is often close to the policy."""
    policy = draw(log_probabilities)
    near = st.floats(-1e-2, 1e-2).map(lambda change: policy + change)
    reference = draw(near | log_probabilities)
    if broken and draw(st.integers(0, 4)) == 0:
        policy = draw(not_finite)
    if broken and draw(st.integers(0, 4)) == 0:
        reference = draw(not_finite)
    return policy, reference, draw(st.integers(0, 3)) > 0


@st.composite
def batches(draw: st.DrawFn, broken: bool = False, ragged: bool = True) -> Batch:
    """A few sequences, ragged or not, some of them longer than what is worked on at once."""
    if draw(st.integers(0, 9)) == 0:
        seed = draw(st.integers(0, 2**32 - 1))
        generator = np.random.default_rng(seed)
        length = draw(st.integers(500, 1400))
        policy = -generator.exponential(size=(2, length))
        reference = policy + generator.normal(scale=0.3, size=(2, length))
        keep = generator.random((2, length)) < draw(st.sampled_from([0.1, 0.9, 1.0]))
        if broken:
            policy[generator.random((2, length)) < 0.02] = draw(not_finite)
        return Batch(
            list(zip(p.tolist(), r.tolist(), k.tolist(), strict=True))
            for p, r, k in zip(policy, reference, keep, strict=True)
        )
    width = draw(st.integers(0, 20))
    of = tokens(broken)
    length = st.integers(0, 20) if ragged else st.just(width)
    rows = length.flatmap(lambda n: st.lists(of, min_size=n, max_size=n))
    return Batch(draw(st.lists(rows, max_size=4)))


def columns(batch: Batch) -> tuple[Any, Any, Any]:
    """Policy, reference and mask as nested lists."""
    return tuple([[token[i] for token in row] for row in batch] for i in range(3))


def rectangular(batch: Batch) -> bool:
    """Whether an array can hold it."""
    return bool(batch) and len({len(row) for row in batch}) == 1


def every_other(array: np.ndarray) -> np.ndarray:
    """The same values, not next to each other."""
    wide = np.full((array.shape[0], 2 * array.shape[1]), 7, array.dtype)
    wide[:, ::2] = array
    return wide[:, ::2]


def unaligned(array: np.ndarray) -> np.ndarray:
    """The same values at an odd address."""
    raw = np.zeros(array.nbytes + 1, np.uint8)
    view = raw[1:].view(array.dtype) if array.size else array.ravel()
    view[:] = array.ravel()
    return view.reshape(array.shape)


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as it is": lambda a: a,
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "every other": every_other,
    "backwards": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "other byte order": lambda a: a.astype(a.dtype.newbyteorder()),
    "unaligned": unaligned,
}

NESTINGS: dict[str, Callable[[list[list[Any]]], Any]] = {
    "lists": lambda rows: rows,
    "tuples": lambda rows: tuple(map(tuple, rows)),
    "list of arrays": lambda rows: [np.array(row) for row in rows],
    "mixed": lambda rows: [np.array(r) if i % 2 else tuple(r) for i, r in enumerate(rows)],
    "numpy scalars": lambda rows: [list(np.array(row)) for row in rows],
}
