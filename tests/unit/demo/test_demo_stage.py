"""The example as the demo applies it."""

from __future__ import annotations

import pytest
import yaml
from everstep_demo import stage
from everstep_operator.api.types import TrainingJobSpec


def test_the_demo_changes_nothing_of_the_example_but_the_image() -> None:
    example = stage.read_example()
    file = yaml.safe_load((stage.EXAMPLE / "trainingjob.yaml").read_text())
    (trainer,) = file["spec"]["template"]["spec"]["containers"]
    trainer |= {"image": stage.TRAINER_IMAGE, "imagePullPolicy": "IfNotPresent"}
    assert example.manifest == file


def test_the_example_is_a_valid_job() -> None:
    TrainingJobSpec.model_validate(stage.read_example().manifest["spec"])


def test_the_example_mounts_what_its_comments_say() -> None:
    text = (stage.EXAMPLE / "trainingjob.yaml").read_text()
    (volume,) = yaml.safe_load(text)["spec"]["template"]["spec"]["volumes"]
    assert f"kubectl create configmap {volume['configMap']['name']} --from-file=train.py" in text
    claim = yaml.safe_load(text)["spec"]["checkpoint"]["storage"]["persistentVolumeClaim"]["claimName"]
    (_, given) = yaml.safe_load_all((stage.EXAMPLE / "storage.yaml").read_text())
    assert given["metadata"]["name"] == claim


def test_the_chart_gets_the_image_by_its_tag() -> None:
    assert stage.chart_values("localhost:5000/everstep:abc")["image"] == {
        "repository": "localhost:5000/everstep",
        "tag": "abc",
    }


@pytest.mark.parametrize("command", [["train.py", "--steps", "7"], ["train.py", "--steps=7", "--lr=1"]])
def test_an_option_of_the_command(command: list[str]) -> None:
    assert stage._option(command, "--steps") == "7"


def test_a_command_without_the_option() -> None:
    with pytest.raises(ValueError, match="has no --steps"):
        stage._option(["train.py"], "--steps")
