"""What the sidecar's port decides: which request counts, and which connection goes."""

from __future__ import annotations

from collections import Counter

from everstep_sidecar.core.nonces import NonceWindow
from everstep_sidecar.core.unproven import Unproven
from hypothesis import given
from hypothesis import strategies as st


def test_r22_a_request_counts_once():
    window = NonceWindow()
    assert window.admit("", "n") == "other boot"
    assert [window.admit(window.boot, nonce) for nonce in ("n", "n", "m", "n")] == ["new", "seen", "new", "seen"]


def test_r22_no_nonce_is_forgotten_while_its_boot_id_counts():
    window = NonceWindow(largest=3)
    heard = []
    for number in range(20):
        heard.append((window.boot, f"n{number}"))
        assert window.admit(*heard[-1]) == "new"
        assert "new" not in [window.admit(*one) for one in heard]
    assert len({boot for boot, _ in heard}) == 7


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from("abcde"), st.booleans(), st.booleans()), max_size=120))
def test_st16_unproven_connections_are_bounded_and_the_worst_address_pays(steps):
    held = Unproven(strangers=6, of_one_member=2)
    open_connections = {}  # in the order in which they came
    for number, address, is_member, leaves in steps:
        if leaves:
            held.discard(number)
            open_connections.pop(number, None)
            continue
        open_connections.pop(number, None)
        open_connections[number] = (address, is_member)
        displaced = held.add(number, address, is_member=is_member)
        assert displaced != number
        if displaced is not None:
            whose, was_member = open_connections[displaced]
            assert was_member == is_member
            peers = [own for own, (other, member) in open_connections.items() if other == whose and member == is_member]
            assert displaced == peers[0]
            most = Counter(other for other, member in open_connections.values() if member == is_member)
            assert len(peers) == (most[address] if is_member else max(most.values()))
            held.discard(displaced)
            del open_connections[displaced]
        assert set(held.all()) == set(open_connections)
        assert sum(not member for _, member in open_connections.values()) <= 6
        assert all(count <= 2 for count in Counter(a for a, member in open_connections.values() if member).values())
    for number in open_connections:
        held.discard(number)
    assert len(held) == 0


def test_st16_a_caller_of_its_own_address_is_not_displaced_by_a_crowd_of_one():
    held = Unproven(strangers=4)
    held.add("caller", "10.0.0.1", is_member=False)
    displaced = [held.add(number, "10.0.0.66", is_member=False) for number in range(3, 20)]
    assert displaced[:3] == [None, None, None]
    assert "caller" not in displaced
