"""What the kubelet says of a worker is told on the job, and decides what comes of it: four small jobs that come to grief side by side."""

from __future__ import annotations

from kit import faults, manifests, reference
from kit.job import Job, Space
from testcluster.images import PAUSE_TAG

SMALL = {"cpu": "100m", "memory": "64Mi"}
SCRIPT = ["python3", "/scripts/hurts_itself.py"]


def test_workers_that_cannot_start_or_hurt_themselves_or_lose_their_sandbox(space: Space) -> None:
    trains = space.job(
        "sandbox",
        command=["torchrun", "--nproc-per-node=1", "/scripts/trainer_probe.py"],
        env=reference.environment(steps=100_000, global_batch=24) | {"STEP_SECONDS": "0.15"},
        workers=(2, 2),
        cpu="300m",
    )
    without_python = small(space, "nopython", image=PAUSE_TAG)
    absent = small(space, "noimage", image="localhost/there-is-none:1", imagePullPolicy="IfNotPresent")
    full = small(space, "full", takes="disk")
    greedy = small(space, "greedy", takes="memory", limits={"memory": "300Mi"})

    first = trains.wait_training(2, hang_seconds=180)
    committed = trains.wait_commit()
    member = trains.plan()["members"][1]
    faults.kill_sandbox(space.cluster, member["uid"])

    without_python.wait_phase("Failed", hang_seconds=180)
    failed = without_python.condition("Failed")
    assert failed["reason"] == "WorkerCannotStart"
    assert 'exec: "python3": executable file not found' in failed["message"]

    said = absent.wait_until(
        "the image is waited for", lambda: next((m for m in absent.reasons().values() if "there-is-none" in m), None)
    )
    assert "Image" in said
    assert absent.status()["phase"] in ("Starting", "Waiting")

    charged(greedy, "oom", "ran out of memory (OOMKilled)")
    charged(full, "evicted", 'Usage of EmptyDir volume "cache" exceeds the limit')

    trains.wait_training(2, after_attempt=first, hang_seconds=180)
    entry = trains.history()[-1]
    assert (entry["cause"], entry["resumedStep"] >= committed) == ("pod-restart", True), entry
    assert "sandbox died" in entry["message"]
    assert trains.status()["restarts"] == {"pod-restart": 1, "total": 1}
    assert trains.status()["budget"].get("crashes", []) == []


def charged(job: Job, cause: str, words: str) -> None:
    """Wait until an attempt ended by this, in these words, and spent the budget."""
    job.wait_until(cause, lambda: (job.status().get("restarts") or {}).get(cause), hang_seconds=180)
    assert any(entry["cause"] == cause and words in entry["message"] for entry in job.history()), job.history()
    assert job.status()["budget"]["crashes"]


def small(space: Space, name: str, *, takes: str = "", limits: dict[str, str] | None = None, **container: str) -> Job:
    """A job of one small worker, with a cache of 8 MiB."""
    job = manifests.training_job(space.name, name, command=SCRIPT, env={"TAKES": takes}, workers=(1, 1))
    pod = job["spec"]["template"]["spec"]
    pod["containers"][0] |= {"resources": {"requests": SMALL, "limits": limits or {}}, **container}
    pod["containers"][0]["volumeMounts"].append({"name": "cache", "mountPath": "/cache"})
    pod["volumes"].append({"name": "cache", "emptyDir": {"sizeLimit": "8Mi"}})
    space.apply(job)
    return Job(space, name)
