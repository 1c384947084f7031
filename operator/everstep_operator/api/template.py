"""Reads a pod template: which container is the trainer, what it runs, and what cannot be accepted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from everstep_protocol import codec, names
from everstep_protocol.command import UserCommand, parse_command

from everstep_operator.api.quantities import parse_quantity
from everstep_operator.api.shapes import check_shape

Raw = dict[str, Any]

ROOT = "spec.template"
_OUR_VARIABLES = frozenset(
    [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PET_NNODES",
        "PET_NODE_RANK",
        "PET_MASTER_ADDR",
        "PET_MASTER_PORT",
        "PET_NPROC_PER_NODE",
    ]
)
_OUR_PREFIXES = ("EVERSTEP_", "TORCHELASTIC_")
_USERS_OWN = frozenset([names.ENV_OWN_WORLDS])


@dataclass(frozen=True)
class PodTemplate:
    """A valid template, with all that a worker's pod is made from."""

    raw: Raw  # metadata and spec, as the user wrote them
    trainer: int  # index of the trainer in containers
    command: tuple[str, ...]  # its command and args
    processes: int
    claim: str
    path: str
    memory_bytes: int | None  # of the memory volume, None: not bounded
    grace_seconds: float
    claims: tuple[str, ...]  # of the template's own volumes
    hash: str  # of everything above: pods of one plan have the same (R29)


class Problems(list[str]):
    """One line a wrong field: its path, what is wrong, what to do."""

    def say(self, path: str, text: str) -> None:
        self.append(f"{path}: {text}")


@dataclass(frozen=True)
class Wanted:
    """What the rest of the spec says about the pods."""

    processes: int | None
    claim: str
    path: str
    memory: str | None


def parse_template(template: Raw, wanted: Wanted, problems: Problems) -> PodTemplate | None:
    """The template, or None with the reasons in `problems`."""
    before = len(problems)
    check_shape(template, ROOT, problems.say)
    if len(problems) > before:
        return None
    spec = template.get("spec")
    if spec is None:
        problems.say(f"{ROOT}.spec", "must be a pod's spec")
        return None
    _refuse_pod_fields(spec, problems)
    trainer = _find_trainer(spec, problems)
    if trainer is None:
        return None
    container, where = spec["containers"][trainer], f"{ROOT}.spec.containers[{trainer}]"
    command = _read_command(container, where, problems)
    processes = _count_processes(container, where, command, wanted, problems)
    memory = _memory_bytes(container, where, wanted, problems)
    grace = _grace_seconds(spec, problems)
    if len(problems) > before:
        return None
    return PodTemplate(
        raw=template,
        trainer=trainer,
        command=_words(container),
        processes=processes,
        claim=wanted.claim,
        path=wanted.path,
        memory_bytes=memory,
        grace_seconds=grace,
        claims=tuple(_claims(spec)),
        hash=codec.digest([template, processes, wanted.claim, wanted.path, memory])[:16],
    )


def warnings_of(template: PodTemplate) -> tuple[str, ...]:
    """What is accepted but not obeyed."""
    found = []
    policy = template.raw["spec"].get("restartPolicy") or "OnFailure"
    if policy != "OnFailure":
        found.append(f"{ROOT}.spec.restartPolicy: {policy} is not obeyed, pods get OnFailure; leave it out")
    ignored = parse_command(template.command).ignored
    if ignored:
        where = f"{ROOT}.spec.containers[{template.trainer}].command"
        found.append(
            f"{where}: {', '.join(ignored)} have no effect: who takes part, and when it starts again, Everstep decides"
        )
    return tuple(found)


def dicts(value: object) -> list[Raw]:
    """The objects of what should be a list of objects; the API server's dry run names the others."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _refuse_pod_fields(spec: Raw, problems: Problems) -> None:
    if spec.get("hostNetwork"):
        problems.say(f"{ROOT}.spec.hostNetwork", "must not be true: workers are told apart by their pods' IPs")
    for i, volume in enumerate(dicts(spec.get("volumes"))):
        if str(volume.get("name", "")).startswith("everstep-"):
            problems.say(
                f"{ROOT}.spec.volumes[{i}].name", "names that begin with everstep- are Everstep's own: choose another"
            )
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(dicts(spec.get(kind))):
            _refuse_container_fields(container, f"{ROOT}.spec.{kind}[{i}]", problems)


def _refuse_container_fields(container: Raw, where: str, problems: Problems) -> None:
    if container.get("name") in (names.SIDECAR_CONTAINER, names.INJECTOR_CONTAINER):
        problems.say(f"{where}.name", f"{container['name']} is the name of Everstep's own container: choose another")
    for i, mount in enumerate(dicts(container.get("volumeMounts"))):
        path = str(mount.get("mountPath", "")).rstrip("/")
        if path == names.MOUNT_ROOT or path.startswith(names.MOUNT_ROOT + "/"):
            problems.say(
                f"{where}.volumeMounts[{i}].mountPath", f"{names.MOUNT_ROOT} is Everstep's own: mount elsewhere"
            )


def _find_trainer(spec: Raw, problems: Problems) -> int | None:
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers or len(dicts(containers)) != len(containers):
        problems.say(f"{ROOT}.spec.containers", f"must list the trainer's container, named {names.TRAINER_CONTAINER}")
        return None
    named = [i for i, container in enumerate(containers) if container.get("name") == names.TRAINER_CONTAINER]
    if len(containers) == 1 or len(named) == 1:
        return named[0] if named else 0
    problems.say(
        f"{ROOT}.spec.containers",
        f"{len(containers)} containers, and {len(named)} of them named {names.TRAINER_CONTAINER}: name the one that trains {names.TRAINER_CONTAINER}",
    )
    return None


def _words(container: Raw) -> tuple[str, ...]:
    return tuple(str(word) for key in ("command", "args") for word in container.get(key) or ())


def _read_command(container: Raw, where: str, problems: Problems) -> UserCommand | None:
    _refuse_variables(container, where, problems)
    if not container.get("command"):
        problems.say(
            f"{where}.command", "must be set, as [torchrun, train.py]: the image's own entry point cannot be read"
        )
        return None
    try:
        return parse_command(_words(container))
    except ValueError as error:
        problems.say(f"{where}.command", str(error))
        return None


def _refuse_variables(container: Raw, where: str, problems: Problems) -> None:
    for i, variable in enumerate(dicts(container.get("env"))):
        name = str(variable.get("name", ""))
        if name in _OUR_VARIABLES or (name.startswith(_OUR_PREFIXES) and name not in _USERS_OWN):
            problems.say(f"{where}.env[{i}].name", f"{name} is set by Everstep for each attempt: remove it")


def _count_processes(
    container: Raw, where: str, command: UserCommand | None, wanted: Wanted, problems: Problems
) -> int:
    gpus = _count_gpus(container, where, problems)
    told = command.num_processes if command else None
    if told is not None and wanted.processes not in (None, told):
        problems.say(
            "spec.processesPerWorker",
            f"is {wanted.processes}, but --nproc-per-node says {told}: make them equal, or leave one out",
        )
    elif told is not None and wanted.processes is None and gpus not in (0, told):
        problems.say(
            f"{where}.command",
            f"--nproc-per-node is {told}, but the limits have {gpus} GPUs: make them equal, or set spec.processesPerWorker",
        )
    return wanted.processes or gpus or told or 1


def _limits(container: Raw) -> Raw:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    return limits if isinstance(limits, dict) else {}


def _count_gpus(container: Raw, where: str, problems: Problems) -> int:
    count = 0
    for name, value in _limits(container).items():
        if name.endswith("/gpu") or name.startswith("nvidia.com/mig-"):
            count += int(_quantity(value, f"{where}.resources.limits[{name}]", problems) or 0)
    return count


def _memory_bytes(container: Raw, where: str, wanted: Wanted, problems: Problems) -> int | None:
    if wanted.memory is not None:
        return _quantity(wanted.memory, "spec.checkpoint.memory", problems)
    limit = _limits(container).get("memory")
    if limit is None:
        return None
    given = _quantity(limit, f"{where}.resources.limits.memory", problems)
    return given // 2 if given is not None else None


def _quantity(value: object, where: str, problems: Problems) -> int | None:
    try:
        return int(parse_quantity(value))
    except ValueError as error:
        problems.say(where, str(error))
        return None


def _grace_seconds(spec: Raw, problems: Problems) -> float:
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is None:
        return 30.0
    if isinstance(grace, bool) or not isinstance(grace, int) or grace < 0:
        problems.say(f"{ROOT}.spec.terminationGracePeriodSeconds", f"must be a number of seconds, not {grace!r}")
        return 30.0
    return float(grace)


def _claims(spec: Raw) -> Iterator[str]:
    for volume in dicts(spec.get("volumes")):
        claim = volume.get("persistentVolumeClaim")
        if isinstance(claim, dict) and claim.get("claimName"):
            yield str(claim["claimName"])
