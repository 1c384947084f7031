"""The generated CRD: no drift, a structural schema, a description on every field, status as the core has it."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from everstep_operator.api import crd
from everstep_operator.api.status_types import TrainingJobStatus
from everstep_operator.core import model
from everstep_protocol import codec, plan
from pydantic import BaseModel

FILE = Path(__file__).parents[3] / "crds" / "trainingjobs.everstep.dev.yaml"
SCHEMA = crd.build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def _nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from _nodes(part, f"{path}.{name}")
    if "items" in schema:
        yield from _nodes(schema["items"], f"{path}[]")


def test_the_committed_file_is_what_the_models_say() -> None:
    assert FILE.read_text() == crd.render(), "run: python -m everstep_operator.api.crd"


def test_check_tells_drift_and_how_to_end_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "crd.yaml"
    assert crd.main([str(file)]) == 0
    assert crd.main(["--check", str(file)]) == 0
    file.write_text(file.read_text().replace("maxCrashes", "maxCrash"))
    assert crd.main(["--check", str(file)]) == 1
    assert "python -m everstep_operator.api.crd" in capsys.readouterr().err


def test_every_field_has_a_description() -> None:
    missing = [
        path
        for root in ("spec", "status")
        for path, node in _nodes(SCHEMA["properties"][root], root)
        if not node.get("description") and not path.endswith("[]")
    ]
    assert missing == []


def test_the_schema_is_structural() -> None:
    for path, node in _nodes(SCHEMA, "root"):
        assert "type" in node, path
        assert not {"$ref", "anyOf", "allOf", "oneOf", "title", "const", "$defs"} & set(node), path
        assert node.get("additionalProperties") is not False, path


@pytest.mark.parametrize(
    ("given", "flat"),
    [
        ({"type": "string", "title": "X"}, {"type": "string"}),
        (
            {"type": "integer", "exclusiveMinimum": 0},
            {"type": "integer", "format": "int64", "minimum": 0, "exclusiveMinimum": True},
        ),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, {"type": "string", "nullable": True}),
        ({"$ref": "#/$defs/A", "description": "mine"}, {"type": "boolean", "description": "mine"}),
        (
            {"type": "array", "items": {"$ref": "#/$defs/A"}},
            {"type": "array", "items": {"type": "boolean", "description": "A's"}},
        ),
        ({"type": "object", "additionalProperties": False}, {"type": "object"}),
        (
            {"type": "object", "additionalProperties": {"type": "string", "title": ""}},
            {"type": "object", "additionalProperties": {"type": "string"}},
        ),
    ],
)
def test_flatten(given: dict[str, Any], flat: dict[str, Any]) -> None:
    assert crd.flatten({**given, "$defs": {"A": {"type": "boolean", "description": "A's"}}}) == flat


def test_flatten_keeps_the_rules_of_a_field_and_of_its_type() -> None:
    rules = "x-kubernetes-validations"
    given = {
        "$ref": "#/$defs/A",
        rules: [{"rule": "own"}],
        "$defs": {"A": {"type": "object", rules: [{"rule": "type's"}]}},
    }
    assert crd.flatten(given) == {"type": "object", rules: [{"rule": "type's"}, {"rule": "own"}]}


def _pairs(record: type, document: type[BaseModel]) -> Iterator[tuple[type, type[BaseModel]]]:
    yield record, document
    hints = typing.get_type_hints(record)
    for name, field in document.model_fields.items():
        inner = [part for part in _parts(field.annotation) if isinstance(part, type) and issubclass(part, BaseModel)]
        if inner and name in hints:
            of_core = [part for part in _parts(hints[name]) if dataclasses.is_dataclass(part)]
            yield from _pairs(typing.cast(type, of_core[0]), inner[0])


def _parts(annotation: Any) -> list[Any]:
    args = [part for part in get_args(annotation) if part not in (type(None), Ellipsis)]
    return (
        [leaf for part in args for leaf in _parts(part)]
        if args and typing.get_origin(annotation) is not typing.Literal
        else [annotation]
    )


def test_status_has_every_field_of_the_core_s() -> None:
    """Else the API server refuses the write (fieldValidation=Strict), or prunes it where it is not strict."""
    for record, document in _pairs(model.JobStatus, TrainingJobStatus):
        of_core = {codec.camel(field.name) for field in dataclasses.fields(record)}
        of_api = {field.alias or name for name, field in document.model_fields.items()}
        for_people = {"observedGeneration", "phase", "conditions", "ready", "readyWorkers", "wantedWorkers", "accepted"}
        assert of_api - (for_people if document is TrainingJobStatus else set()) == of_core, record


def test_enumerations_are_the_core_s() -> None:
    status = SCHEMA["properties"]["status"]["properties"]
    assert status["phase"]["enum"] == list(get_args(model.Phase))
    assert status["attempt"]["properties"]["cause"]["enum"] == list(get_args(plan.Cause))
