"""Makes one folder of this data: small checkpoints as stock `dcp.save` writes them, by the Python and torch that run this script.

    PYTHON tests/data/stock_checkpoints/make.py          # pyX.Y.Z-torchA.B.C/
    PYTHON tests/data/stock_checkpoints/make.py refused  # refused-pyX.Y.Z-torchA.B.C/

`PYTHON` is any CPython with a torch from PyPI (`pip install torch==A.B.C`); the second also needs safetensors, numpy and zstandard.
Every file here was made so, by a real torch in a real Python; nothing was made by stand-ins:

| Python | torch |
|---|---|
| 3.10.13 | 2.6.0; 2.14.1, the last one for this Python |
| 3.11.2, which pickles an enum's member as a call of `getattr` | 2.6.0, 2.15.0 |
| 3.11.7 | 2.6.0, 2.15.0 |
| 3.12.1 | 2.6.0, 2.15.0 |
| 3.13.0, whose paths are of `pathlib._local` | 2.6.0, 2.15.0; also `refused` |
| 3.14.8 | 2.15.0; there is no 2.6 for it |

In a folder are `step_3/`, a whole checkpoint of `make_model` and PROGRESS, saved under a relative path, and `absolute`, `empty`, `text`,
`none`: its `.metadata` as it would be, had it been saved under such a path. In `refused-*` are checkpoints in formats that `dcp.load` reads
only with help: tensors as safetensors, many in a file and one in a file, and compressed.
"""

import dataclasses
import os
import pickle
import platform
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict

HERE = Path(__file__).resolve().parent
WHO = f"py{platform.python_version()}-torch{torch.__version__.split('+')[0]}"
PROGRESS = {"best": 0.25, "names": ["a", "b"]}
PATHS = {"absolute": Path("/data/ckpt/step_3"), "empty": Path(), "text": "ckpt/step_3", "none": None}


def make_model() -> nn.Module:
    """The same in every torch."""
    model = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) / 4)
    return model


def save(target: Path, **options: object) -> None:
    """A checkpoint in `target`, saved as `ckpt/step_3` so that no path of this machine is in it."""
    state = {"model": get_model_state_dict(make_model()), "progress": PROGRESS}
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        dcp.save(state, storage_writer=dcp.FileSystemWriter(Path("ckpt/step_3"), **options))
        shutil.copytree("ckpt/step_3", target)
        os.chdir(HERE)


def make_readable(folder: Path) -> None:
    save(folder / "step_3")
    metadata = pickle.loads((folder / "step_3" / ".metadata").read_bytes())
    for name, path in PATHS.items():
        meta = dataclasses.replace(metadata.storage_meta, checkpoint_id=path)
        (folder / name).write_bytes(pickle.dumps(dataclasses.replace(metadata, storage_meta=meta)))


def make_refused(folder: Path) -> None:
    from torch.distributed.checkpoint._extension import ZStandard
    from torch.distributed.checkpoint.filesystem import SerializationFormat

    as_safetensors = {"serialization_format": SerializationFormat.SAFETENSORS}
    save(folder / "safetensors" / "step_3", **as_safetensors)
    save(folder / "safetensors-alone" / "step_3", single_file_per_rank=False, **as_safetensors)
    save(folder / "compressed" / "step_3", _extensions=[ZStandard()])


if __name__ == "__main__":
    if sys.argv[1:] == ["refused"]:
        make_refused(HERE / f"refused-{WHO}")
    else:
        make_readable(HERE / WHO)
