"""Where a worker's pod may run, beyond what the user wrote. Pure."""

from __future__ import annotations

from typing import Any

from everstep_operator.api.template import dicts

Raw = dict[str, Any]

_HOSTNAME = "kubernetes.io/hostname"
_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")


def hostname(labels: Raw, node: str) -> str:
    """A node's hostname label, which may differ from its name; the kubelet sets it."""
    return str(labels.get(_HOSTNAME) or node)


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


def keep_off(affinity: Raw, hostnames: tuple[str, ...]) -> Raw:
    """The affinity without the nodes of these hostname labels, in each term: terms are alternatives.

    By label and not by `matchFields` on the name: autoscalers that simulate nodes which are not there yet (Karpenter) pass over
    pods with such a field. An empty term stays: it matches no node at all, and shall not come to match some.
    """
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    ours = {"key": _HOSTNAME, "operator": "NotIn", "values": list(hostnames)}
    terms = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or []), ours]} if _matches_some(term) else term
        for term in dicts(required.get("nodeSelectorTerms"))
    ] or [{"matchExpressions": [ours]}]
    kept = {**required, "nodeSelectorTerms": terms}
    return {**affinity, "nodeAffinity": {**node_affinity, "requiredDuringSchedulingIgnoredDuringExecution": kept}}


def _matches_some(term: Raw) -> bool:
    return bool(term.get("matchExpressions") or term.get("matchFields"))
