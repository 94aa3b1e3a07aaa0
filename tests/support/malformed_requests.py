"""Requests that the data plane must refuse: a name, the bytes, the status, and a word of the reason.

Each is answered once, in the OpenAI error shape, and its connection is closed; the handler never sees it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Malformed:
    name: str
    raw: bytes
    status: int
    word: str


def _post(*fields: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((b"POST /v1/x HTTP/1.1", b"Host: a", *fields, b"", b"")) + body


def _get(*fields: bytes, line: bytes = b"GET / HTTP/1.1", host: bytes = b"Host: a") -> bytes:
    return b"\r\n".join((line, *((host,) if host else ()), *fields, b"", b""))


CHUNKED = b"Transfer-Encoding: chunked"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"

FRAMING = [
    Malformed("two equal lengths", _post(b"Content-Length: 3", b"Content-Length: 3", body=b"abc"), 400, "Length"),
    Malformed("two different lengths", _post(b"Content-Length: 3", b"Content-Length: 4", body=b"abcd"), 400, "Length"),
    Malformed("a list of lengths", _post(b"Content-Length: 3, 3", body=b"abc"), 400, "Content-Length"),
    Malformed("plus sign", _post(b"Content-Length: +3", body=b"abc"), 400, "Content-Length"),
    Malformed("minus sign", _post(b"Content-Length: -3", body=b"abc"), 400, "Content-Length"),
    Malformed("hexadecimal length", _post(b"Content-Length: 0x3", body=b"abc"), 400, "Content-Length"),
    Malformed("underscored length", _post(b"Content-Length: 1_0", body=b"0123456789"), 400, "Content-Length"),
    Malformed("length with a space", _post(b"Content-Length: 1 0", body=b"0123456789"), 400, "Content-Length"),
    Malformed("empty length", _post(b"Content-Length:", body=b"abc"), 400, "Content-Length"),
    Malformed("Arabic digits", _post("Content-Length: \u0663".encode(), body=b"abc"), 400, "Content-Length"),
    Malformed("length beyond 64 bit", _post(b"Content-Length: 99999999999999999999999"), 413, "larger"),
    Malformed("length over the limit", _post(b"Content-Length: 67108865"), 413, "larger"),
    Malformed("length then chunked", _post(b"Content-Length: 5", CHUNKED, body=b"0\r\n\r\n" + SMUGGLED), 400, "both"),
    Malformed("chunked then length", _post(CHUNKED, b"Content-Length: 5", body=b"0\r\n\r\n" + SMUGGLED), 400, "both"),
    Malformed("chunked, identity", _post(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"), 400, "chunked"),
    Malformed("identity", _post(b"Transfer-Encoding: identity", body=b"0\r\n\r\n"), 400, "chunked"),
    Malformed("xchunked", _post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"), 400, "chunked"),
    Malformed("chunkedx", _post(b"Transfer-Encoding: chunkedx", body=b"0\r\n\r\n"), 400, "chunked"),
    Malformed("quoted chunked", _post(b'Transfer-Encoding: "chunked"', body=b"0\r\n\r\n"), 400, "chunked"),
    Malformed("chunked twice", _post(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"), 400, "chunked"),
    Malformed("two codings fields", _post(CHUNKED, CHUNKED, body=b"0\r\n\r\n"), 400, "Transfer-Encoding"),
    Malformed("two fields hide one", _post(b"Transfer-Encoding: x", CHUNKED, body=b"0\r\n\r\n"), 400, "Transfer"),
    Malformed("empty coding", _post(b"Transfer-Encoding:", body=b"0\r\n\r\n"), 400, "chunked"),
    Malformed("vertical tab", _post(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"), 400, ""),
    Malformed(
        "coding with a space before the colon", _post(b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"), 400, ""
    ),
    Malformed("gzip, chunked", _post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), 501, "coding"),
    Malformed("coding in HTTP/1.0", _get(CHUNKED, line=b"POST / HTTP/1.0"), 400, "HTTP/1.0"),
]

CHUNKS = [
    Malformed("size is not hexadecimal", _post(CHUNKED, body=b"zz\r\nabc\r\n0\r\n\r\n"), 400, "size"),
    Malformed("size with 0x", _post(CHUNKED, body=b"0x3\r\nabc\r\n0\r\n\r\n"), 400, "size"),
    Malformed("negative size", _post(CHUNKED, body=b"-3\r\nabc\r\n0\r\n\r\n"), 400, "size"),
    Malformed("empty size", _post(CHUNKED, body=b"\r\nabc\r\n0\r\n\r\n"), 400, "size"),
    Malformed("space before size", _post(CHUNKED, body=b" 3\r\nabc\r\n0\r\n\r\n"), 400, "size"),
    Malformed("space after size", _post(CHUNKED, body=b"3 \r\nabc\r\n0\r\n\r\n"), 400, "size"),
    Malformed("size over 64 bit", _post(CHUNKED, body=b"fffffffffffffffff\r\nabc"), 400, "size"),
    Malformed("size padded with zeros", _post(CHUNKED, body=b"0" * 40 + b"3\r\nabc\r\n0\r\n\r\n"), 400, "size"),
    Malformed("chunk over the limit", _post(CHUNKED, body=b"4000001\r\nabc"), 413, "larger"),
    Malformed("bare LF after size", _post(CHUNKED, body=b"3\nabc\r\n0\r\n\r\n"), 400, "CR LF"),
    Malformed("bare LF after data", _post(CHUNKED, body=b"3\r\nabc\n0\r\n\r\n"), 400, ""),
    Malformed("data longer than size", _post(CHUNKED, body=b"3\r\nabcd\r\n0\r\n\r\n"), 400, "longer"),
    Malformed("data longer, no line end", _post(CHUNKED, body=b"3\r\nabcdef"), 400, "longer"),
    Malformed("bare LF after the last size", _post(CHUNKED, body=b"0\n\n"), 400, "CR LF"),
    Malformed("NUL in an extension", _post(CHUNKED, body=b"3;a=\0\r\nabc\r\n0\r\n\r\n"), 400, "size"),
    Malformed("bare CR in an extension", _post(CHUNKED, body=b"3;a\rb\r\nabc\r\n0\r\n\r\n"), 400, "size"),
    Malformed("endless extension", _post(CHUNKED, body=b"3;" + b"a" * 2000), 400, "too long"),
    Malformed("many extensions", _post(CHUNKED, body=(b"1;" + b"a" * 900 + b"\r\nx\r\n") * 100), 400, "framing"),
    Malformed("trailer without colon", _post(CHUNKED, body=b"0\r\nabc\r\n\r\n"), 400, "trailer"),
    Malformed("trailer with a space", _post(CHUNKED, body=b"0\r\na : b\r\n\r\n"), 400, "trailer"),
    Malformed("folded trailer", _post(CHUNKED, body=b"0\r\na: b\r\n c\r\n\r\n"), 400, "trailer"),
    Malformed("trailer reframes", _post(CHUNKED, body=b"0\r\nContent-Length: 5\r\n\r\n"), 400, "framing"),
    Malformed(
        "endless trailers", _post(CHUNKED, body=b"0\r\n" + (b"a: " + b"b" * 900 + b"\r\n") * 100), 400, "framing"
    ),
]

LINES = [
    Malformed("bare LF everywhere", b"GET / HTTP/1.1\nHost: a\n\n", 400, "CR LF"),
    Malformed("bare LF after the line", b"GET / HTTP/1.1\nHost: a\r\n\r\n", 400, ""),
    Malformed("bare LF after a field", b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400, ""),
    Malformed("bare CR in a value", _get(b"X: a\rY: b"), 400, "malformed"),
    Malformed("bare CR after the line", b"GET / HTTP/1.1\rHost: a\r\n\r\n", 400, ""),
    Malformed("folded field", _get(b"X: a", b" b"), 400, "malformed"),
    Malformed("folded with a tab", _get(b"X: a", b"\tb"), 400, "malformed"),
    Malformed("first field is folded", b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400, ""),
    Malformed("space before the colon", b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, ""),
    Malformed("tab before the colon", _get(b"X\t: a"), 400, "malformed"),
    Malformed("space in a name", _get(b"X Y: a"), 400, "malformed"),
    Malformed("empty name", _get(b": a"), 400, "malformed"),
    Malformed("no colon", _get(b"X"), 400, "malformed"),
    Malformed("NUL in a value", _get(b"X: a\0b"), 400, "malformed"),
    Malformed("NUL in a name", _get(b"X\0: a"), 400, "malformed"),
    Malformed("control character in a value", _get(b"X: a\x01b"), 400, "malformed"),
    Malformed("DEL in a value", _get(b"X: a\x7fb"), 400, "malformed"),
    Malformed("quoted name", _get(b'"X": a'), 400, "malformed"),
    Malformed("name beyond ASCII", _get("\u00dc: a".encode()), 400, "malformed"),
    Malformed("two spaces in the line", _get(line=b"GET  / HTTP/1.1"), 400, "line"),
    Malformed("tab in the line", _get(line=b"GET\t/ HTTP/1.1"), 400, "line"),
    Malformed("space at the line's end", _get(line=b"GET / HTTP/1.1 "), 400, "line"),
    Malformed("space at the line's start", _get(line=b" GET / HTTP/1.1"), 400, "line"),
    Malformed("line beyond ASCII", _get(line="GET /\u00e9 HTTP/1.1".encode()), 400, "line"),
    Malformed("control character in the target", _get(line=b"GET /\x01 HTTP/1.1"), 400, ""),
    Malformed("NUL in the target", _get(line=b"GET /\0 HTTP/1.1"), 400, ""),
    Malformed("absolute target", _get(line=b"GET http://a/ HTTP/1.1"), 400, "path"),
    Malformed("authority target", _get(line=b"GET a:80 HTTP/1.1"), 400, "path"),
    Malformed("asterisk target", _get(line=b"OPTIONS * HTTP/1.1"), 400, "path"),
    Malformed("no target", _get(line=b"GET HTTP/1.1"), 400, "line"),
    Malformed("method with a colon", _get(line=b"GE:T / HTTP/1.1"), 400, "line"),
    Malformed("lower-case method", _get(line=b"get / HTTP/1.1"), 501, "method"),
    Malformed("unknown method", _get(line=b"BREW / HTTP/1.1"), 501, "method"),
    Malformed("CONNECT", _get(line=b"CONNECT a:443 HTTP/1.1"), 501, "method"),
    Malformed("HTTP/0.9", b"GET /\r\n\r\n", 400, "line"),
    Malformed("HTTP/0.9, one line", b"GET /\r\n", 400, "line"),
    Malformed("HTTP/1.2", _get(line=b"GET / HTTP/1.2"), 505, "HTTP/1.1"),
    Malformed("HTTP/2.0", _get(line=b"GET / HTTP/2.0"), 505, "HTTP/1.1"),
    Malformed("HTTP/11.1", _get(line=b"GET / HTTP/11.1"), 400, "version"),
    Malformed("HTTP/1.10", _get(line=b"GET / HTTP/1.10"), 400, "version"),
    Malformed("lower-case version", _get(line=b"GET / http/1.1"), 400, "version"),
    Malformed("RTSP", _get(line=b"OPTIONS / RTSP/1.0"), 400, "version"),
    Malformed("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/1.1"),
    Malformed("TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, ""),
    Malformed("noise", bytes(range(256)) * 4, 400, ""),
]

HOSTS = [
    Malformed("no host", _get(host=b""), 400, "Host"),
    Malformed("two hosts", _get(b"Host: b"), 400, "Host"),
    Malformed("two equal hosts", _get(b"Host: a"), 400, "Host"),
    Malformed("host with a path", _get(host=b"Host: a/b"), 400, "Host"),
    Malformed("host with a space", _get(host=b"Host: a b"), 400, "Host"),
    Malformed("host with a user", _get(host=b"Host: u@a"), 400, "Host"),
    Malformed("host with a wrong port", _get(host=b"Host: a:80x"), 400, "Host"),
    Malformed("port without host", _get(host=b"Host: :80"), 400, "Host"),
    Malformed("list of hosts", _get(host=b"Host: a, b"), 400, "Host"),
]

LIMITS = [
    Malformed("long target", _get(line=b"GET /" + b"a" * 9000 + b" HTTP/1.1"), 414, "target"),
    Malformed("endless target", b"GET /" + b"a" * 9000, 414, "target"),
    Malformed("long value", _get(b"X: " + b"a" * 40_000), 431, "fields"),
    Malformed("endless value", b"GET / HTTP/1.1\r\nX: " + b"a" * 40_000, 431, "fields"),
    Malformed("many fields", _get(*[b"X-%d: y" % at for at in range(120)]), 431, "fields"),
    Malformed("other expectation", _post(b"Expect: 200-ok", b"Content-Length: 3"), 417, "100-continue"),
    Malformed("two expectations", _post(b"Expect: 100-continue", b"Expect: x", b"Content-Length: 3"), 400, "Expect"),
]

ALL = [*FRAMING, *CHUNKS, *LINES, *HOSTS, *LIMITS]
