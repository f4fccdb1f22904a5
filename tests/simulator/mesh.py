"""Random device meshes: world sizes of 2 to 64 over dp, tp, pp, cp, ep, and the groups torch would make of them."""

import itertools
import random
from dataclasses import dataclass

DIMENSIONS = ("pp", "dp", "cp", "ep", "tp")  # outermost first, as frameworks lay ranks out


@dataclass(frozen=True)
class Group:
    name: str  # torch numbers groups in the order of creation
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Mesh:
    sizes: dict[str, int]
    world: int
    groups: tuple[Group, ...]  # groups[0] is the default group
    of: dict[tuple[str, int], Group]  # (dimension, rank) -> its group
    stage: dict[int, int]  # rank -> pipeline stage

    def pipeline_neighbour(self, rank: int, offset: int) -> int | None:
        group = self.of.get(("pp", rank))
        if group is None:
            return None
        place = group.ranks.index(rank) + offset
        return group.ranks[place] if 0 <= place < len(group.ranks) else None


def random_mesh(rng: random.Random, largest: int = 64) -> Mesh:
    sizes = dict.fromkeys(DIMENSIONS, 1)
    world = 1
    target = rng.choice([2, 4, 4, 8, 8, 16, 32, largest])
    while world < target:
        dimension = rng.choice(DIMENSIONS)
        sizes[dimension] *= 2
        world *= 2
    return build_mesh(sizes)


def build_mesh(sizes: dict[str, int]) -> Mesh:
    """Given the size of each dimension, return the mesh with a default group and one group per line of each."""
    axes = [range(sizes[d]) for d in DIMENSIONS]
    coordinates = list(itertools.product(*axes))
    rank_of = {c: r for r, c in enumerate(coordinates)}
    groups = [Group("0", "default_pg", tuple(range(len(coordinates))))]
    of: dict[tuple[str, int], Group] = {}
    for axis, dimension in enumerate(DIMENSIONS):
        if sizes[dimension] == 1:
            continue
        for index, fixed in enumerate(itertools.product(*(a for i, a in enumerate(axes) if i != axis))):
            line = tuple(rank_of[(*fixed[:axis], k, *fixed[axis:])] for k in axes[axis])
            group = Group(str(len(groups)), f"{dimension}{index}", line)
            groups.append(group)
            of.update({(dimension, rank): group for rank in line})
    stages = sizes["pp"]
    if stages > 1:
        for index, line in enumerate([group.ranks for group in groups if group.description.startswith("pp")]):
            ends = Group(str(len(groups)), f"embedding{index}", (line[0], line[-1]))
            groups.append(ends)
            of.update({("embedding", rank): ends for rank in ends.ranks})
    stage = {rank: coordinate[0] for rank, coordinate in enumerate(coordinates)}
    return Mesh(sizes, len(coordinates), tuple(groups), of, stage)
