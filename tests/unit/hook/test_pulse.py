import itertools

from stallwatch.hook.layout import PUBLISH_NS
from stallwatch.hook.pulse import SPREAD_NS, next_instant, number_of

SECOND = 1_000_000_000


def instants(count: int, from_ns: int = 5 * SECOND) -> list[int]:
    moments = [next_instant(from_ns)]
    while len(moments) < count:
        moments.append(next_instant(moments[-1]))
    return moments


def test_all_processes_of_a_node_look_at_the_same_moments() -> None:
    first = instants(50)
    assert instants(40, from_ns=first[9]) == first[10:]
    assert all(next_instant(moment - 1) == moment for moment in first)
    numbers = [number_of(moment) for moment in first]
    assert numbers == list(range(numbers[0], numbers[0] + 50))


def test_moments_are_about_a_quarter_of_a_second_apart() -> None:
    moments = instants(500)
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert max(gaps) < PUBLISH_NS + SPREAD_NS
    assert min(gaps) > PUBLISH_NS - SPREAD_NS
    assert abs(sum(gaps) / len(gaps) - PUBLISH_NS) < 0.01 * PUBLISH_NS


def test_every_part_of_a_step_is_seen_whatever_its_length() -> None:
    moments = instants(400)
    for step_ns in (SECOND // 20, SECOND // 4, SECOND // 2, SECOND, 2 * SECOND):
        parts = [0] * 4
        for moment in moments:
            parts[moment % step_ns * 4 // step_ns] += 1
        assert min(parts) > 60, step_ns
