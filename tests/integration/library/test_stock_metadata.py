"""The reader of `.metadata` against what stock `dcp.save` of real torch versions writes."""

from pathlib import Path

import pytest
from everstep_protocol.complete import inspect
from everstep_protocol.dcp_metadata import read_file_lengths
from testcluster.rootfs import run_in_rootfs

SAVE = """
import sys, torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
dtypes = [torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64,
          torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.int16, torch.int32]
state = {
    "model": get_model_state_dict(model),
    "dtypes": {str(dtype): torch.zeros(3, 2).to(dtype) for dtype in dtypes},
    "empty": torch.zeros(0), "scalar": torch.tensor(1.0), "transposed": torch.zeros(4, 2).T,
    "step": 7, "nested": {"list": [1, "two", None], "text": "x" * 100},
}
for thread_count in (1, 3):
    dcp.save(state, storage_writer=dcp.FileSystemWriter(sys.argv[1] + f"/step_{thread_count}", thread_count=thread_count))
print(torch.__version__)
"""


@pytest.mark.parametrize("system", ["torch-new", "torch-old"])
def test_stock_directories_are_complete_and_a_cut_one_is_not(system: str, tmp_path: Path) -> None:
    done = run_in_rootfs(system, ["python3", "-c", SAVE, "/out"], binds={tmp_path: "/out"}, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("step_1", "step_3"):
        directory = tmp_path / name
        verdict = inspect(directory, job_uids=frozenset())
        assert (verdict.state, verdict.reason, verdict.attempt) == ("complete", "", 0)
        sizes = {path.name: path.stat().st_size for path in directory.glob("*.distcp")}
        assert read_file_lengths(directory / ".metadata") == sizes, "stock files end where their last item ends"
        for data in directory.glob("*.distcp"):
            content = data.read_bytes()
            data.write_bytes(content[:-1])
            assert inspect(directory, job_uids=frozenset()).state == "refused"
            data.write_bytes(content)
