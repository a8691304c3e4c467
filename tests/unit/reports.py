"""Reports as mail servers write them, in our own words: one of each shape that is met."""

from __future__ import annotations

from uuid import UUID

MESSAGE = UUID("0198c5a2-7d7e-7b0c-9e55-0c2f0c3d7a11")
MESSAGE_ID = f"<{MESSAGE.hex}@shop.example>"
ADA = "ada@mail.example"


def crlf(text: str) -> bytes:
    return text.lstrip("\n").replace("\n", "\r\n").encode()


POSTFIX = crlf(f"""
Return-Path: <>
Received: by mx1.relay.example (Postfix) id 4Bq1Zz0abc; Sun, 15 Nov 2026 10:00:05 +0000 (UTC)
Date: Sun, 15 Nov 2026 10:00:05 +0000 (UTC)
From: MAILER-DAEMON@relay.example (Mail Delivery System)
Subject: Undelivered Mail Returned to Sender
To: sender@shop.example
Auto-Submitted: auto-replied
MIME-Version: 1.0
Content-Type: multipart/report; report-type=delivery-status;
\tboundary="4Bq1Zz0abc.1763200805/mx1.relay.example"
Message-Id: <20261115100005.4Bq1Zz0abc@mx1.relay.example>

This is a MIME-encapsulated message.

--4Bq1Zz0abc.1763200805/mx1.relay.example
Content-Description: Notification
Content-Type: text/plain; charset=us-ascii

The mail system at host mx1.relay.example could not deliver your message.

<{ADA}>: host mx.mail.example[192.0.2.7] said: 550 5.1.1
    <{ADA}>: Recipient address rejected: User unknown (in reply to RCPT TO command)

--4Bq1Zz0abc.1763200805/mx1.relay.example
Content-Description: Delivery report
Content-Type: message/delivery-status

Reporting-MTA: dns; mx1.relay.example
X-Postfix-Queue-ID: 4Bq1Zz0abc
X-Postfix-Sender: rfc822; sender@shop.example
Arrival-Date: Sun, 15 Nov 2026 10:00:01 +0000 (UTC)

Final-Recipient: rfc822; forwarded@elsewhere.example
Original-Recipient: rfc822;{ADA}
Action: failed
Status: 5.1.1
Remote-MTA: dns; mx.mail.example
Diagnostic-Code: smtp; 550 5.1.1 <{ADA}>: Recipient address
    rejected: User unknown

--4Bq1Zz0abc.1763200805/mx1.relay.example
Content-Description: Undelivered Message Headers
Content-Type: text/rfc822-headers

Return-Path: <sender@shop.example>
Received: from app.shop.example (unknown [192.0.2.9]) by mx1.relay.example; Sun, 15 Nov 2026 10:00:01 +0000
From: Sender <sender@shop.example>
To: {ADA}
Subject: Hello
Message-ID: {MESSAGE_ID}

--4Bq1Zz0abc.1763200805/mx1.relay.example--
""")

POSTFIX_DELAYED = POSTFIX.replace(b"Action: failed", b"Action: delayed").replace(b"5.1.1", b"4.4.1")
POSTFIX_DELIVERED = POSTFIX.replace(b"Action: failed", b"Action: delivered").replace(
    b"5.1.1", b"2.0.0"
)
POSTFIX_FULL = POSTFIX.replace(b"5.1.1", b"5.2.2").replace(b"User unknown", b"over quota")

EXIM = crlf(f"""
Return-path: <>
Envelope-to: sender@shop.example
X-Failed-Recipients: {ADA}
Auto-Submitted: auto-replied
From: Mail Delivery System <Mailer-Daemon@exim.example>
To: sender@shop.example
References: {MESSAGE_ID}
Content-Type: multipart/report; report-type=delivery-status; boundary=1763200805-eximdsn-42
MIME-Version: 1.0
Subject: Mail delivery failed: returning message to sender
Date: Sun, 15 Nov 2026 10:00:05 +0000

--1763200805-eximdsn-42
Content-type: text/plain; charset=us-ascii

A message that you sent could not be delivered to one or more of its recipients.

  {ADA}
    host mx.mail.example [192.0.2.7]
    SMTP error from remote mail server after RCPT TO:<{ADA}>:
    550 No such user here

--1763200805-eximdsn-42
Content-type: message/delivery-status

Reporting-MTA: dns; exim.example

Action: failed
Final-Recipient: rfc822;{ADA}
Status: 5.0.0
Remote-MTA: dns; mx.mail.example
Diagnostic-Code: smtp; 550 No such user here

--1763200805-eximdsn-42
Content-type: message/rfc822

From: Sender <sender@shop.example>
Message-ID: {MESSAGE_ID}
Subject: Hello

Hi!

--1763200805-eximdsn-42--
""")

EXIM_OLD = crlf(f"""
X-Failed-Recipients: {ADA},
  bob@mail.example
From: Mail Delivery System <Mailer-Daemon@exim.example>
To: sender@shop.example
Subject: Mail delivery failed: returning message to sender
Date: Sun, 15 Nov 2026 10:00:05 +0000

This message was created automatically by mail delivery software.

A message that you sent could not be delivered. The following addresses failed:

  {ADA}
    550 5.1.1 unknown user
  bob@mail.example
    552 5.2.2 mailbox full

------ This is a copy of the message, including all the headers. ------

Return-path: <sender@shop.example>
From: Sender <sender@shop.example>
Message-ID: {MESSAGE_ID}

Hi!
""")

EXCHANGE = crlf(f"""
From: postmaster@corp.example
To: sender@shop.example
Date: Sun, 15 Nov 2026 10:00:05 +0000
Content-Type: multipart/report; report-type=delivery-status;
\tboundary="_5f2d1c3b-9a01-4f52-8e3c-2b6f0c1d7e88_"
Content-Language: en-US
Message-ID: <5f2d1c3b@corp.example>
In-Reply-To: {MESSAGE_ID}
References: {MESSAGE_ID}
Subject: Undeliverable: Hello
Auto-Submitted: auto-replied
MIME-Version: 1.0

--_5f2d1c3b-9a01-4f52-8e3c-2b6f0c1d7e88_
Content-Type: multipart/alternative; differences=Content-Type;
\tboundary="_inner_"

--_inner_
Content-Type: text/plain; charset="us-ascii"
Content-Transfer-Encoding: quoted-printable

Delivery has failed to these recipients or groups: Ada

--_inner_
Content-Type: text/html; charset="us-ascii"

<p>Delivery has failed</p>

--_inner_--

--_5f2d1c3b-9a01-4f52-8e3c-2b6f0c1d7e88_
Content-Type: message/delivery-status

Reporting-MTA: dns;EX01.corp.example
Received-From-MTA: dns;mx.corp.example
Arrival-Date: Sun, 15 Nov 2026 10:00:01 +0000

Final-Recipient: RFC822;{ADA.upper()}
Action: Failed
Status: 5.1.10
Diagnostic-Code: smtp;550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient not found by SMTP address lookup
X-Display-Name: Ada

--_5f2d1c3b-9a01-4f52-8e3c-2b6f0c1d7e88_
Content-Type: message/rfc822

From: Sender <sender@shop.example>
Message-ID: {MESSAGE_ID}
Content-Type: multipart/mixed; boundary="deeper"

--deeper
Content-Type: text/plain

Hi!
--deeper--

--_5f2d1c3b-9a01-4f52-8e3c-2b6f0c1d7e88_--
""")

GMAIL = crlf(f"""
Delivered-To: sender@shop.example
Return-Path: <>
From: Mail Delivery Subsystem <mailer-daemon@googlemail.com>
To: sender@shop.example
Auto-Submitted: auto-replied
Subject: Delivery Status Notification (Failure)
References: {MESSAGE_ID}
In-Reply-To: {MESSAGE_ID}
X-Failed-Recipients: {ADA}
Message-ID: <6918.050a0220@mx.google.com>
Date: Sun, 15 Nov 2026 02:00:05 -0800 (PST)
Content-Type: multipart/report; boundary="0000000000001f2e3d0643a1b2c3"; report-type=delivery-status

--0000000000001f2e3d0643a1b2c3
Content-Type: multipart/related; boundary="0000000000001f2e4d0643a1b2c4"

--0000000000001f2e4d0643a1b2c4
Content-Type: multipart/alternative; boundary="0000000000001f2e5d0643a1b2c5"

--0000000000001f2e5d0643a1b2c5
Content-Type: text/plain; charset="UTF-8"

** Address not found **

--0000000000001f2e5d0643a1b2c5--
--0000000000001f2e4d0643a1b2c4--
--0000000000001f2e3d0643a1b2c3
Content-Type: message/delivery-status

Reporting-MTA: dns; googlemail.com
Received-From-MTA: dns; sender@shop.example
Arrival-Date: Sun, 15 Nov 2026 02:00:04 -0800 (PST)
X-Original-Message-ID: {MESSAGE_ID}

Final-Recipient: rfc822; {ADA}
Action: failed
Status: 5.1.1
Remote-MTA: dns; gmail-smtp-in.l.google.com. (192.0.2.8, the server for the domain mail.example.)
Diagnostic-Code: smtp; 550-5.1.1 The email account that you tried to reach does not exist.
 550 5.1.1  https://support.google.com/mail/?p=NoSuchUser
Last-Attempt-Date: Sun, 15 Nov 2026 02:00:05 -0800 (PST)

--0000000000001f2e3d0643a1b2c3
Content-Type: message/rfc822

From: Sender <sender@shop.example>
Message-ID: {MESSAGE_ID}

Hi!
--0000000000001f2e3d0643a1b2c3--
""")

QMAIL = crlf(f"""
From: MAILER-DAEMON@qmail.example
To: sender@shop.example
Subject: failure notice
Date: 15 Nov 2026 10:00:05 -0000

Hi. This is the qmail-send program at qmail.example.
I'm afraid I wasn't able to deliver your message to the following addresses.
This is a permanent error; I've given up. Sorry it didn't work out.

<{ADA}>:
192.0.2.7 does not like recipient.
Remote host said: 550 5.1.1 user unknown
Giving up on 192.0.2.7.

<bob@mail.example>:
Remote host said: 552 5.2.2 mailbox is full

--- Below this line is a copy of the message.

Return-Path: <sender@shop.example>
From: Sender <sender@shop.example>
Message-ID: {MESSAGE_ID}

<eve@mail.example>:
not a recipient
""")

SMTPUTF8 = crlf(f"""
From: MAILER-DAEMON@relay.example
To: sender@shop.example
Content-Type: multipart/report; report-type=delivery-status; boundary=u

--u
Content-Type: text/plain

no.
--u
Content-Type: message/global-delivery-status
Content-Transfer-Encoding: 8bit

Reporting-MTA: dns; mx1.relay.example

Final-Recipient: utf-8; j\\x{{F8}}rn@b\\x{{FC}}cher.example
Action: failed
Status: 5.1.1

--u
Content-Type: message/global-headers

Message-ID: {MESSAGE_ID}

--u--
""")

BASE64 = crlf(f"""
To: sender@shop.example
Content-Type: multipart/report; report-type=delivery-status; boundary=b

--b
Content-Type: message/delivery-status
Content-Transfer-Encoding: base64

UmVwb3J0aW5nLU1UQTogZG5zOyBteDEKCkZpbmFsLVJlY2lwaWVudDogcmZjODIyOyBhZGFAbWFp
bC5leGFtcGxlCkFjdGlvbjogZmFpbGVkClN0YXR1czogNS4xLjEK

--b
Content-Type: message/rfc822-headers

Message-ID: {MESSAGE_ID}
--b--
""")

ARF = crlf(f"""
From: <abusedesk@isp.example>
Date: Sun, 15 Nov 2026 11:00:00 +0000
Subject: FW: Hello
To: <abuse@shop.example>
MIME-Version: 1.0
Content-Type: multipart/report; report-type=feedback-report;
     boundary="part1_13d.2e68ed54_boundary"

--part1_13d.2e68ed54_boundary
Content-Type: text/plain; charset="US-ASCII"

This is an email abuse report.

--part1_13d.2e68ed54_boundary
Content-Type: message/feedback-report

Feedback-Type: abuse
User-Agent: SomeGenerator/1.0
Version: 1
Original-Mail-From: <sender@shop.example>
Original-Rcpt-To: <{ADA}>
Received-Date: Sun, 15 Nov 2026 10:30:00 +0000
Source-IP: 192.0.2.1

--part1_13d.2e68ed54_boundary
Content-Type: message/rfc822
Content-Disposition: inline

Received: from mx1.relay.example by isp.example; Sun, 15 Nov 2026 10:00:02 +0000
From: <sender@shop.example>
To: <{ADA}>
Subject: Hello
Message-ID: {MESSAGE_ID}

Hi!
--part1_13d.2e68ed54_boundary--
""")

ARF_REDACTED = ARF.replace(f"Original-Rcpt-To: <{ADA}>\r\n".encode(), b"").replace(
    f"To: <{ADA}>".encode(), b"To: <redacted>"
)
ARF_OPT_OUT = ARF.replace(b"Feedback-Type: abuse", b"Feedback-Type: opt-out")
ARF_NOT_SPAM = ARF.replace(b"Feedback-Type: abuse", b"Feedback-Type: not-spam")

AUTO_REPLY = crlf(f"""
From: {ADA}
To: sender@shop.example
Subject: Out of office: Hello
Auto-Submitted: auto-replied
In-Reply-To: {MESSAGE_ID}

I am away until Monday. <bob@mail.example>: can help.
""")
