"""Arguments of a model: the shapes of a transformer."""

import argparse
import sys
from dataclasses import replace

from traincope.cli.quantities import whole
from traincope.errors import UsageError
from traincope.plan.model.sizes import parameters_of
from traincope.plan.model.sources import PRESETS, read_model
from traincope.plan.model.transformer import Experts, Transformer
from traincope.printable import printable

REQUIRED = (
    ("layers", "transformer blocks"),
    ("hidden", "width of the residual stream"),
    ("heads", "query heads"),
    ("vocab", "size of the vocabulary"),
    ("seq", "tokens per sequence"),
)

OPTIONAL = (
    ("kv-heads", "key and value heads (default: same as heads)"),
    ("head-dim", "width of one head (default: hidden / heads)"),
    ("ffn", "inner width of the feed-forward (default: 4 hidden)"),
    ("experts", "routed experts per block (default: none)"),
    ("expert-ffn", "inner width of one expert (default: same as ffn)"),
    ("top-k", "routed experts per token (default: 2)"),
    ("shared-experts", "experts that process every token (default: 0)"),
    ("dense-layers", "blocks without experts (default: 0)"),
)


MODELS = f"{', '.join(PRESETS)}, a config.json of Hugging Face, or a .toml file of shapes"
FIRST_MODEL = next(iter(PRESETS))
EXPERT_SHAPES = ("experts", "expert_ffn", "top_k", "shared_experts", "dense_layers")


def add_model(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model", "give --model, or its shapes; a shape replaces that of the model")
    add_named_model(model)
    for name, help_ in REQUIRED:
        model.add_argument(f"--{name}", type=whole, metavar="N", help=help_)
    for name, help_ in OPTIONAL:
        model.add_argument(f"--{name}", type=whole, metavar="N", help=help_)
    model.add_argument("--gated-mlp", action="store_true", help="three matrices in the feed-forward, as in SwiGLU")
    model.add_argument("--untied", action="store_true", help="the output layer has its own matrix, not the embedding's")


def add_named_model(parser: argparse._ActionsContainer, *, required: bool = False, help: str = MODELS) -> None:
    """Add `--model` and `--parameters`, of which one may be given. `named_model` reads both."""
    either = parser.add_mutually_exclusive_group(required=required)
    either.add_argument("--model", metavar="MODEL", help=help)
    either.add_argument(
        "--parameters",
        dest="model",
        type=_size,
        metavar="X",
        help="a number of parameters instead, e.g. 70e9 or 70B; the shape is assumed, and standard error names it",
    )


def named_model(source: str, *, sequence: int | None) -> Transformer:
    """The model of `--model` or `--parameters`. Standard error has an assumed shape. Raises as `read_model`."""
    shape = read_model(source, sequence=sequence)
    if parameters_of(source) is not None:
        print(
            f"assumed shape of {shape.parameters:,} parameters: --layers {shape.layers} --hidden {shape.hidden} "
            f"--heads {shape.heads} --ffn {shape.ffn} --vocab {shape.vocabulary} --seq {shape.sequence}"
            + (f" --kv-heads {shape.kv_heads} --gated-mlp --untied" if shape.gated_mlp else ""),
            file=sys.stderr,
        )
    return shape


def model_size(text: str) -> int:
    """The number of parameters. Raises ArgumentTypeError for any other text."""
    number = parameters_of(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{printable(text)} is not a number of parameters, e.g. 70e9 or 70B")
    return number


def _size(text: str) -> str:
    """The text of a number of parameters, as `--model` takes it too."""
    model_size(text)
    return text


def transformer(arguments: argparse.Namespace) -> Transformer:
    """Build the model's shapes. Raises UsageError for missing or impossible shapes, and as `read_model`."""
    if arguments.model is not None:
        return _changed(named_model(arguments.model, sequence=arguments.seq), arguments)
    missing = [f"--{name}" for name, _ in REQUIRED if getattr(arguments, name) is None]
    if missing:
        raise UsageError(f"the model's shapes lack {', '.join(missing)}; give them, or a model: --model {FIRST_MODEL}")
    return Transformer(
        layers=arguments.layers,
        hidden=arguments.hidden,
        heads=arguments.heads,
        vocabulary=arguments.vocab,
        sequence=arguments.seq,
        kv_heads=arguments.kv_heads,
        head_dim=arguments.head_dim,
        ffn=arguments.ffn,
        gated_mlp=arguments.gated_mlp,
        untied=arguments.untied,
        experts=_experts(arguments),
    )


def _changed(shape: Transformer, arguments: argparse.Namespace) -> Transformer:
    """The shapes of a model with those that are given besides."""
    names = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    given |= {} if arguments.vocab is None else {"vocabulary": arguments.vocab}
    given |= {name: True for name in ("gated_mlp", "untied") if getattr(arguments, name)}
    if any(getattr(arguments, name) is not None for name in EXPERT_SHAPES):
        raise UsageError("shapes of experts go with a model given by shapes; leave out --model, or write a .toml file")
    return replace(shape, **given)


def _experts(arguments: argparse.Namespace) -> Experts | None:
    if arguments.experts is None:
        for name in ("expert_ffn", "top_k", "shared_experts", "dense_layers"):
            if getattr(arguments, name) is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} has no effect without --experts; give the number of experts"
                )
        return None
    ffn = 4 * arguments.hidden if arguments.ffn is None else arguments.ffn
    return Experts(
        count=arguments.experts,
        top_k=2 if arguments.top_k is None else arguments.top_k,
        ffn=ffn if arguments.expert_ffn is None else arguments.expert_ffn,
        shared=arguments.shared_experts or 0,
        dense_layers=arguments.dense_layers or 0,
    )


def require_positive(arguments: argparse.Namespace, *names: str) -> None:
    """Raise UsageError for the first argument that is given and not above 0."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            raise UsageError(f"--{name.replace('_', '-')} is {value:g}; it must be greater than 0")
