"""The largest of many values without sorting them all; of equal values the lower index first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

#: Values in a group of which one maximum is kept while looking for the largest.
_GROUP = 32


def floor_of_largest(values: Values, count: int) -> np.float32:
    """A value that at least `count` values reach, close to the `count`-th largest.

    The values are dealt into groups; `count` groups have a maximum at or above the `count`-th
    largest maximum. -infinity when there are too few groups to tell.
    """
    groups = len(values) // _GROUP
    if count > groups:
        return np.float32(-np.inf)
    maxima = values[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
    floor: np.float32 = np.partition(maxima, -count)[-count]
    return floor


def largest(values: Values, count: int) -> Ids:
    """Indices of the `count` largest values, among equals the lower index; in no promised order."""
    if count >= len(values):
        return np.arange(len(values))
    border = np.partition(values, -count)[-count]
    above = np.flatnonzero(values > border)
    ties = np.flatnonzero(values == border)
    return np.concatenate((above, ties[: count - len(above)]))
