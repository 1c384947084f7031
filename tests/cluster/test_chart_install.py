"""The chart on a real API server: what the operator may do, and what an upgrade and an uninstall leave alone."""

from __future__ import annotations

from kit import product
from kit.job import Space
from testcluster.cluster import Cluster
from testcluster.shell import CommandError

ACCOUNT = f"system:serviceaccount:{product.NAMESPACE}:{product.RELEASE}"

ALLOWED = (
    "list pods -A",
    "watch pods -A",
    "create pods -n default",
    "patch pods -n default",
    "delete pods -n default",
    "watch nodes",
    "watch trainingjobs.everstep.dev -A",
    "delete trainingjobs.everstep.dev -n default",
    "patch trainingjobs.everstep.dev --subresource=status -n default",
    "create secrets -n default",
    "get persistentvolumeclaims -n default",
    "create events -n default",
    "get namespaces/kube-system",
    "list leases.coordination.k8s.io -n kube-node-lease",
    f"create leases.coordination.k8s.io -n {product.NAMESPACE}",
    f"update leases.coordination.k8s.io/{product.RELEASE} -n {product.NAMESPACE}",
)
REFUSED = (
    "get secrets -n default",
    f"get secrets -n {product.NAMESPACE}",
    "list secrets -A",
    "create pods --subresource=exec -n default",
    "create trainingjobs.everstep.dev -n default",
    "patch trainingjobs.everstep.dev -n default",
    "patch nodes",
    "delete nodes",
    "get namespaces/default",
    "list leases.coordination.k8s.io -n default",
    f"update leases.coordination.k8s.io/other -n {product.NAMESPACE}",
    "delete persistentvolumeclaims -n default",
    "patch customresourcedefinitions.apiextensions.k8s.io",
    "create clusterrolebindings.rbac.authorization.k8s.io",
)


def test_the_operator_may_do_what_it_needs_and_no_more(everstep: Cluster) -> None:
    assert [right for right in ALLOWED if not _may(everstep, right)] == []
    assert [right for right in REFUSED if _may(everstep, right)] == []


def _may(cluster: Cluster, right: str) -> bool:
    try:
        return cluster.kubectl("auth", "can-i", *right.split(), f"--as={ACCOUNT}").strip() == "yes"
    except CommandError:  # "no" is an exit status, too
        return False


def test_upgrade_and_uninstall_keep_jobs_definition_and_root_key(space: Space) -> None:
    job = space.job("kept", command=["python3", "/scripts/no_torch.py"], suspend=True)
    uid = job.get()["metadata"]["uid"]
    key = _root_key(space.cluster)
    try:
        product.install(space.cluster)
        assert _root_key(space.cluster) == key
        space.cluster.helm("uninstall", product.RELEASE, "--namespace", product.NAMESPACE, "--wait")
        assert job.get()["metadata"]["uid"] == uid
    finally:
        product.install(space.cluster)
    assert _root_key(space.cluster) == key
    job.wait_phase("Suspended")


def _root_key(cluster: Cluster) -> str:
    secret = f"{product.RELEASE}-root-key"
    return cluster.kubectl("-n", product.NAMESPACE, "get", "secret", secret, "-o", "jsonpath={.data.key}")
