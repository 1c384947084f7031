"""The JSON types of what we read in a pod template, which the CRD leaves open: one table, checked before anything is read.

Everything else in a template is the API server's to judge, by a dry run of the pod.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everstep_operator.api.quantities import parse_quantity

Raw = dict[str, Any]
Say = Callable[[str, str], None]  # path, what is wrong

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "text": ((str,), "text"),
    "whole": ((int,), "a whole number"),
    "flag": ((bool,), "true or false"),
    "object": ((dict,), "an object, as `key: value`"),
}
_QUANTITIES = "object of quantities"

_SECURITY: Raw = {"runAsUser": "whole", "runAsGroup": "whole", "runAsNonRoot": "flag"}
_CONTAINER: Raw = {
    "name": "text",
    "command": ["text"],
    "args": ["text"],
    "env": [{"name": "text"}],
    "volumeMounts": [{"name": "text", "mountPath": "text"}],
    "resources": {"limits": _QUANTITIES, "requests": _QUANTITIES},
    "securityContext": _SECURITY,
}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TEMPLATE: Raw = {
    "metadata": {"labels": "object", "annotations": "object"},
    "spec": {
        "initContainers": [_CONTAINER],
        "containers": [_CONTAINER],
        "volumes": [{"name": "text", "persistentVolumeClaim": {"claimName": "text"}}],
        "hostNetwork": "flag",
        "restartPolicy": "text",
        "terminationGracePeriodSeconds": "whole",
        "securityContext": _SECURITY,
        "tolerations": [{"key": "text", "operator": "text", "effect": "text"}],
        "affinity": {
            "nodeAffinity": {
                _REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": ["object"], "matchFields": ["object"]}]}
            }
        },
    },
}


def check_shape(value: object, path: str, say: Say, shape: Any = TEMPLATE) -> None:
    """Says each place below `path` that has another JSON type than `shape`; null is absence, as everywhere in Kubernetes.

    A shape is an object of shapes, a list with the shape of its items, or the name of a kind.
    """
    if value is None:
        return
    if isinstance(shape, list):
        _check_list(value, path, say, shape[0])
    elif isinstance(shape, dict):
        _check_object(value, path, say, shape)
    elif shape == _QUANTITIES:
        _check_quantities(value, path, say)
    else:
        types, name = _KINDS[shape]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            say(path, f"must be {name}, not {_shown(value)}")


def _check_list(value: object, path: str, say: Say, shape: Any) -> None:
    if not isinstance(value, list):
        hint = f": write [{', '.join(value.split())}]" if isinstance(value, str) and shape == "text" and value else ""
        say(path, f"must be a list, not {_shown(value)}{hint}")
        return
    for i, item in enumerate(value):
        if item is None:
            say(f"{path}[{i}]", "must not be null: take it out")
        check_shape(item, f"{path}[{i}]", say, shape)


def _check_object(value: object, path: str, say: Say, shape: Raw) -> None:
    if not isinstance(value, dict):
        say(path, f"must be {_KINDS['object'][1]}, not {_shown(value)}")
        return
    for key, part in shape.items():
        check_shape(value.get(key), f"{path}.{key}", say, part)


def _check_quantities(value: object, path: str, say: Say) -> None:
    if not isinstance(value, dict):
        say(path, f"must be {_KINDS['object'][1]}, not {_shown(value)}")
        return
    for name, quantity in value.items():
        try:
            parse_quantity(quantity)
        except ValueError as error:
            say(f"{path}[{name}]", str(error))


def _shown(value: object) -> str:
    text = "true" if value is True else "false" if value is False else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
