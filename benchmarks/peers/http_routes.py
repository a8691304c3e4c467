"""HTTP servers that store nothing: a FastAPI route that takes the same mails, and a protocol that
reads nothing.
"""

import asyncio
import json
import socket
import sys
from typing import Annotated
from uuid import UUID, uuid4

import uvicorn
import uvloop
from fastapi import Body, FastAPI
from pydantic import BaseModel
from starlette.responses import Response

from pillarbox.api.new_message import NewMessage

PATH = "/api/v1/messages"
app, by_hand = FastAPI(), FastAPI()


class PeerDelivery(BaseModel):
    id: str
    recipient: str
    role: str
    state: str


class PeerAccepted(BaseModel):
    id: UUID
    deliveries: list[PeerDelivery]


@app.post(PATH, status_code=202)
async def accept(message: Annotated[NewMessage, Body()]) -> PeerAccepted:
    """As anyone would write it."""
    number = uuid4()
    deliveries = [
        PeerDelivery(id=f"{number}.{n}", recipient=to, role="to", state="queued")
        for n, to in enumerate(message.to)
    ]
    return PeerAccepted(id=number, deliveries=deliveries)


@by_hand.post(PATH, status_code=202)
async def accept_by_hand(message: Annotated[NewMessage, Body()]) -> Response:
    """The answer written as ours is."""
    number = str(uuid4())
    deliveries = [
        {"id": f"{number}.{n}", "recipient": to, "role": "to", "state": "queued"}
        for n, to in enumerate(message.to)
    ]
    answer = json.dumps({"id": number, "deliveries": deliveries})
    return Response(answer, 202, {"Location": f"{PATH}/{number}"}, "application/json")


class Bare(asyncio.Protocol):
    """Answers when a request's last octet is there; knows only the length that each has."""

    ANSWER = (
        b"HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\ncontent-length: 200\r\n\r\n"
        + b" " * 200
    )

    def connection_made(self, transport):
        self._transport = transport
        self._rest = b""

    def data_received(self, data):
        data = self._rest + data
        head = data.find(b"\r\n\r\n")
        length = (
            int(data[:head].partition(b"Content-Length: ")[2].split(b"\r\n", 1)[0])
            if head >= 0
            else 0
        )
        if head < 0 or len(data) < head + 4 + length:
            self._rest = data
            return
        self._rest = b""
        self._transport.write(self.ANSWER)


async def main(kind):
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    if kind == "bare":
        server = await asyncio.get_running_loop().create_server(Bare, sock=listener)
        await server.serve_forever()
    config = uvicorn.Config(
        {"fastapi": app, "by_hand": by_hand}[kind], http="httptools", ws="none", log_config=None, access_log=False,
        lifespan="off", proxy_headers=False, server_header=False,
    )  # fmt: skip
    await uvicorn.Server(config).serve(sockets=[listener])


uvloop.run(main(*sys.argv[1:]))
