"""`traincope doctor`: the probes that work here or worked in a run, and remedies for the others; a proof on GPUs."""

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path

from traincope.cli.answers import add_format
from traincope.cli.quantities import quantity
from traincope.cli.screen import make_console
from traincope.doctor import Examination, examine_machine, examine_run, render, to_document
from traincope.doctor.gpu_proof import prove, render_proof, to_proof_document
from traincope.errors import TraincopeError, UsageError
from traincope.units import count
from traincope.whole_files import output

DEFAULT_OUT = "traincope-gpu.json"
DEFAULT_SECONDS = 60.0
MAX_SECONDS = 600.0


class Doctor:
    name = "doctor"
    example = "traincope doctor sample_runs/demo"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "run_directory",
            type=Path,
            nargs="?",
            metavar="RUN",
            help="run directory, or a parent holding one run (default: examine this machine and this Python)",
        )
        parser.add_argument(
            "--gpu",
            action="store_true",
            help="train about three minutes on every visible GPU, and compare the recorder's ledger with torch's trace "
            "(experimental: so far this has run on one H100)",
        )
        parser.add_argument(
            "--measure-peak",
            action="store_true",
            help="measure this processor's matrix products, for the MFU of runs on this machine (takes a minute)",
        )
        parser.add_argument(
            "--build-native",
            action="store_true",
            help="compile the native recorder for this torch, the NCCL plugin and the decoder of traces, try them and "
            "keep them in your cache (needs g++ 12 or newer; takes half a minute)",
        )
        parser.add_argument(
            "--threads",
            type=int,
            metavar="N",
            help="with --measure-peak: threads of a rank (default: torch's; torchrun sets 1, OMP_NUM_THREADS)",
        )
        parser.add_argument(
            "--rates",
            type=Path,
            metavar="FILE",
            help="with --measure-peak: also time kernels by shape, on a GPU if there is one, for `traincope plan "
            "search --rates FILE` (takes up to two minutes more; so far this has run on processors)",
        )
        parser.add_argument(
            "--out",
            type=Path,
            metavar="FILE",
            help=f"with --gpu: the JSON to attach to an issue, without names (default: {DEFAULT_OUT})",
        )
        parser.add_argument(
            "--seconds",
            type=quantity,
            metavar="S",
            help=f"with --gpu: seconds of the run that measures the overhead (default: {DEFAULT_SECONDS:g})",
        )
        add_format(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the findings. The exit code is 0 if only optional things are missing, or if the proof passed."""
        if arguments.gpu:
            return _prove(arguments)
        if arguments.out is not None or arguments.seconds is not None:
            raise UsageError("--out and --seconds belong to --gpu; give --gpu too")
        if arguments.rates is not None and not arguments.measure_peak:
            raise UsageError("--rates belongs to --measure-peak; give --measure-peak too")
        if arguments.threads is not None and not arguments.measure_peak:
            raise UsageError("--threads belongs to --measure-peak; give --measure-peak too")
        if arguments.build_native:
            examination = _build_native(arguments)
        elif arguments.measure_peak:
            examination = _measure(arguments)
        elif arguments.run_directory is None:
            examination = examine_machine(os.environ)
        else:
            examination = examine_run(arguments.run_directory)
        if arguments.format == "json":
            print(json.dumps(to_document(examination), indent=2))
        else:
            render(examination, make_console())
        return 0 if examination.healthy else TraincopeError.exit_code


def _build_native(arguments: argparse.Namespace) -> Examination:
    if arguments.run_directory is not None or arguments.measure_peak:
        raise UsageError("--build-native builds for this Python; leave out the run directory and --measure-peak")
    from traincope.doctor.native import build_native

    return build_native()


def _measure(arguments: argparse.Namespace) -> Examination:
    if arguments.run_directory is not None:
        raise UsageError("--measure-peak measures this machine, not a run; leave out the run directory")
    if arguments.threads is not None and arguments.threads < 1:
        raise UsageError(f"--threads is {arguments.threads}; it must be at least 1")
    if importlib.util.find_spec("torch") is None:
        raise UsageError("--measure-peak multiplies with torch, which is not installed in this Python; install it")
    from traincope.doctor.measured_peak import measure_peak

    return measure_peak(os.environ, threads=arguments.threads, rates=arguments.rates)


def _prove(arguments: argparse.Namespace) -> int:
    """Prove the GPU path, print the proof, and write its JSON. Nothing is written without a proof."""
    if arguments.run_directory is not None:
        raise UsageError("--gpu examines this machine, not a run; leave out the run directory")
    seconds = DEFAULT_SECONDS if arguments.seconds is None else arguments.seconds
    if not 0 < seconds <= MAX_SECONDS:
        raise UsageError(f"--seconds must be above 0 and at most {MAX_SECONDS:g}")
    out = arguments.out or Path(DEFAULT_OUT)
    try:
        with output(out) as file:
            proof = prove(seconds=seconds, on_start=_announce)
            file.write((json.dumps(to_proof_document(proof), indent=2) + "\n").encode())
    except OSError as error:
        place = error.filename or out
        raise UsageError(f"cannot write {place}: {error.strerror or error}; give another --out or TMPDIR") from error
    if arguments.format == "json":
        print(json.dumps(to_proof_document(proof), indent=2))
    else:
        render_proof(proof, make_console())
        print(f"written: {out}; it has no names of hosts, users or paths: attach it to an issue")
    return 0 if proof.passed else TraincopeError.exit_code


def _announce(gpus: int) -> None:
    print(f"training on {count(gpus, 'GPU')}; this takes about three minutes", file=sys.stderr)
