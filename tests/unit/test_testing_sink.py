"""The fast sink loses nothing, whatever the chunks, and writes down a mail before it accepts it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import cycle

import aiosmtplib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.testing.sink import FastSink, Recorder, Sink, main, read_records
from pillarbox.testing.smtp_client import raw_client

ENVELOPE = b"MAIL FROM:<a@x.test>\r\nRCPT TO:<b@x.test>\r\nRCPT TO:<c@x.test>\r\nDATA\r\n"


def mail(number: int) -> bytes:
    return b"Subject: hello\r\nx-number:\r\n %d\r\n\r\nX-Number: not me\r\n.\r\n" % number


class Lines(Recorder):
    """Keeps lines instead of writing them."""

    def __init__(self) -> None:
        self._headers = Recorder.patterns(["Message-ID", "Subject"])
        self.lines: list[bytes] = []

    def write(self, lines: list[bytes]) -> None:
        self.lines += lines


@settings(max_examples=200)
@given(
    st.lists(st.integers(1, 30), min_size=1),
    st.lists(
        st.lists(st.sampled_from([b".", b"\r\n", b"x", b"\n.\n", b"\r"])), min_size=1, max_size=4
    ),
)
def test_any_chunking_gives_the_same_mails_and_replies(sizes, bodies):
    contents = [
        b"Subject: s\r\nMessage-ID: <%d>\r\n\r\n%b\r\n" % (n, b"".join(b))
        for n, b in enumerate(bodies)
    ]
    stuffed = [content.replace(b"\r\n.", b"\r\n..") for content in contents]
    stream = (
        b"EHLO c\r\n" + b"".join(ENVELOPE + content + b".\r\n" for content in stuffed) + b"NOOP\r\n"
    )
    recorder, counts, replies, position = Lines(), [], b"", 0
    sink = FastSink(recorder, counts.append)
    for size in cycle(sizes):
        replies += sink.feed(stream[position : position + size])
        position += size
        if position >= len(stream):
            break
    assert sum(counts) == len(bodies)
    assert [line.split(b"\t", 1)[1] for line in recorder.lines] == [
        b"b@x.test c@x.test\t<%d>\ts\n" % n for n in range(len(bodies))
    ]
    assert replies == FastSink().feed(stream)


def test_an_empty_body_ends_at_once():
    counts: list[int] = []
    assert FastSink(accepted=counts.append).feed(b"DATA\r\n.\r\n").startswith(b"354")
    assert counts == [1]


async def test_counts_in_process():
    async with Sink() as sink:
        async with aiosmtplib.SMTP(hostname=sink.host, port=sink.port) as client:
            for _ in range(3):
                await client.sendmail("a@x.test", ["b@x.test"], b"Subject: hello\r\n\r\nhello\r\n")
        await sink.wait_for(3)
        async with raw_client(sink.host, sink.port) as idle:
            await idle.reply()
    assert sink.count == 3


async def test_an_endless_command_is_cut_off():
    async with Sink() as sink, raw_client(sink.host, sink.port) as client:
        await client.reply()
        assert await client.say(b"x" * 20_000) == ""


@contextmanager
def sink_process(*options: str):
    command = [sys.executable, "-m", "pillarbox.testing.sink", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


async def test_prints_port_and_count():
    with sink_process() as (process, port):
        async with raw_client("127.0.0.1", port) as client:
            await client.greet()
            client.write(ENVELOPE + mail(1) + ENVELOPE + mail(2))
            assert await client.codes(10) == ["250", "250", "250", "354", "250"] * 2
        process.terminate()
        assert process.stdout.read() == "2\n"
        assert process.wait() == 0


async def test_a_record_outlives_a_kill_right_after_the_250(tmp_path):
    path = tmp_path / "mails.txt"
    with sink_process("--out", str(path), "--record", "X-Number", "Message-ID") as (process, port):
        async with raw_client("127.0.0.1", port) as client:
            await client.greet()
            client.write(ENVELOPE + mail(7))
            assert (await client.codes(5))[-1] == "250"
            os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    (record,) = read_records(path)
    assert (record.recipients, record.headers) == (["b@x.test", "c@x.test"], ["7", ""])
    assert 0 < record.at <= asyncio.get_running_loop().time()


def test_a_line_cut_off_is_left_out(tmp_path):
    path = tmp_path / "mails.txt"
    path.write_bytes(b"1.5\tb@x\t<1>\n2.5\tb@x")
    assert [record.headers for record in read_records(path)] == [["<1>"]]


def test_recording_needs_a_file(capsys):
    with pytest.raises(SystemExit):
        main(["--record"])
    assert "--record needs --out" in capsys.readouterr().err
