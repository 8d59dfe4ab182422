"""The launches of docs/start/launchers.md, and the table there."""

from pathlib import Path

from tests.launchers.launches import NOTEBOOK, TRAINING, Launch, Words, plain, torchrun
from tests.ports import free_port

PAGE = Path(__file__).parents[2] / "docs" / "start" / "launchers.md"

READ_ONLY = 'mount --bind "$TMPDIR" "$TMPDIR" && mount -o remount,bind,ro / && exec "$@"'
"""Everything except $TMPDIR becomes read-only, as in a container with a read-only root."""
ON_NOTHING = ("env", "-i", "PATH=/usr/bin:/bin", "OMP_NUM_THREADS=1", "TRAINCOPE_AGENT=off", "TRAINCOPE_BUDGET=none")
BELOW = "not recorded: {} torch program{} that a rank started"


def debugged(debugger: str, *words: str) -> Words:
    """One process below a debugger, without a person."""
    return lambda python, folder: [python, "-m", debugger, *words, TRAINING, folder, "alone"]


def accelerated(python: str, folder: str) -> list[str]:
    """`--multi_gpu` is its way to several ranks. On a CPU the training chooses gloo all the same."""
    of_torch = ("--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", "0")
    unused = ("--mixed_precision", "no", "--dynamo_backend", "no")
    return [command_of(python, "accelerate"), "launch", *of_torch, *unused, TRAINING, folder]


def by_deepspeed(python: str, folder: str) -> list[str]:
    """Without `--no_local_rank` it gives the training an argument that this one has no use for."""
    options = ("--num_gpus", "2", "--no_local_rank", "--master_port", str(free_port()))
    return [command_of(python, "deepspeed"), *options, TRAINING, folder]


def traced(python: str, folder: str) -> list[str]:
    """Its summary goes to a file: its times, shares and verdict differ from run to run."""
    options = ("--nproc-per-node", "2", "--mode", "summary", "--no-save-training-output")
    ports = ("--master-port", str(free_port()), "--aggregator-port", str(free_port()))
    command = [
        command_of(python, "traceml"),
        "run",
        *options,
        *ports,
        TRAINING,
        "--args",
        folder,
        "launched",
        "TraceML",
    ]
    return ["sh", "-c", 'exec "$@" > summary 2>&1', "sh", *command]


def command_of(python: str, name: str) -> str:
    return str(Path(python).with_name(name))


def notebook(kind: str) -> Words:
    return lambda python, folder: [python, NOTEBOOK, folder, kind]


NIGHTLY = (
    Launch(
        name="a script that makes its model and optimizer, and then forks the ranks",
        words=plain("prepared"),
    ),
)
"""`make test-engine` runs this."""

LAUNCHES = (
    Launch(name="`python -m torch.distributed.run` (`torchrun`)", words=torchrun()),
    Launch(name="`torch.multiprocessing.spawn`", words=plain("spawned")),
    Launch(name="one process, without a launcher", words=plain("alone"), ranks=1),
    Launch(name="`PYTHONSAFEPATH=1`", words=torchrun(), variables={"PYTHONSAFEPATH": "1"}),
    Launch(name="an empty environment: no `HOME`, a minimal `PATH`", words=torchrun(), around=ON_NOTHING),
    Launch(
        name="a read-only file system, except `TMPDIR` and `/dev/shm`",
        words=torchrun(),
        around=("unshare", "--mount", "sh", "-c", READ_ONLY, "sh"),
    ),
    Launch(
        name="`traincope run -- traincope run -- ...`",
        words=lambda python, folder: [python, "-m", "traincope.cli.main", "run", "--", *torchrun()(python, folder)],
    ),
    Launch(name="`python -m pdb -c continue`", words=debugged("pdb", "-c", "continue"), ranks=1),
)
"""Launches that need nothing but torch."""

COMPANY = (
    Launch(name="`torch.profiler` with a schedule of its own", words=torchrun("launched", "torch.profiler")),
    Launch(name="`os.fork` in the middle of the training", words=torchrun("launched", "fork")),
    Launch(name="`os.execv` at the start", words=torchrun("launched", "at start")),
    Launch(name="data loader workers by spawn", words=torchrun("launched", "workers by spawn")),
    Launch(
        name="a rank that starts another torch program",
        words=torchrun("launched", "evaluation"),
        unrecorded=BELOW.format(2, "s"),
    ),
    Launch(
        name="`async_save` of torch in a process of its own",
        words=torchrun("launched", "background checkpoint"),
        unrecorded=BELOW.format(2, "s"),
    ),
)

INJECTION = Launch(name="a sampling profiler by `LD_PRELOAD`", words=torchrun())

SLURM = (
    Launch(name="`traincope run -- srun`", words=lambda python, folder: ["srun", "-n", "2", *plain()(python, folder)]),
    Launch(name="`srun traincope run`", words=plain(), around=("srun", "-n", "2")),
)
"""In a SLURM of one node."""

TOOLS: dict[str, tuple[Launch, ...]] = {
    "accelerate==1.15.0": (Launch(name="`accelerate launch`", words=accelerated),),
    "--no-build-isolation deepspeed==0.19.8": (
        Launch(name="`deepspeed`", words=by_deepspeed, variables={"DS_ACCELERATOR": "cpu"}),
    ),
    "debugpy": (Launch(name="`python -m debugpy --listen 0`", words=debugged("debugpy", "--listen", "0"), ranks=1),),
    "traceml-ai==0.5.0": (Launch(name="`traceml run` with TraceML's traced steps", words=traced),),
    "nbclient ipykernel": (
        Launch(name="a cell of a notebook", words=notebook("alone"), ranks=1),
        Launch(name="a notebook in which a cell failed", words=notebook("failing"), ranks=1),
        Launch(name="ranks that a notebook forks", words=notebook("forked")),
    ),
}
"""Package -> what runs with it."""

BEGIN, END = "<!-- table -->\n", "<!-- end of table -->"


def table() -> str:
    launches = (
        *NIGHTLY,
        *LAUNCHES,
        *SLURM,
        *COMPANY,
        INJECTION,
        *(launch for tool in TOOLS.values() for launch in tool),
    )
    rows = [f"| {launch.name} | {launch.ranks} | {launch.unrecorded.partition(': ')[2]} |" for launch in launches]
    return "\n".join(
        ["| started by, or in the company of | ranks recorded | not recorded |", "|---|---|---|", *rows, ""]
    )


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
