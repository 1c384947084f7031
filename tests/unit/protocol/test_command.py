"""The user's command line as operator and launcher read it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from everstep_protocol.command import UserCommand, parse_command


def torchrun(*target: str, interpreter: tuple[str, ...] = (), n: int | None = None, own: bool = False) -> UserCommand:
    return UserCommand("torchrun", interpreter, target, n, own)


ACCEPTED: list[tuple[str, UserCommand]] = [
    ("torchrun train.py", torchrun("train.py")),
    (
        "/opt/venv/bin/torchrun train.py --lr 1",
        UserCommand("torchrun", (), ("train.py", "--lr", "1"), None, torchrun="/opt/venv/bin/torchrun"),
    ),
    ("torchrun --nproc-per-node=2 train.py", torchrun("train.py", n=2)),
    ("torchrun --nproc_per_node 4 train.py", torchrun("train.py", n=4)),
    ("torchrun --nproc_per_node=gpu train.py", torchrun("train.py")),
    ("torchrun --nproc 3 train.py", torchrun("train.py", n=3)),
    ("torchrun train.py --nproc-per-node=9", torchrun("train.py", "--nproc-per-node=9")),
    ("torchrun -m pkg.train x", torchrun("-m", "pkg.train", "x")),
    ("torchrun --module pkg.train", torchrun("-m", "pkg.train")),
    ("torchrun --no-python ./train.sh a", torchrun("./train.sh", "a", own=True)),
    ("torchrun --standalone --nnodes=1:4 --node_rank 0 --rdzv_id=7 --rdzv-backend c10d train.py", torchrun("train.py")),
    (
        "torchrun --master_addr=a --master-port 29500 --rdzv-endpoint=a:1 --rdzv-conf a=b --max-restarts=3 train.py",
        torchrun("train.py"),
    ),
    ("torchrun --log-dir /tmp/l --tee 3 -r 3 -t3 --redirects=1:2 --role w train.py", torchrun("train.py")),
    ("torchrun -- train.py", torchrun("train.py")),
    ("python -m torch.distributed.run -m pkg", torchrun("-m", "pkg", interpreter=("python",))),
    (
        "/v/bin/python3.12 -u -m torch.distributed.run --nproc_per_node=2 t.py",
        torchrun("t.py", interpreter=("/v/bin/python3.12", "-u"), n=2),
    ),
    ("python3 -um torch.distributed.run t.py", torchrun("t.py", interpreter=("python3", "-u"))),
    (
        "python -m torch.distributed.launch t.py x",
        torchrun("t.py", "--local-rank=${local_rank}", "x", interpreter=("python",)),
    ),
    ("python -m torch.distributed.launch --use_env t.py", torchrun("t.py", interpreter=("python",))),
    ("python3 /v/bin/torchrun t.py", torchrun("t.py", interpreter=("python3",))),
    ("python train.py -m x", UserCommand("python", ("python",), ("train.py", "-m", "x"), None)),
    ("python3 -m pkg.train a", UserCommand("python", ("python3",), ("-m", "pkg.train", "a"), None)),
    (
        "python3 -W ignore -Xdev -uB t.py",
        UserCommand("python", ("python3", "-W", "ignore", "-X", "dev", "-uB"), ("t.py",), None),
    ),
    (
        "python3 --check-hash-based-pycs never t.py",
        UserCommand("python", ("python3", "--check-hash-based-pycs", "never"), ("t.py",), None),
    ),
    ("python3 -c pass a", UserCommand("python", ("python3",), ("-c", "pass", "a"), None)),
    ("./train.py 1", UserCommand("script", (), ("./train.py", "1"), None)),
    ("accelerate config", UserCommand("shell", (), ("accelerate", "config"), None)),
]


@pytest.mark.parametrize(("line", "expected"), ACCEPTED, ids=[line for line, _ in ACCEPTED])
def test_accepted(line: str, expected: UserCommand) -> None:
    assert replace(parse_command(line.split()), ignored=()) == expected


@pytest.mark.parametrize(
    ("line", "ignored"),
    [
        ("torchrun --standalone --nnodes=1:4 --nproc-per-node=2 -m pkg --max-restarts 3", ("--standalone", "--nnodes")),
        ("torchrun --rdzv_id=7 --tee 3 t.py", ("--rdzv-id", "--tee")),
        ("torchrun --nproc-per-node=2 --no-python ./t.sh --nnodes=2", ()),
        ("python t.py --nnodes=2", ()),
    ],
)
def test_options_without_effect_are_known(line: str, ignored: tuple[str, ...]) -> None:
    assert parse_command(line.split()).ignored == ignored


OWN_WORLDS = {
    "accelerate": [
        "accelerate launch t.py",
        "/v/bin/accelerate launch t.py",
        "python3 -u -m accelerate.commands.launch t.py",
    ],
    "deepspeed": ["deepspeed --num_gpus 2 t.py", "env X=1 deepspeed t.py", "python -m deepspeed.launcher.runner t.py"],
    "horovodrun": ["horovodrun -np 2 python t.py"],
    "mpirun": ["mpirun -n 2 python t.py"],
    "mpiexec": ["mpiexec python t.py"],
    "srun": ["srun python t.py"],
    "colossalai": ["colossalai run t.py"],
    "lightning": ["fabric run t.py"],
}


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in OWN_WORLDS.items() for line in lines])
@pytest.mark.parametrize("shell", ["{}", "cd /app && {}", "set -e\n  {}", "A=1 exec {}; true", "if true; then {}; fi"])
def test_launchers_that_make_worlds_of_their_own_are_refused(name: str, line: str, shell: str) -> None:
    text = shell.format(line)
    command = line.split() if shell == "{}" else ["bash", "-lc", text]
    with pytest.raises(ValueError, match=f"^{name} would start a world of its own"):
        parse_command(command)


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "train.py", "--launcher", "deepspeed", "; srun x"],
        ["python", "deepspeed_train.py", "accelerate launch"],
        ["sh", "-c", "echo deepspeed config; cat accelerate launch; ./mpirun.sh; torchrun t.py --srun"],
        ["sh", "-c", "accelerate config default; torchrun t.py"],
        ["./run.sh", "srun"],
    ],
)
def test_a_word_is_no_launcher(command: list[str]) -> None:
    assert parse_command(command).target


@pytest.mark.parametrize(
    ("text", "processes"),
    [
        ("cd /app && exec torchrun --nproc_per_node=2 t.py", 2),
        ("torchrun --nproc-per-node 8 t.py", 8),
        ("torchrun --nproc-per-node=$N t.py", None),
        ("torchrun --nproc-per-node=2 a.py; torchrun --nproc-per-node=4 b.py", None),
        ("./run.sh", None),
    ],
)
def test_the_processes_that_a_shell_text_names(text: str, processes: int | None) -> None:
    assert parse_command(["sh", "-c", text]) == UserCommand("shell", (), ("sh", "-c", text), processes)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "the command is empty"),
        ("torchrun", "torchrun is given no script"),
        ("torchrun --standalone", "torchrun is given no script"),
        ("python -m torch.distributed.run --nnodes=1", "torchrun is given no script"),
        ("torchrun --nproc-per-node=0 t.py", "--nproc-per-node=0 is not a number of processes"),
        ("torchrun --nproc-per-node=two t.py", "--nproc-per-node=two is not a number of processes"),
        ("torchrun --nproc-per-node", "--nproc-per-node needs a value"),
        ("torchrun --frobnicate t.py", "the option --frobnicate is not known"),
        ("torchrun --rdzv=x t.py", "it may mean --rdzv-backend, --rdzv-conf, --rdzv-endpoint, --rdzv-id"),
        ("torchrun -x t.py", "the option -x is not known"),
        ("torchrun --run-path t.py", "--run-path is not supported"),
        ("torchrun --no-python -m pkg", "exclude each other"),
        ("python", "neither a script nor a module"),
        ("python -u", "neither a script nor a module"),
        ("python -m", "neither a script nor a module"),
        ("python -", "neither a script nor a module"),
    ],
)
def test_refused_with_a_sentence(line: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_command(line.split())
