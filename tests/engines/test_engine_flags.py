"""Option names out of the --help of any build."""

from __future__ import annotations

from sbproxy.engines.core.flags import parse_help

HELP = """\
----- common params -----

-h,    --help, --usage                  say this
-t,    --threads N                      how many threads (default: -1)
                                        (env: ENGINE_THREADS)
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        one pool for all slots; see --parallel
--mmap, --no-mmap                       map the file
-fa,   --flash-attn [on|off|auto]       attention kernel
--tensor-split N0,N1,N2,...             fractions
--draft, --draft-max N                  the argument has been removed. use --spec-draft-n-max
--spec-ngram-size-n N                   the argument
                                        has been removed. use another
--pooling {none,mean,
          cls}                          -not-an-option at the margin of its column
--last                                  the end
"""


def test_every_alias_and_negation_is_a_name() -> None:
    names = parse_help(HELP).names
    assert {"-h", "--help", "--usage", "-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"} <= names
    assert {"--mmap", "--no-mmap", "--tensor-split", "--last"} <= names


def test_explanations_are_not_names() -> None:
    names = parse_help(HELP).names
    assert "--parallel" not in names
    assert "-not-an-option" not in names


def test_what_the_text_calls_removed_is_unknown() -> None:
    names = parse_help(HELP).names
    assert not {"--draft", "--draft-max", "--spec-draft-n-max", "--spec-ngram-size-n"} & names


def test_which_take_a_value() -> None:
    flags = parse_help(HELP)
    assert {"-t", "--threads", "-fa", "--flash-attn", "--tensor-split", "--pooling"} == flags.valued


def test_older_builds_indent_their_options() -> None:
    flags = parse_help("usage: server [options]\n\n  -m FNAME, --model FNAME  path\n  --embedding   on\n")
    assert "--embedding" in flags.names
    assert "-m" in flags.names


def test_no_help_no_names() -> None:
    assert parse_help("Segmentation fault\n").names == frozenset()


def test_first_known() -> None:
    flags = parse_help(HELP)
    assert flags.first("--no-ui", "--no-mmap", "--mmap") == "--no-mmap"
    assert flags.first("--no-ui") is None
