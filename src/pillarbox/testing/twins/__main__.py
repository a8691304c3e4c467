"""A twin as a process of its own.

    python -m pillarbox.testing.twins sendgrid --port 0 --latency 0.02

prints its URL, its settings and its secrets as JSON on the first line; SIGTERM or Ctrl-C makes it
print how it went and exit 0. While it runs, other processes may turn its dials: PUT
{url}/_twin/dials with a JSON object, GET {url}/_twin. With --out, the line of a mail is written
before the mail is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import signal
from collections.abc import Sequence
from typing import Any, get_args

from pillarbox.testing.twins import TWINS, Dials, FeedbackDials, Twin
from pillarbox.testing.twins.dials import Drop, Trouble
from pillarbox.testing.twins.mail import Recorder

try:
    import uvloop
except ImportError:  # not made for Windows
    uvloop = None  # type: ignore[assignment,unused-ignore]


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    recorder = Recorder(options.out) if options.out else None
    twin = TWINS[options.kind](
        _dials(options),
        host=options.host,
        port=options.port,
        webhook_url=options.webhook_url,
        feedback=_feedback(options),
        keep=options.keep,
        recorder=recorder,
    )
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # requests make many short-lived objects and no cycles
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
        runner.run(_run(twin))
    if recorder is not None:
        recorder.close()


async def _run(twin: Twin) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with twin:
        print(json.dumps(_introduction(twin)), flush=True)
        await stopped.wait()
        state = twin.state()
    print(json.dumps(state), flush=True)


def _introduction(twin: Twin) -> dict[str, Any]:
    return {
        "kind": twin.kind,
        "url": twin.url,
        "settings": twin.provider_settings(),
        "secret": twin.secret,
        "webhook_secret": twin.webhook_secret,
    }


def _dials(options: argparse.Namespace) -> Dials:
    return Dials(
        status=options.fail,
        retry_after=options.retry_after,
        hang=options.hang,
        latency=options.latency,
        drop=options.drop,
        times=options.times,
        trouble=options.trouble,
        share=options.share,
    )


def _feedback(options: argparse.Namespace) -> FeedbackDials | None:
    if options.webhook_url is None:
        return None
    return FeedbackDials(
        bounced=options.bounced,
        complained=options.complained,
        duplicate=options.duplicate,
        delay=options.delay,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pillarbox.testing.twins", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("kind", choices=TWINS)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument(
        "--keep",
        type=int,
        default=1000,
        metavar="N",
        help="mails kept in memory, the newest (1000)",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="append a line for each accepted mail to this file"
    )
    dials = parser.add_argument_group("dials")
    dials.add_argument(
        "--latency", type=float, default=0.0, metavar="S", help="seconds before each answer"
    )
    dials.add_argument("--fail", type=int, metavar="STATUS", help="answer this status")
    dials.add_argument("--retry-after", type=float, metavar="S", help="with this header")
    dials.add_argument(
        "--trouble", choices=get_args(Trouble), help="the service's own answer for that"
    )
    dials.add_argument("--hang", action="store_true", help="never answer")
    dials.add_argument(
        "--drop", choices=get_args(Drop), help="close the connection before or after accepting"
    )
    dials.add_argument("--share", type=float, default=1.0, help="of the sends that fail so (1)")
    dials.add_argument("--times", type=int, metavar="N", help="for how many sends the dials hold")
    feedback = parser.add_argument_group("feedback")
    feedback.add_argument(
        "--webhook-url", metavar="URL", help="tell what becomes of each mail there"
    )
    feedback.add_argument("--bounced", type=float, default=0.0, metavar="SHARE")
    feedback.add_argument("--complained", type=float, default=0.0, metavar="SHARE")
    feedback.add_argument("--duplicate", type=float, default=0.0, metavar="SHARE")
    feedback.add_argument(
        "--delay", type=float, default=0.0, metavar="S", help="seconds before the first event"
    )
    return parser


if __name__ == "__main__":
    main()
