"""Scripts that know nothing of Everstep, in an image that knows nothing of it."""

from __future__ import annotations

from kit.job import Space


def test_unmodified_torchrun_script(space: Space) -> None:
    job = space.job("plain", command=["torchrun", "--nproc-per-node=2", "/scripts/plain_ddp.py"], workers=(2, 2))
    job.wait_phase("Succeeded", hang_seconds=180)
    lines = sorted(path.read_text() for path in space.records.glob("plain-*"))
    assert [line.split()[:4] for line in lines] == [["rank", str(rank), "of", "4"] for rank in range(4)]
    assert len({line.split("sum")[1] for line in lines}) == 1, "all ranks end with one model"


def test_python_script_without_torch(space: Space) -> None:
    job = space.job("nothing", command=["sh", "-c", "python3 /scripts/no_torch.py"], workers=(2, 2))
    job.wait_phase("Succeeded", hang_seconds=120)
    assert sorted(path.name for path in space.records.glob("no-torch-*")) == ["no-torch-0", "no-torch-1"]
