"""Find the stored vectors nearest to a query, exactly, with numpy if it is installed (extra `vectors`).

Vectors have length one, so their cosine is the sum of their products. A vector with another number of dimensions
belongs to another model and is not comparable; it comes last.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Sequence
from functools import cache
from typing import Any

from runlane.store.sql.statement import Row

# Similarity, number of the entry and its id; later entries win a tie.
Found = tuple[float, int, str]
_INCOMPARABLE = -1.0


def better(best: Sequence[Found], unit: bytes, rows: Sequence[Row], limit: int) -> list[Found]:
    """Return the nearest vectors of an earlier result and of a batch of rows."""
    numpy = find_numpy()
    near = _near_by_loop(unit, rows) if numpy is None else _near_by_product(numpy, unit, rows, limit)
    return heapq.nlargest(limit, [*best, *near])


@cache
def find_numpy() -> Any:
    """Return numpy, or None if it is not installed. It is loaded at the first search of a process."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _near_by_loop(unit: bytes, rows: Sequence[Row]) -> list[Found]:
    query = memoryview(unit).cast("f").tolist()
    found: list[Found] = []
    for row in rows:
        vector: bytes = row["vector"]
        comparable = len(vector) == len(unit)
        near = sum(map(operator.mul, query, memoryview(vector).cast("f"))) if comparable else _INCOMPARABLE
        found.append((near, row["seq"], row["entry_id"]))
    return found


def _near_by_product(np: Any, unit: bytes, rows: Sequence[Row], limit: int) -> list[Found]:
    query = np.frombuffer(unit, dtype=np.float32)
    comparable = [row for row in rows if len(row["vector"]) == len(unit)]
    joined = np.frombuffer(b"".join([row["vector"] for row in comparable]), dtype=np.float32)
    near = joined.reshape(len(comparable), len(query)) @ query
    chosen = range(len(comparable))
    if len(comparable) > limit:
        # Include all vectors that are as near as the last one, so that a tie has the same result as without numpy.
        least = np.partition(near, -limit)[-limit]
        chosen = np.nonzero(near >= least)[0]
    found = [(float(near[index]), comparable[index]["seq"], comparable[index]["entry_id"]) for index in chosen]
    others = [row for row in rows if len(row["vector"]) != len(unit)]
    return found + [(_INCOMPARABLE, row["seq"], row["entry_id"]) for row in others]
