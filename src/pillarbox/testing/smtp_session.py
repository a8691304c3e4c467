"""One client's conversation with the scripted SMTP server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pillarbox.testing.smtp_dialogue import GO_AHEAD_TLS, Dialogue, Host, code_of
from pillarbox.testing.smtp_mail import Envelope, ReceivedMail
from pillarbox.testing.smtp_syntax import (
    Path,
    content_violations,
    decode_base64,
    encode_base64,
    parse_path,
    unstuff,
)
from pillarbox.testing.smtp_wire import Gone, Wire

if TYPE_CHECKING:
    from pillarbox.testing.smtp_faults import Stage

# RFC 4954 4: a line of an AUTH exchange may have 12,288 octets, the longest any command has.
_MAX_COMMAND = 12_288


class Session(Dialogue):
    """The state of one connection; what a callable dial is given."""

    def __init__(
        self,
        host: Host,
        wire: Wire,
        number: int,
    ) -> None:
        super().__init__(host, wire, number)
        self.helo = ""
        self.username: str | None = None
        self.envelope: Envelope | None = None
        self.mails = 0  # accepted on this connection

    @property
    def tls(self) -> bool:
        return self.wire.tls

    async def run(self) -> None:
        """Talk until either side ends it."""
        try:
            await self._greet()
            while True:
                await self._obey(await self._read_command())
        except Gone:
            pass
        finally:
            self.wire.close()

    async def _greet(self) -> None:
        limit = self.host.faults.concurrent_connections
        full = limit is not None and self.host.open_connections > limit
        usual = f"220 {self.host.hostname} ESMTP"
        if full:
            usual = "421 4.7.0 too many connections"
        code = await self.answer("connect", usual)
        if code == "554":  # RFC 5321 3.1: such a server waits for QUIT and refuses everything else
            while (await self._read_command()).upper() != "QUIT":
                self.write("503 5.5.1 no service here")
            self.write("221 2.0.0 bye")
            raise Gone

    async def _read_command(self) -> str:
        while (line := await self.wire.read_line(_MAX_COMMAND)) is None:
            self.violation("a command line is too long")
            self.write("500 5.5.2 line too long")
        if not line.endswith(b"\r\n"):
            self.violation("bare LF ends a command")
        text = line.rstrip(b"\r\n").decode(errors="surrogateescape")
        self.host.saw(text, tls=self.tls)
        return text

    async def _obey(self, line: str) -> None:
        verb, _, argument = line.partition(" ")
        handler = _HANDLERS.get(verb.upper())
        if handler is None:
            self.violation(f"unknown command {verb[:20]!r}")
            self.write("500 5.5.1 unknown command")
        else:
            await handler(self, argument)

    # greeting, TLS, login

    async def _ehlo(self, argument: str) -> None:
        if self.host.extensions.helo_only:
            await self.answer("ehlo", "502 5.5.1 EHLO is not implemented")
            return
        lines = [self.host.hostname, *self._offers()]
        usual = "\n".join(f"250{'-' if line is not lines[-1] else ' '}{line}" for line in lines)
        await self._greeted("ehlo", usual, argument)

    async def _helo(self, argument: str) -> None:
        await self._greeted("helo", f"250 {self.host.hostname}", argument)

    async def _greeted(
        self,
        stage: Stage,
        usual: str,
        argument: str,
    ) -> None:
        if not argument:
            usual = "501 5.5.4 say who you are"
        if (await self.answer(stage, usual, argument)).startswith("2"):
            self.helo, self.extended, self.envelope = argument, stage == "ehlo", None

    def _offers(self) -> list[str]:
        offered = self.host.extensions
        size = "SIZE"
        if offered.size:
            size = f"SIZE {offered.size}"
        lines = {
            "PIPELINING": offered.pipelining,
            size: offered.size is not None,
            "8BITMIME": offered.eight_bit_mime,
            "SMTPUTF8": offered.smtputf8,
            "ENHANCEDSTATUSCODES": offered.enhanced_status_codes,
            "STARTTLS": self._may_start_tls(),
            f"AUTH {' '.join(offered.mechanisms)}": self._may_log_in(),
        }
        return [line for line, is_offered in lines.items() if is_offered]

    def _may_start_tls(self) -> bool:
        return self.host.extensions.starttls is not None and not self.tls

    def _may_log_in(self) -> bool:
        offered = self.host.extensions
        return (offered.users is not None or offered.any_login) and (
            self.tls or not offered.auth_needs_tls
        )

    async def _starttls(self, argument: str) -> None:
        usual = GO_AHEAD_TLS
        if not self._may_start_tls():
            self.violation("STARTTLS was not offered")
            usual = "503 5.5.1 STARTTLS is not offered"
        if (await self.answer("starttls", usual, argument)) == "220":
            # TLS resets the session; commands that were sent ahead in clear text are dropped.
            self.wire.buffer.clear()
            self.helo, self.extended, self.username, self.envelope = "", False, None, None
            context = self.host.extensions.starttls
            assert context is not None
            await self.wire.start_tls(context)

    async def _auth(self, argument: str) -> None:
        mechanism, _, initial = argument.partition(" ")
        if not self._may_log_in():
            self.violation("AUTH was not offered")
            usual = "503 5.5.1 AUTH is not offered"
            if self.host.extensions.auth_needs_tls and not self.tls:
                usual = "538 5.7.11 not in clear"
            await self.answer("auth", usual)
        elif mechanism.upper() not in self.host.extensions.mechanisms:
            await self.answer("auth", "504 5.5.4 no such mechanism")
        elif self.username is not None:
            await self.answer("auth", "503 5.5.1 already logged in")
        elif mechanism.upper() == "PLAIN":
            await self._logged_in(await self._auth_plain(initial))
        else:
            await self._logged_in(await self._auth_login(initial))

    async def _auth_plain(self, initial: str) -> tuple[str, str] | None:
        text = decode_base64(initial or await self._prompt(""))
        parts = (text or "").split("\0")
        if len(parts) != 3:
            return None
        return parts[1], parts[2]

    async def _auth_login(self, initial: str) -> tuple[str, str] | None:
        username = decode_base64(initial or await self._prompt("Username:"))
        password = decode_base64(await self._prompt("Password:"))
        if username is None or password is None:
            return None
        return username, password

    async def _prompt(self, text: str) -> str:
        self.write(f"334 {encode_base64(text)}")
        return await self._read_command()

    async def _logged_in(self, login: tuple[str, str] | None) -> None:
        if login is None:
            await self.answer("auth", "501 5.5.2 cannot read that")
            return
        offered = self.host.extensions
        usual = "535 5.7.8 bad credentials"
        if offered.any_login or (offered.users or {}).get(login[0]) == login[1]:
            usual = "235 2.7.0 welcome"
        if (await self.answer("auth", usual, login[0])).startswith("2"):
            self.username = login[0]

    # the transaction

    async def _mail(self, argument: str) -> None:
        path = parse_path(argument, "FROM")
        usual = self._mail_refusal(path) or "250 2.1.0 sender OK"
        if (await self.answer("mail", usual, argument)).startswith("2") and path:
            self.envelope = Envelope(path.address, path.parameters)

    def _mail_refusal(self, path: Path | None) -> str | None:
        if not self.helo:
            self.violation("MAIL before EHLO or HELO")
            return "503 5.5.1 greet first"
        if self.envelope is not None:
            self.violation("MAIL inside a transaction")
            return "503 5.5.1 one mail at a time"
        if self.mails == self.host.faults.mails_per_connection:
            return "421 4.7.0 enough mails for one connection"
        if self.host.extensions.auth_required and self.username is None:
            return "530 5.7.0 authentication required"
        return self._path_refusal(path, path.parameters if path else {}) or self._parameter_refusal(
            path
        )

    def _path_refusal(self, path: Path | None, mail_parameters: dict[str, str]) -> str | None:
        if path is None:
            self.violation("cannot parse the argument of MAIL or RCPT")
            return "501 5.5.4 cannot parse that"
        if path.spaced:
            self.violation("a space after the colon of MAIL or RCPT")
        if not path.address.isascii() and "SMTPUTF8" not in mail_parameters:
            self.violation("non-ASCII address without SMTPUTF8")
            return "553 5.6.7 that address needs SMTPUTF8"
        return None

    def _parameter_refusal(self, path: Path | None) -> str | None:
        parameters = path.parameters if path else {}
        if unknown := parameters.keys() - self._mail_parameters():
            self.violation(f"MAIL parameter {min(unknown)} was not offered")
            return "555 5.5.4 unknown parameter"
        if parameters.get("BODY", "7BIT").upper() not in {"7BIT", "8BITMIME"}:
            return "501 5.5.4 unknown BODY"
        declared = parameters.get("SIZE", "0")
        if not declared.isdecimal():
            return "501 5.5.4 SIZE is a number"
        return self._size_refusal(int(declared))

    def _mail_parameters(self) -> set[str]:
        offered = self.host.extensions
        names = {
            "SIZE": offered.size is not None,
            "BODY": offered.eight_bit_mime,
            "SMTPUTF8": offered.smtputf8,
            "AUTH": self._may_log_in(),
        }
        return {name for name, is_offered in names.items() if is_offered and self.extended}

    def _size_refusal(self, size: int) -> str | None:
        limit = self.host.extensions.size
        if limit and size > limit:
            return "552 5.3.4 too big"
        return None

    async def _rcpt(self, argument: str) -> None:
        path, envelope = parse_path(argument, "TO"), self.envelope
        if envelope is None:
            await self.answer("rcpt", "503 5.5.1 MAIL first", argument)
            return
        envelope.tried += 1
        usual = self._path_refusal(path, envelope.parameters) or "250 2.1.5 recipient OK"
        if path and path.parameters:
            self.violation(f"RCPT parameter {min(path.parameters)} was not offered")
            usual = "555 5.5.4 unknown parameter"
        code = await self.answer(
            "rcpt",
            usual,
            argument,
            path and path.address,
        )
        if code.startswith("2") and path:
            envelope.recipients.append(path.address)
            envelope.recipient_parameters.append(path.parameters)

    async def _data(self, argument: str) -> None:
        usual = self._data_refusal() or "354 end with a dot"
        if await self.answer("data", usual, argument) == "354":
            data = await self.wire.read_data()
            await self._received(data)
            self.envelope = None

    def _data_refusal(self) -> str | None:
        if self.envelope is None or not self.envelope.tried:
            return "503 5.5.1 MAIL and RCPT first"
        if not self.envelope.recipients and not self.host.faults.data_without_recipients:
            return "554 5.5.1 no valid recipients"
        return None

    async def _received(self, data: bytes) -> None:
        envelope = self.envelope
        assert envelope is not None
        utf8 = "SMTPUTF8" in envelope.parameters
        eight_bit = envelope.parameters.get("BODY", "").upper() == "8BITMIME"
        for text in content_violations(data, eight_bit=eight_bit, utf8=utf8):
            self.violation(text)
        content = unstuff(data)  # RFC 1870 counts bytes without the transparency dots
        usual = self._size_refusal(len(content))
        if not envelope.recipients:
            usual = "554 5.5.1 no valid recipients"
        if usual is None:
            usual = f"250 2.0.0 stored as {self.number}.{self.mails + 1}"
        fault = await self.choose("body", usual, "")
        if code_of(fault, usual).startswith("2") or getattr(fault, "stored", False):
            # Kept before the reply: a client that saw 250 can find it at once.
            self._store(envelope, content)
        await self.perform(fault, usual)

    def _store(self, envelope: Envelope, content: bytes) -> None:
        self.mails += 1
        mail = ReceivedMail(
            sender=envelope.sender,
            recipients=tuple(envelope.recipients),
            content=content,
            helo=self.helo,
            tls=self.tls,
            username=self.username,
            connection=self.number,
            parameters=envelope.parameters,
            recipient_parameters=tuple(envelope.recipient_parameters),
        )
        self.host.store(mail)

    # the rest

    async def _rset(self, argument: str) -> None:
        if (await self.answer("rset", "250 2.0.0 forgotten", argument)).startswith("2"):
            self.envelope = None

    async def _noop(self, argument: str) -> None:
        await self.answer("noop", "250 2.0.0 OK", argument)

    async def _quit(self, argument: str) -> None:
        await self.answer("quit", "221 2.0.0 bye", argument)
        raise Gone


_HANDLERS: dict[str, Callable[[Session, str], Awaitable[None]]] = {
    "EHLO": Session._ehlo,
    "HELO": Session._helo,
    "STARTTLS": Session._starttls,
    "AUTH": Session._auth,
    "MAIL": Session._mail,
    "RCPT": Session._rcpt,
    "DATA": Session._data,
    "RSET": Session._rset,
    "NOOP": Session._noop,
    "QUIT": Session._quit,
}
