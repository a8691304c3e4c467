"""The SMTP commands: each is a function of the state machine and the argument."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from pillarbox.accept.smtp import replies
from pillarbox.accept.smtp.actions import StartTls
from pillarbox.accept.smtp.paths import RefusedArgument, parse_recipient, parse_sender
from pillarbox.accept.smtp.sasl import MECHANISMS

if TYPE_CHECKING:
    from pillarbox.accept.smtp.machine import Machine

# What may stand in a Received line as a client's name: host names, addresses in brackets.
_plain_name = re.compile(rb"[A-Za-z0-9._:\[\]-]{1,255}").fullmatch
# The words with which HTTP begins. A web page must not make a browser speak SMTP to a port of this
# machine.
_HTTP = (
    b"GET",
    b"POST",
    b"PUT",
    b"HEAD",
    b"OPTIONS",
    b"DELETE",
    b"PATCH",
    b"CONNECT",
    b"TRACE",
    b"PRI",
)


def ehlo(machine: Machine, argument: bytes) -> None:
    _greet(machine, argument, True)


def helo(machine: Machine, argument: bytes) -> None:
    _greet(machine, argument, False)


def _greet(machine: Machine, argument: bytes, extended: bool) -> None:
    name = argument.strip()
    if not name:
        machine.refuse(replies.BAD_SYNTAX)
        return
    machine.let_go()
    machine.greeted_as = name.decode() if _plain_name(name) else "unknown"
    machine.extended = extended
    machine.say(replies.hello(machine.name, _offers(machine) if extended else []))


def _offers(machine: Machine) -> list[str]:
    offers = [f"SIZE {machine.most_octets}", "PIPELINING", "8BITMIME", "SMTPUTF8"]
    if machine.starttls and not machine.secure:
        offers.append("STARTTLS")
    if machine.takes_passwords:
        offers.append("AUTH " + " ".join(name.decode() for name in MECHANISMS))
    return [*offers, "ENHANCEDSTATUSCODES"]


def mail(machine: Machine, argument: bytes) -> None:
    policy = machine.policy
    if machine.greeted_as is None:
        machine.refuse(replies.NO_GREETING)
    elif policy is None:
        machine.refuse(
            replies.TLS_FIRST if machine.starttls and not machine.secure else replies.AUTH_FIRST
        )
    elif machine.sender is not None:
        machine.refuse(replies.BAD_SEQUENCE)
    elif machine.messages >= machine.limits.messages:
        machine.close(replies.TOO_MANY_MESSAGES)
    else:
        try:
            address, size, utf8 = parse_sender(argument)
        except RefusedArgument as refusal:
            machine.refuse(refusal.reply)
            return
        refused = replies.TOO_BIG if size > machine.most_octets else policy.refuse_sender(address)
        if refused is not None:
            machine.refuse(refused)
            return
        machine.sender = address
        machine.utf8 = utf8
        machine.say(replies.SENDER_OK)


def rcpt(machine: Machine, argument: bytes) -> None:
    policy = machine.policy
    if machine.sender is None or policy is None:
        machine.refuse(replies.BAD_SEQUENCE)
        return
    if len(machine.recipients) >= min(policy.max_recipients, machine.limits.recipients):
        machine.say(
            replies.TOO_MANY_RECIPIENTS
        )  # no error: clients send the rest in another mail (RFC 5321 4.5.3.1.10)
        return
    try:
        address = parse_recipient(argument, machine.utf8)
    except RefusedArgument as refusal:
        machine.refuse(refusal.reply)
        return
    refused = policy.refuse_recipient(address)
    if refused is not None:
        machine.refuse(refused)
        return
    machine.recipients.append(address)
    machine.say(replies.RECIPIENT_OK)


def data(machine: Machine, argument: bytes) -> None:
    if argument.strip():
        machine.refuse(replies.BAD_SYNTAX)
    elif not machine.recipients:
        machine.refuse(
            replies.NO_RECIPIENTS if machine.sender is not None else replies.BAD_SEQUENCE
        )
    else:
        machine.say(replies.GO_AHEAD)
        machine.begin_body()


def rset(machine: Machine, argument: bytes) -> None:
    machine.let_go()
    machine.say(replies.OK)


def noop(machine: Machine, argument: bytes) -> None:
    machine.say(replies.OK)


def quit_(machine: Machine, argument: bytes) -> None:
    machine.close(replies.GOODBYE)


def vrfy(machine: Machine, argument: bytes) -> None:
    machine.say(replies.CANNOT_VERIFY)


def help_(machine: Machine, argument: bytes) -> None:
    machine.say(replies.HELP)


def not_here(machine: Machine, argument: bytes) -> None:
    machine.refuse(replies.NOT_HERE)


def unknown(machine: Machine, argument: bytes) -> None:
    machine.refuse(replies.UNKNOWN)


def http(machine: Machine, argument: bytes) -> None:
    machine.close(replies.NOT_HTTP)


def starttls(machine: Machine, argument: bytes) -> None:
    if argument.strip():
        machine.refuse(replies.BAD_SYNTAX)
    elif not machine.starttls:
        machine.refuse(replies.NOT_HERE)
    elif machine.secure:
        machine.refuse(replies.BAD_SEQUENCE)
    else:
        machine.let_go()
        machine.say(replies.BEGIN_TLS)
        machine.wait_for_tls(StartTls())


def auth(machine: Machine, argument: bytes) -> None:
    if machine.greeted_as is None:
        machine.refuse(replies.NO_GREETING)
    elif machine.logged_in or machine.sender is not None:  # not within a mail: RFC 4954 4
        machine.refuse(replies.BAD_SEQUENCE)
    elif not machine.takes_passwords:
        is_needless = machine.anonymous_policy is not None and not machine.starttls
        machine.refuse(replies.NO_LOGIN_NEEDED if is_needless else replies.AUTH_NEEDS_TLS)
    else:
        mechanism, _, initial = argument.strip().partition(b" ")
        exchange = MECHANISMS.get(mechanism.upper())
        if exchange is None:
            machine.refuse(replies.BAD_MECHANISM)
        else:
            machine.begin_exchange(exchange(), initial.strip())


Command = Callable[["Machine", bytes], None]
COMMANDS: dict[bytes, Command] = {
    b"EHLO": ehlo,
    b"HELO": helo,
    b"MAIL": mail,
    b"RCPT": rcpt,
    b"DATA": data,
    b"RSET": rset,
    b"NOOP": noop,
    b"QUIT": quit_,
    b"VRFY": vrfy,
    b"EXPN": not_here,
    b"BDAT": not_here,
    b"ETRN": not_here,
    b"HELP": help_,
    b"STARTTLS": starttls,
    b"AUTH": auth,
    **dict.fromkeys(_HTTP, http),
}
