"""thresher serve: runs behind HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from thresher.cli.options import Device, Dial, Dtype, IsReranker, MaxLength


def serve(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="folders, or NAME=FOLDER; one server for all")],
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 for all of the machine's")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0 takes a free one")] = 8080,
    device: Device = "auto",
    dtype: Dtype = "auto",
    dial: Dial = 1.0,
    max_length: MaxLength = None,
    rerank: IsReranker = False,
    threads: Annotated[int | None, typer.Option(help="processor threads; default: all cores", min=1)] = None,
    timeout: Annotated[float, typer.Option(help="seconds that a request may take")] = 30.0,
    max_queue_tokens: Annotated[int, typer.Option(help="tokens that may wait, whatever the pace")] = 4_000_000,
    batch_seconds: Annotated[float, typer.Option(help="about how long a batch should take")] = 0.1,
    max_body_mb: Annotated[float, typer.Option(help="largest request, in MiB")] = 8.0,
    connections: Annotated[int, typer.Option(help="open connections at most")] = 1024,
    degrade: Annotated[
        bool, typer.Option("--degrade", help="under load, a faster dial before anybody is refused; needs bench --gears")
    ] = False,
    min_agreement: Annotated[float, typer.Option(help="with --degrade: least agreement with the dense model")] = 0.95,
    on_drift: Annotated[str, typer.Option(help="where texts are not like the calibration's: warn or dense")] = "warn",
    shadow: Annotated[float, typer.Option(help="share of texts that the dense model computes too, when idle")] = 0.0,
    api_key_file: Annotated[
        Path | None, typer.Option(help="file with the key that clients must send; or set THRESHER_API_KEY")
    ] = None,
    warm_up: Annotated[float, typer.Option(help="seconds at most to prepare a GPU, before listening")] = 120.0,
    patience: Annotated[float, typer.Option(help="seconds of silence before an engine counts as stuck")] = 30.0,
    drain: Annotated[float, typer.Option(help="seconds for what was let in, when told to end")] = 30.0,
    unready: Annotated[float, typer.Option(help="seconds between /readyz saying so and the end")] = 0.0,
    log_level: Annotated[str, typer.Option(help="debug, info (a line for each request), warning, error")] = "info",
) -> None:
    """Serve runs to clients of text-embeddings-inference, OpenAI, Cohere, Jina, vLLM and huggingface_hub.

    SIGTERM ends it when all it let in is answered; SIGHUP loads the runs anew. A page to try it is at /.

    Example: thresher serve runs/demo
    """
    from thresher.cli.output import console
    from thresher.jobs.serve import ServeRequest
    from thresher.jobs.serve import serve as run

    request = ServeRequest(
        runs=runs,
        host=host,
        port=port,
        device=device,
        dtype=dtype,
        dial=dial,
        max_length=max_length,
        rerank=rerank,
        threads=threads,
        timeout=timeout,
        max_queue_tokens=max_queue_tokens,
        batch_seconds=batch_seconds,
        max_body_mb=max_body_mb,
        connections=connections,
        degrade=degrade,
        min_agreement=min_agreement,
        on_drift=on_drift,
        shadow=shadow,
        api_key_file=api_key_file,
        warm_up=warm_up,
        patience=patience,
        drain=drain,
        unready=unready,
        log_level=log_level,
    )
    screen = console(True)
    run(request, note=lambda text: screen.print(text, markup=False, soft_wrap=True))
