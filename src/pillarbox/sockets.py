"""Listening sockets, with errors that name the setting to change."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping

from pillarbox.errors import SettingsError

# Connections that may wait to be accepted while the loop is busy; a burst of clients is larger
# than asyncio's default of 100.
BACKLOG = 1024


def show_address(host: str, port: int) -> str:
    """`host:port`, an IPv6 host in brackets."""
    if ":" in host:
        host = f"[{host}]"
    return f"{host}:{port}"


def listen(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket, or a SettingsError that names the setting to change."""
    shown = show_address(host, port)
    option = "--" + setting.replace("_", "-")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise SettingsError(f"cannot listen on {shown}: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            problem = f"{shown} is in use"
        else:
            problem = f"cannot listen on {shown} ({error.strerror})"
        raise SettingsError(f"{problem}: choose another with {option} HOST:PORT") from None
    return listener


def check_free(addresses: Mapping[str, tuple[str, int]]) -> None:
    """Raise a SettingsError that names every address that is in use, before anything starts."""
    problems = []
    for setting, (host, port) in addresses.items():
        try:
            listen(host, port, setting).close()
        except SettingsError as error:
            problems.append(str(error))
    if problems:
        raise SettingsError("\n".join(problems))
