"""Places in the tree: few children per agent, few levels, and another parent if one is silent."""

from collections import Counter

from traincope.live.tree.places import FANOUT, Places
from traincope.topology import Host

HOSTS = [Host(name=f"{number:04d}", boot_id=str(number)) for number in range(2_000)]


def test_2000_hosts_have_at_most_8_children_each_and_4_levels() -> None:
    places = Places(HOSTS[0])
    parents = {host: places.parent_of(host) for host in HOSTS[1:]}
    assert max(Counter(parents.values()).values()) == FANOUT == 8
    levels = []
    for host in HOSTS[1:]:
        above = [host]
        while above[-1] != HOSTS[0]:
            above.append(parents[above[-1]])
        levels.append(len(above) - 1)
    assert max(levels) == 4


def test_a_place_stays_when_others_arrive() -> None:
    places = Places(HOSTS[0])
    before = [places.parent_of(host) for host in HOSTS[:20]]
    for host in HOSTS[20:100]:
        places.parent_of(host)
    assert [places.parent_of(host) for host in HOSTS[:20]] == before


def test_the_next_one_above_replaces_a_silent_parent() -> None:
    places = Places(HOSTS[0])
    parents = [places.parent_of(host) for host in HOSTS[1:80]]
    assert parents[72] == HOSTS[9]
    assert places.parent_of(HOSTS[73], silent={HOSTS[9]}) == HOSTS[1]
    assert places.parent_of(HOSTS[73], silent={HOSTS[9], HOSTS[1]}) == HOSTS[0]
