"""In a cluster or alone: what the environment says."""

from __future__ import annotations

from pathlib import Path

import pytest
from everstep.errors import EverstepError
from everstep.setting import Alone, Cluster, read_setting
from everstep_protocol import codec, names, plan

INTERVAL = plan.SaveInterval(steps=5)


def plan_of(resume: plan.Resume) -> plan.Plan:
    member = plan.Member(0, "uid", "10.0.0.1", "node", (0, 1))
    coordinator = plan.Coordinator(0, "uid", "10.0.0.1", 7471)
    return plan.sealed(plan.Plan(1, "job", 3, "", 1, "t", 1, coordinator, (member,), resume, (), "start", INTERVAL))


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (names.ENV_PLAN_FILE, names.ENV_MEMORY, names.ENV_RESUME_DIR, "EVERSTEP_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_alone_the_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_setting(None, INTERVAL, 3) == Alone(tmp_path / "checkpoints", INTERVAL, 3)
    monkeypatch.setenv("EVERSTEP_CHECKPOINT_DIR", "/elsewhere")
    assert read_setting(None, INTERVAL, 3) == Alone(Path("/elsewhere"), INTERVAL, 3)
    assert read_setting("here", INTERVAL, 3) == Alone(tmp_path / "here", INTERVAL, 3)


def test_in_a_cluster_the_plan_is_the_truth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / names.PLAN_FILE_NAME
    monkeypatch.setenv(names.ENV_PLAN_FILE, str(file))
    monkeypatch.setenv(names.ENV_MEMORY, str(tmp_path))
    told = plan_of(plan.Resume("none"))
    file.write_text(codec.dumps(told))
    assert read_setting("ignored", INTERVAL, 3) == Cluster(told, tmp_path, None)
    told = plan_of(plan.Resume("checkpoint", "id", "step_4", 2, 4))
    file.write_text(codec.dumps(told))
    with pytest.raises(EverstepError, match="resumes from step_4"):
        read_setting(None, INTERVAL, 3)
    monkeypatch.setenv(names.ENV_RESUME_DIR, "/storage/step_4")
    assert read_setting(None, INTERVAL, 3) == Cluster(told, tmp_path, Path("/storage/step_4"))


def test_a_plan_that_cannot_be_read_is_told_with_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    monkeypatch.setenv(names.ENV_PLAN_FILE, str(file))
    with pytest.raises(EverstepError, match=r"plan\.json: no plan can be read there"):
        read_setting(None, INTERVAL, 3)
    file.write_text("{}")
    with pytest.raises(EverstepError, match="missing"):
        read_setting(None, INTERVAL, 3)
