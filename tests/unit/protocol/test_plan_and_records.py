"""Sealed documents: their id is the digest of the rest, and a changed one is told."""

from dataclasses import fields, replace

import pytest
from everstep_protocol import codec, plan, records
from everstep_protocol.codec import InvalidDocument
from everstep_protocol.records import FileRecord, Manifest
from store_support import world

PLAN = world.make_plan(3, world=2, lineage=((1, 20),))
MANIFEST = records.sealed(
    Manifest(
        format=1,
        id="",
        job_uid="j",
        attempt=3,
        step=40,
        plan_id=PLAN.plan_id,
        committed_by=3,
        parent=None,
        lineage=((1, 20),),
        world=1,
        samples_consumed=5,
        files=(FileRecord("__0_0.distcp", 1, "00"),),
        metadata=FileRecord(".metadata", 2, "11"),
        torch="2.6.0",
    )
)


def test_plan_and_manifest_there_and_back() -> None:
    assert plan.parse_plan(codec.dumps(PLAN)) == PLAN
    assert records.parse_manifest(codec.dumps(MANIFEST)) == MANIFEST
    assert PLAN.member("pod-0") == PLAN.members[0]
    assert PLAN.member("stranger") is None


OTHER_PLAN = {"attempt": 4, "world": 3, "lineage": ((1, 21),), "cause": "crash", "members": (), "job_uid": "x"}
OTHER_MANIFEST = {
    "attempt": 4,
    "step": 41,
    "files": (),
    "lineage": (),
    "job_uid": "x",
    "parent": records.Parent("p", 1, 2),
}


@pytest.mark.parametrize("name", OTHER_PLAN)
def test_a_changed_plan_is_refused(name: str) -> None:
    with pytest.raises(InvalidDocument, match="planID: is not the digest"):
        plan.parse_plan(codec.dumps(replace(PLAN, **{name: OTHER_PLAN[name]})))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OTHER_MANIFEST)
def test_a_changed_manifest_is_refused(name: str) -> None:
    with pytest.raises(InvalidDocument, match="id: is not the digest"):
        records.parse_manifest(codec.dumps(replace(MANIFEST, **{name: OTHER_MANIFEST[name]})))  # type: ignore[arg-type]


def test_another_format_is_said() -> None:
    with pytest.raises(InvalidDocument, match="format: 2 is not known"):
        plan.parse_plan(codec.dumps(plan.sealed(replace(PLAN, format=2))))
    with pytest.raises(InvalidDocument, match="format: 2 is not known"):
        records.parse_manifest(codec.dumps(records.sealed(replace(MANIFEST, format=2))))


def test_a_plan_holds_neither_a_token_nor_a_time() -> None:
    names = {field.name for field in fields(plan.Plan)} | {field.name for field in fields(plan.Member)}
    assert not [name for name in names if "token" in name or name.endswith("_at")]


def test_a_thousand_members_fit_into_an_annotation() -> None:
    members = tuple(plan.Member(i, f"{i:036d}", "10.123.123.123", f"node-{i}", (i * 8, i * 8 + 8)) for i in range(1000))
    assert len(codec.dumps(replace(PLAN, members=members))) < 256 * 1024
