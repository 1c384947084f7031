"""Where a worker's pod may run, beyond what the user wrote. Pure."""

from __future__ import annotations

from typing import Any

from everstep_operator.api.template import dicts

Raw = dict[str, Any]

_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")


def tolerate(given: list[Raw]) -> list[Raw]:
    """The operator and not the taint manager decides a loss: unbounded, where the user has none of their own."""
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute"} for key in _TAINTS if not _is_tolerated(given, key)
    ]
    return [*given, *ours]


def _is_tolerated(tolerations: list[Raw], key: str) -> bool:
    return any(
        item.get("effect") in (None, "", "NoExecute")
        and (item.get("key") == key or (not item.get("key") and item.get("operator") == "Exists"))
        for item in dicts(tolerations)
    )


def keep_off(affinity: Raw, avoid: tuple[str, ...]) -> Raw:
    """The affinity without these nodes: `NotIn` for each node, in each term: terms are alternatives. `matchFields` takes one value at a time."""
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in avoid]
    terms = [
        {**term, "matchFields": [*(term.get("matchFields") or []), *fields]}
        for term in dicts(required.get("nodeSelectorTerms")) or [{}]
    ]
    kept = {**required, "nodeSelectorTerms": terms}
    return {**affinity, "nodeAffinity": {**node_affinity, "requiredDuringSchedulingIgnoredDuringExecution": kept}}
