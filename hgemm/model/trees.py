"""Regression trees, which refine the estimates of calibrated kernels.

A term of an estimate has one factor for a kernel on all problems. Trees learn the errors that remain, which depend on several
extents and on the kernel. The sum of their values changes an estimate by a part of it. benchmarks/boosting.py grows them
(gradient boosting). The exported C library reads the same nodes (templates/capi/src/select.c).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hgemm.checks import Mismatch

if TYPE_CHECKING:
    import numpy as np

FEATURES = (
    *("m", "n", "k", "layout", "straddling", "m_alignment", "n_alignment", "k_alignment"),
    *("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "splits", "decides_splits", "smem_bytes", "tiles_per_sm"),
    *("k_tile_clocks", "tile_clocks", "k_tiles", "waves", "missing_rows", "missing_columns", "dram", "l2", "clocks"),
)
"""What a node may compare. See hgemm.dispatch_table.features_of for their values."""
ONE = 1 << 14
"""A factor of 1."""
MAX_CHANGE = ONE // 10
"""The most that trees add to ONE, or subtract from it."""
MAX_NODES = 1 << 16
LEAF = -1
BOUND_LIMIT = 2**31 - 1

Node = tuple[int, int, int]
"""Feature, bound and the distance to the right child. The left child is the next node: the feature is at most the bound.
A leaf has LEAF, its value and 0. Units of a value: ONE is 1.
"""
Tree = tuple[Node, ...]


def refinement(trees: Sequence[Tree], features: Sequence[int]) -> int:
    """Return the factor of an estimate. Units: ONE is 1."""
    total = 0
    for tree in trees:
        at = 0
        feature, bound, right = tree[0]
        while feature != LEAF:
            at += 1 if features[feature] <= bound else right
            feature, bound, right = tree[at]
        total += bound
    return ONE + min(max(total, -MAX_CHANGE), MAX_CHANGE)


ESTIMATES_AT_ONCE = 1024
"""Estimates that are refined together, so that their nodes stay in the cache of a CPU."""


@dataclass(frozen=True)
class Forest:
    """All nodes of trees as arrays, for many estimates at once.

    Shapes: roots (tree,); features, bounds and values (node,); children (2 * node,), those of a node next to each other.
    Fields: both children of a leaf are the leaf itself. `values` are 0 except at leaves. `depth` is that of the deepest leaf.
    """

    roots: np.ndarray
    features: np.ndarray
    bounds: np.ndarray
    children: np.ndarray
    values: np.ndarray
    depth: int

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> Forest:
        """Return the nodes of trees, one tree after another."""
        import numpy as np

        roots = np.cumsum([0, *map(len, trees)])[:-1]
        features, bounds, rights = np.array([node for tree in trees for node in tree], np.int64).reshape(-1, 3).T
        here, leaves = np.arange(len(features)), features == LEAF
        children = np.stack([here + ~leaves, here + rights], axis=1)  # the right child of a leaf is 0 nodes away
        values = np.where(leaves, bounds, 0)
        return cls(
            roots, np.where(leaves, 0, features), bounds, children.ravel(), values, max(map(_depth, trees), default=0)
        )

    def refinements(self, features: np.ndarray) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the factors of many estimates, as `refinement`. Shapes: features (estimate, feature); factors (estimate,)."""
        import numpy as np

        total = np.zeros(len(features), np.int64)
        for first in range(0, len(features), ESTIMATES_AT_ONCE):
            part = features[first : first + ESTIMATES_AT_ONCE]
            numbers, its = part.ravel(), part.shape[1] * np.arange(len(part))[:, None]
            at = np.broadcast_to(self.roots, (len(part), len(self.roots)))
            for _ in range(self.depth):
                at = self.children[2 * at + (numbers[its + self.features[at]] > self.bounds[at])]
            total[first : first + ESTIMATES_AT_ONCE] = self.values[at].sum(axis=1)
        return ONE + np.clip(total, -MAX_CHANGE, MAX_CHANGE)


def _depth(tree: Tree) -> int:
    """Return the number of nodes above the deepest leaf."""
    depths = [0] * len(tree)
    for at, (feature, _, right) in enumerate(tree):
        if feature != LEAF:
            depths[at + 1] = depths[at + right] = depths[at] + 1
    return max(depths)


def parse_tree(numbers: Sequence[int]) -> Tree:
    """Return a tree from its nodes in one list. Raises Mismatch if a node has a wrong feature or child."""
    tree = tuple(zip(numbers[::3], numbers[1::3], numbers[2::3]))
    if not tree or len(numbers) % 3 or len(tree) > MAX_NODES:
        raise Mismatch(f"a tree has {len(numbers)} numbers: it must have three for each of 1 to {MAX_NODES} nodes")
    for at, (feature, bound, right) in enumerate(tree):
        is_leaf = feature == LEAF and right == 0
        has_children = 0 <= feature < len(FEATURES) and 1 < right < len(tree) - at
        if not (is_leaf or has_children) or abs(bound) > BOUND_LIMIT:
            raise Mismatch(f"node {at} of a tree is {feature}, {bound}, {right}")
    if tree[-1][0] != LEAF:
        raise Mismatch("the last node of a tree must be a leaf")
    return tree


def numbers_of(tree: Tree) -> list[int]:
    """Return the list that `parse_tree` reads."""
    return [number for node in tree for number in node]
