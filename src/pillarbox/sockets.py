"""Sockets that listen, and errors that say what to do where they cannot."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping

from pillarbox.errors import SettingsError

# Connections that may wait to be taken while the loop is busy; a burst of clients is larger than
# asyncio's 100.
BACKLOG = 1024


def show_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket, or an error that names the setting by which to choose another place."""
    where, option = show_address(host, port), "--" + setting.replace("_", "-")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise SettingsError(f"cannot listen on {where}: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        reason = (
            "is in use"
            if error.errno == errno.EADDRINUSE
            else f"cannot be listened on ({error.strerror})"
        )
        raise SettingsError(f"{where} {reason}: choose another with {option} HOST:PORT") from None
    return listener


def check_free(addresses: Mapping[str, tuple[str, int]]) -> None:
    """Raise an error that names every address, by its setting, that cannot be listened on, before anything starts."""
    problems = []
    for setting, (host, port) in addresses.items():
        try:
            listen(host, port, setting).close()
        except SettingsError as error:
            problems.append(str(error))
    if problems:
        raise SettingsError("\n".join(problems))
