"""The small decisions of the test cluster: who is Ready, what is mounted, what DNS said, which folders are bound."""

import struct
from pathlib import Path

import pytest
from testcluster.cleanup import mounts_below
from testcluster.dns import encode_question, is_answer
from testcluster.layout import NODES, node_named
from testcluster.rootfs import command_in_rootfs
from testcluster.startup import ready_since

NOON = 1_800_000_000.9
AT_NOON, BEFORE = "2027-01-15T08:00:00Z", "2027-01-15T07:59:59Z"


def _node(name: str, status: str, heartbeat: str) -> dict[str, object]:
    conditions = [
        {"type": "MemoryPressure", "status": "True", "lastHeartbeatTime": AT_NOON},
        {"type": "Ready", "status": status, "lastHeartbeatTime": heartbeat},
    ]
    return {"metadata": {"name": name}, "status": {"conditions": conditions}}


def test_ready_counts_only_since_the_boot() -> None:
    nodes: list[dict[str, object]] = [
        _node("fresh", "True", AT_NOON),
        _node("believed-alive", "True", BEFORE),
        _node("starting", "False", AT_NOON),
        {"metadata": {"name": "new"}, "status": {}},
    ]
    assert ready_since(nodes, NOON) == {"fresh"}


def test_mounts_below_a_folder() -> None:
    mounts = (
        "proc /proc proc rw 0 0\nx /state/a\\040b ext4 rw 0 0\nx /state-of-others ext4 rw 0 0\nx /state ext4 rw 0 0\n"
    )
    assert mounts_below(mounts, Path("/state")) == [Path("/state/a b"), Path("/state")]


def test_dns_question_and_answers() -> None:
    question = encode_question("a.bc.")
    assert question[12:] == b"\1a\2bc\0\0\1\0\1"
    question_id = question[:2]
    assert is_answer(question_id + struct.pack(">5H", 0x8180, 1, 1, 0, 0))
    assert not is_answer(question_id + struct.pack(">5H", 0x8183, 1, 0, 0, 0))  # no such name
    assert not is_answer(b"\0\0" + struct.pack(">5H", 0x8180, 1, 1, 0, 0))  # not our question
    assert not is_answer(b"\0")


def test_nodes_have_addresses_of_their_own_and_names_that_fit() -> None:
    assert len({node.pod_subnet for node in NODES}) == len({node.mac for node in NODES}) == len(NODES)
    assert all(len(node.fabric_port) <= 15 for node in NODES)
    with pytest.raises(ValueError, match=r"node-9.*node-1"):
        node_named("node-9")


def test_bound_paths_are_quoted(tmp_path: Path) -> None:
    source = tmp_path / "it's here"
    source.mkdir()
    words = command_in_rootfs(Path("/rootfs"), ["true"], {source: "work dir"})
    assert words[-1] == "true"
    assert "it'\"'\"'s here" in words[-2]
    assert "\"$root\"'/work dir'" in words[-2]
