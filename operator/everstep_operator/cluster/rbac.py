"""Every right that the operator uses, as data. The contract tests run it with exactly these; the chart grants them.

Secrets are created and, but for the root key, never read; `trainingjobs` themselves are deleted only when their TTL is over.
"""

from __future__ import annotations

Rule = tuple[str, str, tuple[str, ...]]  # API group, resource, verbs

IN_JOB_NAMESPACES: tuple[Rule, ...] = (
    ("everstep.dev", "trainingjobs", ("get", "list", "watch", "delete")),
    ("everstep.dev", "trainingjobs/status", ("patch",)),
    ("", "pods", ("get", "list", "watch", "create", "patch", "delete")),
    ("", "secrets", ("create",)),
    ("", "persistentvolumeclaims", ("get",)),
    ("", "events", ("create",)),
)
CLUSTER_WIDE: tuple[Rule, ...] = (
    ("", "nodes", ("get", "list", "watch")),
    ("", "namespaces", ("get",)),  # kube-system only
)
IN_KUBE_NODE_LEASE: tuple[Rule, ...] = (("coordination.k8s.io", "leases", ("get", "list")),)
IN_OWN_NAMESPACE: tuple[Rule, ...] = (
    ("coordination.k8s.io", "leases", ("get", "create", "patch")),  # its own Lease
    ("", "secrets", ("get", "create")),  # the root key
)
