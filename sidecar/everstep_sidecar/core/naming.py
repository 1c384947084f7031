"""What people are told of a member: where to look."""

from __future__ import annotations

from everstep_protocol.plan import Plan


def member_name(plan: Plan, uid: str) -> str:
    """`pod w1 on node-1`; a stranger by its UID."""
    member = plan.member(uid)
    return f"pod w{member.id} on {member.node}" if member else f"pod {uid}"
