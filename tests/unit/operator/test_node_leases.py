"""K: ages of the kubelets' leases (R25-R27)."""

from __future__ import annotations

from typing import Any

from everstep_operator.cluster.leases import POLL_SECONDS, Beats

Raw = dict[str, Any]


def lease(node: str, renewed: str, duration: int = 40) -> Raw:
    return {"metadata": {"name": node}, "spec": {"renewTime": renewed, "leaseDurationSeconds": duration}}


class Heard:
    def __init__(self) -> None:
        self.stale: list[str] = []
        self.fresh: list[str] = []
        self.beats = Beats(self.stale.append, self.fresh.append)

    def poll(self, begin: int, end: int, *leases: Raw) -> list[str]:
        suspects: list[str] = []
        for now in range(begin, end + 1, 4):
            suspects = self.beats.take(list(leases), float(now))
        return suspects


def test_r25_half_of_its_own_duration_without_change_makes_a_suspect() -> None:
    heard = Heard()
    assert heard.poll(0, 16, lease("n1", "a")) == []
    assert heard.poll(20, 20, lease("n1", "a")) == ["n1"]
    assert heard.beats.age("n1", 20.0) == (20.0, 40.0)


def test_r25_a_suspect_is_confirmed_by_a_read_of_its_own_before_anybody_is_told() -> None:
    heard = Heard()
    heard.poll(0, 20, lease("n1", "a"))
    assert heard.stale == []
    heard.beats.confirm("n1", lease("n1", "b")["spec"], 20.1)
    assert (heard.stale, heard.beats.age("n1", 20.1)[0]) == ([], 0.0)
    heard.poll(24, 44, lease("n1", "b"))
    heard.beats.confirm("n1", lease("n1", "b")["spec"], 44.0)
    assert heard.stale == ["n1"]
    heard.poll(48, 48, lease("n1", "c"))
    assert heard.fresh == ["n1"]


def test_r27_the_server_s_clock_is_compared_for_equality_only() -> None:
    heard = Heard()
    heard.poll(0, 4, lease("n1", "2099-01-01T00:00:00Z"))
    heard.poll(8, 8, lease("n1", "1999-01-01T00:00:00Z"))
    assert heard.beats.age("n1", 8.0)[0] == 0.0


def test_r26_only_time_that_polls_cover_counts() -> None:
    heard = Heard()
    heard.poll(0, 8, lease("n1", "a"))
    assert heard.beats.age("n1", 100.0)[0] == 8.0 + POLL_SECONDS, "nobody looked since"
    assert heard.poll(100, 100, lease("n1", "a")) == [], "a gap begins all ages anew"
    heard.beats.uncover(101.0)
    assert heard.beats.age("n1", 101.0)[0] == 0.0


def test_the_threshold_is_the_lease_s_own() -> None:
    heard = Heard()
    assert heard.poll(0, 8, lease("fast", "a", 10), lease("slow", "a", 100)) == ["fast"]


def test_a_node_without_a_lease_is_not_judged() -> None:
    heard = Heard()
    heard.poll(0, 4, lease("n1", "a"))
    heard.poll(8, 8)
    assert heard.beats.age("n1", 8.0)[0] == 0.0
