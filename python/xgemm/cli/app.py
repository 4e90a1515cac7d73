"""Every command, on one page; each lives in a module of its own, imported when it runs."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Matrix multiplication kernels for PyTorch. Exit codes: 0 success, 1 failure, 2 usage. "
    "With --debug, given anywhere, an error shows its traceback.",
    add_completion=True,
    pretty_exceptions_enable=False,
    # Help in one style everywhere, and as text where it is piped.
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout; all else on stderr.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice if absent.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run model code that the directory holds.")
]
NoVerify = Annotated[
    bool,
    typer.Option("--no-verify", help="Take an xgemm directory that was edited since its save."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto: the GPU, if torch sees one.")]
Dtype = Annotated[str, typer.Option(help="auto (the checkpoint's), float32, float16 or bfloat16.")]
Plot = Annotated[Path | None, typer.Option(dir_okay=False, help="Write a PNG plot here.")]


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _print_version(wanted: bool) -> None:
    if wanted:
        from xgemm import __version__

        typer.echo(f"xgemm {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def doctor(json: Json = False) -> None:
    """Versions, devices and what the library was built for; tests each op against float64."""
    from xgemm.cli.doctor import run

    raise typer.Exit(run(as_json=json))


@app.command()
def demo(
    question: Annotated[
        str, typer.Argument(help="What to ask.")
    ] = "What is the capital of France?",
    threads: Threads = None,
    json: Json = False,
    plot: Annotated[Path, typer.Option(dir_okay=False, help="Where the PNG goes.")] = Path(
        "xgemm-demo.png"
    ),
    max_tokens: Annotated[int, typer.Option(min=1, help="The answer's greatest length.")] = 64,
    offline_model: Annotated[
        bool, typer.Option("--offline-model", help="Use a small Llama with random weights.")
    ] = False,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, or auto: a GPU where torch sees one.")
    ] = "auto",
) -> None:
    """A language model on 4-bit linears answers a question, beside plain torch."""
    from xgemm.cli.demo import run

    run(question, threads, json, plot, max_tokens, offline_model, device)


@app.command()
def quantize(
    source: Annotated[
        Path,
        typer.Argument(
            exists=True, metavar="SRC", help="A transformers directory, or a GGUF file."
        ),
    ],
    destination: Annotated[
        Path, typer.Argument(file_okay=False, metavar="DST", help="A new or empty directory.")
    ],
    method: Annotated[
        str,
        typer.Option(
            help="rtn: round to nearest; hqq: scales and zeros fitted to weights. With calibration "
            "data: gptq: errors made up for by other weights; awq: channels scaled."
        ),
    ] = "rtn",
    group_size: Annotated[
        int, typer.Option(help="Weights along K that share a scale: 32, 64, 128, or -1: all of K.")
    ] = 128,
    asymmetric: Annotated[
        bool, typer.Option("--asymmetric", help="A zero point for each group; without it, 8.")
    ] = False,
    clip: Annotated[
        str | None,
        typer.Option(help="none, or mse: shrink each group's range to its least error; rtn's own."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(help="Leave this layer: a name, or a pattern with * ? []; repeatable."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(help="Quantize this layer, too: a head or a router, say; repeatable."),
    ] = None,
    lm_head: Annotated[
        bool, typer.Option("--lm-head", help="Quantize the output head, too, where it is untied.")
    ] = False,
    scale_dtype: Annotated[
        str, typer.Option(help="float16, bfloat16, or auto: bfloat16 where float16 lacks range.")
    ] = "auto",
    calibration: Annotated[
        str, typer.Option(help="For gptq, awq: a text file, or builtin: Python's help topics.")
    ] = "builtin",
    samples: Annotated[int, typer.Option(help="For gptq, awq: samples of the text.")] = 128,
    sequence_length: Annotated[int, typer.Option(help="For gptq, awq: tokens of a sample.")] = 512,
    act_order: Annotated[
        str | None, typer.Option(help="For gptq: static (default), desc_act or none.")
    ] = None,
    rounding: Annotated[
        str | None, typer.Option(help="For awq: how scaled weights are rounded: rtn or gptq.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, help="For gptq, awq: keep finished blocks here, and go on from them."
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="Where to quantize: cpu, cuda, cuda:N or auto.")
    ] = "cpu",
    drop: Annotated[
        list[str] | None,
        typer.Option(help="Weights in SRC's files that the model may leave out; repeatable."),
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    report: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write the report here, as JSON: errors by layer."),
    ] = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Quantize a transformers directory or a GGUF file SRC to an xgemm directory DST."""
    from xgemm.cli.calibration import Calibration
    from xgemm.cli.quantize import Output, Recipe, Source, run

    recipe = Recipe(
        method=method,
        group_size=group_size,
        symmetric=not asymmetric,
        clip=clip,
        skip=tuple(skip or ()),
        include=tuple(include or ()),
        lm_head=lm_head,
        scale_dtype=scale_dtype,
        calibration=Calibration(calibration, samples, sequence_length, act_order, rounding, resume),
    )
    model = Source(source, device, trust_remote_code, tuple(drop or ()))
    run(model, destination, recipe, Output(json, report, plot))


@app.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            exists=True, file_okay=False, metavar="SRC", help="A 4-bit transformers directory."
        ),
    ],
    destination: Annotated[
        Path, typer.Argument(file_okay=False, metavar="DST", help="A new or empty directory.")
    ],
    to: Annotated[str, typer.Option(help="gptq, awq, compressed-tensors or xgemm.")],
    requantize: Annotated[
        str | None,
        typer.Option(help="For bitsandbytes' nf4: dequantize it, then quantize: rtn or hqq."),
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(help="With --requantize: 32, 64 (if absent), 128 or -1.")
    ] = None,
    asymmetric: Annotated[
        bool, typer.Option("--asymmetric", help="With --requantize: a zero point for each group.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a GPTQ, AWQ, compressed-tensors or xgemm directory SRC in another of these formats."""
    from xgemm.cli.convert import recipe, run

    run(source, destination, to, recipe(requantize, group_size, asymmetric), json)


@app.command()
def generate(
    directory: Annotated[
        Path,
        typer.Argument(
            exists=True, file_okay=False, metavar="DIR", help="An xgemm or a float directory."
        ),
    ],
    prompt: Annotated[str, typer.Argument(help="What to go on with, or to answer.")],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The text's greatest length.")] = 128,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0: always the likeliest token; above: sample.")
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Sample among the likeliest of this share.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Of sampling; fresh if absent.")] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Use the chat template; if there is one, if absent."),
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    no_verify: NoVerify = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Go on with a prompt: text as it comes, then tokens a second."""
    from xgemm.cli.generate import Sampling, run

    _set_threads(threads)
    run(
        directory,
        prompt,
        Sampling(max_new_tokens, temperature, top_p, seed),
        device=device,
        dtype=dtype,
        chat=chat,
        trust_remote_code=trust_remote_code,
        verify=not no_verify,
        as_json=json,
    )


@app.command("eval")
def evaluate(
    directory: Annotated[
        Path,
        typer.Argument(
            exists=True, file_okay=False, metavar="DIR", help="An xgemm or a float directory."
        ),
    ],
    text: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="UTF-8 text; Python's help topics if absent."
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="The float model to compare with."),
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=2, help="Tokens read at once; 1024 if absent.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens from window to window; half of one if absent.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Read no more of the text.")] = 8192,
    device: Device = "auto",
    dtype: Dtype = "auto",
    trust_remote_code: TrustRemoteCode = False,
    no_verify: NoVerify = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Perplexity of a text by sliding windows, beside the float model's."""
    from xgemm.cli.eval import Text, run

    _set_threads(threads)
    run(
        directory,
        reference,
        Text(text, window, stride, max_tokens),
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        verify=not no_verify,
        as_json=json,
    )


@app.command()
def inspect(
    directory: Annotated[Path, typer.Argument(exists=True, file_okay=False, metavar="DIR")],
    json: Json = False,
) -> None:
    """What an xgemm checkpoint holds."""
    from xgemm.cli.inspect import run

    run(directory, json)


@app.command()
def bench(
    family: Annotated[str, typer.Argument(help="mul, w4a16 or reduce.")],
    shapes: Annotated[
        str, typer.Option(help="Sets of shapes, separated by commas; 'help' lists them.")
    ] = "quick",
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    layouts: Annotated[
        str, typer.Option(help="mul: of a and b, n row-major, t column-major: nn, nt, tn.")
    ] = "nt",
    compiled: Annotated[
        bool, typer.Option("--compile", help="torch.compile too; seconds for each shape.")
    ] = False,
    rows: Annotated[
        str, typer.Option(help="mul, w4a16: M, separated by commas, of the sets of linears.")
    ] = "",
    group_size: Annotated[int, typer.Option(help="w4a16: 32, 64, 128 or -1.")] = 128,
    asymmetric: Annotated[
        bool, typer.Option("--asymmetric", help="w4a16: with integer zero points.")
    ] = False,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="w4a16: bits do not depend on M.")
    ] = False,
    ops: Annotated[str, typer.Option(help="reduce: which, separated by commas.")] = "",
    cub: Annotated[
        Path | None,
        typer.Option(exists=True, help="reduce: a library built from benchmarks/cub_reduce.cu."),
    ] = None,
    threads: Threads = None,
    seed: Annotated[int | None, typer.Option(help="Of what is random; fresh if absent.")] = None,
    json: Json = False,
    output: Annotated[Path | None, typer.Option(dir_okay=False, help="Write JSON here.")] = None,
    plot: Plot = None,
) -> None:
    """Time an op family against torch, checked against float64 before a time is taken."""
    from xgemm.bench.options import Options
    from xgemm.cli.bench import run

    options = Options(
        sets=shapes,
        dtype=dtype,
        device=device,
        seed=secrets.randbelow(2**31) if seed is None else seed,
        layouts=layouts,
        compile=compiled,
        rows=rows,
        ops=ops,
        cub=cub,
        group_size=group_size,
        asymmetric=asymmetric,
        batch_invariant=batch_invariant,
    )
    run(family, options, threads, json, output, plot)


@app.command()
def ladder(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Which; --list shows them. Or probes: what one thing costs on this GPU.",
            show_default=False,
        ),
    ] = None,
    size: Annotated[
        str, typer.Option(help="Sizes, separated by commas: N, MxNxK, or a count for reduce.")
    ] = "",
    rungs: Annotated[str, typer.Option(help="Which rungs, such as 0,3-5; all if absent.")] = "",
    listed: Annotated[bool, typer.Option("--list", help="List the rungs, and run none.")] = False,
    show: Annotated[
        int | None,
        typer.Option(help="Print this rung's source, and the diff to the rung before."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the operands.")] = 0,
    json: Json = False,
    output: Annotated[Path | None, typer.Option(dir_okay=False, help="Write JSON here.")] = None,
    measured: Annotated[
        Path | None,
        typer.Option("--from", dir_okay=False, help="Measure nothing: show what --output wrote."),
    ] = None,
    plot: Plot = None,
) -> None:
    """Climb from the plainest kernel to the product's, one optimisation step a rung."""
    from xgemm.cli.ladder import Output, list_ladders, replay, run, run_probes
    from xgemm.cli.ladder import show as show_rung

    if listed:
        list_ladders(name, json)
    elif name is None:
        raise typer.BadParameter("name a ladder; --list shows them")
    elif name == "probes":
        if size or rungs or show is not None or measured is not None:
            raise typer.BadParameter("probes have no sizes and no rungs, and no --from")
        run_probes(Output(json, output, plot))
    elif show is not None:
        show_rung(name, show)
    elif measured is not None:
        if size or rungs or output is not None:
            raise typer.BadParameter("--from measures nothing: no --size, --rungs or --output")
        replay(name, measured, Output(json, output, plot))
    else:
        run(name, size, rungs, seed, Output(json, output, plot))


@app.command(context_settings={"ignore_unknown_options": True})  # so that -1 is an argument
def layout(
    what: Annotated[
        list[str],
        typer.Argument(
            help="N K [GROUP_SIZE], or a name and its arguments: smem PATTERN [WIDTH]; ldmatrix"
            " MATRICES ROW_BYTES [PADDING [SWIZZLE]]; swizzle BYTES [SIZE]; mma INSTRUCTION"
            " OPERAND; tma RxC BOX_RxBOX_C ROW,COLUMN [ELEMENT_BYTES [SWIZZLE]]; w4 N K [GROUP_SIZE"
            " [COLUMN [CHANNEL]]]; order ORDER RxC WAVE [GROUP]; stripes NxK CTAS; algebra TEXT.",
        ),
    ],
    zeros: Annotated[bool, typer.Option("--zeros", help="The format stores zero points.")] = False,
    json: Json = False,
    svg: Annotated[Path | None, typer.Option(help="Write a name's picture to this file.")] = None,
    png: Annotated[Path | None, typer.Option(help="The same as PNG; needs matplotlib.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write one page that works without a network.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="smem: count turns on this GPU, too, by ncu or clock.")
    ] = False,
) -> None:
    """The packed layout of an N x K weight; or banks, swizzles, fragments, TMA boxes, orders of
    tiles, layout algebra."""
    from xgemm.cli import layout, layout_names

    if what[0].lstrip("-").isdecimal():
        numbers = what[:3]
        for text in numbers:
            if not text.lstrip("-").isdecimal():
                raise typer.BadParameter(f"N K [GROUP_SIZE] are integers, got {text!r}")
        if len(what) < 2 or len(what) > 3:
            raise typer.BadParameter(f"expected N K [GROUP_SIZE], k included; got {' '.join(what)}")
        n, k, group_size = (*map(int, numbers), 128)[:3]
        if n < 0 or k < 0:
            raise typer.BadParameter(f"N and K must be at least 0, got {n} and {k}")
        if svg or png or html:
            raise typer.BadParameter("--svg, --png and --html need a name: `xgemm layout w4 N K`")
        layout.run(n, k, group_size, zeros, json)
    else:
        layout_names.run(what[0], what[1:], json, layout_names.Files(svg, png, html), measure)
