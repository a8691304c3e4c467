"""Header sections of raw mails, with the domains that their readers take for those of senders."""

from __future__ import annotations

DOMAINS: list[tuple[bytes, set[str]]] = [
    (
        b"From: A <a@x.example>, b@y.example\r\nSender: c@z.example",
        {"x.example", "y.example", "z.example"},
    ),
    (b"From: a@x.example\r\nFrom: b@y.example", {"x.example", "y.example"}),
    (b'FROM: "a@x.example"\r\n <b@y.example>', {"x.example", "y.example"}),
    (b"From : a@x.example\r\nX: y\r\n From: no@where.example", {"x.example"}),
    (b"From: a@x.example (b@y.example)", {"x.example", "y.example"}),
    (b"From: a@x.example@y.example", {"x.example", "y.example"}),
    (b"From: a @ x.example", {"x.example"}),
    (b"From: Group: a@x.example, b@y.example;", {"x.example", "y.example"}),
    (b"From: <@x.example,@y.example:a@z.example>", {"x.example", "y.example", "z.example"}),
    (b"From: a@", {""}),
    (b"From: nobody", set()),
    (b"From: a@[192.0.2.1]", {"[192.0.2.1]"}),
    (b'From: a@"x.example"', {""}),
    (b'From: "Ann @ Acme, @acme" <a@x.example>', {"x.example"}),
    (b'From: "Ann @ acme.example" <a@x.example>', {"acme.example", "x.example"}),
    (b"From: =?utf-8?q?ceo=40y.example?= <a@x.example>", {"x.example", "y.example"}),
    (b"From: =?utf-8?b?Y2VvQHkuZXhhbXBsZQ?= <a@x.example>", {"x.example", "y.example"}),
    (
        b"From: =?utf-8?q?ceo=40?=\r\n =?utf-8?q?y.example?= <a@x.example>",
        {"x.example", "y.example"},
    ),
    (b"From: =?utf-8?q?ceo @y.example?= <a@x.example>", {"x.example", "y.example", "y.example?="}),
    (b'From: "=?utf-8?q?ceo=40y.example?=" <a@x.example>', {"x.example", "y.example"}),
    (b"From: =?utf-7?q?ceo+AEA-y.example?= <a@x.example>", {"x.example", "y.example"}),
    (
        b"From: =?punycode?q?ceo=40y.example-?= <a@x.example>",
        {"x.example", "y.example", "y.example-"},
    ),
    ("From: ceo\uff20y\u3002example <a@x.example>".encode(), {"x.example", "y.example"}),
    ('From: "ceo@\u200by.example" <a@x.example>'.encode(), {"x.example", "y.example"}),
    (b"X-From: a@x.example\r\nReply-To: b@y.example", set()),
    (b"Resent-From: a@x.example\r\nFrom: b@y.example", {"x.example", "y.example"}),
    (b"Resent-Sender: a@x.example", {"x.example"}),
    (b"Text without any field, of a@x.example", set()),
]
# Readers disagree about the senders of these.
UNCLEAR: list[bytes] = [
    b"From: a@x.example (b@y.example",
    b'From: (") <ceo @ y.example> (") <a@x.example>',
    b"From: a@x.example (b (c))",
    b'From: "a <a@x.example>',
    b"From: a@x.example .y.example",
    b"From: a@x (comment) .y.example",
    b"From: =?unknown?q?ceo=40y.example?= <a@x.example>",
    b'From: \\"a <a@x.example>',
    b"no field\r\nFrom: a@x.example",
    b" From: a@x.example\r\nX: y",
    b"From a@y.example Mon Nov 16 18:00:00 2026\r\nFrom: a@x.example",
    b"Fr\xc3\xb6m: a@x.example\r\nX: y",
    b"X: \xff\r\nFrom: a@x.example",
    b"X: y\x0bFrom: a@y.example",
    "X: y\u2028From: a@y.example".encode(),
    "X: y\x85From: a@y.example".encode(),
]
# Charsets that PostgreSQL does not know: in SQL these are unclear.
PYTHON_ONLY = (b"=?utf-7?", b"=?punycode?")
